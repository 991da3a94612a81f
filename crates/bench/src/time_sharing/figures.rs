//! What the runs come to, in numbers: rows that are derived the same way, whichever policy decides.

use super::plan::MEDIUM;
use super::{By, NAME, REPORTS_A_MEAN, Range, Raw, Run, SETTLE, Stage, THRESHOLDS, Trace};
use crate::figures::{Figures, NEVER, Target, quantile};

/// How rows of the paper's policy end; ours have the same names without it.
pub const PAPERS: &str = ", the paper's policy";
/// Who has rows, and how their names end.
const POLICIES: [(By, &str); 2] = [(By::Ours, ""), (By::Paper, PAPERS)];
/// A rate is stable within a threshold if so many of its reports are.
const STABLE: f64 = 0.9;
/// Figures of which errors are told: what is done there, and whether the paper states an error. Stages of Figure 8 are
/// shorter than twenty reports, and none is stated where programs wait for disks.
const ERRORS: [(u32, &str, bool); 6] = [
    (8, "changing targets", false),
    (10, "IS", true),
    (11, "two programs", true),
    (13, "writing", false),
    (14, "writing", false),
    (15, "touching memory", true),
];
const POINTS: &str = "% points";

/// A number that runs come to, of whichever policy.
struct Row<'a> {
    name: String,
    unit: &'a str,
    /// What one run has of it.
    of: &'a dyn Fn(&Run) -> Vec<f64>,
    /// Which quantile of what all have stands for them.
    quantile: f64,
    target: Option<Target>,
}

impl<'a> Row<'a> {
    /// The median of what runs have.
    fn new(name: impl Into<String>, unit: &'a str, of: &'a dyn Fn(&Run) -> Vec<f64>) -> Self {
        Self { name: name.into(), unit, of, quantile: 0.5, target: None }
    }

    /// The greatest in its place.
    fn worst(self) -> Self {
        Self { quantile: 1.0, ..self }
    }

    /// With something to be reached by ours: what the paper's policy comes to is no promise of anybody's.
    fn reaching(self, target: Target) -> Self {
        Self { target: Some(target), ..self }
    }

    /// Adds it for each policy that was measured. Beside it stands the same of those runs that no controller holds.
    fn add(&self, figures: &mut Figures, runs: &[&Run]) {
        let samples = |is_own: &dyn Fn(By) -> bool| -> Vec<f64> {
            let own = runs.iter().filter(|run| is_own(run.by));
            own.flat_map(|run| (self.of)(run)).collect()
        };
        let beside = samples(&|by: By| !by.is_controller());
        let baseline = (!beside.is_empty()).then(|| quantile(&beside, self.quantile));
        let held_by_none = runs.iter().map(|run| run.by).find(|by| !by.is_controller());
        for (policy, end) in POLICIES {
            let own = samples(&|by: By| by == policy);
            if own.is_empty() {
                continue;
            }
            let (name, value) = (format!("{}{end}", self.name), quantile(&own, self.quantile));
            let target = self.target.filter(|_| policy == By::Ours);
            let figure = figures.value(name, self.unit, value, &own, baseline, target).or_never();
            if let (Some(by), Some(_)) = (held_by_none, baseline) {
                figure.against(by.name());
            }
        }
    }
}

/// All figures.
pub fn all(raw: &Raw) -> Figures {
    let mut figures = Figures::of_evaluation(NAME);
    for (name, trace) in &raw.alone {
        let deviations = alone_deviations(trace);
        let name = format!("{name}, alone and unscheduled: deviation of a second, nine of ten");
        figures.value(name, "%", quantile(&deviations, STABLE), &deviations, None, None);
    }
    if let Some(measured) = &raw.range {
        range(&mut figures, measured);
    }
    drift(&mut figures, raw);
    for (shape, runs) in by_label(&raw.runs, 4) {
        responding(&mut figures, &shape, &runs);
    }
    thresholds(&mut figures, raw);
    loaded(&mut figures, raw);
    for (figure, what, is_stated) in ERRORS {
        for (label, runs) in by_label(&raw.runs, figure) {
            let name = format!("figure {figure}, {what}, {label}: error");
            let row = Row::new(name, POINTS, &Run::errors);
            let row = if is_stated { row.reaching(Target::AtMost(1.0)) } else { row };
            row.add(&mut figures, &runs);
        }
    }
    many(&mut figures, raw);
    figures
}

