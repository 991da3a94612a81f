//! One controller for one application: reports of its progress in, schedules for all its nodes out.
//!
//! **All nodes or none.** A change is a [`Proposal`] for every node together; whoever carries it out
//! asks all nodes, and says by [`Controller::resolve`] that all of them have it, or that none has.
//! Until then nothing else is proposed, and reports of work that began earlier do not count: they
//! are about two schedules.
//!
//! **Nothing is more than was promised.** [`Settings::ceilings`] is what an application may come to
//! need at its target; no proposal goes beyond what was granted of it.
//!
//! A controller is a value: written down at any time and read again, it goes on as if nothing had
//! happened ([`Controller::resume`]); the schedules themselves are kept by the nodes meanwhile.

use crate::full_speed::FullSpeed;
use crate::policy::{Aim, Policy, Setting};
use crate::report::Report;
use crate::schedule::{Range, Schedule, cpu_ceil, cpu_floor, utilisation};
use crate::window::Sample;
use keeptime_model::Invalid;
use keeptime_model::units::{CpuPpm, Nanos, Share};
use serde::{Deserialize, Serialize};

/// What a user asks for, and what is known of the application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The part of full speed.
    #[serde(rename = "target_ppm")]
    pub target: Share,
    /// How far from it is near enough, in percentage points of full speed.
    #[serde(rename = "threshold_ppm")]
    pub threshold: Share,
    /// What full speed is.
    pub full_speed: FullSpeed,
    /// What schedules its nodes can keep.
    pub range: Range,
    /// How schedules are found.
    pub policy: Policy,
    /// What each node has granted; nothing = what [`Settings::ceilings`] asks for, as it is when something is to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_ppm: Option<Vec<CpuPpm>>,
}

/// Schedules for all nodes of the application, to be put in force together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// Names it in [`Controller::resolve`].
    pub sequence: u64,
    /// For each node.
    pub schedules: Vec<Schedule>,
}

/// What became of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every node has it, the last one since then.
    InForce {
        /// By the clock of the reports.
        since: Nanos,
    },
    /// A node refused, and no node has it.
    Refused,
    /// Nobody was asked: something else is wanted by now.
    Withdrawn,
}

/// Whether the controller has what it steers by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Health {
    /// Reports come.
    Steered,
    /// No rate is reported: the application has its proportional share, whatever it makes of it.
    Unreported,
}

/// What people are shown of a controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// The part of full speed that was asked for.
    pub target_ppm: Share,
    /// The part that the last report told; nothing if none came since the target was set.
    pub actual: Option<f64>,
    /// Full speed now, in work a second.
    pub full_speed: f64,
    /// What the nodes have.
    pub schedules: Vec<Schedule>,
    /// How far single reports lie apart, where it is estimated.
    pub noise: Option<f64>,
    /// Whether reports come.
    pub health: Health,
    /// Proposals that were refused.
    pub refused: u64,
}

/// Steers one application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Controller {
    settings: Settings,
    granted: Vec<CpuPpm>,
    /// What all nodes have.
    in_force: Option<InForce>,
    pending: Option<Pending>,
    /// The setting that follows once the pending one is resolved.
    next: Option<Setting>,
    sequence: u64,
    refused: u64,
    /// After a refusal, so many reports pass before anything but a new target is proposed.
    reports_to_pass: u32,
    health: Health,
    heard_nanos: Nanos,
    /// The time between reports, lately.
    interval: Option<f64>,
    actual: Option<f64>,
}

/// Schedules, the setting that they come from, and since when reports are about them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InForce {
    setting: Setting,
    /// What it is to reach.
    target_ppm: Share,
    schedules: Vec<Schedule>,
    since_nanos: Nanos,
}

/// A proposal that nobody has answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pending {
    setting: Setting,
    target_ppm: Share,
    proposal: Proposal,
}

impl Settings {
    /// With our policy, the usual range, and everything granted.
    pub fn new(target: Share, threshold: Share, full_speed: FullSpeed) -> Self {
        let (range, policy) = (Range::default(), Policy::predictive());
        Self { target, threshold, full_speed, range, policy, granted_ppm: None }
    }

    /// What the application may come to need of each node at its target: to be promised to it, so that
    /// no correction within the threshold is ever refused. Rounded up.
    pub fn ceilings(&self) -> Vec<CpuPpm> {
        self.of_each_node(self.target.as_f64() + self.threshold.as_f64(), DRIFT_GRANTED)
    }

