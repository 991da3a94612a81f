//! `keeptime run --rate`, `keeptime rate set` and `keeptime top`: runs that are held at a part of
//! their full speed.

use super::reservations::{self, AskedFor};
use super::run::less_cpu;
use super::{Ending, Session, by, print_json};
use crate::arguments::{RateCommand, RunArguments, TopArguments};
use crate::columns::{Side, aligned};
use crate::detach::Departure;
use crate::execute::{Execution, Ran, Run, heard, pass_on};
use crate::hold::Hold;
use crate::lasting::{Lasting, Source};
use crate::rate::door::{self, Answer, Asked, CourseView, RateView, Views};
use crate::rate::known::KnownSpeeds;
use crate::rate::nodes::{node_indices, set_schedules};
use crate::rate::steering::{Begins, Phase, State, Wanted};
use crate::rate::{News, Steered};
use crate::{brokers, interrupt, live, place, terminal};
use anyhow::{Context, Result, bail};
use keeptime_broker::client::ClientError;
use keeptime_control::{FullSpeed, Policy};
use keeptime_credentials::dates::now;
use keeptime_engine::book::Reservation;
use keeptime_launch::process::Said;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::assignment::CpuMechanism;
use keeptime_model::goal::Goal;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, Handle, NodeChoice, Request, Resources};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, Share};
use serde::Serialize;
use std::borrow::Cow;
use std::time::Duration;

/// What `keeptime run --rate --json` prints.
#[derive(Debug, Serialize)]
struct Outcome {
    reservation: Handle,
    actual_nanos: Nanos,
    rate: Option<RateView>,
}

/// What a run at a rate has of its nodes. Nothing steers it yet, and nothing was started for it.
struct Reserved<'a> {
    session: &'a Session,
    wanted: Wanted,
    parameters: Parameters,
    count: u32,
    nodes: Vec<NodeIndex>,
    speeds: KnownSpeeds,
    begins: Begins,
    reservation: Reservation,
    hold: Hold,
}

/// A run that has its nodes and is about to be steered.
pub struct Held<'a> {
    session: &'a Session,
    parameters: Parameters,
    nodes: Vec<NodeIndex>,
    steered: Steered,
    hold: Hold,
}

/// Where a run has its full speed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FullSpeedFrom {
    /// What an earlier run has measured, if there is that; otherwise it is measured.
    Known,
    /// It is measured, whatever is known: the run begins with all CPU of the application.
    Measured,
}

impl<'a> Reserved<'a> {
    /// As [`Held::new`].
    fn new(
        session: &'a Session,
        goal: &Goal,
        wanted: Wanted,
        from: FullSpeedFrom,
        mechanism: CpuMechanism,
    ) -> Result<Self> {
        let application = &session.application;
        goal.check(application)?;
        wanted.check()?;
        let count = goal.nodes.or(application.nodes().first().copied()).unwrap_or(1);
        let (full, parameters) = (application.cpu(), parameters(application, goal));
        let speeds = KnownSpeeds::of(session);
        let find = || speeds.find(&parameters, count);
        let begins = begins(application.progress_source().is_some(), from, find)?;
        let nodes = NodeChoice::Any(count);
        let mut resources = Resources { nodes, cpu_ppm: full, ..Resources::nothing() };
        if let Some(schedules) = wanted.first_schedules(full, &begins)? {
            set_schedules(&mut resources, &schedules);
        }
        let cluster = &session.cluster;
        let ask = Request::new(Ask::Resources(resources));
        let name = Some(application.name().clone());
        let asked = Request { name, cpu_mechanism: mechanism, ..ask };
        let hold = Hold::take(cluster, asked, application.timeout())?;
        let reservation = cluster.broker()?.reservation(hold.handle());
        let reservation = reservation.map_err(brokers::failure)?;
        let grant = reservation.grant.as_ref().context("the broker granted nothing")?;
        let nodes = node_indices(cluster, grant)?;
        Ok(Self { session, wanted, parameters, count, nodes, speeds, begins, reservation, hold })
    }

