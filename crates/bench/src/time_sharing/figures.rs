//! What the runs come to, in numbers.

use super::{By, HIGH, LOW, MEDIUM, NAME, REPORTS_A_MEAN, Raw, Run, SETTLE, Stage, THRESHOLDS};
use crate::figures::{Figures, Target, quantile};

/// "To within the threshold" in so many reports, or never.
pub const NEVER: f64 = 1_000.0;
/// A rate is stable within a threshold if so many of its reports are.
const STABLE: f64 = 0.9;

/// All figures.
pub fn all(raw: &Raw) -> Figures {
    let mut figures = Figures::of_evaluation(NAME);
    for (name, trace) in &raw.alone {
        let deviations = alone_deviations(trace);
        let name = format!("{name}, alone and unscheduled: deviation of a second, nine of ten");
        figures.value(name, "%", quantile(&deviations, STABLE), &deviations, None, None);
    }
    range(&mut figures, raw);
    drift(&mut figures, raw);
    for shape in [HIGH, MEDIUM, LOW] {
        responding(&mut figures, raw, shape.0);
    }
    thresholds(&mut figures, raw);
    loaded(&mut figures, raw);
    let points = "% points";
    let most_one = || Some(Target::AtMost(1.0));
    for (figure, what) in [
        (8, "changing targets"),
        (10, "IS"),
        (11, "two programs"),
        (13, "writing"),
        (14, "writing"),
        (15, "touching memory"),
    ] {
        for (label, runs) in by_label(&raw.runs, figure) {
            let errors =
                |runs: Vec<&Run>| runs.into_iter().flat_map(Run::errors).collect::<Vec<_>>();
            let errors_by_turns = errors(in_turns(raw, figure, &label));
            let by_turns = (!errors_by_turns.is_empty()).then(|| quantile(&errors_by_turns, 0.5));
            // Its stages are shorter than twenty reports, and the paper states no error where programs wait for disks.
            let target = [10, 11, 15].contains(&figure).then(most_one).flatten();
            let name = format!("figure {figure}, {what}, {label}: error");
            figures.median(name, points, &errors(runs), by_turns, target);
        }
    }
    many(&mut figures, raw);
    figures
}

/// Figure 2: by how much the best period of each share misses the line.
fn range(figures: &mut Figures, raw: &Raw) {
    let full = raw.range.full_speed;
    let shares: Vec<f64> = raw.range.points.iter().map(|point| point.0).collect();
    let miss = |share: f64| {
        let own = raw.range.points.iter().filter(|point| point.0 == share);
        own.map(|point| 100.0 * (point.2 / full - share).abs()).fold(f64::INFINITY, f64::min)
    };
    let mut misses: Vec<f64> = shares.into_iter().map(miss).collect();
    misses.dedup();
    if !misses.is_empty() {
        let name = "figure 2: rate against share, in the best period of each, farthest off";
        figures.value(name, "% points", quantile(&misses, 1.0), &misses, None, None);
    }
}

/// Figure 3: how far means of 20 seconds are from the target, and how they scatter.
fn drift(figures: &mut Figures, raw: &Raw) {
    let [ours, nobody] = [By::Ours, By::Nobody].map(|by| {
        let runs = raw.runs.iter().filter(|run| run.figure == 3 && run.by == by);
        runs.flat_map(Run::errors).collect::<Vec<_>>()
    });
    if !ours.is_empty() {
        let (worst, baseline) = (quantile(&ours, 1.0), Some(quantile(&nobody, 1.0)));
        let name = "figure 3: error, farthest mean of 20 s (beside it: nobody corrects)";
        figures.value(name, "% points", worst, &ours, baseline, Some(Target::AtMost(1.0)));
    }
}

/// Figures 4, 6 and 7.
fn responding(figures: &mut Figures, raw: &Raw, shape: &str) {
    let own = |by: By| {
        let runs = raw.runs.iter().filter(move |run| run.figure == 4 && run.by == by);
        runs.filter(|run| run.label == shape)
    };
    if own(By::Ours).next().is_none() {
        return;
    }
    let [ours, paper] =
        [By::Ours, By::Paper].map(|by| own(by).flat_map(Run::errors).collect::<Vec<_>>());
    let (baseline, target) = (Some(quantile(&paper, 0.5)), Some(Target::AtMost(1.0)));
    let name = format!("figure 4, {shape}: error, mean of 20 s");
    figures.median(name, "% points", &ours, baseline, target);
    let [ours, paper] =
        [By::Ours, By::Paper].map(|by| own(by).flat_map(Run::responses).collect::<Vec<_>>());
    let reports = |all: &[(f64, f64)]| all.iter().map(|(reports, _)| *reports).collect::<Vec<_>>();
    let seconds = |all: &[(f64, f64)]| all.iter().map(|(_, seconds)| *seconds).collect::<Vec<_>>();
    let baseline = |of: Vec<f64>, q| Some(quantile(&of, q));
    let name = format!("figures 6 and 7, {shape}: reports to a new target");
    let (paper_median, target) = (baseline(reports(&paper), 0.5), Some(Target::AtMost(1.0)));
    figures.median(&name, "", &reports(&ours), paper_median, target);
    let (paper_worst, target) = (baseline(reports(&paper), 1.0), Some(Target::AtMost(3.0)));
    let worst = quantile(&reports(&ours), 1.0);
    figures.value(format!("{name}, worst"), "", worst, &reports(&ours), paper_worst, target);
    let name = format!("figures 6 and 7, {shape}: seconds to a new target");
    figures.median(name, "s", &seconds(&ours), baseline(seconds(&paper), 0.5), None);
}