    /// The least with which the target can be reached, if the model is exact. Rounded up.
    pub fn floors(&self) -> Vec<CpuPpm> {
        self.of_each_node(self.target.as_f64(), 1.0)
    }

    fn of_each_node(&self, share: f64, drift: f64) -> Vec<CpuPpm> {
        let ceil = |used: f64| {
            // No more than the processors that the program keeps busy, and not nothing.
            cpu_ceil(share * used * drift).min(cpu_floor(used.ceil())).max(CpuPpm::new(1))
        };
        self.full_speed.utilisations().map(ceil).collect()
    }

    fn check(&self) -> Result<Vec<CpuPpm>, Invalid> {
        self.range.check()?;
        for (field, share) in [("target", self.target), ("threshold", self.threshold)] {
            if share.ppm() == 0 {
                return Err(Invalid::new(field, share, "more than 0 %"));
            }
        }
        let granted = self.granted_ppm.clone().unwrap_or_else(|| self.ceilings());
        if granted.len() != self.full_speed.nodes() {
            let expected = format!("one for each of {} nodes", self.full_speed.nodes());
            return Err(Invalid::new("granted", granted.len(), expected));
        }
        let floors = self.floors();
        match (0..granted.len()).find(|node| granted[*node] < floors[*node]) {
            None => Ok(granted),
            Some(_) => Err(Invalid::new(
                "target",
                self.target,
                format!("at most {}", self.reach(&granted)),
            )),
        }
    }

    /// The greatest target that what is granted suffices for.
    fn reach(&self, granted: &[CpuPpm]) -> Share {
        let used = self.full_speed.utilisations();
        let share = |(granted, used): (&CpuPpm, f64)| utilisation(*granted) / used;
        let least = granted.iter().zip(used).map(share).fold(1.0, f64::min);
        // Tenths of a per cent: what people would type in.
        let rounded = (cpu_floor(least).get() / 1_000) * 1_000;
        Share::try_from(rounded).unwrap_or(Share::ONE)
    }
}

impl Controller {
    /// Begins to steer at `now`, by the clock of the reports.
    ///
    /// # Errors
    /// The first setting that is wrong; a target that what is granted does not suffice for is
    /// refused with the greatest that it does suffice for.
    pub fn start(settings: Settings, now: Nanos) -> Result<(Self, Proposal), Invalid> {
        let granted = settings.check()?;
        let mut controller = Self {
            settings,
            granted,
            in_force: None,
            pending: None,
            next: None,
            sequence: 0,
            refused: 0,
            reports_to_pass: 0,
            health: Health::Steered,
            heard_nanos: now,
            interval: None,
            actual: None,
        };
        let setting = controller.first_setting();
        let proposal = controller.propose(setting);
        Ok((controller, proposal))
    }

    /// Takes a report in; a proposal if something is to change.
    ///
    /// # Errors
    /// A report that says what fewer or more nodes used than there are.
    pub fn report(&mut self, report: &Report) -> Result<Option<Proposal>, Invalid> {
        let nodes = self.settings.full_speed.nodes_told();
        if !report.used().is_empty() && report.used().len() != nodes {
            let expected = format!("the CPU time of {nodes} nodes, or nothing");
            return Err(Invalid::new("used", report.used().len(), expected));
        }
        self.hear(report);
        let Some(in_force) = &self.in_force else { return Ok(None) };
        if self.pending.is_some() || report.from() < in_force.since_nanos {
            return Ok(None);
        }
        if self.settings.policy.follows_full_speed() {
            self.settings.full_speed.learn(report);
        }
        let fraction = report.rate() / self.settings.full_speed.rate();
        self.actual = Some(fraction);
        let sample = Sample { fraction, seconds: report.seconds() };
        if self.reports_to_pass > 0 {
            self.reports_to_pass -= 1;
            return Ok(None);
        }
        self.renew_granted();
        let aim = self.aim();
        let mut setting = self.settings.policy.observe(&aim, sample);
        if setting.is_none() && self.has_drifted() {
            setting = self.settings.policy.followed(&aim);
        }
        Ok(setting.and_then(|setting| self.propose_change(setting)))
    }

