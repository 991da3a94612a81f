//! Values as lines of JSON, over what one process says to another.

use serde::Serialize;
use std::io::{self, BufRead, Read, Write};

/// Says `value` in one line.
///
/// # Errors
/// If whoever listens is gone, or does not take it in time.
pub fn write(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// One line of `most` bytes at the most; an empty one where nothing comes any more.
///
/// # Errors
/// If whoever speaks is gone, or says nothing in time.
pub fn read(from: &mut impl BufRead, most: u64) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(most).read_until(b'\n', &mut line)?;
    Ok(line)
}
