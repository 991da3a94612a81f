//! From the words of the command line to a request for the broker. Pure: the time is an argument.

use crate::arguments::{AttachTerms, NodeNames, Wanted};
use crate::times;
use jiff::Zoned;
use keeptime_engine::book::Reservation;
use keeptime_model::Invalid;
use keeptime_model::assignment::TrafficClass;
use keeptime_model::goal::{Goal, parse_setting};
use keeptime_model::name::Name;
use keeptime_model::pattern::{Pattern, RankFlow};
use keeptime_model::reservation::{Ask, Malleable, NodeChoice, Request, Resources};
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos, WallTime};
use keeptime_mpiqos::overhead;
use std::collections::BTreeSet;

/// A request for what is wanted, from nothing.
///
/// # Errors
/// The first word that makes no sense.
pub fn new(application: Option<&Name>, wanted: &Wanted, now: &Zoned) -> Result<Request, Invalid> {
    let ask = match application {
        Some(name) => Ask::Goal { application: name.clone(), goal: Goal::default() },
        None => Ask::Resources(Resources::nothing()),
    };
    changed(Request::new(ask), times::parse("now", now)?, wanted, now)
}

/// `old`, which starts at `start`, with what is wanted in the place of what it has.
///
/// # Errors
/// The first word that makes no sense, or does not fit a goal or resources.
pub fn changed(
    old: Request,
    start: WallTime,
    wanted: &Wanted,
    now: &Zoned,
) -> Result<Request, Invalid> {
    let (mut new, mut start) = (old, start);
    match &mut new.ask {
        Ask::Goal { goal, .. } => set_goal(goal, wanted)?,
        Ask::Resources(resources) => set_resources(resources, wanted)?,
        Ask::SiteNode(asked) => {
            let expected = "a reservation of resources or a goal: nodes of sites follow `site add`";
            return Err(Invalid::new("handle", &asked.node, expected));
        }
    }
    if let Some(from) = &wanted.from {
        start = times::parse_field("from", from, now)?;
        // Now is said by saying nothing: clocks differ.
        new.from_unix_nanos = (from.trim() != "now").then_some(start);
    }
    if let Some(duration) = wanted.duration {
        new.duration_nanos = Some(duration);
    }
    if let Some(until) = &wanted.until {
        let end = times::parse_field("until", until, now)?;
        if end <= start {
            return Err(Invalid::new("until", until, "a time after the start"));
        }
        new.duration_nanos = Some(end.saturating_since(start));
    }
    if !wanted.among.is_empty() {
        new.among = NodeNames::all(&wanted.among).cloned().collect();
    }
    if wanted.name.is_some() {
        new.name.clone_from(&wanted.name);
    }
    new.on_loss = wanted.on_loss.or(new.on_loss);
    new.spare = wanted.spare.unwrap_or(new.spare);
    new.cpu_mechanism = wanted.mechanism.unwrap_or(new.cpu_mechanism);
    new.malleable = malleable(&new, wanted, now)?;
    // How long it would have waited says nothing of a change.
    new.wait_nanos = None;
    check(&new)?;
    Ok(new)
}

/// Checks a request that was typed.
///
/// # Errors
/// The first option that is wrong.
pub fn check(request: &Request) -> Result<(), Invalid> {
    request.check().map_err(as_typed)
}

/// What is wrong with a request, by the option that was typed and in the units that it takes.
pub fn as_typed(invalid: Invalid) -> Invalid {
    // What is one of several was typed as a part of one option.
    let field = invalid.field.split('[').next().unwrap_or_default();
    let Some((_, option)) = OPTIONS.iter().find(|(name, _)| *name == field) else {
        return invalid;
    };
    let is_time = field.ends_with("_unix_nanos");
    let value = invalid.value.as_ref().map(|value| match value.parse::<u64>() {
        Ok(nanos) if is_time => WallTime::from_unix_nanos(nanos).to_string(),
        Ok(nanos) if field.ends_with("_nanos") => Nanos::new(nanos).to_string(),
        _ => value.clone(),
    });
    let time = is_time.then(|| time_as_typed(&invalid.expected)).flatten();
    let expected = time.unwrap_or_else(|| words_as_typed(&invalid.expected));
    Invalid { field: (*option).into(), value, expected }
}