    /// Sets another target; a proposal unless one is pending, which it then follows.
    ///
    /// # Errors
    /// As [`Controller::start`]; nothing has changed then. `granted` is what each node has granted for
    /// the new target; nothing = what [`Settings::ceilings`] asks for.
    pub fn retarget(
        &mut self,
        target: Share,
        granted: Option<Vec<CpuPpm>>,
    ) -> Result<Option<Proposal>, Invalid> {
        let settings = Settings { target, granted_ppm: granted, ..self.settings.clone() };
        self.granted = settings.check()?;
        let before = std::mem::replace(&mut self.settings, settings).target.as_f64();
        self.reports_to_pass = 0;
        let aim = self.aim();
        let setting = self.settings.policy.retarget(before, &aim);
        Ok(setting.and_then(|setting| self.propose_change(setting)))
    }

    /// Says what became of a proposal. One that is not pending any more changes nothing. The next
    /// proposal, if one waited.
    pub fn resolve(&mut self, sequence: u64, outcome: Outcome) -> Option<Proposal> {
        let pending = self.pending.take_if(|pending| pending.proposal.sequence == sequence)?;
        match outcome {
            Outcome::InForce { since } => {
                // The first period is one of transition.
                let since_nanos = since.saturating_add(pending.setting.period);
                self.in_force = Some(pending.in_force(since_nanos));
            }
            Outcome::Refused | Outcome::Withdrawn => {
                if outcome == Outcome::Refused {
                    self.refused += 1;
                    self.reports_to_pass = REPORTS_AFTER_REFUSAL;
                }
                if let Some(in_force) = &self.in_force {
                    self.settings.policy.refused(in_force.setting);
                }
            }
        }
        let next = self.next.take()?;
        self.propose_change(next)
    }

    /// To be called now and then: notices when reports stay away. A proposal if the application is to
    /// have its proportional share for that reason; the same again as long as nodes refuse what another target takes.
    pub fn tick(&mut self, now: Nanos) -> Option<Proposal> {
        let in_force = self.in_force.as_ref()?;
        let has_target = self.aims_at(in_force.target_ppm);
        let (usual, least) = match self.interval {
            Some(interval) => (interval, SILENT_LEAST),
            // Its program may have to begin yet, or to end what it was doing. What it is to have is asked for sooner.
            None if has_target => {
                let full = &self.settings.full_speed;
                (full.iteration_seconds() / self.settings.target.as_f64(), SILENT_FIRST)
            }
            None => (0.0, SILENT_LEAST),
        };
        let patience = Nanos::from_secs_f64(usual * SILENT_INTERVALS)?.max(least);
        let silent = now.saturating_sub(self.heard_nanos) > patience;
        let is_done = self.health == Health::Unreported && has_target;
        if !silent || is_done {
            return None;
        }
        (self.health, self.actual) = (Health::Unreported, None);
        // What is refused is asked for again after as long.
        self.heard_nanos = now;
        let setting = self.first_setting();
        self.propose_change(setting)
    }

    /// Goes on after a restart, at `now` by a clock that may be another one. `observed` is what
    /// the nodes have; a proposal if that is not what they should.
    pub fn resume(&mut self, now: Nanos, observed: &[Schedule]) -> Option<Proposal> {
        self.heard_nanos = now;
        let mut is_dropped = self.next.take().is_some();
        match self.pending.take() {
            // Whether all nodes have what was pending is seen on them, not remembered.
            Some(pending) if pending.proposal.schedules == observed => {
                self.in_force = Some(pending.in_force(now));
            }
            pending => is_dropped |= pending.is_some(),
        }
        let Some(in_force) = &mut self.in_force else {
            let setting = self.first_setting();
            return Some(self.propose(setting));
        };
        in_force.since_nanos = now;
        let (setting, target) = (in_force.setting, in_force.target_ppm);
        let is_adopted = in_force.schedules == observed;
        if is_dropped {
            self.settings.policy.refused(setting);
        }
        // What was to follow is asked for anew: where nothing is reported, nothing else would ever ask for it.
        let is_lost = is_dropped && self.health == Health::Unreported;
        let is_anew = is_lost || !self.aims_at(target);
        let setting = if is_anew { self.first_setting() } else { setting };
        match is_adopted {
            true if is_anew => self.propose_change(setting),
            true => None,
            false => Some(self.propose(setting)),
        }
    }

