//! Logs by the model of Lublin and Feitelson ("The workload on parallel supercomputers: modeling the
//! characteristics of rigid jobs", 2003): sizes by two-stage uniform logarithms with many powers of two,
//! run times by a mixture of two gamma distributions of the logarithm that depends on the size. Of their
//! arrivals only the daily cycle is kept, so that the load can be chosen. What users request is
//! rounded up to the few values that users request.

use super::{Class, Log, Submission, deadline, draw_classes};
use keeptime_model::pattern::RANKS_MAX;
use keeptime_random::Random;

/// So many jobs on `nodes` nodes that ask for `load` of them while they are submitted. No job has more
/// nodes than the broker gives one job.
pub fn log(nodes: u32, count: usize, load: f64, seed: u64) -> Log {
    let mut random = Random::new(seed);
    let mut jobs: Vec<_> = (0..count).map(|_| job(nodes, &mut random)).collect();
    let work: f64 = jobs.iter().map(|job| job.run as f64 * f64::from(job.nodes)).sum();
    let span = work / (load * f64::from(nodes));
    let mut arrivals: Vec<_> = (0..count).map(|_| arrival(span, &mut random)).collect();
    arrivals.sort_unstable();
    for (job, submitted) in jobs.iter_mut().zip(arrivals) {
        job.submitted = submitted;
        job.deadline = deadline(submitted, job.requested, random.part());
    }
    draw_classes(&mut jobs, seed);
    Log { nodes, jobs }
}

fn job(there: u32, random: &mut Random) -> Submission {
    let nodes = size(there.min(RANKS_MAX), random);
    let short = (SHORT_SLOPE * f64::from(nodes) + SHORT).clamp(0.0, 1.0);
    let [shape, scale] = if random.part() < short { SHORT_GAMMA } else { LONG_GAMMA };
    let run = (gamma(shape, scale, random).exp() as u64).clamp(RUN_LEAST, RUN_MOST);
    let guess = run as f64 * (1.0 + GUESS_MOST * random.part());
    let modal = REQUESTS.into_iter().find(|request| *request as f64 >= guess);
    let requested = modal.unwrap_or(RUN_MOST).max(run);
    Submission { submitted: 0, run, requested, nodes, deadline: 0, class: Class::default() }
}

fn size(there: u32, random: &mut Random) -> u32 {
    if random.part() < SERIAL {
        return 1;
    }
    let most = f64::from(there).log2();
    let middle = (most - 2.5).max(0.8);
    let low = random.part() < LOW;
    let (from, to) = if low { (0.8, middle) } else { (middle, most) };
    let logarithm = from + (to - from) * random.part();
    let is_power = random.part() < POWER_OF_TWO;
    let size = if is_power { logarithm.round().exp2() } else { logarithm.exp2().round() };
    (size as u32).clamp(1, there)
}

/// Rejection by a day's hours: three times as many at noon as at night.
fn arrival(span: f64, random: &mut Random) -> u64 {
    loop {
        let at = random.part() * span;
        let hour = std::f64::consts::TAU * (at / 86_400.0);
        if random.part() < (2.0 - hour.cos()) / 3.0 {
            return at as u64;
        }
    }
}

/// From a gamma distribution (Marsaglia and Tsang, 2000; for shapes above 1).
fn gamma(shape: f64, scale: f64, random: &mut Random) -> f64 {
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let normal = random.normal();
        let v = (1.0 + c * normal).powi(3);
        if v > 0.0 && (1.0 - random.part()).ln() < 0.5 * normal * normal + d * (1.0 - v + v.ln()) {
            return d * v * scale;
        }
    }
}

const SERIAL: f64 = 0.244;
const POWER_OF_TWO: f64 = 0.576;
/// The part of sizes in the lower stage.
const LOW: f64 = 0.86;
const SHORT_GAMMA: [f64; 2] = [4.2, 0.94];
const LONG_GAMMA: [f64; 2] = [312.0, 0.03];
const SHORT: f64 = 0.78;
const SHORT_SLOPE: f64 = -0.0054;
const RUN_LEAST: u64 = 10;
const RUN_MOST: u64 = 36 * 3_600;
/// Users guess up to three times what it takes.
const GUESS_MOST: f64 = 2.0;
const REQUESTS: [u64; 9] =
    [300, 900, 1_800, 3_600, 7_200, 4 * 3_600, 8 * 3_600, 12 * 3_600, 24 * 3_600];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_the_load_that_was_asked_for_and_repeats() {
        let made = log(64, 1_000, 0.7, 1);
        assert_eq!(made, log(64, 1_000, 0.7, 1));
        let last = made.jobs.iter().map(|job| job.submitted).max().unwrap();
        let work: u64 = made.jobs.iter().map(|job| job.run * u64::from(job.nodes)).sum();
        let load = work as f64 / (64.0 * last as f64);
        assert!((load - 0.7).abs() < 0.05, "{load}");
        assert!(made.jobs.is_sorted_by_key(|job| job.submitted));
        assert!(
            made.jobs.iter().all(|job| job.requested >= job.run && job.deadline > job.submitted)
        );
        let serial = made.jobs.iter().filter(|job| job.nodes == 1).count();
        assert!((200..400).contains(&serial), "{serial}");
    }
}
