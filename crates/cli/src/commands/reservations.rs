//! `keeptime reserve` and its kin: what users ask of the broker.

use super::{Ending, print_json};
use crate::arguments::{
    CancelArguments, ListArguments, ModifyArguments, OneArguments, RegisterArguments,
    ReserveArguments, Wanted, WatchArguments,
};
use crate::lasting::{Lasting, Source, ToldLasting};
use crate::place::{self, connect};
use crate::{allocation, brokers, files, listing, requests, story, terminal, times, waiting};
use anyhow::{Result, ensure};
use jiff::Zoned;
use jiff::tz::TimeZone;
use keeptime_broker::client::{ClientError, new_key};
use keeptime_broker::wire::{Filter, Happened, History, Known, Possible, Problem};
use keeptime_broker::words;
use keeptime_credentials::dates::now;
use keeptime_engine::book::Reservation;
use keeptime_engine::refusal::{Beyond, Reason};
use keeptime_engine::{Event, Refusal};
use keeptime_launch::mpi::Flavour;
use keeptime_launch::remote::quoted;
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, Handle, Request};
use keeptime_model::units::{Nanos, WallTime};
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// How nodes come to disks whose rates may be promised.
const DISK_ADDED: &str = "a disk is added as `disk` of its node in the broker's topology file \
    (docs/formats/topology.md), or by keeptime lab up --disk\n";
/// So many nodes are named to whoever names one that is not there.
const NODES_NAMED_MAX: usize = 8;
/// How long to wait before a watch looks for a broker that went away.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Reserves, or asks whether that would do.
pub fn reserve(arguments: &ReserveArguments) -> Result<Ending> {
    allocation::check_once()?;
    let now = Zoned::now();
    tell_tomorrow(&arguments.wanted, &now);
    let request = requests::new(arguments.application.as_ref(), &arguments.wanted, &now)?;
    let mut request = Request { wait_nanos: arguments.wait, ..request };
    requests::check(&request)?;
    let asked_for = AskedFor::of(&request, &arguments.wanted);
    let found = place::find(&arguments.place)?;
    let client = found.client()?;
    if request.among.is_empty()
        && let Some(around) = allocation::around(&found.broker)?
    {
        let nodes = client.nodes(None).map_err(brokers::failure)?.nodes;
        request.among =
            allocation::own(&around, &found.nodes, nodes.iter().map(|node| &node.name))?;
        allocation::tell_others(&around, request.among.len());
        requests::check(&request)?;
    }
    if arguments.dry_run {
        return match client.consider(&request) {
            Ok(possible) if arguments.json => print_json(&possible).map(|()| Ending::Done),
            Ok(possible) => {
                println!("would be granted: {}", describe_possible(&possible));
                Ok(Ending::Done)
            }
            Err(error) => refused_lasting(error, None, Some(asked_for), arguments.json),
        };
    }
    let key = match &arguments.key {
        Some(key) => key.clone(),
        None => new_key()?,
    };
    let asked = Instant::now();
    match client.reserve_unless(&|| false, &waiting::tell, key, request) {
        Ok(reservation) if arguments.quiet => {
            println!("{}", reservation.handle);
            Ok(Ending::Done)
        }
        Ok(reservation) => {
            let ended = told(&reservation, arguments.json)?;
            if matches!(reservation.request.ask, Ask::Goal { .. }) && !arguments.json {
                // What is granted is granted, whether or not somebody says what less would have done.
                let instead = client.decision(reservation.handle).map(|decision| decision.instead);
                print!("{}", story::instead(&instead.unwrap_or_default()));
            }
            Ok(ended)
        }
        Err(error) => {
            let waited = arguments.wait.map(|_| Nanos::from(asked.elapsed()));
            let manner = match (arguments.json, arguments.quiet) {
                (true, _) => Manner::Json,
                (false, true) => Manner::Aside,
                (false, false) => Manner::Words,
            };
            tell_refused(error, waited, Some(asked_for), manner)
        }
    }
}

/// A clock time that is over today may have been meant for today.
fn tell_tomorrow(wanted: &Wanted, now: &Zoned) {
    let times = [("--from", &wanted.from), ("--until", &wanted.until), ("--by", &wanted.by)];
    for (option, time) in times {
        let told = time.as_ref().and_then(|time| times::of_tomorrow(option, time, now));
        told.into_iter().for_each(|told| eprintln!("keeptime: {told}"));
    }
}