    /// Whether all nodes have schedules that were made for its target.
    pub fn is_at_target(&self) -> bool {
        self.in_force.as_ref().is_some_and(|in_force| self.aims_at(in_force.target_ppm))
    }

    /// What waits for [`Controller::resolve`].
    pub fn pending(&self) -> Option<&Proposal> {
        self.pending.as_ref().map(|pending| &pending.proposal)
    }

    /// What people are shown.
    pub fn view(&self) -> View {
        View {
            target_ppm: self.settings.target,
            actual: self.actual,
            full_speed: self.settings.full_speed.rate(),
            schedules: self.in_force.as_ref().map_or(vec![], |f| f.schedules.clone()),
            noise: self.settings.policy.noise(),
            health: self.health,
            refused: self.refused,
        }
    }

    /// What was asked for, and what is known now.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn hear(&mut self, report: &Report) {
        let interval = self.interval.get_or_insert(report.seconds());
        *interval += (report.seconds() - *interval) / INTERVALS_REMEMBERED;
        if report.to().saturating_add(CLOCK_BACK) < self.heard_nanos {
            // Instants from before the clock was set back mean nothing any more.
            self.heard_nanos = report.to();
            if let Some(in_force) = &mut self.in_force {
                in_force.since_nanos = report.to();
            }
        }
        self.heard_nanos = self.heard_nanos.max(report.to());
        self.health = Health::Steered;
    }

    /// Whether it is held at this target, or to be.
    fn aims_at(&self, target: Share) -> bool {
        self.settings.target == target
    }

    /// The proportional one, as before any report.
    fn first_setting(&mut self) -> Setting {
        let aim = self.aim();
        self.settings.policy.start(&aim)
    }

    fn aim(&self) -> Aim {
        let full = &self.settings.full_speed;
        Aim {
            target: self.settings.target.as_f64(),
            threshold: self.settings.threshold.as_f64(),
            range: self.settings.range,
            iteration_seconds: full.iteration_seconds(),
            waiting_seconds: full.waiting_seconds(),
            utilisation_most: full.utilisations().fold(0.0, f64::max),
            utilisation_least: full.utilisations().fold(f64::INFINITY, f64::min),
            sleeps: !full.polls(),
            is_followed: full.is_followed(),
            share_now: self.shares_now().map(|shares| mean(&shares)),
            share_most: self.shares_of(&self.granted).fold(f64::INFINITY, f64::min),
        }
    }

    /// Where nobody has granted anything, what may be asked for follows what nodes use.
    fn renew_granted(&mut self) {
        if self.settings.granted_ppm.is_none() {
            self.granted = self.settings.ceilings();
        }
    }

    /// What so much of each node is, as a part of what the program would use of it now.
    fn shares_of<'a>(
        &'a self,
        each: impl IntoIterator<Item = &'a CpuPpm> + 'a,
    ) -> impl Iterator<Item = f64> + 'a {
        let used = self.settings.full_speed.utilisations();
        each.into_iter().zip(used).map(|(cpu, used)| utilisation(*cpu) / used)
    }

    /// What every node has, as a part of what the program would use of it now.
    fn shares_now(&self) -> Option<Vec<f64>> {
        let had: Vec<_> = self.in_force.as_ref()?.schedules.iter().map(|had| had.cpu()).collect();
        Some(self.shares_of(&had).collect())
    }

    /// Whether what nodes use has changed so much that a schedule is hardly proportional any more.
    fn has_drifted(&self) -> bool {
        let Settings { target, threshold, .. } = &self.settings;
        let bound = threshold.as_f64() * DRIFT_BORNE;
        let is_off = |share: &f64| (share - target.as_f64()).abs() > bound;
        self.shares_now().is_some_and(|shares| shares.iter().any(is_off))
    }

    /// Proposes `setting`, now or after what is pending; nothing if the nodes have just that.
    fn propose_change(&mut self, setting: Setting) -> Option<Proposal> {
        if self.pending.is_some() {
            self.next = Some(setting);
            return None;
        }
        let (schedules, target) = (self.schedules(setting), self.settings.target);
        if let Some(in_force) = self.in_force.as_mut().filter(|f| f.schedules == schedules) {
            (in_force.setting, in_force.target_ppm) = (setting, target);
            return None;
        }
        Some(self.propose(setting))
    }

    fn propose(&mut self, setting: Setting) -> Proposal {
        self.sequence += 1;
        let proposal = Proposal { sequence: self.sequence, schedules: self.schedules(setting) };
        let target_ppm = self.settings.target;
        self.pending = Some(Pending { setting, target_ppm, proposal: proposal.clone() });
        proposal
    }

    fn schedules(&self, setting: Setting) -> Vec<Schedule> {
        let of_node = |(used, granted): (f64, &CpuPpm)| {
            let cpu = cpu_floor(setting.share * used).min(*granted).max(LEAST);
            Schedule::new(cpu, setting.period)
        };
        self.settings.full_speed.utilisations().zip(&self.granted).map(of_node).collect()
    }
}

