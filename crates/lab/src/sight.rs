//! What a node sees of the files of this machine.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a node has at a path of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// The same file or directory.
    Same,
    /// Another one, of its own: below `/tmp`, say.
    Another,
    /// None.
    Nothing,
}

/// What the node that process `init` is the first of has at `path`, or, if there is nothing at that path here, in
/// the directory that it would be in. What is not there either is nobody's.
pub(crate) fn look(init: i32, path: &Path) -> Sight {
    let own = |path: &Path| Some((path.canonicalize().ok()?, fs::metadata(path).ok()?));
    let Some((path, here)) = own(path).or_else(|| own(path.parent()?)) else {
        return Sight::Same;
    };
    let inside = PathBuf::from(format!("/proc/{init}/root"));
    match fs::metadata(inside.join(path.strip_prefix("/").unwrap_or(&path))) {
        Ok(there) if number(&there) == number(&here) => Sight::Same,
        Ok(_) => Sight::Another,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Sight::Nothing,
        // Without the right to look nothing is known against it.
        Err(_) => Sight::Same,
    }
}

fn number(of: &Metadata) -> (u64, u64) {
    (of.dev(), of.ino())
}
