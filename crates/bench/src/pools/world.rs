//! Owns what these benchmarks bring to the world that `keeptime sim sites` goes by, too: random numbers of their own, so
//! that figures stay those that they were, and how long things take.

use crate::plan::Random;
use keeptime_model::units::Nanos;
use keeptime_pools::holdings::Place;
use keeptime_pools::policy::Policy;
use keeptime_pools::pool::Pool;
use keeptime_whatif::sites::draws::{Draws, Purpose};
use keeptime_whatif::sites::world as simulated;

pub use keeptime_whatif::sites::world::Service;

/// How often policies are asked, all of them alike.
pub const LOOK: Nanos = Nanos::from_millis(20);
/// Mean time of a request on a standard node: a dynamic page.
pub const SERVICE: Nanos = Nanos::from_millis(5);
/// Two commands to a balancer and a check.
const SWITCH: Nanos = Nanos::from_millis(5);

/// A pool at work.
pub type World = simulated::World<Random>;

/// One in which nobody asks for anything yet.
pub fn world(pool: Pool, places: Vec<Place>, policy: Box<dyn Policy>, seed: u64) -> World {
    let pace = simulated::Pace { look: LOOK, service: SERVICE, switch: SWITCH };
    World::new(pool, places, policy, pace, Random(seed))
}

/// More than 0 and at most 1.
pub fn uniform(random: &mut Random) -> f64 {
    (random.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64
}

impl Draws for Random {
    /// Of one generator, whatever for.
    fn uniform(&mut self, _: Purpose) -> f64 {
        uniform(self)
    }
}
