//! Arrival rate and service time of a site, from counts.

use crate::load::SiteLoad;
use keeptime_model::units::Nanos;

/// A rate has changed when what arrives surprises so much ([`surprise`]): by chance less than once in three
/// million looks, which is once in a day of looking fifty times a second.
const SURPRISE: f64 = 15.0;
/// A service time is the mean over about so many requests: where times vary as exponential ones do, it
/// is then known within 3 %, less than a node of thirty.
const SERVICE_MEMORY: f64 = 1_000.0;
/// Answers within the time that rates are averaged over that are too few to tell a rate by.
const FEW: f64 = 4.0;
/// Parts of a hold: a peak is forgotten between 7/8 of the hold and all of it.
const SLOTS: usize = 8;

/// What is known of a site's requests.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Estimate {
    rate: f64,
    service: Option<f64>,
    /// Requests that the service time rests on, at most [`SERVICE_MEMORY`].
    remembered: f64,
    /// Requests that are answered a second, averaged as long as the rate.
    answered: f64,
    /// Standard nodes that work, averaged as long.
    working: f64,
}

/// The greatest need within a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peak {
    slots: [u32; SLOTS],
    newest: u64,
}

impl Estimate {
    /// Requests a second.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Seconds that a standard node works on a request; nothing before the first was answered.
    pub fn service(&self) -> Option<f64> {
        self.service
    }

    /// Standard nodes' worth of work that is offered; nothing before the first request was answered.
    /// `average_over` seconds are those of [`Self::see`].
    ///
    /// Arrivals tell it, but not where so few requests are answered within that time that their clients
    /// may all be waiting: then nothing arrives, and what nodes are seen to work on is what there is.
    pub fn offered(&self, average_over: f64) -> Option<f64> {
        let by_arrivals = self.rate * self.service?;
        let is_slow = self.answered * average_over < FEW;
        Some(if is_slow { by_arrivals.max(self.working) } else { by_arrivals })
    }

    /// Takes in what came and was answered within `interval` seconds, in which the site's nodes
    /// worked for `busy` seconds of a standard node. Rates are averaged over `average_over` seconds;
    /// a change that chance does not explain counts at once.
    pub fn see(&mut self, interval: f64, average_over: f64, load: &SiteLoad, busy: f64) {
        if interval <= 0.0 {
            return;
        }
        let arrived = load.arrived as f64;
        let expected = self.rate * interval;
        let usual = 1.0 - (-interval / average_over).exp();
        let share = if surprise(arrived, expected) > SURPRISE { 1.0 } else { usual };
        self.rate += share * (arrived / interval - self.rate);
        self.answered += usual * (load.completed as f64 / interval - self.answered);
        self.working += usual * (busy / interval - self.working);
        if load.completed > 0 {
            let completed = load.completed as f64;
            let sample = busy / completed;
            let old = self.service.unwrap_or(sample);
            let share = completed / (completed + self.remembered);
            self.service = Some(old + share * (sample - old));
            self.remembered = (self.remembered + completed).min(SERVICE_MEMORY);
        }
    }
}

/// How improbable a count is where so many are expected (Poisson): -ln of what the chance of it, or of one as
/// far off, is at most (Chernoff).
fn surprise(count: f64, expected: f64) -> f64 {
    if count == 0.0 {
        return expected;
    }
    expected - count + count * (count / expected).ln()
}