/// Puts something else in the place of what a reservation has.
pub fn modify(arguments: &ModifyArguments) -> Result<Ending> {
    let client = connect(&arguments.place)?;
    let old = client.reservation(arguments.handle).map_err(brokers::failure)?;
    let (start, now) = (old.from_unix_nanos, Zoned::now());
    tell_tomorrow(&arguments.wanted, &now);
    let request = requests::changed(old.request, start, &arguments.wanted, &now)?;
    match client.modify(arguments.handle, &request) {
        Ok(reservation) => told(&reservation, arguments.json),
        Err(error) => {
            let from = request.from_unix_nanos.unwrap_or(start);
            let asked_for = AskedFor { from, ..AskedFor::of(&request, &arguments.wanted) };
            refused_lasting(error, None, Some(asked_for), arguments.json)
        }
    }
}

/// Tells what came of it.
pub(super) fn outcome_told(
    outcome: Result<Reservation, ClientError>,
    json: bool,
) -> Result<Ending> {
    match outcome {
        Ok(reservation) => told(&reservation, json),
        Err(error) => refused(error, json),
    }
}

/// Gives reservations back: of several, each that can be.
pub fn cancel(arguments: &CancelArguments) -> Result<Ending> {
    let CancelArguments { place, handles, json } = arguments;
    let client = connect(place)?;
    let cancelled = |handle: &Handle| client.cancel(*handle).map_err(brokers::failure);
    match handles.as_slice() {
        [handle] => told(&cancelled(handle)?, *json),
        handles => cancel_each(handles, cancelled, *json),
    }
}

/// Each is told at once, or all that were cancelled as one list.
fn cancel_each(
    handles: &[Handle],
    cancelled: impl Fn(&Handle) -> Result<Reservation>,
    json: bool,
) -> Result<Ending> {
    let mut done = Vec::new();
    for handle in handles {
        match cancelled(handle) {
            Ok(reservation) => {
                if !json {
                    println!("{}", describe(&reservation));
                }
                done.push(reservation);
            }
            Err(error) => eprintln!("keeptime: {handle} is not cancelled: {error:#}"),
        }
    }
    if json {
        print_json(&done)?;
    }
    let (all, left) = (handles.len(), handles.len() - done.len());
    ensure!(left == 0, "{left} of {all} reservations not cancelled");
    Ok(Ending::Done)
}

/// Has a reservation moved that was lost.
pub fn move_lost(arguments: &OneArguments) -> Result<Ending> {
    outcome_told(connect(&arguments.place)?.move_lost(arguments.handle), arguments.json)
}

/// Shows one reservation.
pub fn show(arguments: &OneArguments) -> Result<Ending> {
    let client = connect(&arguments.place)?;
    told(&client.reservation(arguments.handle).map_err(brokers::failure)?, arguments.json)
}

/// Lists reservations.
pub fn list(arguments: &ListArguments) -> Result<Ending> {
    let client = connect(&arguments.place)?;
    let filter = Filter {
        owner: arguments.owner.clone(),
        state: arguments.state,
        live: (!arguments.all && arguments.state.is_none()).then_some(true),
        node: arguments.node.clone(),
        ..Filter::default()
    };
    let is_some = filter.owner.is_some() || filter.state.is_some() || filter.node.is_some();
    let all = client.all_reservations(filter).map_err(brokers::failure)?;
    if let (Some(name), []) = (&arguments.node, all.as_slice()) {
        let there = client.nodes(None).map_err(brokers::failure)?.nodes;
        check_there(name, there.iter().map(|node| &node.name))?;
    }
    if arguments.json {
        print_json(&all)?;
        return Ok(Ending::Done);
    }
    let (told, refused) = match arguments.state {
        None => listing::without_refused(all),
        Some(_) => (all, 0),
    };
    if !told.is_empty() {
        print!("{}", terminal::fitted(listing::table(&told, &Zoned::now())));
    } else if refused == 0 {
        println!("{}", if is_some { "no such reservation" } else { "nothing is reserved" });
    }
    if refused > 0 {
        println!("{refused} refused: --state refused shows them");
    }
    Ok(Ending::Done)
}