    /// Has it steered from its first line on.
    fn steered(self) -> Result<Held<'a>> {
        let Self { session, wanted, parameters, count, nodes, speeds, begins, reservation, hold } =
            self;
        let Session { cluster, application, .. } = session;
        let (full, of) = (application.cpu(), parameters.clone());
        let hear = move |news: News<'_>| match news {
            News::Found(found) => {
                if let Err(error) = speeds.keep(&of, count, found) {
                    eprintln!("the next run has to measure full speed again: {error:#}");
                }
            }
            News::Turned(view) => eprintln!("{}", turned(view)),
            News::Doubted(RateView { job, .. }) => eprintln!(
                "{job}: full speed is not what an earlier run has found; it is measured when its nodes have room for that"
            ),
            News::Restarted(RateView { job, .. }) => {
                eprintln!("{job}: its controller had ended; another one goes on from what it knew");
            }
            News::Unprinted { view: RateView { job, .. }, reason } => {
                eprintln!("{job}: the command that is to print its progress does not: {reason}");
            }
            News::Alone { view: RateView { job, .. }, reason } => {
                eprintln!("{job} stays as it is, without a controller: {reason}");
            }
            News::Short { view: RateView { job, limit_nanos, .. }, reason } => {
                eprintln!("{job} is ended after {} all the same: {reason}", limit_nanos.rounded());
            }
        };
        let steered =
            Steered::start(cluster, application, &reservation, wanted, full, begins, hear)?;
        Ok(Held { session, parameters, nodes, steered, hold })
    }
}

impl<'a> Held<'a> {
    /// Reserves what the application needs at its rate, or at full speed if that has to be measured first and can be, on
    /// the nodes that `goal` wants and with what it sets; `mechanism` is what keeps its shares. A full speed that is
    /// measured is kept for later runs.
    ///
    /// # Errors
    /// If something makes no sense, or the broker refuses.
    pub fn new(
        session: &'a Session,
        goal: &Goal,
        wanted: Wanted,
        from: FullSpeedFrom,
        mechanism: CpuMechanism,
    ) -> Result<Self> {
        Reserved::new(session, goal, wanted, from, mechanism)?.steered()
    }

    /// Its reservation.
    pub fn handle(&self) -> Handle {
        self.hold.handle()
    }

    /// Runs it, steered by its progress; `on_said` sees its output. How it stood at its end.
    ///
    /// # Errors
    /// If it does not do its part.
    pub fn run(
        mut self,
        stopped: &dyn Fn() -> bool,
        on_said: &mut dyn FnMut(Said<'_>),
    ) -> Result<(Ran, Option<RateView>)> {
        let Session { cluster, mpi, application, .. } = self.session;
        let (parameters, nodes) = (&self.parameters, self.nodes.as_slice());
        let run = Run { application, parameters, nodes, rate: None };
        let allowed = self.steered.allowed();
        let mut watch = |said: Said<'_>| {
            if let Said::Out(line) = said {
                self.steered.line(line);
            }
            on_said(said);
        };
        let limit = || allowed.get();
        let execution = Execution::new(cluster, mpi, run);
        let execution = Execution { stopped, limit: Some(&limit), ..execution };
        let ran = execution.under(&self.hold, &mut watch)?;
        Ok((ran, self.steered.end()))
    }
}

