//! Directories that look like the kernel's.

use super::V2;
use std::path::Path;
use tempfile::TempDir;

/// A directory that looks like a hierarchy of version 2.
pub(super) fn v2_fixture(controllers: &str) -> (TempDir, V2) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("cgroup.controllers"), controllers).unwrap();
    std::fs::write(directory.path().join("cgroup.subtree_control"), "memory\n").unwrap();
    let v2 = V2::at(directory.path(), 0).unwrap();
    (directory, v2)
}

/// Makes a directory with files of these names and contents.
pub(super) fn with_files(directory: &Path, files: &[(&str, &str)]) {
    std::fs::create_dir_all(directory).unwrap();
    for (name, content) in files {
        std::fs::write(directory.join(name), content).unwrap();
    }
}
