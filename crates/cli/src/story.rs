//! A decision as people read it: what remained at each step, what was chosen, or why not and what
//! would be admitted instead. Pure: everything is a text.

use keeptime_model::application::Parameters;
use keeptime_model::goal::Preference;
use keeptime_model::name::Name;
use keeptime_model::topology::Topology;
use keeptime_model::units::Nanos;
use keeptime_planner::explanation::Stage;
use keeptime_planner::instead::Instead;
use keeptime_planner::outline::{CurveOutline, Outline};
use keeptime_planner::refusal::{Change, Reason, Refusal};
use keeptime_planner::translate::{Decision, Plan, Verdict};
use std::collections::BTreeSet;

/// The whole way of a request, stage by stage, and its end.
pub fn decision(decision: &Decision, topology: &Topology) -> String {
    let mut text = outline(&Outline::of(&decision.explanation, usize::MAX));
    match &decision.verdict {
        Verdict::Planned(plan) => {
            text.push_str(&self::plan(plan, topology));
            text.push_str(&instead(&decision.instead));
        }
        Verdict::Refused(refusal) => text.push_str(&self::refusal(refusal)),
    }
    text
}

/// The way of a request, stage by stage.
pub fn outline(outline: &Outline) -> String {
    let stages = Stage::ALL.map(|stage| self::stage(outline, stage));
    format!("goal: {}\n{}", outline.goal, stages.concat())
}

/// What less would do, or with better parameters, and how to have it planned so.
pub fn instead(all: &[Instead]) -> String {
    let line = |instead: &Instead| {
        let Instead { prefer, nodes, bandwidth_bits_per_second, time_nanos, .. } = instead;
        let what = match prefer {
            Preference::Best => "better parameters",
            _ => "less",
        };
        let parameters = match instead.parameters.is_empty() {
            true => String::new(),
            false => parameters(&instead.parameters) + " ",
        };
        let nodes = if *nodes == 1 { "1 node".into() } else { format!("{nodes} nodes") };
        let (time, rate) = (time_nanos.rounded(), bandwidth_bits_per_second.rounded());
        format!(
            "{what} would do: {parameters}on {nodes}, {rate} for each flow, in {time} \
             (--prefer {prefer})\n"
        )
    };
    all.iter().map(line).collect()
}

/// What is promised with which resources.
pub fn plan(plan: &Plan, topology: &Topology) -> String {
    let nodes: Vec<_> =
        plan.placement.nodes.iter().map(|n| topology.node(*n).name.as_str()).collect();
    let (samples, quantile) = (plan.samples, plan.quantile);
    let basis = match (plan.deviations, plan.quantile_asked) {
        (0, None) => format!("what half of the runs take, by {samples} that were measured"),
        (0, Some(_)) => {
            format!("what half of the runs take: {samples} measured runs support no more")
        }
        (count, None) => format!("for {quantile} of runs, from {count} measured deviations"),
        (count, Some(_)) => {
            format!("for {quantile} of runs: {count} measured deviations support no more")
        }
    };
    let changed = match plan.drift.ppm() {
        0 => String::new(),
        ppm => format!(
            "expected: {}, since by the last runs computing takes {} than when it was measured\n",
            plan.median_nanos.rounded(),
            longer(ppm, 1),
        ),
    };
    let uncorrected = plan.drift_seen_ppm.map_or_else(String::new, |seen| {
        format!(
            "warning: computing takes about {} than when it was measured, beyond what is corrected: \
             measure again with keeptime profile NAME --fresh\n",
            longer(seen, 0)
        )
    });
    format!(
        "plan: {}on {}, {} for each flow, {} of a CPU each\n\
         promised: {} ({basis})\n{changed}{uncorrected}",
        if plan.parameters.is_empty() { String::new() } else { parameters(&plan.parameters) + " " },
        nodes.join(" "),
        plan.bandwidth_bits_per_second.rounded(),
        plan.placement.cpu.rounded(),
        plan.time_nanos.rounded_up(),
    )
}

/// Why not, and what instead.
pub fn refusal(refusal: &Refusal) -> String {
    let mut text = format!("refused: {}\n", refusal.reason);
    if refusal.counter_offers.is_empty() {
        text.push_str("nothing near it can be admitted now\n");
    }
    for offer in &refusal.counter_offers {
        let change = match offer.change {
            Change::LongerTime => "a longer time",
            Change::ShorterTime => "a shorter time",
            Change::OtherParameters => "other parameters",
            Change::OtherNodes => "another number of nodes",
            _ => "several changes",
        };
        text.push_str(&format!("would be admitted now, with {change}: {offer}\n"));
    }
    text
}

