//! `keeptime run --by`: a job that must be done by a time. When, on how many nodes and how fast is for
//! `planner::deadline`; the broker reserves that in advance, and the run begins when its time comes. What is reserved
//! is malleable: the broker has it go slower for others as long as its deadline allows, and faster when there is room.
//! What may wait (`--wait`) is run all the same where it cannot be promised that: when there is room to begin in, or by a later
//! time that can be promised.

mod following;

pub(super) use following::table;

use super::rate::parameters;
use super::run::beginning::{Beginning, may_pass};
use super::{Ending, Session, check_quantile, print_json, reservations};
use crate::arguments::{GoalArguments, NodeCounts, RunArguments};
use crate::cluster::Cluster;
use crate::detach::Departure;
use crate::execute::{Execution, Run, heard, pass_on};
use crate::hold::Hold;
use crate::rate::door::CourseView;
use crate::rate::nodes::node_indices;
use crate::{brokers, interrupt, times};
use anyhow::{Context as _, Result, bail, ensure};
use jiff::Zoned;
use jiff::tz::TimeZone;
use keeptime_broker::client::ClientError;
use keeptime_broker::wire::{Level, Node, Nodes, ResourceLine, ResourceName, Timeline};
use keeptime_credentials::dates::now;
use keeptime_launch::process::Said;
use keeptime_model::Invalid;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::assignment::CpuMechanism;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Handle, NodeChoice, Request, State};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use keeptime_planner::deadline::booking::{Ask, Promise};
use keeptime_planner::deadline::{self, Booking, Job, Knees, Plan, Reserved, Stretch};
use serde::Serialize;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// What `keeptime run --by --json` prints.
#[derive(Debug, Serialize)]
struct Outcome {
    by_unix_nanos: WallTime,
    reservation: Option<Handle>,
    plan: Option<Planned>,
    /// Whether it was promised to be done by then.
    promised: bool,
    /// By when it was promised to be done: then, or later. Nothing if it was promised nothing.
    promised_by_unix_nanos: Option<WallTime>,
    ended_unix_nanos: Option<WallTime>,
    /// How it stood at last, where it has run.
    #[serde(skip_serializing_if = "Option::is_none")]
    course: Option<CourseView>,
    refusal: Option<String>,
    /// The earliest deadline that could be kept instead.
    earliest_unix_nanos: Option<WallTime>,
}

/// Where it was to run, when and how fast.
#[derive(Debug, Serialize)]
struct Planned {
    nodes: Vec<Name>,
    #[serde(flatten)]
    at: Stretch,
}

/// What is to be done, and what it needs.
struct Work {
    application: Application,
    parameters: Parameters,
    job: Job,
    /// What keeps its share of the CPU.
    mechanism: CpuMechanism,
    knees: Knees,
    /// Units of work in all, as its progress tells them, if that is known.
    total: Option<NonZeroU64>,
}

/// What came of it.
enum Booked {
    Held(Held),
    /// The nodes' CPU does not suffice.
    TooLate(TooLate),
    /// Something else does not.
    Refused(ClientError),
}

/// Why it cannot be done by then, and the earliest deadline that could be kept instead.
struct TooLate {
    reason: String,
    earliest: Option<WallTime>,
}

/// What was reserved.
struct Held {
    plan: Plan,
    hold: Box<Hold>,
    /// By when it is done, however slow it is made.
    by: WallTime,
    promise: Promise,
}

impl Held {
    /// By when it is promised to be done.
    fn promised_by(&self) -> Option<WallTime> {
        (self.promise != Promise::Start).then_some(self.by)
    }
}

/// Runs an application such that it is done by `by`; the wait for its time is no terminal's.
pub fn run(arguments: &RunArguments, by: &str, departure: &Departure) -> Result<Ending> {
    let session = Session::open(&arguments.application)?;
    let (work, cluster) = (Work::new(&session, arguments, by)?, &session.cluster);
    let booked = match arguments.wait {
        None => book(cluster, &work, Promise::Deadline, Booking::new(work.job.clone()))?,
        Some(wait) => book_patiently(cluster, &work, wait, &mut |told| {
            if !arguments.json {
                println!("{told}");
            }
            departure.leave(None)
        })?,
    };
    match booked {
        Booked::Held(held) => carry_out(&session, &work, &held, departure, arguments.json),
        Booked::TooLate(refusal) => tell_refusal(&work, refusal, arguments.json),
        Booked::Refused(error) => reservations::refused(error, arguments.json),
    }
}