/// Nothing is reserved of a node that is not there, which says nothing of the one that was meant.
fn check_there<'a>(name: &Name, there: impl Iterator<Item = &'a Name>) -> Result<(), Invalid> {
    let there: Vec<_> = there.map(Name::as_str).collect();
    if there.contains(&name.as_str()) {
        return Ok(());
    }
    let some = &there[..there.len().min(NODES_NAMED_MAX)];
    Err(Invalid::new("node", name, format!("a node of the cluster, as {}", some.join(", "))))
}

/// Explains a reservation by everything that was recorded about it.
pub fn why(arguments: &OneArguments) -> Result<Ending> {
    let history = connect(&arguments.place)?.history(arguments.handle).map_err(brokers::failure)?;
    if arguments.json {
        print_json(&history)?;
        return Ok(Ending::Done);
    }
    if history.records.is_empty() {
        return show(arguments);
    }
    for (index, happened) in history.records.iter().enumerate() {
        if let Some(gap) = gap_before(&history, index) {
            println!("{gap}");
        }
        println!("{}", line(happened));
        if let Some(decision) = happened.event.decision() {
            print!("{}", story::outline(decision));
        }
        match &happened.event {
            Event::Refused { refused, .. } => print!("{}", offers(&refused.refusal, None)),
            Event::Lost { handle, instead: Some(_), .. } => {
                println!("keeptime move {handle} asks for it, unless it was moved");
            }
            _ => {}
        }
    }
    Ok(Ending::Done)
}

/// Tells everything that happens.
pub fn watch(arguments: &WatchArguments) -> Result<Ending> {
    let client = connect(&arguments.place)?;
    let mut after = arguments.after;
    if let (Some(handle), None) = (arguments.handle, after) {
        // What happened before is told first: it may be over already.
        let history = client.history(handle).map_err(brokers::failure)?;
        for (index, happened) in history.records.iter().enumerate() {
            match gap_before(&history, index) {
                // Each line is something that happened.
                Some(gap) if arguments.json => eprintln!("keeptime: {gap}"),
                Some(gap) => println!("{gap}"),
                None => {}
            }
            after = Some(happened.position());
            tell(happened, arguments.json)?;
            if is_end(&happened.event) {
                return Ok(Ending::Done);
            }
        }
    }
    loop {
        let since = after;
        let watched = client.watch(arguments.handle, since, |happened| {
            after = Some(happened.position());
            if let Err(error) = tell(&happened, arguments.json) {
                return ControlFlow::Break(Err(error));
            }
            match arguments.handle {
                Some(_) if is_end(&happened.event) => ControlFlow::Break(Ok(Ending::Done)),
                _ => ControlFlow::Continue(()),
            }
        });
        match watched {
            Ok(ended) => return ended,
            Err(error) if error.is_retryable() => {
                eprintln!("keeptime: {error}; looking again");
                std::thread::sleep(AGAIN_AFTER);
            }
            Err(error) => return Err(brokers::failure(error)),
        }
    }
}

/// What happened, as `watch --json` tells it.
#[derive(Debug, Serialize)]
struct Told<'a> {
    /// For `--after`: of what was told from a history, where its place in its batch is not known, the end of that.
    id: String,
    #[serde(flatten)]
    happened: &'a Happened,
}

impl<'a> Told<'a> {
    fn of(happened: &'a Happened) -> Self {
        Self { id: happened.position().to_string(), happened }
    }
}

fn tell(happened: &Happened, json: bool) -> Result<()> {
    let line = if json { serde_json::to_string(&Told::of(happened))? } else { line(happened) };
    println!("{line}");
    Ok(())
}

/// Makes an application and its profile known to the broker. Where it was measured is not asked; what, is.
pub fn register(arguments: &RegisterArguments) -> Result<Ending> {
    let flavour = arguments.mpi.unwrap_or_else(Flavour::usual);
    let application = files::load_application(&arguments.application, flavour)?;
    let default = || files::default_profile_path(application.name());
    let profile = files::load_profile(&arguments.profile.clone().unwrap_or_else(default))?;
    let measure = files::measuring(&arguments.application, arguments.profile.as_deref());
    files::check_program(&profile, &application, &quoted(&measure))?;
    let known = Known { application: application.as_written(), profile };
    connect(&arguments.place)?.register(&known).map_err(brokers::failure)?;
    if arguments.json {
        print_json(&known)?;
    } else {
        println!("{} is known", known.application.name());
    }
    Ok(Ending::Done)
}

