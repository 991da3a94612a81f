//! How much memory something takes: what the process grows by while it is made. That is true only
//! before much else was allocated and freed.

use anyhow::{Context, Result};
use std::fs;

/// What `make` gives, and by how many bytes the process grew.
pub fn grown_by<T>(make: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let before = resident_bytes()?;
    let made = make()?;
    Ok((made, resident_bytes()?.saturating_sub(before)))
}

/// What the kernel holds in memory for this process.
fn resident_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kibibytes = kibibytes.context("/proc/self/status tells VmRSS in kB")?;
    Ok(kibibytes.parse::<u64>()? << 10)
}