/// A text that begins with a time, with that as it can be typed: in whole seconds, and not before it.
fn time_as_typed(text: &str) -> Option<String> {
    let (nanos, rest) = text.split_once(' ')?;
    let time = WallTime::from_unix_nanos(nanos.parse().ok()?);
    Some(format!("{} {rest}", time.whole_second_ceil()))
}

/// A text that may name fields of a request, with options in their place.
fn words_as_typed(text: &str) -> String {
    let text = text.replace("what is malleable", "what has --by");
    OPTIONS.iter().fold(text, |text, (name, option)| text.replace(*name, &format!("--{option}")))
}

/// By when all of it is to be had, if that is wanted or was.
fn malleable(new: &Request, wanted: &Wanted, now: &Zoned) -> Result<Option<Malleable>, Invalid> {
    let by = wanted.by.as_ref().map(|by| times::parse_field("by", by, now)).transpose()?;
    let Some(by_unix_nanos) = by.or(new.malleable.map(|before| before.by_unix_nanos)) else {
        return match wanted.cpu_most {
            Some(most) => {
                Err(Invalid::new("cpu-most", most, "--by beside it: a time to have it all"))
            }
            None => Ok(None),
        };
    };
    let asked = match &new.ask {
        Ask::Resources(resources) => resources.cpu_ppm,
        Ask::Goal { .. } | Ask::SiteNode(_) => CpuPpm::default(),
    };
    let before = new.malleable.map(|before| before.cpu_most_ppm.max(asked));
    let cpu_most_ppm = wanted.cpu_most.or(before).unwrap_or(asked);
    let earliest_unix_nanos = new.malleable.and_then(|before| before.earliest_unix_nanos);
    Ok(Some(Malleable { earliest_unix_nanos, ..Malleable::new(by_unix_nanos, cpu_most_ppm) }))
}

/// The request of a reservation with `terms` among the ranks of its job, in the place of its flows.
///
/// # Errors
/// The first term that makes no sense there.
pub fn attached(old: Reservation, terms: &AttachTerms) -> Result<Request, Invalid> {
    let Reservation { handle, state, request: mut new, grant, .. } = old;
    let Some(grant) = grant.filter(|_| state.is_live()) else {
        return Err(Invalid::new("handle", handle, format!("a job that is there: it is {state}")));
    };
    let Ask::Resources(resources) = &mut new.ask else {
        let expected = "a reservation of resources: the flows of a goal follow from its profile";
        return Err(Invalid::new("handle", handle, expected));
    };
    (resources.pattern, resources.bits_per_second) = match terms.class {
        TrafficClass::Premium => (Some(among(&terms.ranks, grant.nodes.len())?), reserved(terms)?),
        TrafficClass::BestEffort => (None, BitsPerSecond::ZERO),
        other => return Err(Invalid::new("class", other, "premium or best-effort")),
    };
    // Where they are, whatever would be chosen now.
    resources.nodes = NodeChoice::Named(grant.nodes);
    check(&new)?;
    Ok(new)
}

/// What carries the payload of each pair.
fn reserved(terms: &AttachTerms) -> Result<BitsPerSecond, Invalid> {
    let payload = terms.bandwidth.ok_or_else(|| {
        let expected = "a rate for each pair of class premium, as in --bandwidth \"10 Mbit/s\"";
        Invalid::missing("bandwidth", expected)
    })?;
    if payload == BitsPerSecond::ZERO {
        return Err(Invalid::new("bandwidth", payload, "more than 0 bit/s for class premium"));
    }
    let rate = overhead::wire_rate(payload, terms.message_size);
    rate.ok_or_else(|| Invalid::new("bandwidth", payload, "what a link can have"))
}

/// Each of `ranks` with each other; all of `count`, if none is named.
fn among(ranks: &[u32], count: usize) -> Result<Pattern, Invalid> {
    if ranks.is_empty() {
        return Ok(Pattern::AllToAll);
    }
    if let Some(odd) = ranks.iter().find(|rank| **rank as usize >= count) {
        return Err(Invalid::new("ranks", odd, format!("ranks below {count}")));
    }
    let pairs = ranks.iter().flat_map(|from| ranks.iter().map(|to| (*from, *to)));
    let flows = pairs.filter(|(from, to)| from != to).map(|(from, to)| RankFlow { from, to });
    let flows: BTreeSet<_> = flows.collect();
    if flows.is_empty() {
        return Err(Invalid::new("ranks", ranks[0], "two ranks or more, as in 0,3"));
    }
    Ok(Pattern::Matrix(flows))
}