/// Runs an application at `target`. What is started for it has the terminal no more, if that is left.
pub fn run(arguments: &RunArguments, target: Share, departure: &Departure) -> Result<Ending> {
    let session = Session::open(&arguments.application)?;
    let threshold = arguments.threshold.unwrap_or(THRESHOLD);
    let wanted = Wanted { target, threshold, policy: Policy::predictive() };
    let from = match arguments.measure {
        true => FullSpeedFrom::Measured,
        false => FullSpeedFrom::Known,
    };
    let goal = arguments.goal.goal()?;
    let reserved = match Reserved::new(&session, &goal, wanted, from, arguments.mechanism) {
        Ok(reserved) => reserved,
        Err(error) => {
            let error = error.downcast::<ClientError>()?;
            let limit = session.application.timeout();
            let lasting = Lasting { rate: target, ..limited(arguments, limit) };
            let asked_for = AskedFor { lasting, from: now() };
            let refusal = error.problem().and_then(|problem| problem.refusal.as_ref());
            let less = refusal.and_then(|refusal| less_cpu(&arguments.program, refusal));
            let ended =
                reservations::refused_lasting(error, None, Some(asked_for), arguments.json)?;
            less.iter().filter(|_| !arguments.json).for_each(|less| println!("{less}"));
            return Ok(ended);
        }
    };
    let (reservation, application) = (reserved.hold.handle(), &session.application);
    if !arguments.json {
        println!("{reservation}: {} at {target} of full speed", application.name());
        match &reserved.begins {
            Begins::Measured => {}
            Begins::Known(known) => println!(
                "full speed is {:.2} /s, as an earlier run has measured (--measure: anew)",
                known.rate()
            ),
            Begins::Unreported => println!(
                "nothing says how it tells its progress: it has {target} of its CPU from the start"
            ),
        }
    }
    departure.leave(Some(reservation))?;
    let ran = reserved
        .steered()?
        .run(&interrupt::stopped, &mut |said| pass_on(said, arguments.json))
        .map_err(heard);
    let (ran, rate) = ran?;
    if arguments.json {
        print_json(&Outcome { reservation, actual_nanos: ran.time, rate })?;
    } else if let Some(view) = rate {
        print!("{}", fitting(&[view]));
    }
    Ok(Ending::Done)
}

/// What says how long a run may take, which is `limit`.
pub(super) fn limited(arguments: &RunArguments, limit: Nanos) -> Lasting {
    let source = match (arguments.program.is_given(), arguments.program.limit) {
        (false, _) => Source::Timeout,
        (true, Some(_)) => Source::Limit,
        (true, None) => Source::LimitByDefault,
    };
    Lasting::new(source, Some(limit))
}

/// Changes the rate of a run.
pub fn set(command: &RateCommand) -> Result<Ending> {
    let RateCommand::Set { job, rate, json, place } = command;
    let runs = place::find(place)?.rates_directory();
    match door::ask(&runs, *job, Asked::Set { target: *rate })? {
        Answer::State(view) if *json => print_json(&view).map(|()| Ending::Done),
        Answer::State(view) => {
            let (rate, limit) = (view.state.target, view.limit_nanos);
            print!("{}", fitting(std::slice::from_ref(&*view)));
            println!("{job} is ended when it has run for {}", limit.rounded());
            if let Some(reason) = view.follows {
                println!(
                    "{job} is not held at {rate} yet, but will be without being asked again: {reason}"
                );
            }
            Ok(Ending::Done)
        }
        // Those refuse it.
        Answer::Course(view) => bail!("{} is not held at a rate", view.job),
        Answer::Refused { reason } if *json => {
            print_json(&serde_json::json!({ "reservation": job, "refusal": reason }))?;
            Ok(Ending::Refused)
        }
        Answer::Refused { reason } => {
            println!("{job} stays at its rate: {reason}");
            Ok(Ending::Refused)
        }
    }
}

/// What is told where there is nothing to show.
const NO_RUN: &str = "no run is held at a rate: keeptime run --rate begins one";

/// Shows all runs that are followed, until it is ended; on a terminal with plots of them.
pub fn top(arguments: &TopArguments) -> Result<Ending> {
    let runs = place::find(&arguments.place)?.rates_directory();
    if arguments.json {
        let Views { rates, courses } = door::views(&runs)?;
        let each = rates.into_iter().map(View::Rate).chain(courses.into_iter().map(View::Course));
        print_json(&each.collect::<Vec<_>>())?;
        return Ok(Ending::Done);
    }
    if !arguments.once && terminal::draws(&std::io::stdout()) {
        // The terminal is to be as it was, however this ends.
        interrupt::listen_at_terminal()?;
        live::show(|| door::views(&runs), tables, &interrupt::stopped)?;
        return Ok(Ending::Done);
    }
    loop {
        let views = door::views(&runs)?;
        match tables(&views) {
            text if text.is_empty() => println!("{NO_RUN}"),
            text => print!("{text}"),
        }
        if arguments.once {
            return Ok(Ending::Done);
        }
        std::thread::sleep(AGAIN_AFTER);
    }
}

