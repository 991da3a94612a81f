//! Until where more of a cluster is worth its price: the knee by marginal value across applications.
//!
//! The thesis gives a job all that is free up to a knee that belongs to its curve alone, 5 % from the best
//! time. The last part of that gains the job little, and what it takes from others depends on how much is
//! left (chapter 5 names other schedulers as future work). Here a job pays for what it holds as long as
//! it holds it. The price is the same for all at one moment: nothing on an idle cluster, beyond all bounds
//! on a full one. Each takes so much that its time and what it pays are least together; so what is scarce
//! goes to those whose time it shortens most.

use crate::availability::Availability;
use keeptime_model::units::{Nanos, Share};
use serde::{Deserialize, Serialize};

/// How much of a cluster is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserved {
    /// Of what all links can give, both directions.
    #[serde(rename = "network_ppm")]
    pub network: Share,
    /// Of what all nodes can give.
    #[serde(rename = "cpu_ppm")]
    pub cpu: Share,
}

/// What a job holds, in parts of the most that is of use to its application: 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Holding {
    /// Of the bandwidth at the knee of the curve.
    pub bandwidth: f64,
    /// Of the most nodes that the profile knows.
    pub nodes: f64,
}

impl Reserved {
    /// Of the cluster that `availability` is about. O(links + nodes).
    pub fn of(availability: &Availability) -> Self {
        let [network, cpu] = [availability.network(), availability.all_cpu()];
        Self { network: network.reserved(), cpu: cpu.reserved() }
    }

    /// `time` and what is paid for `holding` meanwhile, as one time.
    pub fn cost(&self, time: Nanos, holding: Holding) -> Nanos {
        let paid = price(self.network) * holding.bandwidth + price(self.cpu) * holding.nodes;
        Nanos::from_secs_f64(time.as_secs_f64() * (1.0 + paid)).unwrap_or(Nanos::new(u64::MAX))
    }
}

/// Of all that can be of use to a job, in times of its execution time. It grows as the wait for what is scarce does:
/// with what is reserved for each part that is free.
fn price(reserved: Share) -> f64 {
    let reserved = reserved.as_f64().min(RESERVED_MOST);
    SCARCITY * reserved / (1.0 - reserved)
}

/// What is reserved beyond this costs no more.
const RESERVED_MOST: f64 = 0.99;
/// Of 1, 3, 10 and 30, simulated for three applications on 16 nodes: 10 and 30 admit more of few requests than 3 and
/// make each slower; of many requests all admit about as many (`make bench-sim`).
const SCARCITY: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn reserved(percent: u32) -> Reserved {
        let share = Share::from_percent(percent).unwrap();
        Reserved { network: share, cpu: share }
    }

    #[test]
    fn what_is_free_costs_nothing_and_what_is_scarce_much() {
        let (time, all) = (Nanos::from_secs(8), Holding { bandwidth: 1.0, nodes: 0.5 });
        let cost = |percent| reserved(percent).cost(time, all);
        assert_eq!(cost(0), time);
        assert_eq!(cost(50), Nanos::from_secs(8 + 24 + 12));
        assert_eq!(cost(80), Nanos::from_secs(8 + 96 + 48));
        assert_eq!(cost(100), cost(99));
    }
}