/// Figure 5: the smallest threshold that nine of ten reports are within.
fn thresholds(figures: &mut Figures, raw: &Raw) {
    let noise = raw.alone.iter().find(|(name, _)| name == MEDIUM.0);
    let noise = noise.map_or(0.0, |(_, trace)| quantile(&alone_deviations(trace), STABLE));
    let smallest = |by: By| {
        let own = raw.runs.iter().filter(|run| run.figure == 5 && run.by == by);
        let stable = own.filter(|run| run.deviation() <= run.threshold.max(noise));
        stable.map(|run| run.threshold).reduce(f64::min)
    };
    if !raw.runs.iter().any(|run| run.figure == 5) {
        return;
    }
    let [ours, paper] = [By::Ours, By::Paper].map(|by| smallest(by).unwrap_or(NEVER));
    let target = Some(Target::AtMost(noise.max(1.0)));
    let name =
        "figure 5: smallest threshold that nine of ten reports are within, or the noise floor";
    figures.value(name, "% points", ours, &THRESHOLDS, Some(paper), target);
    for threshold in THRESHOLDS {
        let changes = |by: By| {
            let own = |run: &&Run| (run.figure, run.by, run.threshold) == (5, by, threshold);
            raw.runs.iter().find(own).map(|run| run.changes() as f64)
        };
        if let Some(ours) = changes(By::Ours) {
            let name = format!("figure 5: changes of the schedule, threshold of {threshold} %");
            figures.value(name, "", ours, &[ours], changes(By::Paper), None);
        }
    }
}

/// Figure 9: how much of its rate a program loses to another that wants all of one node.
fn loaded(figures: &mut Figures, raw: &Raw) {
    let lost = |by: By| {
        let run = raw.runs.iter().find(|run| run.figure == 9 && run.by == by)?;
        let [before, beside] = run.stages.as_slice() else { return None };
        let rate = |stage: &Stage| run.trace.rate(stage.from + SETTLE, stage.to);
        Some(100.0 * (1.0 - rate(beside) / rate(before)))
    };
    if let Some(ours) = lost(By::Ours) {
        let name =
            "figure 9: rate that another program on one node takes (beside it: nothing reserved)";
        let target = Some(Target::Within(-1.0, 1.0));
        figures.value(name, "%", ours, &[ours], lost(By::Unprotected), target);
    }
}

/// Figure 12: errors of each program, how its rate scatters, and how long it stands still, by the number of programs;
/// beside them those of programs that Slurm lets run in turns.
fn many(figures: &mut Figures, raw: &Raw) {
    let mut scatter = Vec::new();
    for (count, runs) in by_label(&raw.runs, 12) {
        let in_turns = in_turns(raw, 12, &count);
        let beside = |of: &dyn Fn(&Run) -> f64, q: f64| {
            let each: Vec<_> = in_turns.iter().map(|run| of(run)).collect();
            (!each.is_empty()).then(|| quantile(&each, q))
        };
        let each = |of: &dyn Fn(&Run) -> f64| runs.iter().map(|run| of(run)).collect::<Vec<_>>();
        let programs = format!("figure 12, {count} programs");

        let errors = each(&Run::mean_error);
        let name = format!("{programs} at 10 %: error on average, the farthest");
        let (worst, target) = (quantile(&errors, 1.0), Some(Target::AtMost(1.5)));
        figures.value(name, "% points", worst, &errors, beside(&Run::mean_error, 1.0), target);

        let reports = each(&Run::scatter);
        let name = format!("{programs}: deviation of a report");
        figures.median(name, "% points", &reports, None, None);
        scatter.push((count, quantile(&reports, 0.5)));

        let name = format!("{programs}: deviation of a second");
        let baseline = beside(&Run::scatter_of_seconds, 0.5);
        figures.median(name, "% points", &each(&Run::scatter_of_seconds), baseline, None);

        let pauses = each(&Run::longest_pause);
        let name = format!("{programs}: longest time without an iteration");
        let (worst, baseline) = (quantile(&pauses, 1.0), beside(&Run::longest_pause, 1.0));
        figures.value(name, "s", worst, &pauses, baseline, None);
    }
    let of = |count: &str| scatter.iter().find(|(own, _)| own == count).map(|(_, value)| *value);
    if let (Some(two), Some(eight)) = (of("2"), of("8")) {
        let growth = eight / two;
        let name = "figure 12: deviation of a report with 8 programs against 2";
        figures.value(name, "x", growth, &[growth], None, Some(Target::AtMost(1.0)));
    }
}