fn set_resources(resources: &mut Resources, wanted: &Wanted) -> Result<(), Invalid> {
    let goal_words = [
        ("within", text(wanted.within)),
        ("at-least", text(wanted.at_least)),
        ("set", wanted.set.first().cloned()),
        ("prefer", text(wanted.prefer)),
    ];
    if let Some((word, value)) = first_given(goal_words) {
        return Err(Invalid::new(word, value, "--application beside it: it is about a goal"));
    }
    if let Some(nodes) = &wanted.nodes {
        resources.nodes = node_choice(nodes)?;
    } else if resources.nodes.count() == 0 {
        let expected = "how many, or their names, as in --nodes 2, or --application";
        return Err(Invalid::missing("nodes", expected));
    }
    if !wanted.cpu.is_empty() {
        resources.set_rank_cpu(rank_cpu(&wanted.cpu, resources.nodes.count())?);
    }
    resources.cpu_period_nanos = wanted.period.or(resources.cpu_period_nanos);
    if let Some(pattern) = &wanted.pattern {
        resources.pattern = Some(pattern.clone());
    }
    resources.bits_per_second = wanted.bandwidth.unwrap_or(resources.bits_per_second);
    if wanted.bandwidth.is_none()
        && resources.pattern.is_some()
        && resources.bits_per_second == BitsPerSecond::ZERO
    {
        let expected = "a rate for each flow of --pattern, as in --bandwidth \"10 Mbit/s\"";
        return Err(Invalid::missing("bandwidth", expected));
    }
    let disk = &mut resources.disk_read_bytes_per_second;
    *disk = wanted.read.unwrap_or(*disk);
    let disk = &mut resources.disk_write_bytes_per_second;
    *disk = wanted.write.unwrap_or(*disk);
    if resources.is_nothing() {
        let expected = "something to reserve of the nodes, which others use, too: --cpu 20%, flows \
            (--pattern pairs --bandwidth \"10 Mbit/s\"), --read or --write; or --application";
        return Err(match wanted.cpu.as_slice() {
            [] => Invalid::missing("cpu", expected),
            shares => Invalid::new("cpu", in_list(shares), expected),
        });
    }
    Ok(())
}

/// One share for all, or one for each: of equal ones nobody could tell later how many there were.
fn rank_cpu(shares: &[CpuPpm], ranks: u32) -> Result<Vec<CpuPpm>, Invalid> {
    if shares.len() == 1 || shares.len() == ranks as usize {
        return Ok(shares.to_vec());
    }
    let expected = format!("one share, or one for each of {ranks} nodes");
    Err(Invalid::new("cpu", in_list(shares), expected))
}

fn in_list(shares: &[CpuPpm]) -> String {
    shares.iter().map(CpuPpm::to_string).collect::<Vec<_>>().join(", ")
}

fn text(given: Option<impl ToString>) -> Option<String> {
    given.map(|value| value.to_string())
}

