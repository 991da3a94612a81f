//! The file beside a ledger that its writer holds locked: who writes, and up to where it answered.
//!
//! The second tells a write that was torn before anyone relied on it (nothing is lost) from one that
//! was acknowledged and is gone (damage): the store's own log ends at the first bad byte in both
//! cases. The file is written after the sync and not synced itself, so after a power failure it may
//! be old, never too new; one that cannot be read says nothing.

use crate::digest::Digest;
use crate::error::LedgerError;
use crate::record::{Epoch, Revision};
use crate::sqlite::schema::Point;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a ledger's path gets for the name of this file.
const SUFFIX: &str = "-writer";
/// More than the file is ever long.
const LENGTH_MAX: u64 = 1_024;

/// The lock, held until dropped.
#[derive(Debug)]
pub struct Holder {
    file: File,
}

impl Holder {
    /// Takes the lock of the ledger at `ledger`; with it comes what its writers acknowledged so far.
    pub fn take(ledger: &Path) -> Result<(Self, Option<Point>), LedgerError> {
        let path = path_of(ledger);
        let failed = |source: io::Error| LedgerError::Store {
            action: "open",
            place: path.display().to_string(),
            source: Box::new(source),
        };
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            // Whoever can open it can hold the lock, and keep the writer out.
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        let locked = file.try_lock();
        let mut text = String::new();
        // What is no text is unreadable, and an unreadable file says nothing.
        let _ = (&mut file).take(LENGTH_MAX).read_to_string(&mut text);
        match locked {
            Ok(()) => Ok((Self { file }, parse(&text))),
            Err(TryLockError::WouldBlock) => {
                Err(LedgerError::InUse { path: ledger.into(), holder: holder_pid(&text) })
            }
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    /// Notes that everything up to `point` is durable.
    pub fn acknowledge(&self, epoch: Epoch, point: Point) {
        let text = format(std::process::id(), epoch, point);
        // The batch is durable whether or not this can be noted: what is weaker without it is only
        // the next opening's search for damage.
        let _ = self.file.write_all_at(text.as_bytes(), 0);
    }
}

/// The file for the ledger at `ledger`.
pub fn path_of(ledger: &Path) -> PathBuf {
    let mut name = OsString::from(ledger);
    name.push(SUFFIX);
    name.into()
}

/// Always of the same length, so that a new text covers the old one.
fn format(pid: u32, epoch: Epoch, point: Point) -> String {
    let (epoch, revision) = (epoch.get(), point.revision.get());
    let text = format!(
        "writer of a keeptime ledger\npid {pid:010}\nepoch {epoch:020}\n\
         acknowledged {revision:020} {}\n",
        point.chain
    );
    let sum = Digest::of(&[text.as_bytes()]);
    format!("{text}digest {sum}\n")
}

fn parse(text: &str) -> Option<Point> {
    let (body, sum) = text.trim_end().split_once("digest ")?;
    let field = |name: &str| body.lines().find_map(|line| line.strip_prefix(name));
    let (revision, chain) = field("acknowledged ")?.split_once(' ')?;
    let matches = Digest::of(&[body.as_bytes()]).to_string() == sum;
    matches.then_some(Point {
        revision: Revision::new(revision.parse().ok()?),
        chain: parse_digest(chain)?,
    })
}

fn parse_digest(text: &str) -> Option<Digest> {
    let number = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then_some(Digest(number.to_be_bytes()))
}

/// The file may just be written: its digest does not matter for this.
fn holder_pid(text: &str) -> Option<u32> {
    text.lines().find_map(|line| line.strip_prefix("pid "))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_was_acknowledged_reads_back_and_damage_says_nothing() {
        let point = Point { revision: Revision::new(77), chain: Digest([0xab; 16]) };
        let text = format(12, Epoch::new(3), point);
        assert_eq!(parse(&text), Some(point));
        assert_eq!(holder_pid(&text), Some(12));
        for at in 0..text.len() - 1 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let read = String::from_utf8(bytes).ok().and_then(|text| parse(&text));
            assert!(read.is_none(), "byte {at}");
        }
        assert_eq!(parse(""), None);
    }

    // Who reads a ledger is not to hold up its writer.
    #[test]
    fn the_lock_is_its_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("ledger.db");
        let (_holder, _) = Holder::take(&ledger).unwrap();
        let mode = std::fs::metadata(path_of(&ledger)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
    }

    #[test]
    fn the_document_shows_what_is_written() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/ledger.md");
        let document = std::fs::read_to_string(path).unwrap();
        let point = Point { revision: Revision::new(77), chain: Digest([0xab; 16]) };
        let text = format(4_711, Epoch::new(3), point);
        for line in text.lines() {
            assert!(document.contains(&format!("\n {line}\n")), "{line}");
        }
        assert!(document.contains(&format!("Always {} bytes", text.len())));
    }

    #[test]
    fn a_second_holder_is_told_about_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("ledger.db");
        let (first, _) = Holder::take(&ledger).unwrap();
        first.acknowledge(Epoch::new(1), Point::default());
        match Holder::take(&ledger) {
            Err(LedgerError::InUse { holder, .. }) => {
                assert_eq!(holder, Some(std::process::id()));
            }
            other => panic!("{other:?}"),
        }
        drop(first);
        assert_eq!(Holder::take(&ledger).unwrap().1, Some(Point::default()));
    }
}
