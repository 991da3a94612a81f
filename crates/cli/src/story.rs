//! A decision as people read it: what remained at each step, what was chosen, or why not and what
//! would be admitted instead. Pure: everything is a text.

use keeptime_model::application::Parameters;
use keeptime_model::topology::Topology;
use keeptime_planner::explanation::Stage;
use keeptime_planner::outline::{CurveOutline, Outline};
use keeptime_planner::refusal::{Change, Refusal};
use keeptime_planner::translate::{Decision, Plan, Verdict};

/// The whole way of a request, stage by stage, and its end.
pub fn decision(decision: &Decision, topology: &Topology) -> String {
    let mut text = outline(&Outline::of(&decision.explanation, usize::MAX));
    match &decision.verdict {
        Verdict::Planned(plan) => text.push_str(&self::plan(plan, topology)),
        Verdict::Refused(refusal) => text.push_str(&self::refusal(refusal)),
    }
    text
}

/// The way of a request, stage by stage.
pub fn outline(outline: &Outline) -> String {
    let stages = Stage::ALL.map(|stage| self::stage(outline, stage));
    format!("goal: {}\n{}", outline.goal, stages.concat())
}

/// What is promised with which resources.
pub fn plan(plan: &Plan, topology: &Topology) -> String {
    let nodes: Vec<_> =
        plan.placement.nodes.iter().map(|n| topology.node(*n).name.as_str()).collect();
    let basis = match plan.deviations {
        0 => format!("what half of the runs take, by {} that were measured", plan.samples),
        count => format!("for {} of runs, from {count} measured deviations", plan.quantile),
    };
    let changed = match plan.drift.ppm() {
        0 => String::new(),
        ppm => format!(
            "expected: {}, since by the last runs computing takes {:.1} % {} than when it was measured\n",
            seconds(plan.median_nanos.as_secs_f64()),
            ppm.unsigned_abs() as f64 / 1e4,
            if ppm > 0 { "longer" } else { "less" },
        ),
    };
    format!(
        "plan: {}on {}, {} for each flow, {} of a CPU each\npromised: {} ({basis})\n{changed}",
        if plan.parameters.is_empty() { String::new() } else { parameters(&plan.parameters) + " " },
        nodes.join(" "),
        plan.bandwidth_bits_per_second,
        plan.placement.cpu,
        seconds(plan.time_nanos.as_secs_f64()),
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

/// Parameters as `interleave 0, size 512`.
pub fn parameters(parameters: &Parameters) -> String {
    let parts: Vec<_> = parameters.iter().map(|(name, value)| format!("{name} {value}")).collect();
    parts.join(", ")
}

/// Seconds as `0.512 s`.
pub fn seconds(seconds: f64) -> String {
    format!("{seconds:.3} s")
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
        format!("from {least} to the knee at {knee}")
    })
}

fn held(curve: &CurveOutline) -> String {
    let held = curve.held_bits_per_second.unwrap_or_default();
    format!("the links hold {held} for each flow; {}", alternative(curve))
}

fn alternative(curve: &CurveOutline) -> String {
    curve.alternative.map_or(String::new(), |point| {
        let time = seconds(point.time_nanos.as_secs_f64());
        format!("{} gives {time}", point.bandwidth_bits_per_second)
    })
}