/// The first option that was given, with its value.
fn first_given<const N: usize>(
    options: [(&'static str, Option<String>); N],
) -> Option<(&'static str, String)> {
    options.into_iter().find_map(|(option, value)| Some((option, value?)))
}

fn set_goal(goal: &mut Goal, wanted: &Wanted) -> Result<(), Invalid> {
    let resource_words = [
        ("cpu", (!wanted.cpu.is_empty()).then(|| in_list(&wanted.cpu))),
        ("period", text(wanted.period)),
        ("pattern", text(wanted.pattern.as_ref())),
        ("bandwidth", text(wanted.bandwidth)),
        ("read", text(wanted.read)),
        ("write", text(wanted.write)),
    ];
    if let Some((word, value)) = first_given(resource_words) {
        let expected = "nothing with --application: the profile tells what a goal needs";
        return Err(Invalid::new(word, value, expected));
    }
    if let Some(nodes) = &wanted.nodes {
        let expected = "a number of nodes with --application";
        let number = nodes.parse().map_err(|_| Invalid::new("nodes", nodes, expected))?;
        goal.nodes = Some(number);
    }
    goal.within = wanted.within.or(goal.within);
    goal.at_least = wanted.at_least.or(goal.at_least);
    for text in &wanted.set {
        let (name, value) = parse_setting(text)?;
        goal.set.insert(name, value);
    }
    goal.prefer = wanted.prefer.unwrap_or(goal.prefer);
    Ok(())
}

/// `2`, or `n1,n[3-5]`.
fn node_choice(text: &str) -> Result<NodeChoice, Invalid> {
    if let Ok(number) = text.trim().parse() {
        return Ok(NodeChoice::Any(number));
    }
    let names = text.parse().map(NodeNames::into_names);
    let expected = "a number of nodes, or their names, as in n1,n2 or n[1-4]";
    names.map(NodeChoice::Named).map_err(|_| Invalid::new("nodes", text, expected))
}

/// What fields of a request are called on the command line. A name that is a part of another follows it.
const OPTIONS: &[(&str, &str)] = &[
    ("malleable.by_unix_nanos", "by"),
    ("malleable.cpu_most_ppm", "cpu-most"),
    ("malleable", "by"),
    ("rank_cpu_ppm", "cpu"),
    ("cpu_ppm", "cpu"),
    ("cpu_period_nanos", "period"),
    ("bits_per_second", "bandwidth"),
    ("cpu_mechanism", "mechanism"),
    ("from_unix_nanos", "from"),
    ("duration_nanos", "for"),
    ("wait_nanos", "wait"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::assignment::CpuMechanism;
    use keeptime_model::reservation::State;
    use keeptime_model::units::Bytes;

    fn now() -> Zoned {
        jiff::Timestamp::UNIX_EPOCH.to_zoned(jiff::tz::TimeZone::UTC)
    }

    fn pair() -> Wanted {
        Wanted {
            nodes: Some("n1,n2".into()),
            cpu: vec![CpuPpm::from_percent(20)],
            pattern: Some(Pattern::Pairs),
            bandwidth: Some(BitsPerSecond::from_mbit(20)),
            duration: Some(Nanos::from_secs(60)),
            ..Wanted::default()
        }
    }

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let old = new(None, &pair(), &now()).unwrap();
        let wanted = Wanted { cpu: vec![CpuPpm::from_percent(30)], ..Wanted::default() };
        let old = Request { spare: true, ..old };
        assert!(changed(old.clone(), WallTime::default(), &wanted, &now()).unwrap().spare);
        let start = WallTime::from_unix_nanos(300 * 1_000_000_000);
        let Ask::Resources(asked) = changed(old.clone(), start, &wanted, &now()).unwrap().ask
        else {
            panic!()
        };
        assert_eq!(asked.cpu_ppm, CpuPpm::from_percent(30));
        assert_eq!(asked.bits_per_second, BitsPerSecond::from_mbit(20));
        assert_eq!(
            asked.nodes,
            NodeChoice::Named(vec!["n1".parse().unwrap(), "n2".parse().unwrap()])
        );
        let unequal = [30, 10].map(CpuPpm::from_percent);
        let wanted = Wanted { cpu: unequal.to_vec(), ..Wanted::default() };
        let changed_to = changed(old.clone(), start, &wanted, &now()).unwrap().ask;
        let Ask::Resources(asked) = changed_to else { panic!() };
        assert_eq!((asked.cpu_ppm, asked.rank_cpu_ppm), (unequal[0], unequal.to_vec()));
        for shares in [[30; 3], [30, 20, 10]] {
            let wanted =
                Wanted { cpu: shares.map(CpuPpm::from_percent).to_vec(), ..Wanted::default() };
            let error = changed(old.clone(), start, &wanted, &now()).unwrap_err();
            assert_eq!(error.field, "cpu");
            assert!(error.to_string().contains("each of 2 nodes"), "{error}");
        }
        let longer = Wanted { until: Some("0:10".into()), ..Wanted::default() };
        let longer = changed(old, start, &longer, &now()).unwrap();
        assert_eq!(longer.duration_nanos, Some(Nanos::from_secs(300)), "from its own start on");
    }

    // Goal: bandwidth can be reserved without CPU, and what is no reservation at all is told what would be one.
    #[test]
    fn what_is_reserved_may_be_bandwidth_alone_and_not_nothing() {
        let flows = Wanted { cpu: Vec::new(), ..pair() };
        let Ask::Resources(asked) = new(None, &flows, &now()).unwrap().ask else { panic!() };
        assert_eq!(asked.cpu_ppm, CpuPpm::default());
        let nothing = Wanted { nodes: Some("2".into()), ..Wanted::default() };
        let error = new(None, &nothing, &now()).unwrap_err().to_string();
        assert!(error.starts_with("cpu is missing; expected something to reserve"), "{error}");
        let told = |wanted| new(None, &wanted, &now()).unwrap_err().to_string();
        let by = told(Wanted { by: Some("+1h".into()), ..flows.clone() });
        assert!(by.starts_with("cpu: \"0 %\" is not accepted; expected more than 0 %"), "{by}");
        let period = told(Wanted { period: Some(Nanos::from_millis(10)), ..flows.clone() });
        assert!(period.contains("to be had in every period"), "{period}");
        let mechanism = told(Wanted { mechanism: Some(CpuMechanism::Deadline), ..flows });
        assert!(mechanism.starts_with("mechanism: \"deadline\" is not accepted"), "{mechanism}");
    }

    // Of resources and of goals alike: it is about how a share is kept, and not what it comes to.
    #[test]
    fn a_mechanism_is_said_and_stays_until_another_is() {
        use CpuMechanism::{Auto, Deadline, UserLevel};
        let say = |mechanism| Wanted { mechanism: Some(mechanism), ..Wanted::default() };
        let change = |old: Request, wanted: &Wanted| {
            changed(old, WallTime::default(), wanted, &now()).unwrap().cpu_mechanism
        };
        assert_eq!(new(None, &pair(), &now()).unwrap().cpu_mechanism, Auto);
        let resources = Wanted { mechanism: Some(Deadline), ..pair() };
        let resources = new(None, &resources, &now()).unwrap();
        let goal = new(Some(&"ray".parse().unwrap()), &say(Deadline), &now()).unwrap();
        for old in [resources, goal] {
            assert_eq!(change(old.clone(), &Wanted::default()), Deadline);
            assert_eq!(change(old.clone(), &say(UserLevel)), UserLevel);
            assert_eq!(change(old, &say(Auto)), Auto);
        }
    }

    #[test]
    fn what_has_until_a_time_keeps_it_and_has_use_for_what_it_is_given() {
        let percent = CpuPpm::from_percent;
        let with_by = Wanted { by: Some("0:10".into()), ..pair() };
        let old = new(None, &with_by, &now()).unwrap();
        let ten_minutes = WallTime::from_unix_nanos(600 * 1_000_000_000);
        let malleable =
            |by_unix_nanos, most| Some(Malleable::new(by_unix_nanos, CpuPpm::from_percent(most)));
        assert_eq!(old.malleable, malleable(ten_minutes, 20));
        let more = Wanted { cpu: vec![percent(30)], ..Wanted::default() };
        let more = changed(old.clone(), WallTime::default(), &more, &now()).unwrap();
        assert_eq!(more.malleable, malleable(ten_minutes, 30));
        let most = Wanted { cpu_most: Some(percent(80)), ..Wanted::default() };
        let most_of = |old| changed(old, WallTime::default(), &most, &now());
        assert_eq!(most_of(old).unwrap().malleable, malleable(ten_minutes, 80));
        let rigid = new(None, &pair(), &now()).unwrap();
        assert_eq!(most_of(rigid).unwrap_err().field, "cpu-most");
        let goal = new(Some(&"ray".parse().unwrap()), &with_by, &now()).unwrap_err();
        assert_eq!(goal.field, "cpu", "resources beside a goal are named first");
    }

    /// Three nodes, granted.
    fn granted() -> Reservation {
        let wanted = Wanted { nodes: Some("3".into()), ..pair() };
        let wanted = Wanted { pattern: None, bandwidth: None, ..wanted };
        let grant = serde_json::json!({
            "nodes": ["n2", "n1", "n3"], "cpu_ppm": 200_000, "bits_per_second": 0,
        });
        Reservation {
            handle: "r7".parse().unwrap(),
            owner: "ada".parse().unwrap(),
            key: "k".parse().unwrap(),
            request: new(None, &wanted, &now()).unwrap(),
            state: State::Active,
            from_unix_nanos: WallTime::default(),
            until_unix_nanos: None,
            grant: Some(serde_json::from_value(grant).unwrap()),
            refusal: None,
            replaces: None,
            waits: None,
            unenforced: Vec::new(),
            run: None,
            since_unix_nanos: WallTime::default(),
        }
    }

    fn terms(ranks: &[u32]) -> AttachTerms {
        AttachTerms {
            class: TrafficClass::Premium,
            bandwidth: Some(BitsPerSecond::from_mbit(40)),
            ranks: ranks.to_vec(),
            message_size: Bytes::new(1 << 20),
        }
    }

    #[test]
    fn a_program_is_given_flows_where_it_runs() {
        let Ask::Resources(asked) = attached(granted(), &terms(&[0, 2])).unwrap().ask else {
            panic!()
        };
        assert_eq!(asked.pattern, Some("0>2 2>0".parse().unwrap()));
        // Headers cost 5.6 % of messages of 1 MiB.
        assert!((42.2..42.3).contains(&asked.bits_per_second.as_mbit_f64()));
        assert_eq!(asked.cpu_ppm, CpuPpm::from_percent(20));
        let named = ["n2", "n1", "n3"].map(|name| name.parse().unwrap());
        assert_eq!(asked.nodes, NodeChoice::Named(named.to_vec()));
        let Ask::Resources(asked) = attached(granted(), &terms(&[])).unwrap().ask else { panic!() };
        assert_eq!(asked.pattern, Some(Pattern::AllToAll));
        let nothing = AttachTerms { class: TrafficClass::BestEffort, ..terms(&[]) };
        let Ask::Resources(asked) = attached(granted(), &nothing).unwrap().ask else { panic!() };
        assert_eq!((asked.pattern, asked.bits_per_second), (None, BitsPerSecond::ZERO));
    }

    #[test]
    fn terms_that_make_no_sense_are_named() {
        let refused = |terms: AttachTerms, reservation: Reservation| {
            attached(reservation, &terms).unwrap_err().to_string()
        };
        let rank = refused(terms(&[0, 3]), granted());
        assert!(rank.contains("ranks: \"3\"") && rank.contains("below 3"), "{rank}");
        let alone = refused(terms(&[1, 1]), granted());
        assert!(alone.contains("two ranks"), "{alone}");
        let rate = refused(AttachTerms { bandwidth: None, ..terms(&[]) }, granted());
        assert!(rate.starts_with("bandwidth is missing"), "{rate}");
        let none = AttachTerms { bandwidth: Some(BitsPerSecond::ZERO), ..terms(&[]) };
        let rate = refused(none, granted());
        assert!(rate.starts_with("bandwidth: \"0 bit/s\" is not accepted"), "{rate}");
        let class = AttachTerms { class: TrafficClass::LowLatency, ..terms(&[]) };
        assert!(refused(class, granted()).contains("premium or best-effort"));
        let mut over = granted();
        over.state = State::Ended;
        assert!(refused(terms(&[]), over).contains("it is ended"));
    }

    // Goal: nodes are had by their names as Slurm writes them, in the order of ranks, and none twice.
    #[test]
    fn names_of_nodes_may_be_a_list_as_slurm_writes_them() {
        let asked = |nodes: &str| {
            let wanted =
                Wanted { nodes: Some(nodes.into()), pattern: None, bandwidth: None, ..pair() };
            new(None, &wanted, &now()).map(|request| match request.ask {
                Ask::Resources(resources) => resources.nodes,
                other => panic!("{other:?}"),
            })
        };
        let named = |names: &str| {
            Ok(NodeChoice::Named(names.split(' ').map(|name| name.parse().unwrap()).collect()))
        };
        assert_eq!(asked("n[3-4],n1"), named("n3 n4 n1"));
        assert_eq!(asked("n1, n2"), named("n1 n2"));
        assert_eq!(asked(" 2 "), Ok(NodeChoice::Any(2)));
        for wrong in ["n1,n[1-2]", "n[1", "n[2-1]", ""] {
            let error = asked(wrong).unwrap_err();
            assert!(error.field.starts_with("nodes"), "{wrong}: {error}");
        }
    }

    #[test]
    fn words_that_do_not_fit_are_named() {
        let refused = |change: fn(&mut Wanted), application: Option<&str>| {
            let mut wanted = pair();
            change(&mut wanted);
            let name = application.map(|name| name.parse().unwrap());
            new(name.as_ref(), &wanted, &now()).unwrap_err().to_string()
        };
        let goal = refused(|w| w.within = Some(Nanos::from_secs(1)), None);
        assert!(goal.starts_with("within: \"1 s\"") && goal.contains("--application"), "{goal}");
        let resources =
            refused(|w| w.cpu = [30, 20].map(CpuPpm::from_percent).to_vec(), Some("ray"));
        assert!(resources.starts_with("cpu: \"30 %, 20 %\""), "{resources}");
        let nothing = |cpu: &[CpuPpm]| {
            let wanted = Wanted { cpu: cpu.to_vec(), pattern: None, bandwidth: None, ..pair() };
            new(None, &wanted, &now()).unwrap_err().to_string()
        };
        let zero = nothing(&[CpuPpm::new(0)]);
        assert!(zero.starts_with("cpu: \"0 %\" is not accepted; expected something"), "{zero}");
        assert!(nothing(&[]).starts_with("cpu is missing; expected something"));
        let nodes = refused(|w| w.nodes = Some("N1".into()), None);
        assert!(nodes.contains("as in n1,n2"), "{nodes}");
        let end = refused(|w| (w.from, w.until) = (Some("9:00".into()), Some("8:00".into())), None);
        assert!(end.contains("after the start"), "{end}");
        let none = refused(|w| w.nodes = None, None);
        assert!(
            none.starts_with("nodes is missing; expected ") && none.contains("--nodes 2"),
            "{none}"
        );
    }

    // Goal: whoever typed options reads of options, in units that can be typed. Method: each field that a request is refused
    // for, as it is typed wrongly.
    #[test]
    fn what_is_wrong_with_a_request_is_told_by_its_option() {
        let percent = CpuPpm::from_percent;
        let by = || Wanted { by: Some("0:10".into()), ..pair() };
        let two_hours = Nanos::from_secs(7_200);
        let refused = |wanted: Wanted| new(None, &wanted, &now()).unwrap_err().to_string();
        let waits = Request { wait_nanos: Some(two_hours), ..new(None, &pair(), &now()).unwrap() };
        let cases = [
            (
                refused(Wanted { duration: None, ..by() }),
                "for is missing; expected how long it takes, of what has --by",
            ),
            (
                refused(Wanted { bandwidth: None, ..pair() }),
                "bandwidth is missing; expected a rate for each flow of --pattern, as in --bandwidth \
                 \"10 Mbit/s\"",
            ),
            (
                refused(Wanted { bandwidth: Some(BitsPerSecond::ZERO), ..pair() }),
                "bandwidth: \"0 bit/s\" is not accepted; expected more than 0 bit/s for the flows of \
                 a pattern",
            ),
            (
                check(&waits).unwrap_err().to_string(),
                "wait: \"7200 s\" is not accepted; expected more than 0, and 3600 s at most",
            ),
            (
                refused(Wanted { period: Some(Nanos::from_secs(5)), ..pair() }),
                "period: \"5 s\" is not accepted; expected 1 ms to 1 s",
            ),
            (
                refused(Wanted { cpu_most: Some(percent(10)), ..by() }),
                "cpu-most: \"10 %\" is not accepted; expected at least the --cpu that is asked for \
                 (20 %)",
            ),
            (
                refused(Wanted { cpu: [30, 0].map(percent).to_vec(), ..pair() }),
                "cpu: \"0 %\" is not accepted; expected more than 0 %, and no more than --cpu (30 %)",
            ),
            (
                refused(Wanted { duration: Some(Nanos::new(0)), ..pair() }),
                "for: \"0 ns\" is not accepted; expected more than 0",
            ),
        ];
        for (said, expected) in cases {
            assert_eq!(said, expected);
        }
    }

    // Goal: what only the broker can know is told in the same way: a time that is suggested will do.
    #[test]
    fn times_that_a_broker_does_not_accept_are_told_as_they_can_be_typed() {
        let told = |invalid| as_typed(invalid).to_string();
        let past = Invalid::new("from_unix_nanos", 5_000_000_000_u64, "90000000001 or later: now");
        assert_eq!(
            told(past),
            "from: \"1970-01-01T00:00:05Z\" is not accepted; expected 1970-01-01T00:01:31Z or later: \
             now"
        );
        let begun = Invalid::new("from_unix_nanos", 0, "nothing: it has started");
        assert!(told(begun).ends_with("expected nothing: it has started"));
        let early = Invalid::new("malleable.by_unix_nanos", 0, "1000000000 or later: when it ends");
        assert!(told(early).starts_with("by: \"1970-01-01T00:00:00Z\""));
        let other = Invalid::new("nodes", "n9", "a node of the cluster");
        assert_eq!(as_typed(other.clone()), other);
    }
}