/// Which nodes may be used, where that is a part of why a goal is refused; `among` = no others, if any is named.
pub fn confined(verdict: &Verdict, among: &BTreeSet<Name>) -> String {
    let Verdict::Refused(Refusal { reason, .. }) = verdict else { return String::new() };
    let is_of_nodes = matches!(
        reason,
        Reason::NodesBusy(_)
            | Reason::NodesMissing(_)
            | Reason::LinkBusy(_)
            | Reason::LinkTooSlow(_)
    );
    match among.is_empty() || !is_of_nodes {
        true => String::new(),
        false => only(among) + "\n",
    }
}

/// That no other nodes than these may be used.
pub fn only(among: &BTreeSet<Name>) -> String {
    let names: Vec<_> = among.iter().map(Name::as_str).collect();
    format!("no other nodes may be used than {} (--among, or a job of Slurm's)", names.join(", "))
}

/// Parameters as `interleave 0, size 512`.
pub fn parameters(parameters: &Parameters) -> String {
    let parts: Vec<_> = parameters.iter().map(|(name, value)| format!("{name} {value}")).collect();
    parts.join(", ")
}

/// Seconds that were computed, as people read spans.
pub fn seconds(seconds: f64) -> String {
    let span = Nanos::from_secs_f64(seconds);
    span.map_or_else(|| format!("{seconds:.3} s"), |span| span.rounded().to_string())
}

/// What a run took beside what was promised of it: `47 % sooner than promised`.
pub fn beside_promise(actual: Nanos, promised: Nanos) -> String {
    let percent = 100.0 * (actual.as_secs_f64() / promised.as_secs_f64() - 1.0);
    let (size, side) = (percent.abs(), if percent < 0.0 { "sooner" } else { "later" });
    match size {
        ..0.05 => "as promised".into(),
        ..9.95 => format!("{size:.1} % {side} than promised"),
        _ => format!("{size:.0} % {side} than promised"),
    }
}

/// A change of a time as `12.5 % longer`, with so many decimals.
fn longer(ppm: i64, decimals: usize) -> String {
    let than = if ppm > 0 { "longer" } else { "less" };
    format!("{:.decimals$} % {than}", ppm.unsigned_abs() as f64 / 1e4)
}

fn stage(outline: &Outline, stage: Stage) -> String {
    let (all, left) = outline.left_after(stage);
    let (title, detail): (_, fn(&CurveOutline) -> String) = match stage {
        Stage::Measured => ("measured curves", |_| String::new()),
        Stage::InTime => ("with a point within the time bounds", |_| String::new()),
        Stage::Matching => ("that match what is set", |_| String::new()),
        Stage::Ranged => ("with a range up to the knee", range),
        Stage::Held => ("of which a point can be held now", held),
        Stage::Chosen => ("chosen", alternative),
    };
    let number = Stage::ALL.iter().position(|s| *s == stage).unwrap_or(0) + 1;
    let mut text = format!("{number}. {all} {title}\n");
    // Lists that are long say nothing more than their length.
    const SHOWN: usize = 12;
    if stage > Stage::Measured {
        let mut more = all;
        for curve in left.take(SHOWN) {
            more -= 1;
            let curve_name = format!("{}, {} nodes", parameters(&curve.parameters), curve.nodes);
            text.push_str(format!("     {curve_name:<34} {}", detail(curve)).trim_end());
            text.push('\n');
        }
        if more > 0 {
            text.push_str(&format!("     and {more} more\n"));
        }
    }
    text
}

fn range(curve: &CurveOutline) -> String {
    curve.range.map_or(String::new(), |range| {
        let (least, knee) = (range.least_bits_per_second, curve.knee_bits_per_second);
        format!("from {} to the knee at {}", least.rounded_up(), knee.rounded_up())
    })
}

fn held(curve: &CurveOutline) -> String {
    let held = curve.held_bits_per_second.unwrap_or_default();
    format!("the links hold {} for each flow; {}", held.rounded_down(), alternative(curve))
}

