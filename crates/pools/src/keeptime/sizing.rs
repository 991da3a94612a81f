//! How many nodes a load needs: Erlang's formula for a queue before several servers.
//!
//! Requests arrive at random (Poisson), wait in one queue for the site, as balancers keep it, and a
//! node works on them one after the other. For `a` nodes' worth of work offered to `c` nodes the mean
//! wait is C(c, a) / (c - a) service times, where C is the chance that a request has to wait (Erlang C).
//! Service times that vary less than exponential ones wait less; the number is on the safe side.

/// The fewest standard nodes, at most `most`, with which requests wait for no more than `wait_max`
/// service times on average, where `offered` nodes' worth of work arrives. `O(result)`.
pub fn nodes_needed(offered: f64, wait_max: f64, most: u32) -> u32 {
    if offered <= 0.0 || offered.is_nan() {
        return 0;
    }
    // Erlang B by its recursion over the number of nodes, which is stable; C follows from it.
    let mut blocking = 1.0;
    for nodes in 1..most {
        let c = f64::from(nodes);
        blocking = offered * blocking / (c + offered * blocking);
        if c <= offered {
            continue;
        }
        let waits = c * blocking / (c - offered * (1.0 - blocking));
        if waits / (c - offered) <= wait_max {
            return nodes;
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// C(c, a) by its definition.
    fn wait_by_definition(nodes: u32, offered: f64) -> f64 {
        let term = |k: u32| (1..=k).fold(1.0, |product, i| product * offered / f64::from(i));
        let c = f64::from(nodes);
        let last = term(nodes) * c / (c - offered);
        let waits = last / ((0..nodes).map(term).sum::<f64>() + last);
        waits / (c - offered)
    }

    #[test]
    fn known_sizes() {
        // One node: the wait is a / (1 - a), so that half of it may be used.
        assert_eq!(nodes_needed(0.5, 1.0, 100), 1);
        assert_eq!(nodes_needed(0.51, 1.0, 100), 2);
        assert_eq!(nodes_needed(0.0, 1.0, 100), 0);
        assert_eq!(nodes_needed(f64::NAN, 1.0, 100), 0);
        assert_eq!(nodes_needed(f64::INFINITY, 1.0, 100), 100);
        // Many nodes share better: 800 nodes' worth needs 2 % more, not twice as many.
        assert!((801..820).contains(&nodes_needed(800.0, 1.0, 10_000)));
    }

    proptest! {
        #[test]
        fn the_fewest_that_keep_the_wait(offered in 0.01f64..60.0, wait_max in 0.05f64..4.0) {
            let nodes = nodes_needed(offered, wait_max, 1_000);
            prop_assert!(f64::from(nodes) > offered);
            prop_assert!(wait_by_definition(nodes, offered) <= wait_max * (1.0 + 1e-9));
            if f64::from(nodes - 1) > offered {
                prop_assert!(wait_by_definition(nodes - 1, offered) > wait_max * (1.0 - 1e-9));
            }
        }
    }
}
