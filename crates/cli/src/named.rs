//! A decision as JSON, with the names of nodes where the planner has their positions in the topology.

use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_planner::translate::{Decision, Verdict};
use serde_json::Value;

/// `decision` with names.
///
/// # Errors
/// None that is known: all of it is numbers, texts and lists.
pub fn decision(decision: &Decision, topology: &Topology) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(decision)?;
    let Verdict::Planned(plan) = &decision.verdict else { return Ok(value) };
    let name = |node: NodeIndex| Value::from(topology.node(node).name.as_str());
    let planned = &mut value["verdict"]["planned"];
    planned["nodes"] = plan.placement.nodes.iter().map(|node| name(*node)).collect();
    for (place, flow) in plan.placement.flows.iter().enumerate() {
        (planned["flows"][place]["from"], planned["flows"][place]["to"]) =
            (name(flow.from), name(flow.to));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::application::Parameters;
    use keeptime_model::goal::Goal;
    use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos, Share};
    use keeptime_planner::availability::{Placement, PlannedFlow};
    use keeptime_planner::curve::Between;
    use keeptime_planner::drift::Drift;
    use keeptime_planner::explanation::Explanation;
    use keeptime_planner::price::Reserved;
    use keeptime_planner::translate::Plan;

    // Goal: a script sees the nodes that everybody sees, in the order of the ranks.
    #[test]
    fn nodes_are_told_by_their_names() {
        let file = "name = \"two\"\nnodes = [{ name = \"a\", cpu = \"40 %\" }, { name = \"b\", \
                    cpu = \"40 %\" }]\n[[links]]\nbetween = [\"a\", \"b\"]\nrate = \"1 Gbit/s\"\n";
        let topology = Topology::from_toml(file).unwrap();
        let [a, b] = [NodeIndex(0), NodeIndex(1)];
        let rate = BitsPerSecond::from_mbit(10);
        let flows = vec![PlannedFlow { from: b, to: a, rate }];
        let plan = Plan {
            parameters: Parameters::new(),
            placement: Placement { nodes: vec![b, a], cpu: CpuPpm::from_percent(20), flows },
            bandwidth_bits_per_second: rate,
            time_nanos: Nanos::from_secs(1),
            median_nanos: Nanos::from_secs(1),
            drift: Drift::NONE,
            drift_seen_ppm: None,
            quantile: Share::ONE,
            quantile_asked: None,
            deviations: 0,
            samples: 1,
        };
        let explanation = Explanation {
            goal: Goal::default(),
            quantile: Share::ONE,
            between: Between::Measured,
            reserved: Reserved::default(),
            curves: Vec::new(),
            chosen: None,
        };
        let verdict = Verdict::Planned(plan);
        let told = decision(&Decision { verdict, explanation, instead: vec![] }, &topology);
        let planned = &told.unwrap()["verdict"]["planned"];
        assert_eq!(planned["nodes"], serde_json::json!(["b", "a"]));
        let flow = serde_json::json!([{ "from": "b", "to": "a", "bits_per_second": rate }]);
        assert_eq!(planned["flows"], flow);
    }
}
