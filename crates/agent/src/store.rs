//! The agent's memory of what it was assigned, for its next start: one small file, replaced whole.
//!
//! The kernel forgets in a reboot what it says, and is told again by the agent that starts then. In a simulation it is
//! a [`MemoryFile`].

use crate::book::Book;
use keeptime_files::{Mode, NEW, replace, with_suffix};
use keeptime_locks::lock;
use keeptime_model::name::Name;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use thiserror::Error;

/// The file that keeps a [`Book`].
#[derive(Debug, Clone)]
pub struct Store {
    path: PathBuf,
    /// In its place, where nothing is to be written.
    memory: Option<MemoryFile>,
}

/// A file that is not there: what a simulated agent finds again at its next start. Clones are the
/// same file.
#[derive(Debug, Clone, Default)]
pub struct MemoryFile(Arc<Mutex<Option<Vec<u8>>>>);

impl MemoryFile {
    /// What was written last; nothing if it does not exist.
    pub fn read(&self) -> Option<Vec<u8>> {
        lock(&self.0).clone()
    }

    /// Replaces it whole; nothing removes it.
    pub fn write(&self, text: Option<Vec<u8>>) {
        *lock(&self.0) = text;
    }
}

/// The file cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Reading or writing failed.
    #[error("cannot {action} {path}")]
    Io {
        /// `read`, `write` or `remove`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It holds something else.
    #[error("{path} is not a record of assignments; put back one that is, or {END_JOBS}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        #[source]
        source: serde_json::Error,
    },
    /// There is none, and jobs are enforced: an agent that knows nothing of them would end them.
    #[error(
        "there is no record of assignments at {path}, and this is enforced here: {}; put it there from where it \
         was, or {END_JOBS}",
        names(jobs)
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// What is enforced.
        jobs: BTreeSet<Name>,
    },
}

/// What to do where nobody has the record.
const END_JOBS: &str = "stop the agent's unit and end this node's jobs, with their processes, by `keeptime agent clear \
                        --config FILE --end-jobs`";

fn names(jobs: &BTreeSet<Name>) -> String {
    jobs.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
}

impl Store {
    /// The store at `path`.
    pub fn at(path: &Path) -> Self {
        Self { path: path.into(), memory: None }
    }

    /// The store in `file`.
    pub fn in_memory(file: MemoryFile) -> Self {
        Self { path: "memory".into(), memory: Some(file) }
    }

    /// What was saved last; an empty book if nothing was.
    ///
    /// # Errors
    /// If the file cannot be read or holds something else.
    pub fn load(&self) -> Result<Book, StoreError> {
        Ok(self.find()?.unwrap_or_default())
    }

    /// As [`Self::load`], where this is `enforced`: whoever does not find these jobs would end them.
    ///
    /// # Errors
    /// If the file cannot be read or holds something else, or is not there and something is enforced.
    pub fn load_beside(&self, enforced: &BTreeSet<Name>) -> Result<Book, StoreError> {
        match self.find()? {
            None if !enforced.is_empty() => {
                Err(StoreError::Missing { path: self.path.clone(), jobs: enforced.clone() })
            }
            found => Ok(found.unwrap_or_default()),
        }
    }

    fn find(&self) -> Result<Option<Book>, StoreError> {
        let text = match self.read() {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.io("read", source)),
        };
        let book = serde_json::from_slice(&text);
        book.map(Some).map_err(|source| StoreError::Corrupt { path: self.path.clone(), source })
    }

    /// Saves `book` such that a crash at any moment leaves the old or the new one, whole.
    ///
    /// # Errors
    /// If it cannot be written; what was saved before is still there.
    pub fn save(&self, book: &Book) -> Result<(), StoreError> {
        let text = serde_json::to_vec(book)
            .map_err(|source| StoreError::Corrupt { path: self.path.clone(), source })?;
        if let Some(file) = &self.memory {
            file.write(Some(text));
            return Ok(());
        }
        replace(&self.path, &text, Mode::Kept).map_err(|source| self.io("write", source))
    }

    /// Removes what was saved.
    ///
    /// # Errors
    /// If a file is there and cannot be removed.
    pub fn remove(&self) -> Result<(), StoreError> {
        if let Some(file) = &self.memory {
            file.write(None);
            return Ok(());
        }
        for path in [&self.path, &with_suffix(&self.path, NEW)] {
            match fs::remove_file(path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(self.io("remove", source));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        match &self.memory {
            Some(file) => file.read().ok_or_else(|| io::ErrorKind::NotFound.into()),
            None => fs::read(&self.path),
        }
    }

    fn io(&self, action: &'static str, source: io::Error) -> StoreError {
        StoreError::Io { action, path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_garbage_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(&directory.path().join("assignments.json"));
        assert_eq!(store.load().unwrap(), Book::default());
        store.save(&Book::default()).unwrap();
        assert_eq!(store.load().unwrap(), Book::default());
        fs::write(&store.path, "{torn").unwrap();
        assert!(matches!(store.load(), Err(StoreError::Corrupt { .. })));
        fs::write(&store.path, r#"{"a":{"job":"a"}}"#).unwrap();
        assert!(matches!(store.load(), Err(StoreError::Corrupt { .. })));
    }

    // Goal: a record that was moved away ends nobody's job. Method: none beside what is enforced, beside nothing, and an empty
    // one, by which somebody says that nothing is to go on.
    #[test]
    fn without_a_record_nothing_may_be_enforced() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(&directory.path().join("assignments.json"));
        let enforced = BTreeSet::from(["r1".parse().unwrap(), "r2".parse().unwrap()]);
        assert_eq!(store.load_beside(&BTreeSet::new()).unwrap(), Book::default());
        let missing = store.load_beside(&enforced).unwrap_err().to_string();
        for part in ["assignments.json", "r1, r2", "agent clear --config FILE --end-jobs"] {
            assert!(missing.contains(part), "{missing}");
        }
        store.save(&Book::default()).unwrap();
        assert_eq!(store.load_beside(&enforced).unwrap(), Book::default());
    }

    #[test]
    fn a_file_in_memory_outlasts_its_store() {
        let file = MemoryFile::default();
        assert_eq!(Store::in_memory(file.clone()).load().unwrap(), Book::default());
        Store::in_memory(file.clone()).save(&Book::default()).unwrap();
        assert_eq!(file.read().as_deref(), Some(b"{}".as_slice()));
        file.write(Some(b"{torn".to_vec()));
        assert!(matches!(Store::in_memory(file).load(), Err(StoreError::Corrupt { .. })));
    }

    #[test]
    fn a_full_disk_leaves_the_former_record() {
        let store = Store::at(Path::new("/dev/full/assignments.json"));
        assert!(matches!(
            store.save(&Book::default()),
            Err(StoreError::Io { action: "write", .. })
        ));
    }
}
