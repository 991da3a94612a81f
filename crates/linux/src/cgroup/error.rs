//! What can go wrong with control groups.

use keeptime_model::Invalid;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// Why control groups could not be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// The machine does not have what is needed.
    #[error("{feature} is not there: {needs}")]
    Unsupported {
        /// What is missing.
        feature: &'static str,
        /// What would make it work.
        needs: String,
    },
    /// A value that cannot be enforced.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The kernel refused.
    #[error("{call} of {}", path.display())]
    Refused {
        /// The call (`write`, `mkdir`).
        call: &'static str,
        /// The file or directory below the hierarchy's root.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Processes that do not end, although they were killed.
    #[error("{count} processes in {group} did not end within {patience:?} of SIGKILL")]
    Unkillable {
        /// The group.
        group: String,
        /// How many are left.
        count: usize,
        /// How long they were waited for.
        patience: Duration,
    },
}

impl CgroupError {
    /// True if the group, or a process that should be in it, is not there (any more).
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Refused { source, .. }
            if matches!(source.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ESRCH)))
    }

    /// True if another process changed the same groups at the same moment, or the kernel is not
    /// done with processes that have just ended.
    pub fn is_retryable(&self) -> bool {
        self.is_away()
            || matches!(self, Self::Refused { source, .. }
                if source.raw_os_error() == Some(libc::EBUSY))
    }

    /// True if the caller lacks the privilege.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Refused { source, .. }
            if matches!(source.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS)))
    }
}

/// What the kernel's answer to `call` becomes.
pub(crate) fn refused(
    call: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> CgroupError + use<> {
    let path = path.to_path_buf();
    move |source| CgroupError::Refused { call, path, source }
}