/// How long what was asked for was to last, and from when on.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskedFor {
    pub lasting: Lasting,
    pub from: WallTime,
}

impl AskedFor {
    /// Of what was asked for by these words.
    fn of(request: &Request, wanted: &Wanted) -> Self {
        let source = match (wanted.duration, &wanted.until, request.duration_nanos) {
            (Some(_), _, _) => Source::For,
            (None, Some(_), _) => Source::Until,
            (None, None, Some(_)) => Source::Before,
            (None, None, None) => Source::Nothing,
        };
        let from = request.from_unix_nanos.unwrap_or_else(now);
        Self { lasting: Lasting::new(source, request.duration_nanos), from }
    }
}

/// What is told of a refusal with `--json`.
#[derive(Debug, Serialize)]
struct ToldRefusal<'a> {
    #[serde(flatten)]
    problem: Option<&'a Problem>,
    /// From when it was asked for to when it was refused, where it might wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_nanos: Option<Nanos>,
    /// How long it was to last, and by which option.
    #[serde(skip_serializing_if = "Option::is_none")]
    lasting: Option<ToldLasting>,
}

/// A refusal is told with what would be admitted; everything else is an error.
pub(super) fn refused(error: ClientError, json: bool) -> Result<Ending> {
    refused_lasting(error, None, None, json)
}

/// A refusal of what has waited so long, if it might, and was to last so long, is told with what would be admitted.
pub(super) fn refused_lasting(
    error: ClientError,
    waited_nanos: Option<Nanos>,
    asked_for: Option<AskedFor>,
    json: bool,
) -> Result<Ending> {
    tell_refused(error, waited_nanos, asked_for, if json { Manner::Json } else { Manner::Words })
}

/// How a refusal is told.
#[derive(Debug, Clone, Copy)]
enum Manner {
    /// As JSON.
    Json,
    /// As sentences.
    Words,
    /// As sentences on the standard error: a script reads a handle from what is printed, and nothing else.
    Aside,
}

fn tell_refused(
    error: ClientError,
    waited_nanos: Option<Nanos>,
    asked_for: Option<AskedFor>,
    manner: Manner,
) -> Result<Ending> {
    let Some(Problem { handle, refusal: Some(refusal), .. }) = error.problem() else {
        return Err(failure(error));
    };
    let words = || {
        let name = handle.map(|handle| format!("{handle} ")).unwrap_or_default();
        let why = refusal.words(&in_local_time);
        format!("{name}refused: {why}\n{}", offers(refusal, asked_for))
    };
    match manner {
        Manner::Json => {
            let end = refusal.latest_end_unix_nanos;
            let lasting = asked_for.map(|AskedFor { lasting, from }| lasting.told(from, end));
            print_json(&ToldRefusal { problem: error.problem(), waited_nanos, lasting })?;
        }
        Manner::Words => print!("{}", words()),
        Manner::Aside => eprint!("{}", words()),
    }
    Ok(Ending::Refused)
}

/// What the decision on a goal that was refused does not tell: what is short, which nodes do not count, and when the same
/// would be admitted.
pub(super) fn beside_decision(refusal: &Refusal, asked_for: AskedFor) -> String {
    let lines = refusal.beside(&in_local_time).into_iter().map(|line| line + "\n");
    let mut text: String = lines.collect();
    text.push_str(&shorter(refusal, Some(asked_for)));
    if let Some(start) = refusal.earliest_start_unix_nanos {
        let start = in_local_time(start.whole_second_ceil());
        text.push_str(&format!("the same would be admitted from {start} on\n"));
    }
    text
}

/// What to do about a refusal that is about time, by the option that said how long.
fn shorter(refusal: &Refusal, asked_for: Option<AskedFor>) -> String {
    let Some(end) = refusal.latest_end_unix_nanos else { return String::new() };
    match asked_for {
        Some(AskedFor { lasting, from }) => lasting.words(from, end, &TimeZone::system()),
        None => format!("would be admitted until {}\n", in_local_time(end)),
    }
}

