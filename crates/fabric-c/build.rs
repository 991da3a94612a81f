//! Names the shared library as programs ask for it: the number changes when they have to be compiled
//! again.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libkeeptime_fabric.so.0");
}
