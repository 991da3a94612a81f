//! What can go wrong with a lab, in the user's words.

use keeptime_linux::cgroup::CgroupError;
use keeptime_linux::netlink::NetlinkError;
use keeptime_linux::police::PoliceError;
use keeptime_linux::syscall::SyscallError;
use keeptime_linux::tc::TcError;
use keeptime_model::Invalid;
use keeptime_model::name::Name;
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
    /// There is none.
    #[error("there is no lab called {name}; there {}", known(labs))]
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