/// Figure 2: by how much the best period of each share misses the line.
fn range(figures: &mut Figures, range: &Range) {
    let shares: Vec<f64> = range.points.iter().map(|point| point.0).collect();
    let miss = |share: f64| {
        let own = range.points.iter().filter(|point| point.0 == share);
        let misses = own.map(|point| 100.0 * (point.2 / range.full_speed - share).abs());
        misses.fold(f64::INFINITY, f64::min)
    };
    let mut misses: Vec<f64> = shares.into_iter().map(miss).collect();
    misses.dedup();
    if !misses.is_empty() {
        let name = "figure 2: rate against share, in the best period of each, farthest off";
        figures.value(name, POINTS, quantile(&misses, 1.0), &misses, None, None);
    }
}

/// Figure 3: how far means of 20 seconds are from the target.
fn drift(figures: &mut Figures, raw: &Raw) {
    let name = "figure 3: error, farthest mean of 20 s (beside it: nobody corrects)";
    let row = Row::new(name, POINTS, &Run::errors).worst().reaching(Target::AtMost(1.0));
    row.add(figures, &of_figure(&raw.runs, 3));
}

/// Figures 4, 6 and 7.
fn responding(figures: &mut Figures, shape: &str, runs: &[&Run]) {
    let name = format!("figure 4, {shape}: error, mean of 20 s");
    Row::new(name, POINTS, &Run::errors).reaching(Target::AtMost(1.0)).add(figures, runs);
    let reports =
        |run: &Run| run.responses().into_iter().map(|(reports, _)| reports).collect::<Vec<_>>();
    let name = format!("figures 6 and 7, {shape}: reports to a new target");
    Row::new(name.as_str(), "", &reports).reaching(Target::AtMost(1.0)).add(figures, runs);
    let worst = Row::new(format!("{name}, worst"), "", &reports).worst();
    worst.reaching(Target::AtMost(3.0)).add(figures, runs);
    let seconds =
        |run: &Run| run.responses().into_iter().map(|(_, seconds)| seconds).collect::<Vec<_>>();
    let name = format!("figures 6 and 7, {shape}: seconds to a new target");
    Row::new(name, "s", &seconds).add(figures, runs);
}

/// Figure 5: the smallest threshold that nine of ten reports are within.
fn thresholds(figures: &mut Figures, raw: &Raw) {
    let noise = raw.alone.iter().find(|(name, _)| name == MEDIUM.0);
    let noise = noise.map_or(0.0, |(_, trace)| quantile(&alone_deviations(trace), STABLE));
    let runs = of_figure(&raw.runs, 5);
    for (policy, end) in POLICIES {
        let own = || runs.iter().filter(move |run| run.by == policy);
        let tried: Vec<f64> = own().map(|run| run.threshold).collect();
        if tried.is_empty() {
            continue;
        }
        let stable = own().filter(|run| run.deviation() <= run.threshold.max(noise));
        let smallest = stable.map(|run| run.threshold).reduce(f64::min).unwrap_or(NEVER);
        let name =
            "figure 5: smallest threshold that nine of ten reports are within, or the noise floor";
        let target = (policy == By::Ours).then_some(Target::AtMost(noise.max(1.0)));
        let name = format!("{name}{end}");
        figures.value(name, POINTS, smallest, &tried, None, target).or_never();
    }
    for threshold in THRESHOLDS {
        let own: Vec<&Run> =
            runs.iter().copied().filter(|run| run.threshold == threshold).collect();
        let changes = |run: &Run| vec![run.changes() as f64];
        let name = format!("figure 5: changes of the schedule, threshold of {threshold} %");
        Row::new(name, "", &changes).add(figures, &own);
    }
}

/// Figure 9: how much of its rate a program loses to another that wants all of one node.
fn loaded(figures: &mut Figures, raw: &Raw) {
    let name =
        "figure 9: rate that another program on one node takes (beside it: nothing reserved)";
    let lost = |run: &Run| run.lost().into_iter().collect::<Vec<_>>();
    let row = Row::new(name, "%", &lost).reaching(Target::Within(-1.0, 1.0));
    row.add(figures, &of_figure(&raw.runs, 9));
}