/// Waits for its time, runs it in what is held for it, and tells what came of it.
fn carry_out(
    session: &Session,
    work: &Work,
    held: &Held,
    departure: &Departure,
    json: bool,
) -> Result<Ending> {
    let Held { plan: Plan { nodes, at }, hold, promise, .. } = held;
    let names = session.cluster.topology().names(nodes);
    if !json {
        println!("{}: {}", hold.handle(), story(&names, held, work));
    }
    departure.leave(Some(hold.handle()))?;
    wait_for_start(&session.cluster, hold, nodes)?;
    if let Some(told) = another_start(at.from, now()).filter(|_| !json) {
        println!("{}: {told}", hold.handle());
    }
    let (ended, course) = execute(session, work, held, json)?;
    if json {
        print_json(&Outcome {
            reservation: Some(hold.handle()),
            plan: Some(Planned { nodes: names, at: *at }),
            promised: *promise == Promise::Deadline,
            promised_by_unix_nanos: held.promised_by(),
            ended_unix_nanos: Some(ended),
            course,
            ..work.outcome()
        })?;
    } else {
        println!("done {}", distance(ended, work.job.by, &TimeZone::system()));
    }
    Ok(Ending::Done)
}

/// Runs it, and follows it meanwhile; when it ended, and how it stood at last.
fn execute(
    session: &Session,
    work: &Work,
    held: &Held,
    json: bool,
) -> Result<(WallTime, Option<CourseView>)> {
    let (cluster, Held { plan, hold, by, .. }) = (&session.cluster, held);
    let (application, parameters) = (&work.application, &work.parameters);
    let mut followed = following::follow(cluster, work, held, json)?;
    let last = followed.until();
    let mut share = work.job.cpu_at(plan.at.rate);
    let mut on_said = |said: Said<'_>| {
        if let Some(now) = hold.cpu().filter(|now| *now != share && !json) {
            let (handle, new, old) = (hold.handle(), now.rounded(), share.rounded());
            println!("{handle}: {new} of each node's CPU from now on, {old} until now");
            share = now;
        }
        if let Said::Out(line) = said {
            followed.line(line);
        }
        pass_on(said, json);
    };
    // However slow it is made, it is not ended before it has to be done, nor while something is held for it.
    let began = now();
    let limit = move || application.timeout().max(last.get().max(*by).saturating_since(began));
    let run = Run { application, parameters, nodes: &plan.nodes, rate: None };
    let execution = Execution::new(cluster, &session.mpi, run);
    let execution = Execution { limit: Some(&limit), ..execution };
    execution.under(hold, &mut on_said).map_err(heard)?;
    Ok((now(), followed.end()))
}

impl Work {
    fn new(session: &Session, arguments: &RunArguments, by: &str) -> Result<Self> {
        let application = session.application.clone();
        let now = Zoned::now();
        let deadline = times::parse_field("by", by, &now)?;
        if let Some(told) = times::of_tomorrow("--by", by, &now) {
            eprintln!("keeptime: {told}");
        }
        // Which numbers of nodes will do is said otherwise here.
        let counts = arguments.goal.nodes.as_ref();
        let goal = GoalArguments { nodes: None, ..arguments.goal.clone() }.goal()?;
        goal.check(&application)?;
        let parameters = parameters(&application, &goal);
        let knees = match arguments.takes.filter(|_| arguments.program.is_given()) {
            Some(takes) => Knees::told(&application, takes),
            None => {
                let fitted = session.fitted_now()?;
                if let Some(asked) = arguments.goal.quantile {
                    check_quantile(asked, fitted.deviations())?;
                }
                let quantile = goal.quantile.unwrap_or_default();
                asked_for(&Knees::of_profile(&fitted, &parameters, quantile), counts)?
            }
        };
        let among = session.cluster.among();
        let knees = on_at_most(&knees, if among.is_empty() { usize::MAX } else { among.len() })?;
        let job = knees.job(&application, arguments.takes, deadline).ok_or_else(|| {
            Invalid::missing("takes", "a time: that of the profile need not be a whole run's")
        })?;
        let mechanism = arguments.mechanism;
        let total =
            arguments.work.map_or_else(|| application.work(&parameters), |work| Ok(Some(work)))?;
        if total.is_some() && application.progress_source().is_none() {
            let expected = "how it tells its progress, of which --work says how much there is";
            return Err(Invalid::missing("progress", expected).into());
        }
        Ok(Self { application, parameters, job, mechanism, knees, total })
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            by_unix_nanos: self.job.by,
            reservation: None,
            plan: None,
            promised: false,
            promised_by_unix_nanos: None,
            ended_unix_nanos: None,
            course: None,
            refusal: None,
            earliest_unix_nanos: None,
        }
    }

    /// What `booking` is to ask for.
    fn request(&self, booking: &Booking, nodes: NodeChoice, at: &Stretch) -> Request {
        let resources = self.knees.resources(self.application.pattern(), nodes);
        let name = Some(self.application.name().clone());
        Request { name, cpu_mechanism: self.mechanism, ..booking.request(resources, at) }
    }
}

