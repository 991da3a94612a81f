//! Compiles the eBPF programs in `bpf/` with the system's clang.
use std::env;
use std::path::PathBuf;
use std::process::{Command, exit};

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    // Cargo sets all of these for build scripts.
    let from_cargo =
        |name| env::var(name).unwrap_or_else(|_| fail("*", &format!("{name} is not set")));
    let out = PathBuf::from(from_cargo("OUT_DIR"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let byte_order = match from_cargo("CARGO_CFG_TARGET_ENDIAN").as_str() {
        "big" => "bpfeb",
        _ => "bpfel",
    };
    // asm/types.h of multi-architecture distributions.
    let processor = from_cargo("CARGO_CFG_TARGET_ARCH");
    let headers = format!("-I/usr/include/{processor}-linux-gnu");
    let order =
        if processor == "x86_64" { "-UKEEPTIME_WEAK_ORDER" } else { "-DKEEPTIME_WEAK_ORDER" };
    // Atomic operations with a result came with the third instruction set, in Linux 5.12.
    let programs = [("flows", "-mcpu=generic"), ("police", "-mcpu=v3"), ("regions", "-mcpu=v3")];
    for (name, instructions) in programs {
        let status = Command::new(&clang)
            .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", byte_order, &headers])
            .args([order, instructions, "-c", &format!("bpf/{name}.bpf.c"), "-o"])
            .arg(out.join(format!("{name}.bpf.o")))
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => fail(name, &format!("{clang}: {status}")),
            Err(error) => fail(name, &format!("{clang}: {error}")),
        }
    }
}

fn fail(name: &str, reason: &str) -> ! {
    eprintln!("keeptime-linux: cannot compile bpf/{name}.bpf.c: {reason}");
    eprintln!("It needs clang and the eBPF headers: on Debian and Ubuntu, `clang libbpf-dev`.");
    exit(1)
}