/// What is said of a run that stands so for the first time.
fn turned(view: &RateView) -> String {
    let RateView { job, state, .. } = view;
    let target = state.target;
    if let Some(reason) = &state.not_held_yet {
        return format!("{job} is not held at {target} of full speed yet: {reason}");
    }
    match state.phase {
        Phase::Measured => format!("{job} is at full speed, to measure it"),
        Phase::Steered => format!("{job} is held at {target} of full speed from now on"),
        Phase::Unreported => {
            format!("{job} tells no progress: until it does, it has {target} of its CPU")
        }
        Phase::Unmeasured => format!(
            "{job}: its nodes do not tell the CPU time that it uses: until they do, it has {target} of its CPU"
        ),
    }
}

/// How a run begins, which tells its progress or does not: one that cannot is never measured.
fn begins(
    is_told: bool,
    from: FullSpeedFrom,
    find: impl FnOnce() -> Result<Option<FullSpeed>>,
) -> Result<Begins> {
    Ok(match from {
        _ if !is_told => Begins::Unreported,
        FullSpeedFrom::Measured => Begins::Measured,
        FullSpeedFrom::Known => find()?.map_or(Begins::Measured, Begins::Known),
    })
}

/// The values that were set, and the best of all others.
pub(super) fn parameters(application: &Application, goal: &Goal) -> Parameters {
    let is_wanted =
        |given: &Parameters| goal.set.iter().all(|(name, value)| given.get(name) == Some(value));
    application.grid().into_iter().find(is_wanted).unwrap_or_default()
}

/// One run that is followed, as `keeptime top --json` prints it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum View {
    Rate(RateView),
    Course(CourseView),
}

/// Those that are held at a rate, and then those that are to be done by a time; nothing of either where there are none.
fn tables(views: &Views) -> String {
    let Views { rates, courses } = views;
    let rates = if rates.is_empty() { String::new() } else { fitting(rates) };
    let courses = match courses.is_empty() {
        true => String::new(),
        false => terminal::fitted(by::table(courses)),
    };
    rates + &courses
}

/// The table as the terminal has room for it, if there is one.
fn fitting(views: &[RateView]) -> String {
    terminal::fitted(table(views, terminal::width()))
}

/// All columns, or those that can be seen where there are only so many of text: how a run stands is looked for first.
fn table(views: &[RateView], width: Option<usize>) -> String {
    let mut rows = vec![HEADINGS.map(String::from)];
    rows.extend(views.iter().map(row));
    let side = |column: &usize| match *column {
        0 | 1 | LAST => Side::Left,
        _ => Side::Right,
    };
    let of = |shown: &[usize]| {
        let sides: Vec<_> = shown.iter().map(side).collect();
        let cells = |row: &[String; HEADINGS.len()]| -> Vec<_> {
            shown.iter().map(|column| row[*column].clone()).collect()
        };
        aligned(&rows.iter().map(cells).collect::<Vec<_>>(), &sides)
    };
    let is_seen = |text: &str| {
        width.is_none_or(|width| text.lines().all(|line| line.chars().count() <= width))
    };
    let mut shown: Vec<_> = (0..HEADINGS.len()).collect();
    let mut text = of(&shown);
    for column in LEFT_OUT {
        if is_seen(&text) {
            break;
        }
        shown.retain(|other| *other != column);
        text = of(&shown);
    }
    text
}