/// Those of the numbers of nodes that were asked for, if any were.
///
/// # Errors
/// If there is none.
fn asked_for(known: &Knees, counts: Option<&NodeCounts>) -> Result<Knees, Invalid> {
    let will_do = |nodes| counts.is_none_or(|counts| counts.contains(nodes));
    known.only(will_do).ok_or_else(|| {
        let known: Vec<_> = known.counts().map(|nodes| nodes.to_string()).collect();
        let given = counts.map_or_else(String::new, NodeCounts::to_string);
        let expected = format!("one that the profile has: {}", known.join(", "));
        Invalid::new("nodes", given, expected)
    })
}

/// Those on so many nodes at the most as there are to be granted.
///
/// # Errors
/// If there is none.
fn on_at_most(knees: &Knees, most: usize) -> Result<Knees, Invalid> {
    knees.only(|nodes| nodes as usize <= most).ok_or_else(|| {
        let fewest = knees.counts().next().unwrap_or_default();
        Invalid::new("nodes", fewest, format!("{most} at the most: those of --among"))
    })
}

/// Such that it is done by its deadline or, where that is refused, in any case; what first was refused tells why.
fn book_in_turn(cluster: &Cluster, work: &Work, asked: WallTime) -> Result<Booked> {
    let mut refused = None;
    for (promise, booking) in Booking::in_turn(&work.job, asked, now()) {
        match book(cluster, work, promise, booking)? {
            held @ Booked::Held(_) => return Ok(held),
            other => refused = refused.or(Some(other)),
        }
    }
    refused.context("nothing was asked for")
}

/// Books in turn ([`book_in_turn`]), again and again for so long, as long as all is refused; `tell` hears of that.
fn book_patiently(
    cluster: &Cluster,
    work: &Work,
    wait: Nanos,
    tell: &mut dyn FnMut(String) -> Result<()>,
) -> Result<Booked> {
    let (asked, began) = (now(), Instant::now());
    let mut waits = false;
    loop {
        let outcome = book_in_turn(cluster, work, asked);
        let asks_on = match &outcome {
            Ok(Booked::Held(_)) => false,
            Ok(Booked::TooLate(_)) => true,
            Ok(Booked::Refused(error)) => is_refusal(error) || (waits && may_pass(error)),
            Err(error) => waits && error.downcast_ref().is_some_and(may_pass),
        };
        let left = wait.saturating_sub(began.elapsed().into());
        if !asks_on || left == Nanos::new(0) {
            return outcome;
        }
        ensure!(!interrupt::stopped(), "interrupted");
        if !std::mem::replace(&mut waits, true) {
            tell(format!(
                "neither its deadline nor a later one can be promised, and there is no room to \
                 begin in: asking again for {} at the most",
                left.rounded()
            ))?;
        }
        rest(Booking::asks_again_after(&work.job, asked, now()).min(left));
    }
}

/// Unless somebody stops it.
fn rest(span: Nanos) {
    let began = Instant::now();
    while Nanos::from(began.elapsed()) < span && !interrupt::stopped() {
        std::thread::sleep(LOOK_EVERY);
    }
}