/// As [`brokers::failure`], of what was asked for by options.
fn failure(error: ClientError) -> anyhow::Error {
    match brokers::failure(error).downcast::<Invalid>() {
        Ok(invalid) => requests::as_typed(invalid).into(),
        Err(error) => error,
    }
}

fn told(reservation: &Reservation, json: bool) -> Result<Ending> {
    if json {
        print_json(reservation)?;
    } else {
        println!("{}", describe(reservation));
    }
    Ok(Ending::Done)
}

fn describe(reservation: &Reservation) -> String {
    let (from, until) = (reservation.from_unix_nanos, listing::end(reservation));
    let told = match reservation.waits {
        Some(_) => waiting::words(reservation, &in_local_time),
        None => {
            let when = times::show_span(from, until, &TimeZone::system());
            let unenforced = words::unenforced(reservation).map(|words| format!("; {words}"));
            format!("{when}: {}{}", describe_what(reservation), unenforced.unwrap_or_default())
        }
    };
    let name = reservation.request.name.as_ref().map(|name| format!(" for {name}"));
    let (handle, state) = (reservation.handle, words::state(reservation));
    format!("{handle} {state}, {}{}, {told}", reservation.owner, name.unwrap_or_default())
}

/// What is held, or why nothing is.
fn describe_what(reservation: &Reservation) -> String {
    match (&reservation.grant, &reservation.refusal) {
        (Some(grant), _) => {
            let beside = listing::beside(&reservation.request, &in_local_time);
            words::grant(grant, &in_local_time) + &beside
        }
        (None, Some(refusal)) => refusal.words(&in_local_time),
        (None, None) => String::new(),
    }
}

fn describe_possible(possible: &Possible) -> String {
    let zone = TimeZone::system();
    let when = times::show_span(possible.from_unix_nanos, possible.until_unix_nanos, &zone);
    format!("{when}: {}", words::grant(&possible.grant, &in_local_time))
}

fn offers(refusal: &Refusal, asked_for: Option<AskedFor>) -> String {
    let mut text = shorter(refusal, asked_for);
    if is_without_disk(refusal) {
        text.push_str(DISK_ADDED);
    }
    if let Some(start) = refusal.earliest_start_unix_nanos {
        let start = in_local_time(start.whole_second_ceil());
        text.push_str(&format!("would be admitted from {start} on\n"));
    }
    for offer in &refusal.counter_offers {
        text.push_str(&format!("would be admitted then: {offer}\n"));
    }
    for offer in &refusal.resource_offers {
        text.push_str(&format!("would be admitted at the time asked for: {offer}\n"));
    }
    text
}

/// Whether nodes have no disk of which anything is promised.
fn is_without_disk(refusal: &Refusal) -> bool {
    matches!(&refusal.reason, Reason::Never(Beyond { most: None, .. }))
}

/// What is told where a history leaves something out, if that is before the record at `index`.
fn gap_before(history: &History, index: usize) -> Option<String> {
    let left_out = history.left_out.filter(|left_out| left_out.after == index)?;
    Some(match left_out.count {
        1 => "... 1 record is left out here".into(),
        count => format!("... {count} records are left out here"),
    })
}

fn line(happened: &Happened) -> String {
    let time = in_local_time(happened.time_unix_nanos);
    let handle = happened.event.handle().map(|handle: Handle| format!(" {handle}"));
    let text = match &happened.event {
        Event::Refused { refused, .. } => words::refused(refused, &in_local_time),
        _ => happened.text.clone(),
    };
    format!("{time}{} {text}", handle.unwrap_or_default())
}

/// A time as the user's clock has it.
pub(super) fn in_local_time(time: WallTime) -> String {
    times::show(time, &TimeZone::system())
}

