//! placeholder
use anyhow::Result;
use std::path::Path;
pub fn run(_out: &Path) -> Result<()> {
    Ok(())
}
