//! Events and grants in people's words. Pure.

use keeptime_engine::Event;
use keeptime_engine::book::Reservation;
use keeptime_engine::event::Refused;
use keeptime_model::assignment::{CpuMechanism, LaterCpu};
use keeptime_model::extension::{Extension, ExtensionFlow};
use keeptime_model::name::Name;
use keeptime_model::reservation::{Grant, State};
use keeptime_model::run_end::RunEnd;
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, WallTime};

/// What happened, in a sentence without its time. Other times in it are in UTC.
pub fn event(event: &Event) -> String {
    let grant = |grant: &Grant| self::grant(grant, &in_utc);
    match event {
        Event::Registered { application, .. } => {
            format!("application {} became known", application.name())
        }
        Event::Granted { granted, .. } => {
            let instead = granted.replaces.map(|old| format!(" in the place of {old}"));
            let instead = instead.unwrap_or_default();
            let name = granted.request.name.as_ref().map(|name| format!(" for {name}"));
            let (owner, name) = (&granted.owner, name.unwrap_or_default());
            format!("granted to {owner}{name}{instead}: {}", grant(&granted.grant))
        }
        Event::Refused { refused, .. } => self::refused(refused, &in_utc),
        Event::Modified { modified, .. } => {
            format!("changed by {}: {}", modified.by, grant(&modified.grant))
        }
        Event::Started { unenforced, .. } if unenforced.is_empty() => {
            "started: every agent of it enforces it".into()
        }
        Event::Started { unenforced, .. } => {
            format!("started: its nodes have it; not enforced on {}", self::nodes(unenforced))
        }
        Event::Ended { .. } => "ended: its time was over".into(),
        Event::Finished { run: RunEnd::Done, .. } => "done: its run is over".into(),
        Event::Finished { run, .. } => format!("failed ({run}): its run is over"),
        Event::Cancelled { by, .. } => format!("cancelled by {by}"),
        Event::Abandoned { .. } => "given back: its holder went away".into(),
        Event::Ran { actual_nanos, .. } => {
            format!("a run with it took {}", actual_nanos.rounded())
        }
        Event::Failed { node, why, .. } => format!("failed: {node} cannot enforce it: {why}"),
        Event::Lost { node, instead, .. } => {
            let instead = instead.as_ref().map(|other| format!("; instead: {}", grant(other)));
            let nothing = "; nothing can be had instead".into();
            format!("lost: {node} went away{}", instead.unwrap_or(nothing))
        }
        Event::Forgotten { .. } => "forgotten: its key can be used again".into(),
        Event::SiteAdded { site } => format!("site {} is described", site.name),
        Event::SiteLeaving { site } => format!("site {site} is to be removed"),
        Event::SiteRemoved { site } => format!("site {site} is gone"),
        Event::Drained { nodes, by, reason } => {
            format!("{} drained by {by}: {reason}", self::nodes(nodes))
        }
        Event::Resumed { nodes, by } => format!("{} resumed by {by}", self::nodes(nodes)),
        Event::ClockAccepted { recorded_unix_nanos } => {
            format!("the clock was accepted: one that was ahead showed {recorded_unix_nanos}")
        }
        other => other.kind().into(),
    }
}

/// Where a reservation stands: of one whose run failed, how.
pub fn state(reservation: &Reservation) -> String {
    match (reservation.state, reservation.run) {
        (State::Failed, Some(run)) => format!("{} ({run})", State::Failed),
        (state, _) => state.to_string(),
    }
}

/// What of a reservation is not enforced, and where, if anything is not.
pub fn unenforced(reservation: &Reservation) -> Option<String> {
    let Reservation { unenforced, grant: Some(grant), .. } = reservation else { return None };
    let is_some = |rate: BytesPerSecond| rate != BytesPerSecond::default();
    let asked = [
        (grant.cpu().any(|cpu| cpu != CpuPpm::default()), "CPU"),
        (grant.pattern.is_some() || !grant.extension.flows.is_empty(), "bandwidth"),
        (is_some(grant.disk_read()) || is_some(grant.disk_write()), "disk"),
    ];
    let asked: Vec<_> = asked.into_iter().filter_map(|(is, what)| is.then_some(what)).collect();
    let words = || format!("not enforced on {}: {}", nodes(unenforced), asked.join(", "));
    (!unenforced.is_empty()).then(words)
}

