//! What 100 % is: the rate of a program that nothing limits, and what it uses of every node then.
//!
//! Full speed wanders: what neighbours on the same processor do makes the same computation take up to a
//! third longer, for seconds at a time. A program that is held at 30 % does not show its full
//! speed, but the CPU time that it computes for one unit of work does: if that rises, the time at
//! full speed rises by as much, while the time that it waits stays what it was.
//!
//! A program that sleeps while it waits shows that by the CPU time that it uses. One that polls uses all
//! that it is given, whatever it gets done: its full speed is followed if reports tell what it
//! computed ([`Report::with_computed`]), and stays as it was measured if not.

use crate::report::Report;
use crate::schedule::{cpu_floor, utilisation};
use keeptime_model::Invalid;
use keeptime_model::units::CpuPpm;
use serde::{Deserialize, Serialize};

/// The rate at full speed and the CPU time of one unit of work on every node, now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FullSpeed {
    /// Seconds of one unit of work, as measured.
    seconds: f64,
    /// CPU seconds that it uses on each node.
    used: Vec<Cost>,
    /// Whether what the busiest of them uses stands for all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_alike: bool,
    /// CPU seconds that it computes on the node that computes most, if that is told.
    computed: Option<Cost>,
    /// Whether it uses CPU time while it waits.
    polls: bool,
    /// What each node had when it was measured, in processors; nothing = a whole one at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    given: Option<f64>,
}

/// CPU seconds of one unit of work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cost {
    measured: f64,
    /// Of the last few reports: tells full speed, which errors are seen against.
    now: f64,
    /// Of more reports: tells what schedules are to be, each change of which goes to every node.
    lately: f64,
}

impl FullSpeed {
    /// A program that does `rate` units of work in a second when nothing limits it, and uses `cpu`
    /// of each of its nodes then. One that uses nearly a whole processor anywhere is taken to poll
    /// ([`FullSpeed::polling`] says otherwise).
    ///
    /// # Errors
    /// A rate that is not above zero, no nodes, or nodes that use nothing.
    pub fn new(rate: f64, cpu: &[CpuPpm]) -> Result<Self, Invalid> {
        if !rate.is_finite() || rate <= 0.0 {
            return Err(Invalid::new("full_speed", rate, "a rate above 0"));
        }
        if !(1..=NODES_MAX).contains(&cpu.len()) {
            let expected = format!("1 to {NODES_MAX} nodes");
            return Err(Invalid::new("nodes", cpu.len(), expected));
        }
        if let Some(at) = cpu.iter().position(|used| *used == CpuPpm::default()) {
            return Err(Invalid::new(format!("nodes[{at}].cpu"), cpu[at], "more than 0 %"));
        }
        let used = cpu.iter().map(|used| Cost::measured(utilisation(*used) / rate)).collect();
        let polls = cpu.iter().any(|used| *used >= POLLS_FROM);
        let (seconds, is_alike) = (1.0 / rate, false);
        Ok(Self { seconds, used, is_alike, computed: None, polls, given: None })
    }

    /// The same of a program that does or does not use CPU time while it waits.
    #[must_use]
    pub fn polling(self, polls: bool) -> Self {
        Self { polls, ..self }
    }

    /// The same, measured while each node had `cpu` and no more.
    #[must_use]
    pub fn given(self, cpu: CpuPpm) -> Self {
        Self { given: Some(utilisation(cpu)), ..self }
    }

    /// The same of a program that computes for `seconds` of CPU time for one unit of work, on the node
    /// where that is most.
    #[must_use]
    pub fn computing(self, seconds: f64) -> Self {
        let sensible = seconds.is_finite() && seconds > 0.0;
        Self { computed: sensible.then(|| Cost::measured(seconds)), ..self }
    }

    /// The same with one node that stands for all, the one that uses most, if no other uses less than `part` of that:
    /// what their measured use differs by is chance then, and the one that has too little of it would hold up all. Each is
    /// followed all the same: who uses most in a single report does so by chance.
    #[must_use]
    pub fn as_one_if_alike(self, part: f64) -> Self {
        let most = self.most(|cost| cost.measured);
        let is_alike = self.used.iter().all(|cost| cost.measured >= part * most);
        Self { is_alike, ..self }
    }

