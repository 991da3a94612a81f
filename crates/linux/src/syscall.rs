//! The error of a system call: which one, about what, and the kernel's answer.

use nix::errno::Errno;
use thiserror::Error;

/// A system call that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{call} of {object}: {}", errno.desc())]
pub struct SyscallError {
    /// The call (`setns`).
    pub call: &'static str,
    /// What it was about (`the namespaces of process 77`).
    pub object: String,
    /// The kernel's answer.
    pub errno: Errno,
}

impl SyscallError {
    /// For `map_err`: names the call and the object of a failed call.
    pub fn of<E: Into<Errno>>(
        call: &'static str,
        object: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let object = object.into();
        move |errno| Self { call, object, errno: errno.into() }
    }

    /// The same for errors of the standard library.
    pub fn of_io(
        call: &'static str,
        object: impl Into<String>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let object = object.into();
        move |error| {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
            Self { call, object, errno }
        }
    }
}