impl Peak {
    /// Takes in `value` and tells the greatest within the last `hold`.
    pub fn see(&mut self, now: Nanos, hold: Nanos, value: u32) -> u32 {
        let slot = now.get() / (hold.get() / SLOTS as u64).max(1);
        let passed = slot.saturating_sub(self.newest).min(SLOTS as u64);
        for step in 0..passed {
            self.slots[((slot - step) % SLOTS as u64) as usize] = 0;
        }
        self.newest = self.newest.max(slot);
        let newest = &mut self.slots[(self.newest % SLOTS as u64) as usize];
        *newest = value.max(*newest);
        self.slots.into_iter().max().unwrap_or(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(arrived: u64, completed: u64) -> SiteLoad {
        SiteLoad { arrived, completed, ..SiteLoad::default() }
    }

    #[test]
    fn the_start_of_a_burst_and_its_end_count_at_once() {
        let mut estimate = Estimate::default();
        for _ in 0..100 {
            estimate.see(0.1, 2.0, &load(10, 10), 0.05);
        }
        assert!((estimate.rate() - 100.0).abs() < 1.0, "{estimate:?}");
        estimate.see(0.1, 2.0, &load(100, 10), 0.05);
        assert!((estimate.rate() - 1_000.0).abs() < 1e-6);
        estimate.see(0.1, 2.0, &load(10, 10), 0.05);
        assert!((estimate.rate() - 100.0).abs() < 1e-6);
    }

    #[test]
    fn chance_does_not_count_at_once() {
        let mut estimate = Estimate::default();
        for _ in 0..100 {
            estimate.see(0.1, 2.0, &load(10, 10), 0.05);
        }
        estimate.see(0.1, 2.0, &load(20, 10), 0.05);
        assert!(estimate.rate() < 110.0, "{estimate:?}");
    }

    #[test]
    fn a_look_at_which_nothing_comes_by_chance_does_not_end_a_load() {
        let mut estimate = Estimate::default();
        for _ in 0..1_000 {
            estimate.see(0.02, 2.0, &load(12, 12), 0.02);
        }
        // Once in 160,000 looks.
        estimate.see(0.02, 2.0, &load(0, 12), 0.02);
        assert!(estimate.rate() > 590.0, "{estimate:?}");
    }

    #[test]
    fn few_arrivals_are_often_twice_as_many_as_expected() {
        let mut estimate = Estimate::default();
        for _ in 0..1_000 {
            estimate.see(0.02, 2.0, &load(13, 13), 0.02);
        }
        estimate.see(0.02, 2.0, &load(29, 13), 0.02);
        assert!(estimate.rate() < 700.0, "once in 10,000 looks, by chance: {estimate:?}");
        estimate.see(0.02, 2.0, &load(128, 13), 0.02);
        assert!(estimate.rate() > 6_000.0, "a flood: {estimate:?}");
    }

    #[test]
    fn a_service_time_is_soon_known_and_then_steady_and_follows() {
        let mut estimate = Estimate::default();
        estimate.see(0.1, 2.0, &load(1, 1), 0.1);
        for _ in 0..10 {
            estimate.see(0.1, 2.0, &load(20, 20), 0.1);
        }
        let service = estimate.service().unwrap();
        assert!((service - 0.005).abs() < 0.000_6, "the first weighs as one: {service}");
        for _ in 0..100 {
            estimate.see(0.1, 2.0, &load(20, 20), 0.1);
        }
        // Twenty exponential times, three deviations too long.
        estimate.see(0.1, 2.0, &load(20, 20), 0.17);
        let service = estimate.service().unwrap();
        assert!((service - 0.005).abs() < 0.000_1, "{service}");
        for _ in 0..150 {
            estimate.see(0.1, 2.0, &load(20, 20), 0.2);
        }
        assert!(estimate.service().unwrap() > 0.0095, "{estimate:?}");
    }

    #[test]
    fn service_time_is_node_time_for_each_request() {
        let mut estimate = Estimate::default();
        assert_eq!(estimate.service(), None);
        estimate.see(0.1, 2.0, &load(0, 0), 0.1);
        assert_eq!(estimate.service(), None, "nothing was answered");
        for _ in 0..50 {
            estimate.see(0.1, 2.0, &load(0, 20), 0.2);
        }
        assert!((estimate.service().unwrap() - 0.010).abs() < 1e-9);
    }

    #[test]
    fn clients_that_all_wait_are_no_idle_site() {
        let mut estimate = Estimate::default();
        for _ in 0..50 {
            estimate.see(0.1, 2.0, &load(20, 20), 0.2);
        }
        let offered = |estimate: &Estimate| estimate.offered(2.0).unwrap();
        assert!((offered(&estimate) - 2.0).abs() < 0.1, "arrivals tell it");
        for _ in 0..300 {
            estimate.see(0.1, 2.0, &load(0, 0), 0.3);
        }
        assert!(estimate.rate() < 0.1);
        assert!((offered(&estimate) - 3.0).abs() < 1e-3, "{estimate:?}");
        estimate.see(0.1, 2.0, &load(0, 1), 0.3);
        assert!((offered(&estimate) - 3.0).abs() < 1e-3, "one was answered");
        for _ in 0..300 {
            estimate.see(0.1, 2.0, &load(0, 0), 0.0);
        }
        assert!(offered(&estimate) < 1e-3, "nodes are idle");
    }

    #[test]
    fn answers_are_few_that_are_fewer_than_four_in_the_time_of_the_average() {
        // Nothing arrives any more, and two nodes work. The average is one over four seconds.
        for (each, of, is_slow) in [(1, 12, true), (1, 8, false), (2, 8, false)] {
            let mut estimate = Estimate::default();
            for look in 0..6_000 {
                let completed = if look % of == 0 { each } else { 0 };
                estimate.see(0.1, 4.0, &load(0, completed), 0.2);
            }
            let offered = estimate.offered(4.0).unwrap();
            assert_eq!(offered > 1.9, is_slow, "{offered} {estimate:?}");
        }
    }

    #[test]
    fn a_peak_is_kept_for_the_hold_and_not_longer() {
        let hold = Nanos::from_secs(60);
        let mut peak = Peak::default();
        assert_eq!(peak.see(Nanos::from_secs(100), hold, 7), 7);
        assert_eq!(peak.see(Nanos::from_secs(150), hold, 1), 7);
        assert_eq!(peak.see(Nanos::from_secs(161), hold, 1), 1);
        assert_eq!(peak.see(Nanos::from_secs(10), hold, 2), 2, "a clock that steps back");
    }
}