    /// Whether it uses CPU time while it waits.
    pub fn polls(&self) -> bool {
        self.polls
    }

    /// Whether reports tell how it wanders.
    pub fn is_followed(&self) -> bool {
        !self.polls || self.computed.is_some()
    }

    /// How many nodes have schedules of their own: all that the application has, or one that stands for all.
    pub fn nodes(&self) -> usize {
        if self.is_alike { 1 } else { self.used.len() }
    }

    /// Of how many nodes reports tell the CPU time.
    pub fn nodes_told(&self) -> usize {
        self.used.len()
    }

    /// Work in a second at full speed, now.
    pub fn rate(&self) -> f64 {
        1.0 / self.iteration_seconds()
    }

    /// Seconds of one unit of work at full speed, now: what the node with the most to compute
    /// computes, and what was waited for when it was measured.
    pub fn iteration_seconds(&self) -> f64 {
        self.seconds_by(|cost| cost.now)
    }

    /// Seconds of one unit of work for which the busiest node waits for others, at the least: where it had less than a whole
    /// processor when it was measured, it may have waited for that as well.
    pub fn waiting_seconds(&self) -> f64 {
        let computing = self.most(|cost| cost.measured) / self.given.unwrap_or(1.0).min(1.0);
        (self.seconds - computing).max(0.0)
    }

    fn seconds_by(&self, value: fn(&Cost) -> f64) -> f64 {
        let slower = match &self.computed {
            Some(cost) => value(cost) - cost.measured,
            None => self.most(value) - self.most(|cost| cost.measured),
        };
        // A node that computes on several processors may save more than there is.
        (self.seconds + slower).max(self.seconds / DRIFT_MOST)
    }

    /// Of the node that has most of it.
    fn most(&self, value: fn(&Cost) -> f64) -> f64 {
        self.used.iter().map(value).fold(0.0, f64::max)
    }

    /// What a node uses at full speed, now, in processors. What polls uses what it used.
    pub fn utilisation(&self, node: usize) -> f64 {
        let of = |value: fn(&Cost) -> f64| match self.is_alike {
            true => self.most(value),
            false => value(&self.used[node]),
        };
        match self.polls {
            true => of(|cost| cost.measured) / self.seconds,
            false => of(|cost| cost.lately) / self.seconds_by(|cost| cost.lately),
        }
    }

    /// The same for every node.
    pub fn utilisations(&self) -> impl Iterator<Item = f64> {
        (0..self.nodes()).map(|node| self.utilisation(node))
    }

    /// Whether a unit of work costs about twice or half as much CPU time as was measured, or beyond that, by the last reports:
    /// if that lasts, it is other work, of which full speed was not measured.
    pub fn has_changed(&self) -> bool {
        let cost = |value: fn(&Cost) -> f64| match &self.computed {
            Some(cost) => value(cost),
            None => self.most(value),
        };
        let times = cost(|cost| cost.now) / cost(|cost| cost.measured);
        !(1.0 / CHANGED_FROM..=CHANGED_FROM).contains(&times)
    }

    /// Learns from what a report says of CPU time, if that says anything.
    pub fn learn(&mut self, report: &Report) {
        if report.work() <= 0.0 {
            return;
        }
        if !self.polls && report.used().len() == self.nodes_told() {
            for (cost, used) in self.used.iter_mut().zip(report.used()) {
                cost.learn(used.as_secs_f64() / report.work());
            }
        }
        if let (Some(cost), Some(most)) = (&mut self.computed, report.computed().iter().max()) {
            cost.learn(most.as_secs_f64() / report.work());
        }
    }
}

impl Cost {
    fn measured(seconds: f64) -> Self {
        Self { measured: seconds, now: seconds, lately: seconds }
    }

