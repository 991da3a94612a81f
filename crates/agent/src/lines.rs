//! What is said line by line, whole and within a bound: on an agent's socket, to the broker, and within a run.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, ErrorKind, Read, Write};

/// Says `value` in one line of JSON.
///
/// # Errors
/// If whoever listens is gone, or does not take it in time.
pub fn say(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)?;
    // What was taken may not have left yet.
    to.flush()
}

/// Goes on with the line that `begun` is the beginning of; whether it is whole, its end included. Not so where nobody says
/// anything any more.
///
/// # Errors
/// What reading fails with; after a time-out it can be gone on with. [`ErrorKind::InvalidData`] of one that is longer than
/// `most` bytes, which is not read further, and [`ErrorKind::UnexpectedEof`] where who spoke is gone in the middle.
pub fn go_on(from: &mut impl BufRead, begun: &mut Vec<u8>, most: u64) -> io::Result<bool> {
    let room = most.saturating_sub(begun.len() as u64);
    from.by_ref().take(room).read_until(b'\n', begun)?;
    match begun.last() {
        None => Ok(false),
        Some(b'\n') => Ok(true),
        Some(_) if begun.len() as u64 >= most => {
            let told = format!("a line is longer than {most} bytes, the most that is read");
            Err(io::Error::new(ErrorKind::InvalidData, told))
        }
        Some(_) => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// The next line, its end included; nothing where nobody says anything any more.
///
/// # Errors
/// As [`go_on`].
pub fn next(from: &mut impl BufRead, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    Ok(go_on(from, &mut line, most)?.then_some(line))
}

/// What the next line says.
///
/// # Errors
/// As [`next`]; [`ErrorKind::UnexpectedEof`] also where there is none, and what is wrong where it says something else.
pub fn hear<T: DeserializeOwned>(from: &mut impl BufRead, most: u64) -> io::Result<T> {
    let line = next(from, most)?.ok_or(ErrorKind::UnexpectedEof)?;
    Ok(serde_json::from_slice(&line)?)
}

/// Whether it was only not said in time.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_whole_or_it_is_said_why_not() {
        let next = |text: &str, most| {
            let mut from = text.as_bytes();
            next(&mut from, most).map_err(|error| error.kind())
        };
        assert_eq!(next("one\ntwo\n", 4).unwrap().unwrap(), b"one\n");
        assert_eq!(next("\n", 4).unwrap().unwrap(), b"\n");
        assert_eq!(next("four\n", 4), Err(ErrorKind::InvalidData));
        assert_eq!(next("on", 4), Err(ErrorKind::UnexpectedEof));
        assert_eq!(next("", 4), Ok(None));
        let heard = |text: &str| hear::<u32>(&mut text.as_bytes(), 4).map_err(|error| error.kind());
        assert_eq!(heard("42\n"), Ok(42));
        assert_eq!(heard(""), Err(ErrorKind::UnexpectedEof));
        assert_eq!(heard("one\n"), Err(ErrorKind::InvalidData));
    }
}