fn alternative(curve: &CurveOutline) -> String {
    curve.alternative.map_or(String::new(), |point| {
        let rate = point.bandwidth_bits_per_second.rounded_up();
        format!("{rate} gives {}", point.time_nanos.rounded_up())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::topology::NodeIndex;
    use keeptime_model::units::{BitsPerSecond, CpuPpm, Share};
    use keeptime_planner::availability::Placement;
    use keeptime_planner::drift::Drift;
    use keeptime_planner::refusal::NodeShortage;

    /// For nine runs in ten, which twelve deviations support.
    fn planned() -> Plan {
        let nodes = vec![NodeIndex(0)];
        Plan {
            parameters: Parameters::new(),
            placement: Placement { nodes, cpu: CpuPpm::from_percent(20), flows: vec![] },
            bandwidth_bits_per_second: BitsPerSecond::from_mbit(10),
            time_nanos: Nanos::from_millis(1_100),
            median_nanos: Nanos::from_secs(1),
            drift: Drift::NONE,
            drift_seen_ppm: None,
            quantile: percent(90),
            quantile_asked: None,
            deviations: 12,
            samples: 12,
        }
    }

    fn percent(percent: u32) -> Share {
        Share::from_percent(percent).unwrap()
    }

    fn told(planned: &Plan) -> String {
        let file = "name = \"one\"\nnodes = [{ name = \"n1\", cpu = \"40 %\" }]\n";
        plan(planned, &Topology::from_toml(file).unwrap())
    }

    // Goal: who did not say what to prefer learns that less would do, and how to have it.
    #[test]
    fn less_and_better_are_told_with_what_to_type() {
        let of = |prefer, nodes, size: &str| Instead {
            prefer,
            parameters: Parameters::from([("size".parse().unwrap(), size.into())]).into(),
            nodes,
            bandwidth_bits_per_second: BitsPerSecond::new(19_412_345),
            time_nanos: Nanos::from_millis(980),
        };
        let all = [of(Preference::Cheapest, 1, "256"), of(Preference::Best, 2, "512")];
        let expected = "less would do: size 256 on 1 node, 19.4 Mbit/s for each flow, in 980 ms \
                        (--prefer cheapest)\n\
                        better parameters would do: size 512 on 2 nodes, 19.4 Mbit/s for each flow, \
                        in 980 ms (--prefer best)\n";
        assert_eq!(instead(&all), expected);
        assert_eq!(instead(&[]), "");
    }

    // Goal: who has named nodes is told them where they are too few, and not where time is short.
    #[test]
    fn named_nodes_are_told_where_nodes_are_short() {
        let (needs, has, cpu_per_node_ppm) = (2, 1, CpuPpm::from_percent(25));
        let short = Reason::NodesBusy(NodeShortage { needs, has, cpu_per_node_ppm });
        let (at_least_nanos, within_nanos) = (None, Some(Nanos::from_secs(1)));
        let fast = Reason::NoTimeBetween { at_least_nanos, within_nanos };
        let told = |reason: &Reason, among: &[&str]| {
            let (reason, counter_offers) = (reason.clone(), Vec::new());
            let among = among.iter().map(|name| name.parse().unwrap()).collect();
            confined(&Verdict::Refused(Refusal { reason, counter_offers }), &among)
        };
        let said = "no other nodes may be used than n1, n3 (--among, or a job of Slurm's)\n";
        assert_eq!(told(&short, &["n3", "n1"]), said);
        assert_eq!(told(&short, &[]), "");
        assert_eq!(told(&fast, &["n1"]), "");
    }

    // Goal: nobody is told a share of runs that those which were measured do not support.
    #[test]
    fn a_promise_is_told_with_the_share_that_runs_support() {
        let enough = told(&planned());
        let said = "promised: 1.1 s (for 90 % of runs, from 12 measured deviations)\n";
        assert!(enough.ends_with(said), "{enough}");
        let asked = Some(percent(90));
        let few = Plan {
            quantile: Share::try_from(857_000).unwrap(),
            quantile_asked: asked,
            deviations: 6,
            ..planned()
        };
        let said = "(for 85.7 % of runs: 6 measured deviations support no more)\n";
        assert!(told(&few).ends_with(said), "{}", told(&few));
        let (quantile, deviations, samples) = (percent(50), 0, 2);
        let none = Plan { quantile, quantile_asked: asked, deviations, samples, ..planned() };
        let said = "(what half of the runs take: 2 measured runs support no more)\n";
        assert!(told(&none).ends_with(said), "{}", told(&none));
    }

    #[test]
    fn a_run_is_told_on_which_side_of_its_promise_it_is() {
        let promised = Nanos::from_millis(1_000);
        let told = |millis| beside_promise(Nanos::from_millis(millis), promised);
        assert_eq!(told(528), "47 % sooner than promised");
        assert_eq!(told(968), "3.2 % sooner than promised");
        assert_eq!(told(1_000), "as promised");
        assert_eq!(told(1_099), "9.9 % later than promised");
        assert_eq!(told(3_500), "250 % later than promised");
    }

    // Goal: who does as told measures: without --fresh all curves count as known.
    #[test]
    fn a_drift_that_is_not_corrected_is_warned_of() {
        let drift = Drift::try_from(250_000).unwrap();
        let corrected = Plan { drift, ..planned() };
        let text = told(&corrected);
        let said = "computing takes 25.0 % longer than when it was measured\n";
        assert!(text.ends_with(said), "{text}");
        let text = told(&Plan { drift_seen_ppm: Some(436_363), ..corrected });
        let warning = "warning: computing takes about 44 % longer than when it was measured, beyond what is \
                       corrected: measure again with keeptime profile NAME --fresh\n";
        assert!(text.ends_with(warning), "{text}");
    }
}
