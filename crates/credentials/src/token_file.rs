//! The token file on the disk: read, or changed as a whole under a lock, so that neither a reader nor a
//! second writer meets half of it.

use crate::files::{self, FileError, Secrecy};
use crate::tokens::Tokens;
use keeptime_model::Invalid;
use std::path::Path;
use std::time::Duration;

/// What stands above the entries.
const HEADER: &str =
    "# Tokens of Keeptime: digests only. `keeptime broker token` changes this file.\n\n";

/// Longer than other writers take.
const LOCKED_WITHIN: Duration = Duration::from_secs(5);

/// Reads the tokens.
///
/// # Errors
/// If the file cannot be read, others can read it, or it is wrong.
pub fn load(path: &Path) -> Result<Tokens, FileError> {
    let text = files::read(path, Secrecy::Secret)?;
    let content = |source| FileError::Content { path: path.into(), source };
    Tokens::from_toml(&text).map_err(content)
}

/// Changes the tokens: all of what `change` does is there afterwards, or nothing. A file that is not
/// there is made, and belongs to whom its directory belongs.
///
/// # Errors
/// As [`load`]; if it cannot be written, or another program has its lock; and what `change` refuses.
pub fn change<T>(
    path: &Path,
    change: impl FnOnce(&mut Tokens) -> Result<T, Invalid>,
) -> Result<T, FileError> {
    // Let go of at the end, whatever becomes of this program.
    let _locked = files::lock(path, LOCKED_WITHIN)?;
    let failed = |source| FileError::Write { path: path.into(), source };
    let is_there = path.try_exists().map_err(failed)?;
    let mut tokens = if is_there { load(path)? } else { Tokens::default() };
    let content = |source| FileError::Content { path: path.into(), source };
    let outcome = change(&mut tokens).map_err(content)?;
    files::replace(path, &format!("{HEADER}{}", tokens.to_toml()), Secrecy::Secret)?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::RANDOM_BYTES;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn changes_are_kept_and_a_refused_one_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        let add = |byte: u8| {
            change(&path, |tokens| tokens.add("ada".parse().unwrap(), None, &[byte; RANDOM_BYTES]))
        };
        add(1).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert!(fs::read_to_string(&path).unwrap().starts_with("# Tokens of Keeptime"));
        assert!(matches!(add(1), Err(FileError::Content { .. })), "the same name again");
        add(2).unwrap();
        assert_eq!(load(&path).unwrap().all().len(), 2);
        let files = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(files, 2, "nothing is left beside it but its lock");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(add(3), Err(FileError::Exposed { .. })));
    }

    #[test]
    fn who_holds_the_directory_holds_up_nobody() {
        // Any user may open a directory that they can read, and lock it for as long as they like.
        let directory = tempfile::tempdir().unwrap();
        let held = fs::File::open(directory.path()).unwrap();
        held.try_lock().unwrap();
        let path = directory.path().join("tokens.toml");
        let add = |tokens: &mut Tokens| {
            tokens.add("ada".parse().unwrap(), None, &[1; RANDOM_BYTES]).map(drop)
        };
        change(&path, add).unwrap();
        assert_eq!(load(&path).unwrap().all().len(), 1);
    }

    #[test]
    fn writers_at_the_same_time_lose_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        std::thread::scope(|scope| {
            for byte in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    change(path, |tokens| {
                        tokens.add("ada".parse().unwrap(), None, &[byte; RANDOM_BYTES])
                    })
                    .unwrap()
                });
            }
        });
        assert_eq!(load(&path).unwrap().all().len(), 8);
    }
}