fn is_refusal(error: &ClientError) -> bool {
    error.problem().is_some_and(|problem| problem.refusal.is_some())
}

/// Asks for what `booking` says, beside what the broker has reserved, until that is granted.
fn book(cluster: &Cluster, work: &Work, promise: Promise, mut booking: Booking) -> Result<Booked> {
    let broker = cluster.broker()?;
    loop {
        let nodes = broker.nodes(None).map_err(brokers::failure)?;
        let now = nodes.at_unix_nanos;
        let timeline = broker.timeline(None, booking.horizon(now)).map_err(brokers::failure)?;
        let there = promised(&nodes, cluster.among());
        let ask = booking.next(now, &there, &reserved(&nodes, &timeline))?;
        let (choice, known, at) = match ask {
            Ask::Beside(Plan { nodes, at }) => {
                (NodeChoice::Named(cluster.topology().names(&nodes)), Some(nodes), at)
            }
            Ask::Slowest(count, at) => (NodeChoice::Any(count), None, at),
            Ask::Nothing(refusal) => {
                let fewest = work.job.speed_ppm.keys().next().copied().unwrap_or_default();
                let too_few = too_few(&nodes.nodes, cluster.among(), fewest);
                let reason = too_few.unwrap_or_else(|| refusal.to_string());
                return Ok(Booked::TooLate(TooLate { reason, earliest: refusal.earliest() }));
            }
        };
        match Hold::take_in_advance(cluster, work.request(&booking, choice, &at)) {
            Ok(hold) => {
                let nodes = match known {
                    Some(nodes) => nodes,
                    None => granted_nodes(cluster, &hold)?,
                };
                let (plan, hold, by) = (Plan { nodes, at }, Box::new(hold), booking.by());
                return Ok(Booked::Held(Held { plan, hold, by, promise }));
            }
            Err(error) => {
                let error = error.downcast::<ClientError>()?;
                let refusal = error.problem().and_then(|problem| problem.refusal.as_ref());
                let asks_on = refusal.is_some_and(|refusal| {
                    booking.refused(at.from, refusal.earliest_start_unix_nanos)
                });
                if !asks_on {
                    return Ok(Booked::Refused(error));
                }
            }
        }
    }
}

/// Which nodes it was given.
fn granted_nodes(cluster: &Cluster, hold: &Hold) -> Result<Vec<NodeIndex>> {
    let found = cluster.broker()?.reservation(hold.handle()).map_err(brokers::failure)?;
    let Some(grant) = &found.grant else { bail!("{} is {}", found.handle, found.state) };
    node_indices(cluster, grant)
}

/// What can be promised of each node; nothing of one whose agent is away, that is drained, or that is not of `among`, where
/// some are.
fn promised(nodes: &Nodes, among: &BTreeSet<Name>) -> deadline::Cluster {
    let may_be = |node: &Node| among.is_empty() || among.contains(&node.name);
    let has = |node: &Node| node.is_to_be_had() && may_be(node);
    let of_node = |node: &Node| if has(node) { node.cpu_ppm } else { CpuPpm::default() };
    let nodes_ppm = nodes.nodes.iter().map(of_node).collect();
    deadline::Cluster { nodes_ppm, ..deadline::Cluster::of(0, CpuPpm::default()) }
}

/// Which of these nodes, or of those of `among`, are not to be had, where fewer than `fewest` are left for that.
fn too_few(nodes: &[Node], among: &BTreeSet<Name>, fewest: u32) -> Option<String> {
    let may_be = |node: &&Node| among.is_empty() || among.contains(&node.name);
    let (there, missing): (Vec<_>, Vec<_>) =
        nodes.iter().filter(may_be).partition(|node| node.is_to_be_had());
    if there.len() >= fewest as usize || missing.is_empty() {
        return None;
    }
    let why = |node: &&Node| match &node.drained {
        Some(drained) => format!("{} is drained ({})", node.name, drained.reason),
        None => format!("{} is away", node.name),
    };
    let missing: Vec<_> = missing.iter().map(why).collect();
    let all = there.len() + missing.len();
    let missing = missing.join(", ");
    Some(format!(
        "it takes {fewest} nodes, and of {all} only {} are to be had: {missing}",
        there.len()
    ))
}