/// The runs of a figure by their labels, in the order in which they were measured.
pub fn by_label(runs: &[Run], figure: u32) -> Vec<(String, Vec<&Run>)> {
    let mut found: Vec<(String, Vec<&Run>)> = Vec::new();
    for run in runs.iter().filter(|run| run.figure == figure) {
        match found.iter_mut().find(|(label, _)| *label == run.label) {
            Some((_, runs)) => runs.push(run),
            None => found.push((run.label.clone(), vec![run])),
        }
    }
    found
}

/// What Slurm made of the same programs.
fn in_turns<'a>(raw: &'a Raw, figure: u32, label: &str) -> Vec<&'a Run> {
    let own = raw.gang.runs.iter();
    own.filter(|run| run.figure == figure && run.label == label).collect()
}

/// By how much each second of a program's own run is off its mean, in percent.
fn alone_deviations(trace: &super::Trace) -> Vec<f64> {
    let from = trace.iterations.first().copied().unwrap_or_default() + 1.0;
    let rates: Vec<_> = trace.rates(from, trace.end(), 1.0).into_iter().map(|(_, r)| r).collect();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    rates.iter().map(|rate| 100.0 * (rate / mean - 1.0).abs()).collect()
}

impl Run {
    /// |mean - target| of every 20 seconds in the steady state of a stage, or of what there is of it; in percentage
    /// points of full speed as it was followed.
    pub fn errors(&self) -> Vec<f64> {
        let of = |stage: &Stage| {
            let (from, to) = (stage.from + SETTLE, stage.to);
            let window = REPORTS_A_MEAN.min(to - from);
            let parts = self.trace.parts(from, to, window).into_iter();
            let target = f64::from(stage.target);
            parts.map(move |(_, part)| (100.0 * part - target).abs()).collect::<Vec<_>>()
        };
        self.stages.iter().flat_map(of).collect()
    }

    /// The same over the whole of its last stage.
    fn mean_error(&self) -> f64 {
        let Some(stage) = self.stages.last() else { return f64::NAN };
        let (from, to) = (stage.from + SETTLE, stage.to);
        let parts = self.trace.parts(from, to, to - from);
        parts.first().map_or(f64::NAN, |(_, part)| (100.0 * part - f64::from(stage.target)).abs())
    }

    /// Reports and seconds until one told a rate within the threshold, for each new target.
    fn responses(&self) -> Vec<(f64, f64)> {
        let of = |stage: &Stage| {
            let found = self.trace.response(stage.from, stage.to, self.threshold / 100.0);
            found.map_or((NEVER, NEVER), |(reports, seconds)| (f64::from(reports), seconds))
        };
        self.stages.iter().skip(1).map(of).collect()
    }

    /// How far reports of the steady state are from the target: nine of ten, in percentage points.
    fn deviation(&self) -> f64 {
        let off = |seen: f64, target: u32| (100.0 * seen - f64::from(target)).abs();
        let of = |stage: &Stage| {
            let target = stage.target;
            let told = self.told(stage).into_iter();
            told.map(move |actual| off(actual, target)).collect::<Vec<_>>()
        };
        let all: Vec<_> = self.stages.iter().flat_map(of).collect();
        quantile(&all, STABLE)
    }

    /// The standard deviation of its reports in the steady state of its last stage, in percentage points.
    fn scatter(&self) -> f64 {
        let told = self.stages.last().map(|stage| self.told(stage)).unwrap_or_default();
        100.0 * deviation(&told)
    }

    /// The same of its rate in each second, as it is counted from outside.
    fn scatter_of_seconds(&self) -> f64 {
        let Some(stage) = self.stages.last() else { return f64::NAN };
        let parts = self.trace.parts(stage.from + SETTLE, stage.to, 1.0);
        100.0 * deviation(&parts.into_iter().map(|(_, part)| part).collect::<Vec<_>>())
    }

