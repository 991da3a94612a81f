//! Whether it is worth to keep looking for a while before going to sleep, told by what that brought lately.
//!
//! Who looks keeps the core to itself for as long. If what it waits for is for another process to send that has no other
//! core, nothing can come before it sleeps: each round trip would take a whole time of looking, many times what sleeping
//! takes. The same is known of hypervisors that wait for their guests (`halt_poll_ns` of Linux's KVM).

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// What looking brought lately. An estimate: threads that come between each other lose a count.
#[derive(Debug, Default)]
pub struct Looking {
    /// Waits since something was found while looking, of which the first few looked in vain.
    vain: AtomicU32,
}

/// After so many in a row that were in vain, it sleeps at once: single long waits are as usual as short ones.
const VAIN_MOST: u32 = 3;
/// One of so many waits looks all the same from then on: cores become free again.
const TRIED_EVERY: u32 = 64;

impl Looking {
    /// Whether this wait begins by looking.
    pub fn looks(&self) -> bool {
        let vain = self.vain.load(Relaxed);
        if vain < VAIN_MOST {
            return true;
        }
        let waits = vain.wrapping_add(1).max(VAIN_MOST);
        self.vain.store(waits, Relaxed);
        waits.is_multiple_of(TRIED_EVERY)
    }

    /// Looking was in vain.
    pub fn in_vain(&self) {
        let vain = self.vain.load(Relaxed);
        if vain < VAIN_MOST {
            self.vain.store(vain + 1, Relaxed);
        }
    }

    /// Something was found. Written down only where it is news: threads of a context share it.
    pub fn found(&self) {
        if self.vain.load(Relaxed) > 0 {
            self.vain.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vain(looking: &Looking, waits: u32) -> u32 {
        let look = |_: &u32| {
            let looks = looking.looks();
            if looks {
                looking.in_vain();
            }
            looks
        };
        (0..waits).filter(look).count() as u32
    }

    #[test]
    fn who_looks_in_vain_sleeps_at_once_but_tries_again() {
        let looking = Looking::default();
        assert_eq!(vain(&looking, 10), VAIN_MOST);
        let later = vain(&looking, 100 * TRIED_EVERY);
        assert!((99..=101).contains(&later), "{later}");
    }

    #[test]
    fn what_is_found_is_looked_for_again() {
        let looking = Looking::default();
        assert_eq!(vain(&looking, VAIN_MOST), VAIN_MOST);
        assert!(!looking.looks());
        looking.found();
        assert_eq!(vain(&looking, 10), VAIN_MOST);
        // Now and then one wait is long.
        looking.found();
        for _ in 0..100 {
            assert_eq!(vain(&looking, VAIN_MOST - 1), VAIN_MOST - 1);
            looking.found();
        }
    }

    #[test]
    fn it_never_ends() {
        let looking = Looking { vain: AtomicU32::new(u32::MAX - 1) };
        let looks = (0..2 * TRIED_EVERY).filter(|_| looking.looks()).count();
        assert!((1..=3).contains(&looks), "{looks}");
    }
}
