//! Whether this machine is as fast as machines are, and always there: where it is not, or is a program, no rate and no time can be shown.

use std::hint::black_box;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Far more pages than a processor keeps the addresses of.
const PAGES: usize = 16_384;
const PAGE: usize = 4_096;
/// What a read may take that has to look for its page. It is 0.02 to 0.3 us on machines of today and virtual machines on
/// them; a virtual machine in a virtual machine that has no nested pages needs 5 to 20 us.
const SLOWEST_READ: Duration = Duration::from_nanos(500);
/// How long is looked for times at which the machine stands still.
const WATCHED: Duration = Duration::from_millis(500);
/// Who sleeps longer by this did not just wait for a CPU that others use: the CPUs were taken away, as hosts do with
/// virtual machines that have used what they may. No timer fires meanwhile, and a token bucket that is full loses what
/// it would have been given.
const STILL: Duration = Duration::from_millis(10);
/// The part of the time that a machine may stand still. Where it is half, links of 100 Mbit/s pass 50 to 60.
const MOST_STILL: f64 = 0.1;

/// An error that says how slow it is. Measured once in a process, in half a second.
pub(super) fn probe() -> Result<(), String> {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if is_emulated(&processors) {
        return Err("this machine is emulated: it is no measure of time".into());
    }
    static MEASURED: OnceLock<(Duration, f64)> = OnceLock::new();
    let (read, still) = *MEASURED.get_or_init(|| (one_read(), time_still()));
    if read > SLOWEST_READ {
        return Err(format!(
            "a read of memory takes {read:.1?} on this machine, more than {SLOWEST_READ:.1?}: it is no measure of time"
        ));
    }
    if still > MOST_STILL {
        return Err(format!(
            "this machine stands still for {:.0} % of the time, more than {:.0} %: it is no measure of time",
            100.0 * still,
            100.0 * MOST_STILL,
        ));
    }
    Ok(())
}

/// Whether a program plays these processors, by what `/proc/cpuinfo` calls them: the time that an instruction takes is any then.
fn is_emulated(processors: &str) -> bool {
    processors.lines().any(|line| line.starts_with("model name") && line.contains("QEMU TCG"))
}

/// The part of the time that passes while nobody runs, by how late those are woken who sleep.
fn time_still() -> f64 {
    const NAP: Duration = Duration::from_millis(1);
    let (start, mut still) = (Instant::now(), Duration::ZERO);
    while start.elapsed() < WATCHED {
        let before = Instant::now();
        sleep(NAP);
        let late = before.elapsed().saturating_sub(NAP);
        if late > STILL {
            still += late;
        }
    }
    still.as_secs_f64() / start.elapsed().as_secs_f64()
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
    #[test]
    fn emulated_processors_are_known_by_their_name() {
        let named = |name: &str| is_emulated(&format!("processor\t: 0\nmodel name\t: {name}\n"));
        assert!(named("QEMU TCG CPU version 2.5+"));
        // Real ones, in a virtual machine that was given no better name.
        assert!(!named("QEMU Virtual CPU version 2.5+"));
        assert!(!named("AMD EPYC 7B13"));
    }
    #[test]
    fn a_machine_stands_still_for_a_part_of_the_time() {
        let still = time_still();
        assert!((0.0..1.0).contains(&still), "{still}");
    }
}