    /// The longest time without an iteration in the steady state of its last stage, in seconds.
    fn longest_pause(&self) -> f64 {
        let stage = self.stages.last();
        stage.map_or(f64::NAN, |stage| self.trace.longest_pause(stage.from + SETTLE, stage.to))
    }

    /// Times that its schedule changed in the steady state.
    fn changes(&self) -> usize {
        self.stages.iter().map(|stage| self.trace.changes(stage.from + SETTLE, stage.to)).sum()
    }

    /// What reports told in the steady state of a stage.
    fn told(&self, stage: &Stage) -> Vec<f64> {
        let within = |at: f64| stage.from + SETTLE < at && at <= stage.to;
        let seen = self.trace.seen.iter().filter(|seen| within(seen.at));
        let mut told: Vec<f64> = seen.filter_map(|seen| seen.actual).collect();
        told.dedup();
        told
    }
}

/// The standard deviation.
fn deviation(samples: &[f64]) -> f64 {
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let squares = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>();
    (squares / samples.len() as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::super::gang::Gang;
    use super::super::watched::{Seen, Trace};
    use super::*;

    /// Ten iterations a second at full speed; a program at half of that, whose reports scatter by a point each way.
    fn run(figure: u32, by: By, threshold: f64) -> Run {
        let iterations = (1..=300).map(|at| f64::from(at) / 5.0).collect();
        let seen = (0..60).map(|at| Seen {
            at: f64::from(at),
            target: 0.5,
            actual: Some(if at % 2 == 0 { 0.49 } else { 0.51 }),
            full_speed: Some(10.0),
            share: Some(0.2),
            period: Some(0.02),
        });
        let trace = Trace { iterations, seen: seen.collect() };
        let stages = vec![Stage { target: 48, from: 0.0, to: 45.0 }];
        Run { figure, label: "1:1".into(), by, threshold, stages, trace }
    }

    #[test]
    fn errors_are_of_twenty_seconds_in_the_steady_state() {
        let run = run(4, By::Ours, 3.0);
        let errors = run.errors();
        assert_eq!(errors.len(), 2);
        assert!(errors.iter().all(|error| (error - 2.0).abs() < 1e-6), "{errors:?}");
        assert!((run.mean_error() - 2.0).abs() < 1e-6);
        assert!((run.deviation() - 3.0).abs() < 1e-6);
        assert!((run.scatter() - 1.0).abs() < 1e-6);
    }

    // Goal: programs that have all nodes in turns are right on average and nowhere else.
    #[test]
    fn turns_stand_beside_what_is_steady() {
        let machine = keeptime::machine::Machine::here();
        let steady = Run { label: "2".into(), ..run(12, By::Ours, 3.0) };
        let mut turns = Run { by: By::Gang, ..steady.clone() };
        // Ten iterations a second in every other five seconds.
        let at = |at: i32| f64::from(at / 50 * 10) + f64::from(at % 50 + 1) / 10.0;
        turns.trace.iterations = (0..300).map(at).collect();
        let gang = Gang { version: "slurm".into(), runs: vec![turns] };
        let range = super::super::Range::default();
        let raw = Raw { machine, alone: Vec::new(), range, runs: vec![steady], gang };
        let figures = all(&raw);
        let found = |end: &str| {
            let found = figures.all().iter().find(|figure| figure.name.ends_with(end));
            found.and_then(|figure| Some((figure.value, figure.baseline?))).expect(end)
        };
        let (ours, turns) = found("the farthest");
        assert!((ours - 2.0).abs() < 1e-6 && (turns - 2.0).abs() < 1.0, "{ours}, {turns}");
        let (ours, turns) = found("of a second");
        assert!(ours < 1e-6 && (45.0..55.0).contains(&turns), "{ours}, {turns}");
        let (ours, turns) = found("without an iteration");
        assert!((ours - 0.2).abs() < 1e-6 && (turns - 5.1).abs() < 1e-6, "{ours}, {turns}");
    }

    // Goal: what is missing makes no figure, and what is there makes one with what stands beside it.
    #[test]
    fn figures_are_those_of_what_was_measured() {
        let machine = keeptime::machine::Machine::here();
        let runs = vec![run(5, By::Ours, 3.0), run(5, By::Ours, 1.0), run(5, By::Paper, 2.0)];
        let range = super::super::Range::default();
        let raw = Raw { machine, alone: Vec::new(), range, runs, gang: Default::default() };
        let figures = all(&raw);
        let [smallest, three, one] = figures.all() else { panic!("{:?}", figures.all()) };
        assert_eq!((smallest.value, smallest.baseline), (3.0, Some(NEVER)));
        assert_eq!(smallest.met, Some(false));
        assert_eq!((three.value, three.baseline, one.baseline), (0.0, None, None));
    }
}
