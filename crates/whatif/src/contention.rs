//! How long programs take that share nodes and links without any reservation, by mean values.
//!
//! A program computes and exchanges in turns, and may wait for what nobody here has. Whoever computes shares the processors
//! of its node with those who compute at the same moment, whoever exchanges shares links with those who exchange; how often
//! the others do so follows from how long they take, which is what is sought: so it is found by going round until nothing
//! changes. Ranks take turns over their partners, so that a program fills a link alone when
//! nobody else is there, and every program waits for its slowest node.

use keeptime_model::topology::NodeIndex;

/// One program.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// Seconds of a unit that it computes when a processor is its own.
    pub compute: f64,
    /// Seconds of a unit that it exchanges when the links are its own.
    pub exchange: f64,
    /// Seconds of a unit that it does neither, whoever else is there.
    pub wait: f64,
    /// Where.
    pub nodes: Vec<NodeIndex>,
}

/// What a program does at a moment, in parts of its time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Activity {
    computes: f64,
    exchanges: f64,
}

/// Each round halves what is left to change at the least: then nanoseconds of hours are right.
const ROUNDS: usize = 60;

/// Seconds that a unit of each program takes, on nodes of so many `processors`.
pub fn unit_seconds(programs: &[Program], processors: f64) -> Vec<f64> {
    let alone = |program: &Program| program.compute + program.exchange + program.wait;
    let mut times: Vec<_> = programs.iter().map(alone).collect();
    let mut activities: Vec<_> =
        programs.iter().map(|p| activity([p.compute, p.exchange, p.wait])).collect();
    let at = |node: &NodeIndex| node.0 as usize;
    let nodes = programs.iter().flat_map(|program| &program.nodes).map(at).max();
    let nodes = nodes.map_or(0, |last| last + 1);
    for _ in 0..ROUNDS {
        let mut on_node = vec![Activity::default(); nodes];
        for (program, activity) in programs.iter().zip(&activities) {
            for node in &program.nodes {
                let sum = &mut on_node[at(node)];
                sum.computes += activity.computes;
                sum.exchanges += activity.exchanges;
            }
        }
        for (number, program) in programs.iter().enumerate() {
            let own = activities[number];
            let most = |of: fn(&Activity) -> f64| {
                let others = program.nodes.iter().map(|node| of(&on_node[at(node)]) - of(&own));
                others.fold(0.0, f64::max)
            };
            let compute = ((1.0 + most(|a| a.computes)) / processors).max(1.0);
            let exchange = 1.0 + most(|a| a.exchanges);
            let parts = [program.compute * compute, program.exchange * exchange, program.wait];
            times[number] = parts.iter().sum();
            let next = activity(parts);
            activities[number] = Activity {
                computes: (own.computes + next.computes) / 2.0,
                exchanges: (own.exchanges + next.exchanges) / 2.0,
            };
        }
    }
    times
}

fn activity([computes, exchanges, waits]: [f64; 3]) -> Activity {
    let whole = computes + exchanges + waits;
    if whole > 0.0 {
        Activity { computes: computes / whole, exchanges: exchanges / whole }
    } else {
        Activity::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn program(compute: f64, exchange: f64, nodes: &[u32]) -> Program {
        let nodes = nodes.iter().copied().map(NodeIndex).collect();
        Program { compute, exchange, wait: 0.0, nodes }
    }

    #[test]
    fn who_only_computes_shares_processors_and_who_only_exchanges_links() {
        let compute = vec![program(1.0, 0.0, &[0, 1]); 6];
        assert_eq!(unit_seconds(&compute[..3], 4.0), [1.0; 3]);
        assert_eq!(unit_seconds(&compute, 4.0), [1.5; 6]);
        let exchange = vec![program(0.0, 2.0, &[0, 1]); 3];
        assert_eq!(unit_seconds(&exchange, 4.0), [6.0; 3]);
        // One of each is in nobody's way.
        assert_eq!(unit_seconds(&[compute[0].clone(), exchange[0].clone()], 1.0), [1.0, 2.0]);
    }

    #[test]
    fn programs_on_other_nodes_do_not_count() {
        let apart = [program(1.0, 1.0, &[0, 1]), program(1.0, 1.0, &[2, 3])];
        assert_eq!(unit_seconds(&apart, 1.0), [2.0, 2.0]);
        let meeting = [program(1.0, 1.0, &[0, 1]), program(1.0, 1.0, &[1, 2])];
        assert!(unit_seconds(&meeting, 1.0).iter().all(|time| *time > 2.5));
    }

    // Goal: who waits is in nobody's way, and waits no longer in company. Method: one computes for a second of four and
    // waits for three; beside another that always computes, it computes for two of five.
    #[test]
    fn who_waits_is_in_nobodys_way() {
        let waits = Program { wait: 3.0, ..program(1.0, 0.0, &[0, 1]) };
        let computes = program(1.0, 0.0, &[0, 1]);
        assert_eq!(unit_seconds(&vec![waits.clone(); 2], 4.0), [4.0; 2]);
        let [waited, computed] = unit_seconds(&[waits, computes], 1.0)[..] else { panic!() };
        assert!((waited - 5.0).abs() < 1e-9, "{waited}");
        assert!((computed - 1.4).abs() < 1e-9, "{computed}");
    }

    proptest! {
        // Goal: nobody is faster than alone, or slower than if all took turns.
        #[test]
        fn times_lie_between_alone_and_one_after_the_other(
            programs in prop::collection::vec(
                (0.0..5.0f64, 0.0..5.0f64, 0.0..5.0f64, prop::collection::btree_set(0..6u32, 1..5)), 1..8),
            processors in 1.0..4.0f64,
        ) {
            let programs: Vec<_> = programs
                .iter()
                .map(|(c, e, wait, nodes)| {
                    let nodes: Vec<_> = nodes.iter().copied().collect();
                    Program { wait: *wait, ..program(*c, *e, &nodes) }
                })
                .collect();
            let count = programs.len() as f64;
            for (program, time) in programs.iter().zip(unit_seconds(&programs, processors)) {
                let alone = program.compute + program.exchange + program.wait;
                prop_assert!(time >= alone - 1e-9 && time <= count * alone + 1e-9, "{program:?} {time}");
            }
        }
    }
}