/// What is reserved of each node.
fn reserved(nodes: &Nodes, timeline: &Timeline) -> Vec<Reserved> {
    let of_line = |line: &ResourceLine| {
        let ResourceName::Cpu(name) = &line.resource else { return Vec::new() };
        let Some(node) = nodes.nodes.iter().position(|node| node.name == *name) else {
            return Vec::new();
        };
        let of_level = |level: &Level| {
            let ends = [level.from_unix_nanos, level.to_unix_nanos];
            Reserved::seen(NodeIndex(node as u32), ends, timeline.to_unix_nanos, level.reserved)
        };
        line.levels.iter().map(of_level).collect()
    };
    timeline.resources.iter().flat_map(of_line).collect()
}

/// Until its nodes enforce what was reserved.
fn wait_for_start(cluster: &Cluster, hold: &Hold, nodes: &[NodeIndex]) -> Result<()> {
    let broker = cluster.broker()?;
    loop {
        if interrupt::stopped() {
            bail!("stopped before it began");
        }
        if let Some(why) = hold.lost() {
            bail!("the reservation was lost before it began: {why}");
        }
        match broker.reservation(hold.handle()) {
            Ok(reservation) if reservation.state == State::Active => {
                Beginning::of(cluster, nodes, hold.job()).wait();
                return Ok(());
            }
            Err(error) if !may_pass(&error) => return Err(brokers::failure(error)),
            // Agents know when it begins. For how long the broker may not know who asks is the hold's business.
            _ => std::thread::sleep(LOOK_EVERY),
        }
    }
}

fn tell_refusal(work: &Work, refusal: TooLate, json: bool) -> Result<Ending> {
    if json {
        let (earliest_unix_nanos, refusal) = (refusal.earliest, Some(refusal.reason));
        print_json(&Outcome { refusal, earliest_unix_nanos, ..work.outcome() })?;
        return Ok(Ending::Refused);
    }
    let zone = TimeZone::system();
    println!("refused: by {}: {}", times::show(work.job.by, &zone), refusal.reason);
    if let Some(earliest) = refusal.earliest {
        println!("it could be done by {}", times::show(earliest, &zone));
    }
    Ok(Ending::Refused)
}

fn story(nodes: &[Name], held: &Held, work: &Work) -> String {
    let (name, at) = (work.application.name(), &held.plan.at);
    let nodes: Vec<_> = nodes.iter().map(Name::as_str).collect();
    let zone = TimeZone::system();
    let span = times::show_span(at.from, Some(at.to), &zone);
    let when = match held.promise {
        Promise::Deadline => distance(at.to, work.job.by, &zone),
        Promise::Start => "promised nothing, and slower where others need that".into(),
        Promise::Later => {
            let (by, late) = (times::show(held.by, &zone), distance(held.by, work.job.by, &zone));
            format!("promised to be done by {by}, {late}")
        }
    };
    format!("{name} on {} at {} of full speed, {span}: {when}", nodes.join(", "), at.rate.rounded())
}

/// That it begins at another time than was planned.
fn another_start(planned: WallTime, begins: WallTime) -> Option<String> {
    let (sooner, later) = (planned.saturating_since(begins), begins.saturating_since(planned));
    if sooner > OTHER_LEAST {
        Some(format!("there is room, so it begins {} sooner", sooner.rounded()))
    } else if later > OTHER_LEAST {
        Some(format!("others were let in, so it begins {} later", later.rounded()))
    } else {
        None
    }
}

fn distance(ended: WallTime, deadline: WallTime, zone: &TimeZone) -> String {
    let by = times::show(deadline, zone);
    match ended <= deadline {
        true => format!("{} before its deadline, {by}", deadline.saturating_since(ended).rounded()),
        false => format!("{} after its deadline, {by}", ended.saturating_since(deadline).rounded()),
    }
}

