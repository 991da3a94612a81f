//! Compiles the eBPF programs in `bpf/` with the system's clang.
use std::env;
use std::path::PathBuf;
use std::process::{Command, exit};

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    // Cargo sets all of these for build scripts.
    let from_cargo = |name| env::var(name).unwrap_or_else(|_| fail(&format!("{name} is not set")));
    let object = PathBuf::from(from_cargo("OUT_DIR")).join("flows.bpf.o");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let byte_order = match from_cargo("CARGO_CFG_TARGET_ENDIAN").as_str() {
        "big" => "bpfeb",
        _ => "bpfel",
    };
    // asm/types.h of multi-architecture distributions.
    let headers = format!("-I/usr/include/{}-linux-gnu", from_cargo("CARGO_CFG_TARGET_ARCH"));
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", byte_order, &headers])
        .args(["-c", "bpf/flows.bpf.c", "-o"])
        .arg(&object)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("{clang}: {status}")),
        Err(error) => fail(&format!("{clang}: {error}")),
    }
}

fn fail(reason: &str) -> ! {
    eprintln!("keeptime-linux: cannot compile bpf/flows.bpf.c: {reason}");
    eprintln!("It needs clang and the eBPF headers: on Debian and Ubuntu, `clang libbpf-dev`.");
    exit(1)
}