/// Figure 12: errors of each program, how its rate scatters, and how long it stands still, by the number of programs;
/// beside them those of programs that Slurm lets run in turns.
fn many(figures: &mut Figures, raw: &Raw) {
    for (count, runs) in by_label(&raw.runs, 12) {
        let programs = format!("figure 12, {count} programs");
        let errors = |run: &Run| vec![run.mean_error()];
        let name = format!("{programs} at 10 %: error on average, the farthest");
        let row = Row::new(name, POINTS, &errors).worst();
        row.reaching(Target::AtMost(1.5)).add(figures, &runs);

        let reports = |run: &Run| run.scatter().into_iter().collect::<Vec<_>>();
        let name = format!("{programs}: deviation of a report");
        Row::new(name, POINTS, &reports).add(figures, &runs);

        let seconds = |run: &Run| vec![run.scatter_of_seconds()];
        let name = format!("{programs}: deviation of a second");
        Row::new(name, POINTS, &seconds).add(figures, &runs);

        let pauses = |run: &Run| vec![run.longest_pause()];
        let name = format!("{programs}: longest time without an iteration");
        Row::new(name, "s", &pauses).worst().add(figures, &runs);
    }
    for (policy, end) in POLICIES {
        let scatter = |count: &str| {
            let own = raw.runs.iter().filter(|run| run.figure == 12 && run.by == policy);
            let reports: Vec<f64> =
                own.filter(|run| run.label == count).filter_map(Run::scatter).collect();
            (!reports.is_empty()).then(|| quantile(&reports, 0.5))
        };
        if let (Some(two), Some(eight)) = (scatter("2"), scatter("8")) {
            let growth = eight / two;
            let name = format!("figure 12: deviation of a report with 8 programs against 2{end}");
            let target = (policy == By::Ours).then_some(Target::AtMost(1.0));
            figures.value(name, "x", growth, &[growth], None, target);
        }
    }
}

/// All runs of a figure.
fn of_figure(runs: &[Run], figure: u32) -> Vec<&Run> {
    runs.iter().filter(|run| run.figure == figure).collect()
}

/// The same by their labels, in the order in which these come.
pub fn by_label(runs: &[Run], figure: u32) -> Vec<(String, Vec<&Run>)> {
    let mut found: Vec<(String, Vec<&Run>)> = Vec::new();
    for run in of_figure(runs, figure) {
        match found.iter_mut().find(|(label, _)| *label == run.label) {
            Some((_, runs)) => runs.push(run),
            None => found.push((run.label.clone(), vec![run])),
        }
    }
    found
}