/// Clocks differ, and agents are asked: what begins sooner or later by less than this begins at its time.
const OTHER_LEAST: Nanos = Nanos::from_secs(2);
/// A run begins so much after its time at most.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::Share;

    fn application() -> Application {
        let text = "name = \"sum\"\ncommand = [\"sum\"]\npattern = \"ring\"\nnodes = [2, 4, 8]\n\
                    cpu = \"40 %\"\ntimeout = \"60 s\"\ntime = \"wall\"\n";
        Application::from_toml(text).unwrap()
    }

    // Goal: who asks for numbers of nodes that are not there is told which are.
    #[test]
    fn numbers_of_nodes_that_will_do_are_told_where_none_does() {
        let application = application();
        let known = Knees::told(&application, Nanos::from_secs(60));
        let asked = |counts: &str| asked_for(&known, Some(&counts.parse().unwrap()));
        assert!(asked("3..8").unwrap().counts().eq([4, 8]));
        assert_eq!(asked_for(&known, None).unwrap(), known);
        let error = asked("9..16").unwrap_err();
        assert_eq!((error.field.as_str(), error.value.as_deref()), ("nodes", Some("9..16")));
        assert_eq!(error.expected, "one that the profile has: 2, 4, 8");
        assert!(on_at_most(&known, 4).unwrap().counts().eq([2, 4]));
        let error = on_at_most(&known, 1).unwrap_err();
        assert_eq!(error.value.as_deref(), Some("2"));
        assert_eq!(error.expected, "1 at the most: those of --among");
    }

    #[test]
    fn a_request_is_called_as_the_application_and_has_its_mechanism() {
        let application = application();
        let knees = Knees::told(&application, Nanos::from_secs(60));
        let (from, to) = (WallTime::default(), WallTime::from_unix_nanos(300_000_000_000));
        let job = knees.job(&application, None, to).unwrap();
        let (parameters, mechanism) = (Parameters::new(), CpuMechanism::Bandwidth);
        let work = Work { application, parameters, job, mechanism, knees, total: None };
        let (booking, rate) = (Booking::new(work.job.clone()), Share::ONE);
        let request = work.request(&booking, NodeChoice::Any(2), &Stretch { from, to, rate });
        assert_eq!((request.check(), request.cpu_mechanism), (Ok(()), mechanism));
        assert_eq!(request.name.unwrap().as_str(), "sum");
    }

    // Goal: who asks for more nodes than are there is told which are not, and not that others are in the way.
    #[test]
    fn nodes_that_are_not_to_be_had_are_named() {
        let node = |name: &str, connected| Node {
            name: name.parse().unwrap(),
            address: None,
            processor: None,
            connected,
            heard_unix_nanos: WallTime::default(),
            drained: None,
            cpu_ppm: CpuPpm::from_percent(90),
            cpu_reserved_ppm: CpuPpm::default(),
            disk_read_bytes_per_second: Default::default(),
            disk_read_reserved_bytes_per_second: Default::default(),
            disk_write_bytes_per_second: Default::default(),
            disk_write_reserved_bytes_per_second: Default::default(),
            told: vec![],
            not_enforced: vec![],
        };
        let nodes = [node("n1", true), node("n2", false), node("n3", true)];
        assert_eq!(too_few(&nodes, &BTreeSet::new(), 2), None);
        let told = "it takes 3 nodes, and of 3 only 2 are to be had: n2 is away";
        assert_eq!(too_few(&nodes, &BTreeSet::new(), 3).as_deref(), Some(told));
        let among = ["n1", "n2"].map(|name| name.parse().unwrap()).into();
        assert!(too_few(&nodes, &among, 2).unwrap().contains("of 2 only 1"));
        assert_eq!(too_few(&nodes[..1], &BTreeSet::new(), 2), None, "there never were more");
    }

    #[test]
    fn another_start_is_told_with_why() {
        let at = |seconds: u64| WallTime::from_unix_nanos(seconds * 1_000_000_000);
        let told = |begins| another_start(at(60), at(begins));
        assert_eq!([58, 60, 62].map(told), [None, None, None]);
        assert_eq!(told(30).unwrap(), "there is room, so it begins 30 s sooner");
        assert_eq!(told(90).unwrap(), "others were let in, so it begins 30 s later");
    }

    #[test]
    fn distances_say_on_which_side() {
        let at = |seconds: u64| WallTime::from_unix_nanos(seconds * 1_000_000_000);
        let told = |ended, deadline| distance(at(ended), at(deadline), &TimeZone::UTC);
        assert_eq!(told(60, 84_517), "23 h 28 min before its deadline, 1970-01-01 23:28:37");
        assert_eq!(told(90, 60), "30 s after its deadline, 1970-01-01 00:01:00");
    }
}
