//! The remote shell that a launcher of MPI is told to use: a script for one run.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A script that starts a command on another node, as `ssh HOST COMMAND` would. It goes with this.
#[derive(Debug)]
pub struct RemoteLauncher {
    path: PathBuf,
}

impl RemoteLauncher {
    /// The script at `path`, whose directory is there.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn new(path: PathBuf, script: &str) -> Result<Self> {
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(script.as_bytes())?;
            file.set_permissions(fs::Permissions::from_mode(0o700))
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RemoteLauncher {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
