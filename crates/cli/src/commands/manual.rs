//! `keeptime completions`, `keeptime manual`: what shells and `man` know of the command line, made of its own help.

use super::Ending;
use crate::arguments::Arguments;
use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::Path;

/// Prints what `shell` needs.
///
/// # Errors
/// If it cannot be printed.
pub fn completions(shell: Shell) -> Result<Ending> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "keeptime", &mut script);
    // Whoever has read enough is no fault of the command, as with all that is printed.
    print!("{}", String::from_utf8(script)?);
    Ok(Ending::Done)
}

/// Writes a page of each command that has help to `directory`: `keeptime.1`, `keeptime-run.1` and so on.
///
/// # Errors
/// If a page cannot be written.
pub fn write(directory: &Path) -> Result<Ending> {
    let told = || format!("{}: the manual pages cannot be written", directory.display());
    std::fs::create_dir_all(directory).with_context(told)?;
    clap_mangen::generate_to(Arguments::command(), directory).with_context(told)?;
    Ok(Ending::Done)
}
