//! Descriptors, of which a process may have only so many: usually 1,024, for the sake of old programs, and far more if it asks.

use crate::syscall::SyscallError;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Lets this process have `wanted` of them, or as many as it may ask for, and never less than before. How many it may have then.
/// What it starts inherits that.
///
/// # Errors
/// If the kernel refuses: then all is as before.
pub fn raise(wanted: u64) -> Result<u64, SyscallError> {
    const OBJECT: &str = "the number of descriptors";
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    let (now, most) = limits.map_err(SyscallError::of("getrlimit", OBJECT))?;
    let raised = wanted.min(most).max(now);
    if raised > now {
        let set = setrlimit(Resource::RLIMIT_NOFILE, raised, most);
        set.map_err(SyscallError::of("setrlimit", OBJECT))?;
    }
    Ok(raised)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> (u64, u64) {
        getrlimit(Resource::RLIMIT_NOFILE).unwrap()
    }

    // Goal: who needs more gets that and no more, nobody loses any, and the end is what the kernel allows. Method: from the
    // least that this process can do with, step by step.
    #[test]
    fn a_process_has_what_it_wants_as_far_as_it_may() {
        let (before, most) = limits();
        let few = before.min(512);
        setrlimit(Resource::RLIMIT_NOFILE, few, most).unwrap();
        let between = few + (most - few).min(100);
        assert_eq!((raise(between).unwrap(), limits()), (between, (between, most)));
        assert_eq!((raise(1).unwrap(), limits()), (between, (between, most)));
        assert_eq!((raise(u64::MAX).unwrap(), limits()), (most, (most, most)));
        setrlimit(Resource::RLIMIT_NOFILE, before, most).unwrap();
    }
}
