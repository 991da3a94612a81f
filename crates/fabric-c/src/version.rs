//! `ktf_version` and `ktf_is_built_in`: which library this is.

use crate::context::protocol;
use fabric::Protocol;
use std::ffi::{c_char, c_int};

/// As C has texts.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

#[unsafe(no_mangle)]
pub extern "C" fn ktf_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn ktf_is_built_in(between_nodes: u8) -> c_int {
    c_int::from(protocol(between_nodes).is_some_and(Protocol::is_built_in))
}

#[cfg(test)]
mod tests {
    /// Whoever changes the version of the workspace changes the header's.
    #[test]
    fn the_header_has_the_version_of_the_library() {
        let header = include_str!("../include/keeptime_fabric.h");
        let whole = format!("\"{}\"", env!("CARGO_PKG_VERSION"));
        for (name, value) in [
            ("", whole.as_str()),
            ("_MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
            ("_MINOR", env!("CARGO_PKG_VERSION_MINOR")),
            ("_PATCH", env!("CARGO_PKG_VERSION_PATCH")),
        ] {
            let line = format!("#define KTF_VERSION{name} {value}\n");
            assert!(header.contains(&line), "{line}");
        }
    }
}
