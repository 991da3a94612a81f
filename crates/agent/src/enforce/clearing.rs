//! Taking everything off a node that agents put there.

use super::device::{comes, device, no_device};
use super::{Kernel, NO_DEVICE};
use crate::config::Config;
use crate::enforcer::{BoxedError, Enforcer};
use keeptime_linux::link::interfaces;
use keeptime_linux::netlink::Socket;
use keeptime_linux::tc;
use keeptime_model::name::Name;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What came of taking everything off a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cleared {
    /// These jobs are still enforced there; nothing was changed.
    Not(BTreeSet<Name>),
    /// Nothing is left; these were ended.
    Done(BTreeSet<Name>),
}

/// Whoever takes everything off a node has more time: with the patience of each try five seconds.
const CLEAR_TRIES: usize = 50;
const CLEAR_REST: Duration = Duration::from_millis(50);

/// Takes off this node all that agents put on it, for when none will come back: what was bound goes back to where it
/// was, what was started in jobs ends, and whatever else runs below the agent's group goes on without limits. Nothing
/// is changed where a job is still enforced, unless `end_jobs`.
///
/// # Errors
/// If the kernel refuses, or a process does not end within five seconds; what is left then is taken off by the next
/// call.
pub fn clear(config: &Config, end_jobs: bool) -> Result<Cleared, BoxedError> {
    let Some(group) = &config.cgroup else { return Ok(Cleared::Done(BTreeSet::new())) };
    let mut socket = Socket::open()?;
    let ifindex = match device(&mut socket, &config.device)? {
        Some(ifindex) => ifindex,
        None => {
            expect_gone(&mut socket, config)?;
            NO_DEVICE
        }
    };
    Kernel::at(ifindex, socket, config, group, &[])?.clear(end_jobs)
}

/// What was on a device is gone with it, but not where it only has another name by now. Which device is another agent's is
/// not known here: that is for people to say.
///
/// # Errors
/// If another device has what agents put there.
fn expect_gone(socket: &mut Socket, config: &Config) -> Result<(), BoxedError> {
    for (name, index) in interfaces(socket)? {
        if !tc::programs(socket, index, tc::Hook::Egress)?.is_empty() {
            let gone = no_device(config);
            return Err(format!(
                "{gone}, and {name} has what an agent puts there: expected `device = \"{name}\"` in the agent's \
                 configuration if that is its name by now; of another agent's that is to be taken off first"
            )
            .into());
        }
    }
    Ok(())
}

impl Kernel {
    fn clear(mut self, end_jobs: bool) -> Result<Cleared, BoxedError> {
        let jobs = self.enforced();
        if !jobs.is_empty() && !end_jobs {
            return Ok(Cleared::Not(jobs));
        }
        let have_ended = || {
            self.end_strays(&BTreeMap::new());
            self.left.is_empty()
        };
        if !comes(have_ended, || std::thread::sleep(CLEAR_REST), CLEAR_TRIES) {
            return Err(self.left.join("; ").into());
        }
        if self.place.ifindex != NO_DEVICE {
            self.remove_egress()?;
        }
        self.group.dissolve()?;
        Ok(Cleared::Done(jobs))
    }
}