/// By how much each second of a program's own run is off its mean, in percent.
fn alone_deviations(trace: &Trace) -> Vec<f64> {
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

    /// How much of its rate of the first stage, in percent, it has lost in the second one.
    fn lost(&self) -> Option<f64> {
        let [before, beside] = self.stages.as_slice() else { return None };
        let rate = |stage: &Stage| self.trace.rate(stage.from + SETTLE, stage.to);
        Some(100.0 * (1.0 - rate(beside) / rate(before)))
    }

    /// The standard deviation of its reports in the steady state of its last stage, in percentage points; of a run that
    /// nobody told anything of there is none.
    fn scatter(&self) -> Option<f64> {
        let told = self.stages.last().map(|stage| self.told(stage)).unwrap_or_default();
        (!told.is_empty()).then(|| 100.0 * deviation(&told))
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
    use super::super::watched::Seen;
    use super::*;
    use crate::figures::Figure;

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

    /// The same in two stages, the second of which has an iteration every `pause` seconds.
    fn disturbed(by: By, pause: f64) -> Run {
        let mut run = run(9, by, 3.0);
        let before = (1..=150).map(|at| f64::from(at) / 5.0);
        let beside = (1..=200).map(|at| 30.0 + f64::from(at) * pause);
        run.trace.iterations = before.chain(beside).collect();
        let stage = |from: f64| Stage { target: 50, from, to: from + 30.0 };
        run.stages = vec![stage(0.0), stage(30.0)];
        run
    }

    fn of(runs: Vec<Run>) -> Vec<Figure> {
        all(&Raw { runs, ..Raw::default() }).all().to_vec()
    }

    fn find<'a>(figures: &'a [Figure], end: &str) -> &'a Figure {
        figures.iter().find(|figure| figure.name.ends_with(end)).expect(end)
    }

    #[test]
    fn errors_are_of_twenty_seconds_in_the_steady_state() {
        let run = run(4, By::Ours, 3.0);
        let errors = run.errors();
        assert_eq!(errors.len(), 2);
        assert!(errors.iter().all(|error| (error - 2.0).abs() < 1e-6), "{errors:?}");
        assert!((run.mean_error() - 2.0).abs() < 1e-6);
        assert!((run.deviation() - 3.0).abs() < 1e-6);
        assert!(run.scatter().is_some_and(|scatter| (scatter - 1.0).abs() < 1e-6));
    }

    // Goal: programs that have all nodes in turns are right on average and nowhere else.
    #[test]
    fn turns_stand_beside_what_is_steady() {
        let steady = Run { label: "2".into(), ..run(12, By::Ours, 3.0) };
        let mut turns = Run { by: By::Gang, ..steady.clone() };
        // Ten iterations a second in every other five seconds, and no reports.
        let at = |at: i32| f64::from(at / 50 * 10) + f64::from(at % 50 + 1) / 10.0;
        turns.trace.iterations = (0..300).map(at).collect();
        turns.trace.seen = vec![Seen { full_speed: Some(10.0), ..Seen::nothing(0.0, 0.48) }];
        let figures = of(vec![steady, turns]);
        let found = |end: &str| {
            let figure = find(&figures, end);
            (figure.value, figure.baseline.expect(end))
        };
        let (ours, turns) = found("the farthest");
        assert!((ours - 2.0).abs() < 1e-6 && (turns - 2.0).abs() < 1.0, "{ours}, {turns}");
        let (ours, turns) = found("of a second");
        assert!(ours < 1e-6 && (45.0..55.0).contains(&turns), "{ours}, {turns}");
        let (ours, turns) = found("without an iteration");
        assert!((ours - 0.2).abs() < 1e-6 && (turns - 5.1).abs() < 1e-6, "{ours}, {turns}");
        assert_eq!(find(&figures, "of a report").baseline, None);
    }

    // Goal: what is missing makes no figure, and what is there makes one for each policy.
    #[test]
    fn figures_are_those_of_what_was_measured() {
        let runs = vec![run(5, By::Ours, 3.0), run(5, By::Ours, 1.0), run(5, By::Paper, 2.0)];
        let figures = of(runs);
        let [ours, papers, changes @ ..] = figures.as_slice() else { panic!("{figures:?}") };
        assert_eq!((ours.value, ours.samples, ours.met), (3.0, 2, Some(false)));
        assert_eq!((papers.never, papers.samples, papers.met), (true, 1, None));
        let names: Vec<_> = changes.iter().map(|figure| figure.name.as_str()).collect();
        let changes = "figure 5: changes of the schedule, threshold of";
        let expected = [
            format!("{changes} 3 %"),
            format!("{changes} 2 %, the paper's policy"),
            format!("{changes} 1 %"),
        ];
        assert_eq!(names, expected);
    }

    // Goal: both policies' rows differ in nothing but their names' ends and in what was measured, and targets are ours alone.
    #[test]
    fn both_policies_have_the_same_rows() {
        let both = |figure: u32| {
            let ours = Run { label: "2".into(), ..run(figure, By::Ours, 3.0) };
            let mut paper = Run { by: By::Paper, ..ours.clone() };
            // Four iterations a second: 40 % of full speed, and so 8 points off.
            paper.trace.iterations = (1..=240).map(|at| f64::from(at) / 4.0).collect();
            [ours, paper]
        };
        let figures = of([4, 8, 10, 11, 12, 13, 14, 15].into_iter().flat_map(both).collect());
        let (papers, ours): (Vec<_>, Vec<_>) =
            figures.iter().partition(|figure| figure.name.ends_with(PAPERS));
        assert_eq!(ours.len(), papers.len());
        for (ours, papers) in ours.iter().zip(&papers) {
            assert_eq!(format!("{}{PAPERS}", ours.name), papers.name);
            assert_eq!((&ours.unit, &papers.target, papers.met), (&papers.unit, &None, None));
            let is_judged = ["4", "10", "11", "12", "15"].iter().any(|figure| {
                ours.name.starts_with(&format!("figure {figure}, ")) && ours.name.contains("error")
            });
            assert_eq!(ours.target.is_some(), is_judged, "{}", ours.name);
            if ours.name.contains("error") {
                let (ours, papers) = (ours.value, papers.value);
                assert!((ours - 2.0).abs() < 1e-6, "{ours}");
                assert!((papers - 8.0).abs() < 1e-6, "{papers}");
            }
        }
        let names: Vec<_> = ours.iter().map(|figure| &figure.name).collect();
        for figure in ["4", "8", "10", "11", "12", "13", "14", "15"] {
            let begin = format!("figure {figure}, ");
            assert!(names.iter().any(|name| name.starts_with(&begin)), "{begin}: {names:?}");
        }
    }

    // Goal: what another program takes from either policy's stands beside what it takes where nothing is reserved.
    #[test]
    fn what_is_taken_is_told_of_every_policy() {
        let runs = vec![
            disturbed(By::Ours, 0.2),
            disturbed(By::Paper, 0.25),
            disturbed(By::Unprotected, 0.4),
        ];
        let figures = of(runs);
        let [ours, papers] = figures.as_slice() else { panic!("{figures:?}") };
        for (figure, lost, is_met) in [(ours, 0.0, Some(true)), (papers, 20.0, None)] {
            assert!((figure.value - lost).abs() < 1e-6, "{figure:?}");
            assert!(figure.baseline.is_some_and(|bare| (bare - 50.0).abs() < 1e-6), "{figure:?}");
            assert_eq!(figure.met, is_met);
            assert_eq!(figure.against.as_deref(), Some("nothing reserved"));
        }
    }
}