/// Nodes by their names; of many, how many more there are.
pub fn nodes<'a>(nodes: impl IntoIterator<Item = &'a Name>) -> String {
    let mut nodes = nodes.into_iter();
    let named: Vec<_> = nodes.by_ref().take(NODES_NAMED_MAX).map(Name::as_str).collect();
    match nodes.count() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// What was not granted to whom, and why; `show` writes a time.
pub fn refused(refused: &Refused, show: &dyn Fn(WallTime) -> String) -> String {
    format!("refused to {}: {}", refused.owner, refused.refusal.words(show))
}

fn in_utc(time: WallTime) -> String {
    time.to_string()
}

/// What is held and where, in one line; `show` writes a time.
pub fn grant(grant: &Grant, show: &dyn Fn(WallTime) -> String) -> String {
    let nodes: Vec<_> = grant.nodes.iter().map(Name::as_str).collect();
    let told = [nodes.join(" "), held(grant, show)].into_iter().filter(|part| !part.is_empty());
    told.collect::<Vec<_>>().join(", ")
}

/// What is held, wherever that is; `show` writes a time.
pub fn held(grant: &Grant, show: &dyn Fn(WallTime) -> String) -> String {
    let mut parts = Vec::new();
    if grant.cpu_ppm != CpuPpm::default() {
        let period = grant.cpu_period_nanos.map(|period| format!(" in every {}", period.rounded()));
        let each = match grant.rank_cpu_ppm.as_slice() {
            [] => format!("{} of a CPU each", grant.cpu_ppm.rounded()),
            ranks => {
                let ranks: Vec<_> = ranks.iter().map(|cpu| cpu.rounded().to_string()).collect();
                format!("{} of a CPU", ranks.join(", "))
            }
        };
        let mechanism = match grant.cpu_mechanism {
            CpuMechanism::Auto => String::new(),
            said => format!(" by {said}"),
        };
        parts.push(format!("{each}{}{mechanism}", period.unwrap_or_default()));
        parts.extend(grant.later.map(|LaterCpu { from_unix_nanos, cpu_ppm }| {
            format!("{} from {} on", cpu_ppm.rounded(), show(from_unix_nanos))
        }));
    }
    if !grant.services.is_empty() {
        let services: Vec<_> = grant.services.iter().map(ToString::to_string).collect();
        parts.push(format!("for {} there", services.join(" ")));
    }
    if let Some(pattern) = &grant.pattern {
        parts.push(format!("{} for each flow ({pattern})", grant.bits_per_second.rounded()));
    }
    let none = BytesPerSecond::default();
    for (rate, verb) in
        [(grant.disk_read_bytes_per_second, "read"), (grant.disk_write_bytes_per_second, "written")]
    {
        if rate != none {
            parts.push(format!("{} {verb} on each", rate.rounded()));
        }
    }
    if !grant.extension.is_empty() {
        parts.push(extension(&grant.extension, &grant.nodes));
    }
    if let Some(promise) = &grant.promise {
        let within = promise.time_nanos.rounded_up();
        parts.push(format!("{} within {within}", promise.application));
    }
    parts.join(", ")
}

/// What a program was given beside: the sum where there are many flows.
fn extension(extension: &Extension, nodes: &[Name]) -> String {
    let mut parts = Vec::new();
    let name = |at: u32| nodes.get(at as usize).map_or("?", Name::as_str);
    match extension.flows.as_slice() {
        flows if flows.len() <= FLOWS_NAMED_MAX => parts.extend(flows.iter().map(|flow| {
            let ExtensionFlow { from, to, bits_per_second, class, .. } = flow;
            let rate = bits_per_second.rounded();
            format!("{} > {} {rate} {class}", name(*from), name(*to))
        })),
        flows => {
            let sum = extension
                .premium()
                .fold(0u64, |sum, f| sum.saturating_add(f.bits_per_second.get()));
            parts.push(format!(
                "{} flows, {} premium in all",
                flows.len(),
                BitsPerSecond::new(sum).rounded()
            ));
        }
    }
    if extension.cpu_ppm != CpuPpm::default() {
        parts.push(format!("{} of a CPU each", extension.cpu_ppm.rounded()));
    }
    let rates = [
        (extension.disk_read_bytes_per_second, "read"),
        (extension.disk_write_bytes_per_second, "written"),
    ];
    let some = rates.into_iter().filter(|(rate, _)| *rate != BytesPerSecond::default());
    parts.extend(some.map(|(rate, verb)| format!("{} {verb} on each", rate.rounded())));
    format!("for its program beside: {}", parts.join(", "))
}

/// Flows that are named one by one.
const FLOWS_NAMED_MAX: usize = 4;
/// Nodes that are named one by one, where all of a cluster's may be meant.
const NODES_NAMED_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::pattern::Pattern;
    use keeptime_model::reservation::Handle;
    use keeptime_model::units::Nanos;

    #[test]
    fn a_grant_says_what_is_held_and_nothing_else() {
        let mut held = Grant {
            nodes: vec!["n1".parse().unwrap(), "n2".parse().unwrap()],
            cpu_ppm: CpuPpm::from_percent(20),
            rank_cpu_ppm: vec![],
            later: None,
            cpu_period_nanos: None,
            cpu_mechanism: CpuMechanism::Auto,
            pattern: None,
            bits_per_second: BitsPerSecond::ZERO,
            disk_read_bytes_per_second: BytesPerSecond::default(),
            disk_write_bytes_per_second: BytesPerSecond::default(),
            promise: None,
            services: vec![],
            extension: Extension::default(),
        };
        assert_eq!(grant(&held, &in_utc), "n1 n2, 20 % of a CPU each");
        let from_unix_nanos = WallTime::from_unix_nanos(1_767_225_600_000_000_000);
        let later = Some(LaterCpu { from_unix_nanos, cpu_ppm: CpuPpm::from_percent(80) });
        assert_eq!(
            grant(&Grant { later, ..held.clone() }, &in_utc),
            "n1 n2, 20 % of a CPU each, 80 % from 2026-01-01T00:00:00Z on"
        );
        held.services = vec!["nginx@shop".parse().unwrap(), "php-fpm".parse().unwrap()];
        assert_eq!(
            grant(&held, &in_utc),
            "n1 n2, 20 % of a CPU each, for nginx@shop php-fpm there"
        );
        let unequal =
            Grant { rank_cpu_ppm: [20, 5].map(CpuPpm::from_percent).into(), ..held.clone() };
        assert!(grant(&unequal, &in_utc).starts_with("n1 n2, 20 %, 5 % of a CPU, for"));
        held.services.clear();
        held.pattern = Some(Pattern::AllToAll);
        held.bits_per_second = BitsPerSecond::from_mbit(10);
        held.cpu_period_nanos = Some(Nanos::from_millis(50));
        let words = grant(&held, &in_utc);
        assert!(words.ends_with("each in every 50 ms, 10 Mbit/s for each flow (all-to-all)"));
        let said = Grant { cpu_mechanism: CpuMechanism::UserLevel, ..held.clone() };
        let words = grant(&said, &in_utc);
        assert!(words.contains("20 % of a CPU each in every 50 ms by user-level, "), "{words}");
        let handle = Handle::new(1);
        let lost = |instead| Event::Lost { handle, node: "n1".parse().unwrap(), instead };
        let words = event(&lost(Some(Box::new(held))));
        assert!(words.starts_with("lost: n1 went away; instead: n1 n2"), "{words}");
        assert!(event(&lost(None)).ends_with("; nothing can be had instead"));
    }

    // Goal: nobody takes for enforced what is not. Method: each thing that can be asked for, alone and with the others.
    #[test]
    fn what_is_not_enforced_is_named_with_its_nodes() {
        let reservation = |grant: serde_json::Value, unenforced: &[&str]| -> Reservation {
            let request = serde_json::json!({ "ask": { "resources": { "nodes": { "any": 2 } } } });
            serde_json::from_value(serde_json::json!({
                "handle": "r1", "owner": "ada", "key": "k", "request": request, "state": "active",
                "from_unix_nanos": 0, "since_unix_nanos": 0, "grant": grant,
                "unenforced": unenforced,
            }))
            .unwrap()
        };
        let all = serde_json::json!({
            "nodes": ["n1", "n2"], "cpu_ppm": 1, "pattern": "pairs", "bits_per_second": 1,
            "disk_read_bytes_per_second": 1,
        });
        let cpu = serde_json::json!({ "nodes": ["n1", "n2"], "cpu_ppm": 1, "bits_per_second": 0 });
        assert_eq!(unenforced(&reservation(all.clone(), &[])), None);
        let told = |grant, nodes: &[&str]| unenforced(&reservation(grant, nodes)).unwrap();
        assert_eq!(told(cpu, &["n2"]), "not enforced on n2: CPU");
        assert_eq!(told(all, &["n1", "n2"]), "not enforced on n1, n2: CPU, bandwidth, disk");
        let unenforced = vec!["n2".parse().unwrap()];
        let started = Event::Started { handle: Handle::new(1), unenforced };
        assert_eq!(event(&started), "started: its nodes have it; not enforced on n2");
    }

    #[test]
    fn many_nodes_are_counted() {
        let drained = |count: u32| {
            let nodes = (1..=count).map(|n| format!("n{n}").parse().unwrap()).collect();
            let (by, reason) = ("ada".parse().unwrap(), "new disk".parse().unwrap());
            event(&Event::Drained { nodes, by, reason })
        };
        assert_eq!(drained(2), "n1, n2 drained by ada: new disk");
        let many = "n1, n2, n3, n4, n5, n6, n7, n8 and 1 more drained by ada: new disk";
        assert_eq!(drained(9), many);
    }
}
