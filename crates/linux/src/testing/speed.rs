//! Whether this machine's memory is as fast as memory is: where it is not, no rate and no time can be shown.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Far more pages than a processor keeps the addresses of.
const PAGES: usize = 16_384;
const PAGE: usize = 4_096;
/// What a read may take that has to look for its page. It is 0.02 to 0.3 us on machines of today and virtual machines on
/// them; a virtual machine in a virtual machine that has no nested pages needs 5 to 20 us.
const MOST: Duration = Duration::from_micros(1);

/// An error that says how slow it is. Measured once in a process, in 50 ms.
pub(super) fn probe() -> Result<(), String> {
    static READ: OnceLock<Duration> = OnceLock::new();
    let read = *READ.get_or_init(one_read);
    if read <= MOST {
        return Ok(());
    }
    Err(format!(
        "a read of memory takes {read:.1?} on this machine, more than {MOST:.1?}: it is no measure of time"
    ))
}

/// What a read takes whose page was not read for long: the median of some rounds, since others may be at work.
fn one_read() -> Duration {
    const READS: usize = 2_000;
    let memory = vec![1_u8; PAGES * PAGE];
    // A step that has no factor with the number of pages comes to every one of them, far from the one before.
    let mut page = 0;
    let mut round = || {
        let start = Instant::now();
        for _ in 0..READS {
            page = (page + 6_151) % PAGES;
            // Not always the same line, which would have one set of the cache for all.
            black_box(memory[page * PAGE + (page * 64) % PAGE]);
        }
        start.elapsed() / READS as u32
    };
    let mut rounds: [Duration; 15] = std::array::from_fn(|_| round());
    rounds.sort_unstable();
    rounds[rounds.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_slower_than_the_cache_and_faster_than_a_disk() {
        let read = one_read();
        assert!(read > Duration::from_nanos(1) && read < Duration::from_millis(1), "{read:?}");
    }
}
