//! Owns where the random numbers of sites come from, and what is drawn of them: one generator for each purpose.

use keeptime_pools::pool::SiteIndex;
use keeptime_random::Random;

/// Where random numbers come from: the same numbers, the same run.
pub trait Draws {
    /// Evenly, more than 0 and at most 1.
    fn uniform(&mut self, purpose: Purpose) -> f64;
}

/// What a random number is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// When the next request of this site arrives.
    Arrival(SiteIndex),
    /// How long a request of this site takes.
    Service(SiteIndex),
}

/// Generators from one seed, one for each purpose: what is drawn for one shifts no other, so that the same requests
/// arrive under every policy, and beside whatever other sites.
#[derive(Debug, Clone)]
pub struct Streams {
    /// By site.
    arrivals: Vec<Random>,
    services: Vec<Random>,
}

impl Streams {
    /// For so many sites. The same seed gives the same numbers.
    pub fn new(seed: u64, sites: usize) -> Self {
        let of = |purpose: u64| -> Vec<Random> {
            (0..).take(sites).map(|site: u64| Random::of(seed, purpose ^ site)).collect()
        };
        Self { arrivals: of(ARRIVALS), services: of(SERVICES) }
    }
}

impl Draws for Streams {
    fn uniform(&mut self, purpose: Purpose) -> f64 {
        let random = match purpose {
            Purpose::Arrival(site) => &mut self.arrivals[site.0 as usize],
            Purpose::Service(site) => &mut self.services[site.0 as usize],
        };
        1.0 - random.part()
    }
}

/// From an exponential distribution with mean 1.
pub(super) fn exponential(draws: &mut impl Draws, purpose: Purpose) -> f64 {
    keeptime_random::exponential(draws.uniform(purpose))
}

/// From a normal distribution around 0 with deviation 1.
pub(super) fn normal(draws: &mut impl Draws, purpose: Purpose) -> f64 {
    let radius = draws.uniform(purpose);
    keeptime_random::normal(radius, draws.uniform(purpose))
}

const ARRIVALS: u64 = 0x4152_5249_5641_4C53;
const SERVICES: u64 = 0x5345_5256_4943_4553;

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: no generator is another's, and none is shifted by another.
    #[test]
    fn what_is_drawn_for_one_purpose_shifts_no_other() {
        let purposes = |sites: u32| -> Vec<_> {
            let of_site = |site| [Purpose::Arrival(site), Purpose::Service(site)];
            (0..sites).map(SiteIndex).flat_map(of_site).collect()
        };
        let mut alone = Streams::new(7, 1);
        let first: Vec<_> = purposes(1).into_iter().map(|purpose| alone.uniform(purpose)).collect();
        let mut beside = Streams::new(7, 3);
        let mut all: Vec<_> =
            purposes(3).into_iter().rev().map(|purpose| beside.uniform(purpose)).collect();
        all.reverse();
        assert_eq!(all[..2], first[..]);
        all.sort_by(f64::total_cmp);
        assert!(all.is_sorted_by(|one, next| one < next), "{all:?}");
    }
}