impl Pending {
    /// All nodes have it, and reports are about it from then on.
    fn in_force(self, since_nanos: Nanos) -> InForce {
        let Self { setting, target_ppm, proposal: Proposal { schedules, .. } } = self;
        InForce { setting, target_ppm, schedules, since_nanos }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Nodes may come to use so much more of a processor than was measured when they become slower;
/// what has more than that granted would be kept from others for nothing.
const DRIFT_GRANTED: f64 = 1.1;
/// Schedules follow what nodes use once they are off the target by this part of the threshold: beyond what
/// policies make use of, and before it is too much.
const DRIFT_BORNE: f64 = 0.9;
/// No schedule is nothing: a program that has none could not tell that it needs one.
const LEAST: CpuPpm = CpuPpm::new(100);
/// A node that is full stays so for a while.
const REPORTS_AFTER_REFUSAL: u32 = 8;
/// Reports stay away if so many are missing, and no less than so long.
const SILENT_INTERVALS: f64 = 10.0;
const SILENT_LEAST: Nanos = Nanos::from_secs(10);
/// The same before the first.
const SILENT_FIRST: Nanos = Nanos::from_secs(60);
const INTERVALS_REMEMBERED: f64 = 8.0;
/// Reports that are so much older than the last one come from a clock that was set back.
const CLOCK_BACK: Nanos = Nanos::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(value: u32) -> Share {
        Share::from_percent(value).unwrap()
    }

    /// Ten iterations a second at full speed; two nodes that use 52 % and 26 % then.
    fn settings(target: u32) -> Settings {
        let cpu = [52, 26].map(CpuPpm::from_percent);
        Settings::new(percent(target), percent(2), FullSpeed::new(10.0, &cpu).unwrap())
    }

    fn at(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    fn started(target: u32) -> Controller {
        let (mut controller, proposal) = Controller::start(settings(target), at(0)).unwrap();
        controller.resolve(proposal.sequence, Outcome::InForce { since: at(0) });
        controller
    }

    /// One iteration that began at `from` and took `millis`, on nodes that use what they need.
    fn iteration(from: u64, millis: u64) -> Report {
        Report::new(at(from), at(from + millis), 1.0, &[52, 26].map(at)).unwrap()
    }

    /// What follows from an iteration that nobody expects, once the next one, a second later, says the same.
    fn told_twice(controller: &mut Controller, from: u64, millis: u64) -> Option<Proposal> {
        assert_eq!(controller.report(&iteration(from, millis)), Ok(None));
        controller.report(&iteration(from + 1_000, millis)).unwrap()
    }

    #[test]
    fn nodes_that_work_unequally_have_different_schedules() {
        let (_, proposal) = Controller::start(settings(50), at(0)).unwrap();
        let cpu: Vec<_> = proposal.schedules.iter().map(|s| s.cpu()).collect();
        assert_eq!(cpu, [CpuPpm::from_percent(26), CpuPpm::from_percent(13)]);
        assert_eq!(proposal.schedules[0].period(), proposal.schedules[1].period());
    }

    #[test]
    fn what_is_wrong_is_refused_by_name() {
        let refused = |change: fn(&mut Settings)| {
            let mut settings = settings(50);
            change(&mut settings);
            Controller::start(settings, at(0)).unwrap_err()
        };
        assert_eq!(refused(|s| s.target = percent(0)).field, "target");
        assert_eq!(refused(|s| s.threshold = percent(0)).field, "threshold");
        assert_eq!(refused(|s| s.range.period_most_nanos = at(1)).field, "period_most");
        assert_eq!(refused(|s| s.granted_ppm = Some(vec![])).field, "granted");
        // 20 % of a processor that the program uses 52 % of: 38.4 % of full speed.
        let few = refused(|s| s.granted_ppm = Some([20, 40].map(CpuPpm::from_percent).into()));
        assert_eq!((few.field.as_str(), few.expected.as_str()), ("target", "at most 38.4 %"));
    }

    #[test]
    fn the_greatest_target_that_a_refusal_tells_is_kept_by_what_is_granted() {
        for (granted, reach) in [([26, 13], 50), ([39, 30], 75), ([52, 13], 50)] {
            let start = |target| {
                let granted_ppm = Some(granted.map(CpuPpm::from_percent).to_vec());
                Controller::start(Settings { granted_ppm, ..settings(target) }, at(0))
            };
            let refusal = start(reach + 1).unwrap_err();
            assert_eq!(refusal.expected, format!("at most {reach} %"));
            assert_eq!(start(reach).map(drop), Ok(()), "{reach} %");
        }
    }

    #[test]
    fn a_report_of_two_schedules_does_not_count() {
        let (mut controller, proposal) = Controller::start(settings(50), at(0)).unwrap();
        // Before the first schedule is in force, and while it begins to be.
        assert_eq!(controller.report(&iteration(0, 900)), Ok(None));
        controller.resolve(proposal.sequence, Outcome::InForce { since: at(1_000) });
        assert_eq!(controller.report(&iteration(990, 900)), Ok(None));
        assert_eq!(controller.view().actual, None);
        assert!(told_twice(&mut controller, 2_000, 900).is_some());
    }

    #[test]
    fn one_proposal_at_a_time() {
        let mut controller = started(50);
        let first = told_twice(&mut controller, 1_000, 300).unwrap();
        assert_eq!(controller.report(&iteration(3_000, 300)), Ok(None));
        // A target that is set meanwhile follows.
        assert_eq!(controller.retarget(percent(20), None), Ok(None));
        let next = controller.resolve(first.sequence, Outcome::InForce { since: at(3_000) });
        let next = next.unwrap();
        assert!(next.schedules[0].cpu() < CpuPpm::from_percent(12), "{next:?}");
        // What was answered is answered.
        assert_eq!(controller.resolve(first.sequence, Outcome::Refused), None);
        assert_eq!(controller.pending(), Some(&next));
    }

    #[test]
    fn what_one_node_refuses_no_node_has() {
        let mut controller = started(50);
        let before = controller.view().schedules;
        let proposal = told_twice(&mut controller, 1_000, 900).unwrap();
        controller.resolve(proposal.sequence, Outcome::Refused);
        assert_eq!((controller.view().schedules, controller.view().refused), (before, 1));
        // Some reports pass; then it is tried again.
        let tried = (3..30).filter_map(|second| {
            let proposal = controller.report(&iteration(second * 1_000, 900)).unwrap()?;
            controller.resolve(proposal.sequence, Outcome::Refused);
            Some(second)
        });
        let tried: Vec<_> = tried.collect();
        assert!((2..=4).contains(&tried.len()) && tried[0] > 8, "{tried:?}");
    }

    #[test]
    fn a_new_target_beyond_what_is_granted_changes_nothing() {
        let mut controller = started(50);
        let before = controller.clone();
        let granted = Some([27, 14].map(CpuPpm::from_percent).to_vec());
        let error = controller.retarget(percent(60), granted).unwrap_err();
        assert_eq!(error.to_string().matches("at most 51.9 %").count(), 1, "{error}");
        assert_eq!(controller, before);
    }

    #[test]
    fn a_rate_that_is_never_told_means_the_proportional_share() {
        let mut controller = started(50);
        let proportional = controller.view().schedules;
        let proposal = told_twice(&mut controller, 1_000, 220).unwrap();
        controller.resolve(proposal.sequence, Outcome::InForce { since: at(2_400) });
        assert_ne!(controller.view().schedules, proportional);
        assert_eq!(controller.tick(at(12_000)), None);
        let proposal = controller.tick(at(13_000)).unwrap();
        assert_eq!(proposal.schedules, proportional);
        assert_eq!(controller.view().health, Health::Unreported);
        controller.resolve(proposal.sequence, Outcome::InForce { since: at(12_000) });
        assert_eq!(controller.tick(at(60_000)), None, "told once");
        controller.report(&iteration(61_000, 200)).unwrap();
        assert_eq!(controller.view().health, Health::Steered);
    }

    #[test]
    fn the_first_report_is_waited_for_as_long_as_iterations_take() {
        let mut controller = started(50);
        controller.tick(at(60_000));
        assert_eq!(controller.view().health, Health::Steered);
        controller.tick(at(60_001));
        assert_eq!(controller.view().health, Health::Unreported);
        // A hundred seconds at full speed, and two hundred at half of it: ten of these.
        let full_speed = FullSpeed::new(0.01, &[52, 26].map(CpuPpm::from_percent)).unwrap();
        let slow = Settings { full_speed, ..settings(50) };
        let (mut controller, proposal) = Controller::start(slow, at(0)).unwrap();
        controller.resolve(proposal.sequence, Outcome::InForce { since: at(0) });
        controller.tick(at(2_000_000));
        assert_eq!(controller.view().health, Health::Steered);
        controller.tick(at(2_000_001));
        assert_eq!(controller.view().health, Health::Unreported);
    }

    #[test]
    fn a_program_that_reports_seldom_is_waited_for_as_much_longer() {
        let mut controller = started(50);
        let mut now = 1_000;
        for seconds in [1; 5].into_iter().chain([5; 60]) {
            let to = now + 1_000 * seconds;
            let used = [26, 13].map(|percent| at(10 * percent * seconds));
            let report = Report::new(at(now), at(to), 5.0 * seconds as f64, &used).unwrap();
            assert_eq!(controller.report(&report), Ok(None));
            now = to;
        }
        controller.tick(at(now + 49_000));
        assert_eq!(controller.view().health, Health::Steered);
        controller.tick(at(now + 51_000));
        assert_eq!(controller.view().health, Health::Unreported);
    }

    // Goal: shares stay proportional to what nodes use, within what was granted. Method: one node comes to need 1.6 times
    // as much CPU for its work, and the rate is the target's all the while.
    #[test]
    fn schedules_follow_what_nodes_use_within_what_is_granted() {
        let steered = |granted_ppm: Option<Vec<CpuPpm>>| {
            let settings = Settings { granted_ppm, ..settings(50) };
            let (mut controller, mut proposal) = Controller::start(settings, at(0)).unwrap();
            for second in 1..300 {
                let since = at(second * 1_000);
                controller.resolve(proposal.sequence, Outcome::InForce { since });
                let iteration = 2.0 * controller.settings().full_speed.iteration_seconds();
                let from = at(second * 1_000 + 500);
                let to = from.saturating_add(Nanos::from_secs_f64(iteration).unwrap());
                let report = Report::new(from, to, 1.0, &[83, 26].map(at)).unwrap();
                proposal = controller.report(&report).unwrap().unwrap_or(proposal);
            }
            controller
        };
        let free = steered(None);
        let used = free.settings().full_speed.utilisations();
        for (schedule, used) in free.view().schedules.iter().zip(used) {
            let share = utilisation(schedule.cpu()) / used;
            assert!((share - 0.5).abs() < 0.0201, "{share} of {used}");
        }
        let granted = [29, 15].map(CpuPpm::from_percent);
        let bound = steered(Some(granted.to_vec())).view().schedules;
        assert!(bound[0].cpu() == granted[0] && bound[1].cpu() <= granted[1], "{bound:?}");
    }

    #[test]
    fn what_is_withdrawn_was_not_refused() {
        let mut controller = started(50);
        let proposal = told_twice(&mut controller, 1_000, 900).unwrap();
        controller.resolve(proposal.sequence, Outcome::Withdrawn);
        assert_eq!(controller.view().refused, 0);
        // Nothing has to pass before it is proposed again.
        assert!(controller.report(&iteration(3_000, 900)).unwrap().is_some());
    }

    #[test]
    fn a_rank_that_reports_for_too_many_is_refused() {
        let report = Report::new(at(1), at(2), 1.0, &[at(1)]).unwrap();
        assert_eq!(started(50).report(&report).unwrap_err().field, "used");
    }

    // Goal: a killed controller resumes without a bump. Method: writes it down at every step, reads it
    // again, and compares what it does next with one that was never killed.
    #[test]
    fn a_restart_at_any_step_changes_nothing() {
        let mut steady = started(40);
        let mut restarted = steady.clone();
        for step in 1..200u64 {
            let text = serde_json::to_string(&restarted).unwrap();
            let read: Controller = serde_json::from_str(&text).unwrap();
            assert_eq!(read, restarted, "to the last bit, at {step}");
            restarted = read;
            let now = at(step * 1_000);
            assert_eq!(restarted.resume(now, &steady.view().schedules), None);
            let report = iteration(step * 1_000, 250 + step % 7 * 4 + step % 11);
            let (one, two) = (steady.report(&report).unwrap(), restarted.report(&report).unwrap());
            assert_eq!(one, two, "at {step}");
            for (controller, proposal) in [(&mut steady, one), (&mut restarted, two)] {
                if let Some(proposal) = proposal {
                    controller.resolve(proposal.sequence, Outcome::InForce { since: now });
                }
            }
            assert_eq!(steady.view().schedules, restarted.view().schedules);
        }
    }

    #[test]
    fn a_restart_between_the_two_steps_looks_what_the_nodes_have() {
        let mut controller = started(40);
        let before = controller.view().schedules;
        let proposal = told_twice(&mut controller, 1_000, 500).unwrap();
        let mut had = controller.clone();
        assert_eq!(had.resume(at(0), &proposal.schedules), None);
        assert_eq!(had.view().schedules, proposal.schedules);
        let mut had_not = controller.clone();
        assert_eq!(had_not.resume(at(0), &before), None);
        assert_eq!(had_not.view().schedules, before);
        // Nodes that were restarted have nothing, or half of it.
        let mut lost = controller.clone();
        let again = lost.resume(at(0), &[before[0], proposal.schedules[1]]).unwrap();
        assert_eq!(again.schedules, before);
    }

    // Goal: a target that nobody has answered to is asked for again as soon as nodes are seen without it, and one that was
    // set meanwhile as well; where nothing is reported, nothing else would ask. Method: one whose reports stay away.
    #[test]
    fn a_target_that_was_lost_on_its_way_is_asked_for_again() {
        let mut silent = started(50);
        assert_eq!(silent.tick(at(70_000)), None, "it has its proportional share");
        assert_eq!(silent.view().health, Health::Unreported);
        let before = silent.view().schedules;
        let cpu = |proposal: &Proposal| proposal.schedules[0].cpu();
        let lost = silent.retarget(percent(40), None).unwrap().unwrap();
        let mut resumed = silent.clone();
        let again = resumed.resume(at(71_000), &before).unwrap();
        assert_eq!(cpu(&again), cpu_floor(0.4 * 0.52));
        // Not again, once they have it.
        assert_eq!(resumed.resume(at(72_000), &again.schedules), None);
        assert_eq!(resumed.tick(at(199_000)), None);

        assert_eq!(silent.retarget(percent(20), None), Ok(None));
        for observed in [&before, &lost.schedules] {
            let mut resumed = silent.clone();
            let next = resumed.resume(at(71_000), observed).unwrap();
            assert_eq!(cpu(&next), cpu_floor(0.2 * 0.52));
            resumed.resolve(next.sequence, Outcome::Refused);
            // Nodes that are full are asked again, and not all the time.
            assert_eq!(resumed.tick(at(81_000)), None);
            let again = resumed.tick(at(81_001)).unwrap();
            resumed.resolve(again.sequence, Outcome::Refused);
            assert_eq!(resumed.tick(at(82_000)), None);
            let later = resumed.tick(at(92_000)).unwrap();
            assert_eq!(later.schedules, next.schedules);
            resumed.resolve(later.sequence, Outcome::InForce { since: at(92_000) });
            assert_eq!(resumed.tick(at(199_000)), None);
        }
    }

    #[test]
    fn a_clock_that_steps_is_survived() {
        let mut controller = started(40);
        let proposal = told_twice(&mut controller, 1_000_000, 500).unwrap();
        controller.resolve(proposal.sequence, Outcome::InForce { since: at(1_002_000) });
        // Back by a quarter of an hour: the first report tells, the next ones count.
        assert_eq!(controller.report(&iteration(1_000, 500)), Ok(None));
        assert_eq!(controller.view().health, Health::Steered);
        let mut later = (2..8).map(|second| iteration(second * 1_000, 900));
        assert!(later.any(|report| controller.report(&report).unwrap().is_some()));
        assert_eq!(controller.tick(at(9_000)), None);
        assert!(controller.tick(at(30_000)).is_none(), "a proposal is pending, and follows");
        // Forward by an hour: as if nothing had been reported.
        assert_eq!(controller.view().health, Health::Unreported);
    }
}
