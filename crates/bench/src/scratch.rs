//! A place for files of a benchmark, on the disk that results are written to.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Appended before each sync.
const SYNC_BYTES: usize = 4_096;

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

    /// How long the file system takes to make an append of 4 KiB durable, `count` times: milliseconds.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn sync_ms(&self, count: usize) -> Result<Vec<f64>> {
        let mut file = File::create(self.0.join("syncs"))?;
        let bytes = [0x5a; SYNC_BYTES];
        let times = (0..count).map(|_| {
            timed(|| {
                file.write_all(&bytes)?;
                Ok(file.sync_data()?)
            })
        });
        times.map(|outcome| outcome.map(|(milliseconds, ())| milliseconds)).collect()
    }
}

/// The milliseconds that `work` took, and what it returned.
///
/// # Errors
/// As `work` has them.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let start = Instant::now();
    let value = work()?;
    Ok((start.elapsed().as_secs_f64() * 1e3, value))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Whatever stays is removed by the next run.
        let _ = fs::remove_dir_all(&self.0);
    }
}
