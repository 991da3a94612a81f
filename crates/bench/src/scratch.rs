//! A place for files of a benchmark, on the disk that results are written to.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// A directory, removed with everything in it.
pub struct Scratch(PathBuf);

impl Scratch {
    /// The directory OUT/`name`/scratch, empty.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(out: &Path, name: &str) -> Result<Self> {
        let directory = out.join(name).join("scratch");
        // What an earlier benchmark left when it was killed.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        Ok(Self(directory))
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Whatever stays is removed by the next run.
        let _ = fs::remove_dir_all(&self.0);
    }
}