    fn learn(&mut self, seen: f64) {
        // One report that was interrupted, or a rank that hangs, is no news of the processors.
        let seen = seen.clamp(self.measured / DRIFT_MOST, self.measured * DRIFT_MOST);
        self.now += (seen - self.now) * LEARNING;
        self.lately += (seen - self.lately) * LEARNING_SCHEDULES;
    }
}

/// Finds full speed from reports of a program that runs unlimited. A report that is less than half as fast as most, as of a
/// program that waited for its disk for once, does not count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    nodes: usize,
    seen: Vec<Seen>,
}

/// What a report at full speed says, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seen {
    seconds: f64,
    work: f64,
    /// CPU of each node.
    used: Vec<f64>,
    /// CPU on the node that computes most; nothing if the report does not tell.
    computed: Option<f64>,
}

impl Seen {
    fn rate(&self) -> f64 {
        self.work / self.seconds
    }
}

impl Calibration {
    /// Of a program on so many nodes.
    pub fn new(nodes: usize) -> Self {
        Self { nodes, seen: Vec::new() }
    }

    /// Takes one report in.
    ///
    /// # Errors
    /// If it does not say what every node used.
    pub fn observe(&mut self, report: &Report) -> Result<(), Invalid> {
        if report.used().len() != self.nodes {
            let expected = format!("the CPU time of {} nodes", self.nodes);
            return Err(Invalid::new("used", report.used().len(), expected));
        }
        self.seen.push(Seen {
            seconds: report.seconds(),
            work: report.work(),
            used: report.used().iter().map(|used| used.as_secs_f64()).collect(),
            computed: report.computed().iter().max().map(|most| most.as_secs_f64()),
        });
        Ok(())
    }

    /// Full speed, once there were enough reports.
    ///
    /// # Errors
    /// Says how many reports it takes, or what is wrong with them.
    pub fn finish(&self) -> Result<FullSpeed, Invalid> {
        if self.seen.len() < REPORTS_LEAST {
            let expected = format!("at least {REPORTS_LEAST}");
            return Err(Invalid::new("reports at full speed", self.seen.len(), expected));
        }
        let mut rates: Vec<_> = self.seen.iter().map(Seen::rate).collect();
        rates.sort_by(f64::total_cmp);
        let usual = rates[rates.len() / 2];
        let counts = |seen: &&Seen| seen.rate() >= usual / DRIFT_MOST;
        let counting = || self.seen.iter().filter(counts);
        let sum = |value: fn(&Seen) -> f64| counting().map(value).sum::<f64>();
        let (seconds, work) = (sum(|seen| seen.seconds), sum(|seen| seen.work));
        let used = |node: usize| counting().map(|seen| seen.used[node]).sum::<f64>();
        let cpu: Vec<_> = (0..self.nodes).map(|node| cpu_floor(used(node) / seconds)).collect();
        let full_speed = FullSpeed::new(work / seconds, &cpu)?;
        let computed: Option<f64> = counting().map(|seen| seen.computed).sum();
        Ok(match computed {
            Some(seconds) => full_speed.computing(seconds / work),
            None => full_speed,
        })
    }
}

