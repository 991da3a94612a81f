//! Figure 7 of MPICH-GQ: what leaves a node, moment by moment.

use anyhow::{Context, Result};
use keeptime_lab::Lab;
use keeptime_linux::counters::class_counters;
use keeptime_linux::egress::FLOW_MINOR_MIN;
use keeptime_linux::link::interfaces;
use keeptime_linux::netlink::Socket;
use keeptime_linux::tc::TREE_MAJOR;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Moments of a second.
pub const MOMENTS: usize = 20;
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// So much had been sent, so many seconds after the first look.
pub type Sent = (f64, u64);

/// Looks at what the reserved flows of a node have sent, as long as `action` takes.
pub fn sent_while<T>(
    lab: &Lab,
    node: &str,
    action: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<Sent>)> {
    let mut socket = lab.network(node)?.run(Socket::open)??;
    let all = interfaces(&mut socket)?;
    let device = all.into_iter().find(|(name, _)| name == lab.device());
    let (_, ifindex) = device.context("the node has no such device")?;
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let looks = scope.spawn(move || {
            let (begin, mut looks) = (Instant::now(), Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                let classes = class_counters(&mut socket, ifindex, TREE_MAJOR)?;
                let flows = classes.range(FLOW_MINOR_MIN..);
                let sent: u64 = flows.map(|(_, class)| class.bytes).sum();
                looks.push((begin.elapsed().as_secs_f64(), sent));
                thread::sleep(LOOK_EVERY);
            }
            Ok::<_, anyhow::Error>(looks)
        });
        let done = action();
        is_over.store(true, Ordering::Relaxed);
        match looks.join() {
            Ok(looks) => Ok((done?, looks?)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Kbit that left in each moment of a second, half a second after the first `begin` bytes had left.
pub fn of_a_second(looks: &[Sent], begin: u64) -> Vec<f64> {
    let first = looks.iter().find(|(_, sent)| *sent >= begin).map_or(0.0, |(at, _)| *at);
    let sent_at = |moment: usize| {
        let at = first + 0.5 + moment as f64 / MOMENTS as f64;
        looks.iter().take_while(|(time, _)| *time <= at).last().map_or(0, |(_, sent)| *sent)
    };
    let kbit = |moment| sent_at(moment + 1).saturating_sub(sent_at(moment)) as f64 * 8e-3;
    (0..MOMENTS).map(kbit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // A connection that is made, then 1,000 bytes at once a second, looked at every 10 ms.
    #[test]
    fn a_burst_is_in_one_moment_of_its_second() {
        let sent = |at: f64| if at < 2.0 { 70 } else { 70 + 1_000 * (at - 1.0) as u64 };
        let times = (0..500).map(|look| f64::from(look) / 100.0);
        let looks: Vec<Sent> = times.map(|at| (at, sent(at))).collect();
        let moments = of_a_second(&looks, 500);
        assert_eq!(moments.len(), MOMENTS);
        assert_eq!(moments.iter().filter(|kbit| **kbit > 0.0).count(), 1);
        assert!((moments.iter().sum::<f64>() - 8.0).abs() < 1e-9);
        assert!(of_a_second(&[], 500).iter().all(|kbit| *kbit == 0.0));
    }
}