fn row(view: &RateView) -> [String; HEADINGS.len()] {
    let RateView { job, application, nodes, state, .. } = view;
    let percent = |value: f64| format!("{:.1} %", 100.0 * value);
    let cpu = state.schedule.map(|schedule| schedule.cpu().rounded());
    let slice =
        state.schedule.map(|s| format!("{} / {}", s.slice().rounded(), s.period().rounded()));
    let unknown = || "-".to_owned();
    let least = state.rank_cpu_ppm.iter().min().map(|least| least.rounded());
    let least = least.map(|least| format!("; a rank has {least} at least")).unwrap_or_default();
    let refused = match state.refused {
        0 => String::new(),
        count => format!("; {count} corrections refused"),
    };
    [
        job.to_string(),
        application.to_string(),
        nodes.len().to_string(),
        percent(state.target.as_f64()),
        state.actual.map_or_else(unknown, percent),
        cpu.map_or_else(unknown, |cpu| cpu.to_string()),
        slice.unwrap_or_else(unknown),
        state.full_speed.map_or_else(unknown, |rate| format!("{rate:.2} /s")),
        format!("{}{}{least}{refused}", describe(state), kept(view)),
    ]
}

const LAST: usize = HEADINGS.len() - 1;
/// Where not all have room, the first of these goes first: slice and period, full speed, nodes, CPU.
const LEFT_OUT: [usize; 4] = [6, 7, 2, 5];
const HEADINGS: [&str; 9] = [
    "job",
    "application",
    "nodes",
    "target",
    "actual",
    "cpu",
    "slice / period",
    "full speed",
    "state",
];

/// What keeps its share, and where that differs, what was said to.
fn kept(view: &RateView) -> String {
    let said = match view.cpu_mechanism {
        CpuMechanism::Auto => String::new(),
        said => format!("; to be kept by {said}"),
    };
    let mut by: Vec<(Option<CpuMechanism>, Vec<&Name>)> = Vec::new();
    for (node, mechanism) in &view.cpu_kept_by {
        match by.iter_mut().find(|(other, _)| other == mechanism) {
            Some((_, nodes)) => nodes.push(node),
            None => by.push((*mechanism, vec![node])),
        }
    }
    let name = |by: &Option<CpuMechanism>| by.map_or("nothing".to_owned(), |by| by.to_string());
    let place = |nodes: &[&Name]| match nodes {
        [node] => node.to_string(),
        nodes => format!("{} nodes", nodes.len()),
    };
    match by.as_slice() {
        [] => said,
        [(mechanism, _)] if *mechanism == Some(view.cpu_mechanism) => {
            format!("; kept by {}", name(mechanism))
        }
        [(mechanism, _)] => format!("{said}; kept by {}", name(mechanism)),
        several => {
            let part = |(by, nodes): &(Option<CpuMechanism>, Vec<&Name>)| {
                format!("{} on {}", name(by), place(nodes))
            };
            let parts: Vec<_> = several.iter().map(part).collect();
            format!("{said}; kept by {}", parts.join(", "))
        }
    }
}

fn describe(state: &State) -> Cow<'static, str> {
    if let Some(reason) = &state.not_held_yet {
        return format!("not held yet: {reason}").into();
    }
    let told = match state.phase {
        Phase::Measured => "at full speed, to measure it",
        // Its actual rate is still that of the former target.
        Phase::Steered if state.is_adjusting => "adjusting",
        Phase::Steered if state.is_doubted => "held by a full speed that does not fit",
        Phase::Steered => "held",
        Phase::Unreported => "tells no progress: has its part of the CPU",
        Phase::Unmeasured => "nodes do not tell its CPU time: has its part of the CPU",
    };
    told.into()
}

