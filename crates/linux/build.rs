//! Compiles the eBPF programs in `bpf/` with the system's clang.
use std::env;
use std::path::PathBuf;
use std::process::{Command, exit};

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    // Cargo sets all of these for build scripts.
    let from_cargo = |name| env::var(name).unwrap_or_else(|_| fail(&format!("{name} is not set")));
    let out = PathBuf::from(from_cargo("OUT_DIR"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let byte_order = match from_cargo("CARGO_CFG_TARGET_ENDIAN").as_str() {
        "big" => "bpfeb",
        _ => "bpfel",
    };
    // asm/types.h of multi-architecture distributions.
    let headers = format!("-I/usr/include/{}-linux-gnu", from_cargo("CARGO_CFG_TARGET_ARCH"));
    // The policer compares and swaps: instructions of the third version, in kernels since 5.12.
    for (program, version) in [("flows", "generic"), ("police", "v3")] {
        let status = Command::new(&clang)
            .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", byte_order, &headers])
            .arg(format!("-mcpu={version}"))
            .args(["-c", &format!("bpf/{program}.bpf.c"), "-o"])
            .arg(out.join(format!("{program}.bpf.o")))
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => fail(&format!("{program}: {clang}: {status}")),
            Err(error) => fail(&format!("{program}: {clang}: {error}")),
        }
    }
}

fn fail(reason: &str) -> ! {
    eprintln!("keeptime-linux: cannot compile bpf/{reason}");
    eprintln!("It needs clang and the eBPF headers: on Debian and Ubuntu, `clang libbpf-dev`.");
    exit(1)
}