fn is_end(event: &Event) -> bool {
    matches!(
        event,
        Event::Refused { .. }
            | Event::Ended { .. }
            | Event::Finished { .. }
            | Event::Cancelled { .. }
            | Event::Failed { .. }
            | Event::Lost { .. }
            | Event::Forgotten { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_broker::wire::LeftOut;

    #[test]
    fn a_node_that_is_not_there_is_told_with_some_that_are() {
        let there: Vec<Name> = (1..20).map(|n| format!("n{n}").parse().unwrap()).collect();
        let check = |name: &str| check_there(&name.parse().unwrap(), there.iter());
        assert_eq!(check("n19"), Ok(()));
        let told = "node: \"n20\" is not accepted; expected a node of the cluster, as n1, n2, n3, n4, \
            n5, n6, n7, n8";
        assert_eq!(check("n20").unwrap_err().to_string(), told);
    }

    // Goal: a watch that ended goes on where it was. Method: events with a place in their batch and without one.
    #[test]
    fn what_happened_is_told_with_what_a_watch_goes_on_by() {
        let told = |index: Option<u32>| {
            let event = serde_json::json!({ "revision": 12, "index": index, "time_unix_nanos": 0,
                "text": "ended", "event": { "ended": { "handle": "r1" } } });
            let happened: Happened = serde_json::from_value(event).unwrap();
            let told = serde_json::to_value(Told::of(&happened)).unwrap();
            assert_eq!((&told["revision"], &told["text"]), (&12.into(), &"ended".into()));
            told["id"].as_str().unwrap().to_owned()
        };
        assert_eq!(told(Some(3)), "12-3");
        assert_eq!(told(None), format!("12-{}", u32::MAX));
    }

    #[test]
    fn what_a_history_leaves_out_is_told_where_it_would_be() {
        let gaps = |left_out| {
            let history = History { records: Vec::new(), left_out };
            [0, 1, 2].map(|index| gap_before(&history, index))
        };
        assert_eq!(gaps(None), [None, None, None]);
        let told = |text: &str| [None, Some(text.to_owned()), None];
        let some = |count| gaps(Some(LeftOut { after: 1, count }));
        assert_eq!(some(1), told("... 1 record is left out here"));
        assert_eq!(some(984), told("... 984 records are left out here"));
    }

    // Goal: one line has what an operator looks for: that it waits and for what, that nothing enforces it, how it ended.
    #[test]
    fn a_line_says_how_it_stands() {
        let described = |state: &str, more: serde_json::Value| {
            let resources = serde_json::json!({ "nodes": { "any": 1 } });
            let mut reservation = serde_json::json!({
                "handle": "r1", "owner": "ada", "key": "k", "state": state,
                "request": { "ask": { "resources": resources }, "name": "solver" },
                "from_unix_nanos": 0, "since_unix_nanos": 0,
            });
            let all = reservation.as_object_mut().unwrap();
            all.extend(more.as_object().unwrap().clone());
            describe(&serde_json::from_value(reservation).unwrap())
        };
        let grant =
            serde_json::json!({ "nodes": ["n1"], "cpu_ppm": 100_000, "bits_per_second": 0 });
        let unenforced = serde_json::json!({ "grant": grant, "unenforced": ["n1"] });
        let told = described("active", unenforced);
        assert!(told.starts_with("r1 active, ada for solver, "), "{told}");
        assert!(told.ends_with(": n1, 10 % of a CPU each; not enforced on n1: CPU"), "{told}");
        let failed = serde_json::json!({ "grant": grant, "run": { "exit-code": 3 } });
        let told = described("failed", failed);
        assert!(told.starts_with("r1 failed (exit code 3), ada for solver, "), "{told}");
        let waits = serde_json::json!({ "place": 2, "until_unix_nanos": 1 });
        let refusal = serde_json::json!({ "reason": { "nodes-away": ["n1"] } });
        let told = described("waiting", serde_json::json!({ "waits": waits, "refusal": refusal }));
        assert!(told.starts_with("r1 waiting, ada for solver, place 2 in line, until "), "{told}");
        let short = " at the most: the agents of these nodes are not connected: n1";
        assert!(told.ends_with(short), "{told}");
    }

    #[test]
    fn a_refusal_says_how_long_it_waited_where_it_might() {
        let problem = Problem {
            status: 409,
            title: "refused".into(),
            detail: "it does not fit".into(),
            field: None,
            value: None,
            expected: None,
            handle: None,
            refusal: None,
        };
        let told = |waited_nanos| {
            let told = ToldRefusal { problem: Some(&problem), waited_nanos, lasting: None };
            serde_json::to_value(told).unwrap()
        };
        assert_eq!(told(None), serde_json::to_value(&problem).unwrap());
        let waited = told(Some(Nanos::from_secs(2)));
        assert_eq!(waited["waited_nanos"], 2_000_000_000_u64);
        assert_eq!(waited["detail"], "it does not fit");
    }
}
