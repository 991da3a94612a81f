//! What can go wrong with a lab, in the user's words.

use keeptime_linux::cgroup::CgroupError;
use keeptime_linux::netlink::NetlinkError;
use keeptime_linux::police::PoliceError;
use keeptime_linux::syscall::SyscallError;
use keeptime_linux::tc::TcError;
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use nix::errno::Errno;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why something about a lab was not done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LabError {
    /// Input that is not accepted.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// There is a lab of that name.
    #[error(
        "there is a lab called {name} already: use it, remove it (down), or choose another name"
    )]
    Exists {
        /// Its name.
        name: Name,
    },
    /// It is root's, and was not asked for by root.
    #[error("lab {name} is root's: a lab is there for who made it; do this as root, as by sudo")]
    OfRoot {
        /// Its name.
        name: Name,
    },
    /// There is none of this user's.
    #[error("there is no lab called {name} of yours; there {}", known(labs))]
    Unknown {
        /// The name that was asked for.
        name: Name,
        /// Those that there are.
        labs: Vec<Name>,
    },
    /// There is a lab, but it has no such node.
    #[error("lab {lab} has no node {node}; it has {}", nodes.join(", "))]
    UnknownNode {
        /// The lab.
        lab: Name,
        /// The node that was asked for.
        node: String,
        /// Those that there are.
        nodes: Vec<String>,
    },
    /// The lab or the node was there and has ended.
    #[error("{what} has ended: remove the lab (down) and make it again (up)")]
    Ended {
        /// What has ended.
        what: String,
    },
    /// The lab could not be made; what was made of it is removed again.
    #[error("the lab could not be made: {reason}")]
    NotMade {
        /// What the holder told.
        reason: String,
    },
    /// The machine does not have what is needed.
    #[error("{feature} is not there: {needs}")]
    Unsupported {
        /// What is missing.
        feature: String,
        /// What would make it work.
        needs: String,
    },
    /// A file of the lab.
    #[error("{call} of {}", path.display())]
    File {
        /// What was tried.
        call: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Something of the lab does not go away.
    #[error("{what} is still there after {seconds} s")]
    Stuck {
        /// What it is.
        what: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// A system call.
    #[error(transparent)]
    Syscall(#[from] SyscallError),
    /// Control groups.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Interfaces, addresses, routes.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Traffic control.
    #[error(transparent)]
    Tc(#[from] TcError),
    /// A policer at a switch's port.
    #[error(transparent)]
    Police(#[from] PoliceError),
}

impl LabError {
    /// Whether what was asked for is wrong, whatever the machine can do.
    pub fn is_bad_input(&self) -> bool {
        matches!(
            self,
            Self::Invalid(_) | Self::UnknownNode { .. } | Self::Police(PoliceError::Invalid(_))
        )
    }

    /// If a program could not be started: what a shell would tell of that.
    pub fn unstarted_code(&self) -> Option<u8> {
        match self {
            Self::Syscall(SyscallError { call: "execve", errno, .. }) => {
                Some(if *errno == Errno::ENOENT { 127 } else { 126 })
            }
            _ => None,
        }
    }

    pub(crate) fn file(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { call, path, source }
    }
}

fn known(labs: &[Name]) -> String {
    match labs {
        [] => "is none at all".into(),
        [one] => format!("is {one}"),
        many => format!("are {}", many.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: whoever typed something wrong is told so by the exit code, and a machine that cannot do it is told apart.
    #[test]
    fn what_was_asked_for_wrongly_is_told_apart() {
        let invalid = || Invalid::new("rate", "0 bit/s", "more than 0");
        let lab: Name = "lab".parse().unwrap();
        let unknown = LabError::UnknownNode { lab, node: "n9".into(), nodes: vec!["n1".into()] };
        for wrong in [invalid().into(), PoliceError::Invalid(invalid()).into(), unknown] {
            assert!(wrong.is_bad_input(), "{wrong}");
        }
        let ended = LabError::Ended { what: "lab".into() };
        let missing = LabError::Police(PoliceError::Missing("bucket"));
        assert!(!ended.is_bad_input() && !missing.is_bad_input());
    }

    #[test]
    fn a_program_that_is_not_there_is_told_as_by_a_shell() {
        let of = |call, errno| LabError::from(SyscallError { call, object: "x".into(), errno });
        assert_eq!(of("execve", Errno::ENOENT).unstarted_code(), Some(127));
        assert_eq!(of("execve", Errno::EACCES).unstarted_code(), Some(126));
        assert_eq!(of("setns", Errno::ENOENT).unstarted_code(), None);
    }
}
