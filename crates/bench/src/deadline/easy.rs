//! The baseline: first come, first served, with backfill as EASY does it. Whole nodes; the first in the
//! queue has a reservation by what running jobs requested; who can run without delaying it may start.

use super::{Outcome, Submission};

/// A job that runs.
struct Running {
    job: usize,
    nodes: u32,
    /// When it will end, and when it would if it took what was requested.
    ends: u64,
    ends_by_request: u64,
}

/// Replays `jobs`, in the order of their submission.
pub fn backfilled(nodes: u32, jobs: &[Submission]) -> Outcome {
    let mut ended = vec![0; jobs.len()];
    let (mut running, mut queue): (Vec<Running>, Vec<usize>) = (vec![], vec![]);
    let mut next = 0;
    loop {
        let submission = jobs.get(next).map(|job| job.submitted);
        let end = running.iter().map(|running| running.ends).min();
        let Some(now) = submission.into_iter().chain(end).min() else { break };
        running.retain(|running| {
            let is_over = running.ends <= now;
            if is_over {
                ended[running.job] = running.ends;
            }
            !is_over
        });
        while jobs.get(next).is_some_and(|job| job.submitted <= now) {
            queue.push(next);
            next += 1;
        }
        start_what_fits(now, nodes, jobs, &mut queue, &mut running);
    }
    Outcome { ended, promised: vec![] }
}

fn start_what_fits(
    now: u64,
    nodes: u32,
    jobs: &[Submission],
    queue: &mut Vec<usize>,
    running: &mut Vec<Running>,
) {
    let mut free = nodes - running.iter().map(|running| running.nodes).sum::<u32>();
    let start = |job: usize, free: &mut u32, running: &mut Vec<Running>| {
        let Submission { run, requested, nodes, .. } = jobs[job];
        *free -= nodes;
        running.push(Running { job, nodes, ends: now + run, ends_by_request: now + requested });
    };
    while let Some(first) = queue.first().copied().filter(|job| jobs[*job].nodes <= free) {
        queue.remove(0);
        start(first, &mut free, running);
    }
    let Some(first) = queue.first().copied() else { return };
    let (shadow, mut spare) = reservation(jobs[first].nodes, free, running);
    queue.retain(|job| {
        let Submission { requested, nodes, .. } = jobs[*job];
        let in_time = now + requested <= shadow;
        let fits = *job != first && nodes <= free && (in_time || nodes <= spare);
        if fits {
            if !in_time {
                spare -= nodes;
            }
            start(*job, &mut free, running);
        }
        !fits
    });
}

/// When the first in the queue can start at the latest, and how many nodes it leaves then.
fn reservation(wanted: u32, mut free: u32, running: &[Running]) -> (u64, u32) {
    let mut ends: Vec<_> = running.iter().map(|r| (r.ends_by_request, r.nodes)).collect();
    ends.sort_unstable();
    for (at, nodes) in ends {
        free += nodes;
        if free >= wanted {
            return (at, free - wanted);
        }
    }
    (u64::MAX, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(submitted: u64, run: u64, requested: u64, nodes: u32) -> Submission {
        Submission { submitted, run, requested, nodes, deadline: 0 }
    }

    #[test]
    fn the_first_in_the_queue_is_not_delayed() {
        let jobs = [
            job(0, 100, 100, 3),
            // Waits for all four nodes.
            job(1, 50, 50, 4),
            // Ends before that: may run beside.
            job(2, 90, 90, 1),
            // Would not.
            job(3, 200, 200, 1),
        ];
        assert_eq!(backfilled(4, &jobs).ended, [100, 150, 92, 350]);
    }

    #[test]
    fn nodes_that_the_first_leaves_are_used() {
        let jobs = [job(0, 100, 100, 3), job(1, 50, 50, 3), job(2, 500, 500, 1)];
        assert_eq!(backfilled(4, &jobs).ended, [100, 150, 502]);
    }

    #[test]
    fn who_requested_too_much_ends_early() {
        let jobs = [job(0, 10, 100, 4), job(1, 50, 50, 4)];
        assert_eq!(backfilled(4, &jobs).ended, [10, 60]);
    }
}