const THRESHOLD: Share = match Share::from_percent(2) {
    Some(share) => share,
    None => Share::ONE,
};
/// People do not read faster.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_control::Schedule;
    use keeptime_model::units::CpuPpm;
    use std::collections::BTreeMap;

    const BSP: &str = r#"
        name = "bsp"
        command = ["bsp", "{size}", "{wait}"]
        pattern = "all-to-all"
        nodes = [2, 4]
        cpu = "20 %"
        timeout = "60 s"
        time = "wall"
        progress = "iteration"
        parameters = [{ name = "size", values = ["9", "5"] }, { name = "wait", values = ["no", "yes"] }]
    "#;

    #[test]
    fn what_is_not_set_is_the_best_that_there_is() {
        let application = Application::from_toml(BSP).unwrap();
        let mut goal = Goal::default();
        goal.set.insert("wait".parse().unwrap(), "yes".into());
        let chosen = parameters(&application, &goal);
        assert_eq!(chosen.values().collect::<Vec<_>>(), ["9", "yes"]);
    }

    #[test]
    fn a_table_has_a_line_for_each_run() {
        let schedule = Schedule::new(CpuPpm::from_percent(15), Nanos::from_millis(20));
        let held = State {
            target: Share::from_percent(30).unwrap(),
            phase: Phase::Steered,
            is_adjusting: false,
            is_doubted: false,
            not_held_yet: None,
            actual: Some(0.2951),
            full_speed: Some(12.0),
            schedule: Some(schedule),
            rank_cpu_ppm: Vec::new(),
            refused: 2,
        };
        let (phase, actual, full_speed) = (Phase::Measured, None, None);
        let measured =
            State { phase, actual, full_speed, schedule: None, refused: 0, ..held.clone() };
        let view = |state| RateView {
            job: Handle::new(7),
            application: "bsp".parse().unwrap(),
            nodes: vec!["n1".parse().unwrap(), "n2".parse().unwrap()],
            state,
            limit_nanos: Nanos::from_secs(60),
            cpu_mechanism: CpuMechanism::Auto,
            cpu_kept_by: BTreeMap::new(),
            follows: None,
        };
        let rank_cpu_ppm = [15, 6].map(CpuPpm::from_percent).to_vec();
        let unequal = State { rank_cpu_ppm, ..held.clone() };
        let said = RateView { cpu_mechanism: CpuMechanism::UserLevel, ..view(held.clone()) };
        let adjusting = view(State { is_adjusting: true, refused: 0, ..held.clone() });
        let doubted = view(State { is_doubted: true, refused: 0, ..held.clone() });
        // How it stands takes four columns more than its heading.
        let few = [adjusting.clone()];
        let heading = |width| table(&few, Some(width)).lines().next().map(str::to_owned);
        let narrow = "job  application  nodes  target  actual   cpu  full speed  state";
        assert_eq!(heading(83).as_deref(), Some(narrow));
        assert_eq!(heading(20).as_deref(), Some("job  application  target  actual  state"));
        let all = [view(held), view(measured), view(unequal), said, adjusting, doubted];
        let text = table(&all, None);
        let headings =
            "job  application  nodes  target  actual   cpu  slice / period  full speed  state";
        assert_eq!(text.lines().next(), Some(headings));
        assert_eq!(heading(84).as_deref(), Some(headings));
        let lines: Vec<_> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines[1],
            "r7 bsp 2 30.0 % 29.5 % 15 % 3 ms / 20 ms 12.00 /s held; 2 corrections refused"
        );
        assert_eq!(lines[2], "r7 bsp 2 30.0 % - - - - at full speed, to measure it");
        assert!(lines[3].ends_with("held; a rank has 6 % at least; 2 corrections refused"));
        assert!(lines[4].ends_with("held; to be kept by user-level; 2 corrections refused"));
        assert!(lines[5].ends_with("12.00 /s adjusting"), "{}", lines[5]);
        assert!(
            lines[6].ends_with("12.00 /s held by a full speed that does not fit"),
            "{}",
            lines[6]
        );
        assert_eq!(lines.len(), 7);
    }

    // Goal: what keeps a share is told as nodes tell it, beside what was said where that is something else.
    #[test]
    fn what_keeps_a_share_is_told_where_it_is_known() {
        use CpuMechanism::{Auto, Bandwidth, Deadline};
        let state = State {
            target: Share::from_percent(30).unwrap(),
            phase: Phase::Steered,
            is_adjusting: false,
            is_doubted: false,
            not_held_yet: None,
            actual: None,
            full_speed: None,
            schedule: None,
            rank_cpu_ppm: Vec::new(),
            refused: 0,
        };
        let view = |cpu_mechanism, kept: &[(&str, Option<CpuMechanism>)]| RateView {
            job: Handle::new(7),
            application: "bsp".parse().unwrap(),
            nodes: Vec::new(),
            state: state.clone(),
            limit_nanos: Nanos::from_secs(60),
            cpu_mechanism,
            cpu_kept_by: kept.iter().map(|(node, by)| (node.parse().unwrap(), *by)).collect(),
            follows: None,
        };
        let (here, there) = (("n1", Some(Deadline)), ("n2", Some(Bandwidth)));
        let cases = [
            (view(Auto, &[]), ""),
            (view(Deadline, &[]), "; to be kept by deadline"),
            (view(Auto, &[here]), "; kept by deadline"),
            (view(Deadline, &[here]), "; kept by deadline"),
            (view(Deadline, &[there]), "; to be kept by deadline; kept by bandwidth"),
            (view(Auto, &[here, there]), "; kept by deadline on n1, bandwidth on n2"),
            (
                view(Deadline, &[here, there, ("n3", Some(Bandwidth)), ("n4", None)]),
                "; to be kept by deadline; kept by deadline on n1, bandwidth on 2 nodes, nothing on n4",
            ),
        ];
        for (view, expected) in cases {
            assert_eq!(kept(&view), expected);
            assert!(table(&[view], None).contains(&format!("held{expected}\n")));
        }
    }

    // Goal: nothing is measured where nothing is told, whatever is known from other times, and no file is read for that.
    #[test]
    fn a_run_begins_by_what_is_known_or_may_come_to_be() {
        use FullSpeedFrom::{Known, Measured};
        let full_speed = FullSpeed::new(10.0, &[CpuPpm::from_percent(20)]).unwrap();
        let known = || Ok(Some(full_speed.clone()));
        assert_eq!(begins(true, Known, known).unwrap(), Begins::Known(full_speed.clone()));
        assert_eq!(begins(true, Known, || Ok(None)).unwrap(), Begins::Measured);
        assert_eq!(begins(true, Measured, known).unwrap(), Begins::Measured);
        for from in [Known, Measured] {
            let unread = || anyhow::bail!("it is read");
            assert_eq!(begins(false, from, unread).unwrap(), Begins::Unreported);
        }
    }

    #[test]
    fn users_are_told_in_their_words_how_a_run_stands() {
        let state = |phase| State {
            target: Share::from_percent(30).unwrap(),
            phase,
            is_adjusting: false,
            is_doubted: false,
            not_held_yet: None,
            actual: None,
            full_speed: None,
            schedule: None,
            rank_cpu_ppm: Vec::new(),
            refused: 0,
        };
        let view = RateView {
            job: Handle::new(7),
            application: "bsp".parse().unwrap(),
            nodes: Vec::new(),
            state: state(Phase::Steered),
            limit_nanos: Nanos::from_secs(60),
            cpu_mechanism: CpuMechanism::Auto,
            cpu_kept_by: BTreeMap::new(),
            follows: None,
        };
        assert_eq!(turned(&view), "r7 is held at 30 % of full speed from now on");
        let not_held_yet = Some("the broker does not answer".to_owned());
        let unheld = State { not_held_yet, ..state(Phase::Steered) };
        let unheld = RateView { state: unheld, ..view.clone() };
        let expected = "r7 is not held at 30 % of full speed yet: the broker does not answer";
        assert_eq!(turned(&unheld), expected);
        assert!(table(&[unheld], None).ends_with(" -  not held yet: the broker does not answer\n"));
        let silent = RateView { state: state(Phase::Unreported), ..view };
        let expected = "r7 tells no progress: until it does, it has 30 % of its CPU";
        assert_eq!(turned(&silent), expected);
        // It does tell its progress.
        let unmeasured = RateView { state: state(Phase::Unmeasured), ..silent };
        let expected = "r7: its nodes do not tell the CPU time that it uses: until they do, it has 30 % of its CPU";
        assert_eq!(turned(&unmeasured), expected);
    }
}
