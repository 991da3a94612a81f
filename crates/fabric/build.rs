//! Compiles what speaks to libfabric and UCX (`native/`), where they are asked for.

fn main() {
    println!("cargo::rerun-if-changed=native");
    #[cfg(feature = "libfabric")]
    native::compile("libfabric", "libfabric-dev");
    #[cfg(feature = "ucx")]
    native::compile("ucx", "libucx-dev");
}

#[cfg(any(feature = "libfabric", feature = "ucx"))]
mod native {
    use std::process::exit;

    /// The C side of a library, which has the name of the feature, with the headers of the system's package.
    pub fn compile(name: &str, package: &str) {
        let library = pkg_config::probe_library(name).unwrap_or_else(|error| {
            eprintln!("keeptime-fabric: {error}");
            eprintln!("The feature `{name}` needs its headers: on Debian and Ubuntu, `{package}`.");
            exit(1)
        });
        cc::Build::new()
            .file(format!("native/{name}.c"))
            .includes(library.include_paths)
            .std("c11")
            .define("_POSIX_C_SOURCE", "200809L")
            .warnings(true)
            .extra_warnings(true)
            .warnings_into_errors(true)
            .compile(&format!("keeptime_fabric_{name}"));
    }
}