/// As many as an assignment has flows: bounds what a controller keeps.
pub const NODES_MAX: usize = 4_096;
/// From here on a program is taken to poll.
const POLLS_FROM: CpuPpm = CpuPpm::from_percent(90);
/// Beyond twice or half, something else than the processors' speed has changed.
const DRIFT_MOST: f64 = 2.0;
/// Nearly that: what is learned comes close to it, and never there.
const CHANGED_FROM: f64 = 1.9;
/// About the last four reports count: a speed that wanders by 5 % in half a minute is followed within 1 %.
const LEARNING: f64 = 1.0 / 4.0;
/// About the last dozen: the noise of single reports is no reason to change a schedule.
const LEARNING_SCHEDULES: f64 = 1.0 / 12.0;
/// Fewer say too little.
const REPORTS_LEAST: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::Nanos;

    fn report(work: f64, used_millis: &[u64]) -> Report {
        let used: Vec<_> = used_millis.iter().map(|millis| Nanos::from_millis(*millis)).collect();
        Report::new(Nanos::new(0), Nanos::from_secs(1), work, &used).unwrap()
    }

    fn percent(values: &[u32]) -> Vec<CpuPpm> {
        values.iter().map(|value| CpuPpm::from_percent(*value)).collect()
    }

    // Goal: full speed is followed although the program never runs at it. Method: a program of 50 ms
    // computing and 50 ms waiting is held at a third; its computing becomes a fifth slower.
    #[test]
    fn slower_processors_are_seen_while_the_program_is_held_back() {
        let mut full = FullSpeed::new(10.0, &percent(&[50, 20])).unwrap();
        for _ in 0..100 {
            full.learn(&report(3.3, &[198, 79]));
        }
        assert!((full.iteration_seconds() - 0.110).abs() < 1e-3, "{full:?}");
        assert!((full.utilisation(0) - 0.060 / 0.110).abs() < 1e-2, "{full:?}");
    }

    #[test]
    fn one_wild_report_moves_little_and_none_moves_beyond_twice() {
        let mut full = FullSpeed::new(10.0, &percent(&[50])).unwrap();
        full.learn(&report(1.0, &[900]));
        assert!(full.rate() > 8.8, "{full:?}");
        (0..500).for_each(|_| full.learn(&report(0.01, &[900])));
        assert!((full.iteration_seconds() - 0.150).abs() < 1e-6, "{full:?}");
        (0..500).for_each(|_| full.learn(&report(1e6, &[1])));
        assert!((full.iteration_seconds() - 0.075).abs() < 1e-6, "{full:?}");
    }

    // Goal: other work is told from slower processors. Method: what costs up to a third more for long, or much more a few times,
    // and what goes on to cost several times as much, or as little.
    #[test]
    fn work_that_is_not_what_was_measured_is_seen() {
        let after = |costs: &[u64]| {
            let mut full = FullSpeed::new(10.0, &percent(&[50, 20])).unwrap();
            costs.iter().for_each(|millis| full.learn(&report(1.0, &[*millis, 20])));
            full.has_changed()
        };
        assert!(!after(&[]) && !after(&[67; 200]) && !after(&[37; 200]) && !after(&[900; 3]));
        assert!(after(&[150; 40]) && after(&[10; 40]));
        let told = |computed: u64| {
            let mut full = FullSpeed::new(10.0, &percent(&[100])).unwrap().computing(0.05);
            let computed = [Nanos::from_millis(computed)];
            (0..40).for_each(|_| full.learn(&report(1.0, &[90]).with_computed(&computed)));
            full.has_changed()
        };
        assert!(!told(60) && told(200));
    }

    #[test]
    fn a_program_that_polls_is_followed_if_it_tells_what_it_computes() {
        let mut full = FullSpeed::new(10.0, &percent(&[100, 98])).unwrap().computing(0.05);
        let computed = [210, 180].map(Nanos::from_millis);
        for _ in 0..100 {
            full.learn(&report(3.5, &[300, 300]).with_computed(&computed));
        }
        assert!((full.iteration_seconds() - 0.110).abs() < 1e-3, "{full:?}");
        assert!((full.utilisation(0) - 1.0).abs() < 1e-9, "{full:?}");
    }

    #[test]
    fn a_program_that_polls_tells_nothing_by_itself() {
        let polling = FullSpeed::new(10.0, &percent(&[100, 98])).unwrap();
        let mut full = polling.clone();
        full.learn(&report(2.0, &[500, 500]));
        assert_eq!(full, polling);
        // Nor does a report without CPU times, or without work.
        let asleep = FullSpeed::new(10.0, &percent(&[50])).unwrap();
        let mut full = asleep.clone();
        full.learn(&report(2.0, &[]));
        full.learn(&report(0.0, &[500]));
        assert_eq!(full, asleep);
    }

    #[test]
    fn a_program_polls_if_some_node_hardly_rests_and_is_followed_if_it_tells_what_it_computes() {
        let full = |cpu: &[u32]| FullSpeed::new(10.0, &percent(cpu)).unwrap();
        assert!(full(&[20, 90]).polls() && !full(&[89, 20]).polls());
        let is_followed = |seconds| full(&[100]).computing(seconds).is_followed();
        assert!(is_followed(0.001));
        assert!(![0.0, -1.0, f64::NAN, f64::INFINITY].into_iter().any(is_followed));
    }

    #[test]
    fn calibration_is_the_mean_of_enough_reports() {
        let mut calibration = Calibration::new(2);
        assert_eq!(calibration.finish().unwrap_err().field, "reports at full speed");
        for work in [9.0, 11.0, 10.0] {
            calibration.observe(&report(work, &[520, 260])).unwrap();
        }
        let full = calibration.finish().unwrap();
        assert!((full.rate() - 10.0).abs() < 1e-9);
        assert_eq!(
            full.utilisations().map(|u| (u * 100.0).round()).collect::<Vec<_>>(),
            [52., 26.]
        );
        assert_eq!(calibration.observe(&report(1.0, &[1])).unwrap_err().field, "used");
    }

    // One second of work took eight, once; a fifth less is what processors do.
    #[test]
    fn a_report_of_a_program_that_stood_still_is_no_news_of_full_speed() {
        let mut calibration = Calibration::new(1);
        for work in [10.0, 8.0, 1.25, 12.0, 10.0] {
            calibration.observe(&report(work, &[500])).unwrap();
        }
        let full = calibration.finish().unwrap();
        assert!((full.rate() - 10.0).abs() < 1e-9);
        assert!((full.utilisation(0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn nodes_that_work_alike_have_one_that_stands_for_all() {
        let used = |cpu: &[u32]| {
            let full = FullSpeed::new(10.0, &percent(cpu)).unwrap().as_one_if_alike(0.8);
            full.utilisations().map(|u| (u * 100.0).round()).collect::<Vec<_>>()
        };
        assert_eq!(used(&[48, 50, 41]), [50.0]);
        assert_eq!(used(&[48, 50, 39]), [48.0, 50.0, 39.0]);
        assert_eq!(used(&[7]), [7.0]);
    }

    // Goal: what it may have waited for its processor is no waiting for others.
    #[test]
    fn the_least_that_it_waits_is_known() {
        let full = |cpu: u32| FullSpeed::new(10.0, &percent(&[20, cpu])).unwrap();
        assert!((full(50).waiting_seconds() - 0.05).abs() < 1e-9);
        assert!((full(50).given(CpuPpm::from_percent(80)).waiting_seconds() - 0.0375).abs() < 1e-9);
        assert!((full(50).given(CpuPpm::from_percent(400)).waiting_seconds() - 0.05).abs() < 1e-9);
        assert!(full(40).given(CpuPpm::from_percent(40)).waiting_seconds() < 1e-9);
        assert_eq!(full(250).waiting_seconds(), 0.0);
    }

    // Goal: what earlier versions have kept of nodes that work alike, which is one node, is read.
    #[test]
    fn one_node_that_was_kept_for_all_is_read() {
        let cost = r#"{"measured":0.05,"now":0.05,"lately":0.05}"#;
        let text = format!(r#"{{"seconds":0.1,"used":[{cost}],"computed":null,"polls":false}}"#);
        let full: FullSpeed = serde_json::from_str(&text).unwrap();
        assert_eq!((full.nodes(), full.nodes_told(), full.utilisation(0)), (1, 1, 0.5));
        assert_eq!(serde_json::to_string(&full).unwrap(), text);
    }

    #[test]
    fn what_is_no_full_speed_is_refused() {
        assert_eq!(FullSpeed::new(0.0, &percent(&[50])).unwrap_err().field, "full_speed");
        assert_eq!(FullSpeed::new(f64::NAN, &percent(&[50])).unwrap_err().field, "full_speed");
        assert_eq!(FullSpeed::new(1.0, &[]).unwrap_err().field, "nodes");
        assert_eq!(FullSpeed::new(1.0, &percent(&[50, 0])).unwrap_err().field, "nodes[1].cpu");
    }
}
