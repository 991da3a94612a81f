//! What was read of files, and is read again when they change, so that certificates are renewed and tokens exchanged while
//! programs run. Files that cannot be used, half written ones perhaps, leave the former in use and are tried again.

use crate::files::Stamp;
use keeptime_locks::lock;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Files, and what is made of them.
pub trait Source {
    /// What is made of them.
    type Made;
    /// Why they cannot be used.
    type Error;

    /// All of them.
    fn paths(&self) -> Vec<&Path>;

    /// Reads them.
    ///
    /// # Errors
    /// The first that cannot be used.
    fn read(&self) -> Result<Self::Made, Self::Error>;
}

/// What was made of files when they could be used last.
pub struct Renewed<S: Source> {
    source: S,
    current: Mutex<Arc<S::Made>>,
    /// Held while the files are looked at, which may take long where they are on another machine.
    tried: Mutex<Tried>,
}

/// The last attempt to read the files.
struct Tried {
    /// Of the files, just before: what changes while they are read is seen at the next look.
    stamp: Stamp,
    was_read: bool,
}

impl<S: Source> Renewed<S> {
    /// Reads the files.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn read(source: S) -> Result<Self, S::Error> {
        let stamp = Stamp::of(source.paths());
        let current = Mutex::new(Arc::new(source.read()?));
        Ok(Self { source, current, tried: Mutex::new(Tried { stamp, was_read: true }) })
    }

    /// As it is now. Looks at no file.
    pub fn now(&self) -> Arc<S::Made> {
        Arc::clone(&lock(&self.current))
    }

    /// Reads the files again if one of them changed, or if they could not be used before. What came of it; nothing if
    /// everything is as it was, which includes files that still cannot be used: that is told once. Blocks as files do.
    pub fn look(&self) -> Option<Result<Arc<S::Made>, S::Error>> {
        let mut tried = lock(&self.tried);
        let stamp = Stamp::of(self.source.paths());
        let is_same = stamp == tried.stamp;
        if is_same && tried.was_read {
            return None;
        }
        let outcome = self.try_again(&mut tried, stamp);
        // What is at fault may be no file: too many that are open, or a machine that serves them.
        (outcome.is_ok() || !is_same).then_some(outcome)
    }

    /// Reads the files again in any case.
    ///
    /// # Errors
    /// As [`Source::read`]; the former stays in use then.
    pub fn read_again(&self) -> Result<Arc<S::Made>, S::Error> {
        let mut tried = lock(&self.tried);
        let stamp = Stamp::of(self.source.paths());
        self.try_again(&mut tried, stamp)
    }

    fn try_again(&self, tried: &mut Tried, stamp: Stamp) -> Result<Arc<S::Made>, S::Error> {
        let made = self.source.read().map(Arc::new);
        *tried = Tried { stamp, was_read: made.is_ok() };
        if let Ok(made) = &made {
            *lock(&self.current) = Arc::clone(made);
        }
        made
    }
}

impl<S: Source> fmt::Debug for Renewed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.source.paths()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{self, FileError, Secrecy};
    use keeptime_model::Invalid;
    use std::fs;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use tempfile::TempDir;

    /// Two files with a number that has to be the same in both, as a certificate and its key belong together.
    struct Pair {
        directory: TempDir,
        paths: [std::path::PathBuf; 2],
        /// Whether nothing can be read, whatever stands there.
        is_out_of_order: AtomicBool,
        reads: AtomicUsize,
    }

    impl Pair {
        fn renewed(text: &str) -> Renewed<Self> {
            let directory = tempfile::tempdir().unwrap();
            let paths = ["a", "b"].map(|name| directory.path().join(name));
            paths.iter().for_each(|path| fs::write(path, text).unwrap());
            let (is_out_of_order, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
            Renewed::read(Self { directory, paths, is_out_of_order, reads }).unwrap()
        }

        /// As whoever renews a file does: with another length here, whatever the clock of the file system.
        fn write(&self, which: usize, text: &str) {
            files::replace(&self.paths[which], text, Secrecy::Public).unwrap();
        }
    }

    impl Source for Pair {
        type Made = u32;
        type Error = FileError;

        fn paths(&self) -> Vec<&Path> {
            self.paths.iter().map(|path| path.as_path()).collect()
        }

        fn read(&self) -> Result<u32, FileError> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            if self.is_out_of_order.load(Ordering::Relaxed) {
                return Err(FileError::TooLong { path: self.directory.path().into() });
            }
            let [a, b] = &self.paths;
            let text = files::read(a, Secrecy::Public)?;
            let wrong = |expected: &str| FileError::Content {
                path: b.clone(),
                source: Invalid::new("number", &text, expected),
            };
            if files::read(b, Secrecy::Public)? != text {
                return Err(wrong("the same"));
            }
            text.parse().map_err(|_| wrong("a number"))
        }
    }

    fn seen(renewed: &Renewed<Pair>) -> Option<Result<u32, String>> {
        let looked = renewed.look();
        looked.map(|read| read.map(|made| *made).map_err(|error| error.to_string()))
    }

    #[test]
    fn files_are_read_again_when_they_changed_and_not_otherwise() {
        let renewed = Pair::renewed("7");
        assert_eq!((seen(&renewed), seen(&renewed), *renewed.now()), (None, None, 7));
        assert_eq!(renewed.source.reads.load(Ordering::Relaxed), 1);
        // Who keeps what there was goes on with it.
        let former = renewed.now();
        [0, 1].iter().for_each(|which| renewed.source.write(*which, "10"));
        assert_eq!((seen(&renewed), seen(&renewed)), (Some(Ok(10)), None));
        assert_eq!((*former, *renewed.now()), (7, 10));
        // Who was told to reads them whether they changed or not.
        assert!(!Arc::ptr_eq(&renewed.now(), &renewed.read_again().unwrap()) && *former == 7);
        assert_eq!(renewed.source.reads.load(Ordering::Relaxed), 3);
    }

    // Goal: nothing that is damaged takes the place of what is in use, and what is whole does, however that came. Method:
    // halves of a pair, files that are no numbers and that are gone, then what can be used.
    #[test]
    fn files_that_cannot_be_used_leave_the_former_in_use_and_are_told_once() {
        let renewed = Pair::renewed("7");
        for (which, text) in [(0, "10"), (0, "no number"), (1, "no number"), (1, "100")] {
            renewed.source.write(which, text);
            assert!(matches!(seen(&renewed), Some(Err(_))), "{which} {text}");
            assert_eq!((seen(&renewed), *renewed.now()), (None, 7), "{which} {text}");
        }
        fs::remove_file(&renewed.source.paths[0]).unwrap();
        assert!(seen(&renewed).unwrap().unwrap_err().contains("cannot read"));
        assert!(renewed.read_again().is_err() && *renewed.now() == 7);
        renewed.source.write(0, "100");
        assert_eq!((seen(&renewed), *renewed.now()), (Some(Ok(100)), 100));
    }

    #[test]
    fn what_failed_for_another_reason_than_the_files_is_tried_again() {
        let renewed = Pair::renewed("7");
        renewed.source.is_out_of_order.store(true, Ordering::Relaxed);
        [0, 1].iter().for_each(|which| renewed.source.write(*which, "10"));
        assert!(matches!(seen(&renewed), Some(Err(_))));
        assert_eq!((seen(&renewed), *renewed.now()), (None, 7));
        // The files are as they were then.
        renewed.source.is_out_of_order.store(false, Ordering::Relaxed);
        assert_eq!((seen(&renewed), seen(&renewed)), (Some(Ok(10)), None));
    }
}
