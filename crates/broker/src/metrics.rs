//! Figures for Prometheus, as text.

use crate::core::Unavailable;
use crate::http::Shared;
use crate::tcp::keys::OwnCertificate;
use keeptime_credentials::dates;
use keeptime_engine::Engine;
use keeptime_locks::lock;
use keeptime_model::name::Name;
use keeptime_model::reservation::State;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::WallTime;
use keeptime_sites::overview::{Overview, SiteView};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::Ordering;

/// What is seen of the engine in one look.
struct Seen {
    by_state: BTreeMap<State, u64>,
    offers: usize,
    waiting: usize,
    nodes: usize,
    drained: usize,
    away: usize,
    applications: usize,
    /// Until when the certificates hold that agents showed.
    ends: Vec<(Name, WallTime)>,
}

/// All figures.
///
/// # Errors
/// If the engine's thread does not answer.
pub async fn exposition(shared: &Shared) -> Result<String, Unavailable> {
    let ends = shared.hub.certificate_ends();
    let seen = shared.core.read(move |engine| look(engine, &ends)).await?;
    let (counters, status) = (&shared.counters, shared.writer.status());
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let mut page = Page::default();
    page.begin("keeptime_reservations", "gauge", "Reservations that are not forgotten.");
    for (state, number) in &seen.by_state {
        page.line("keeptime_reservations", &format!("{{state=\"{state}\"}}"), *number);
    }
    let seconds = count(&counters.step_nanos) as f64 / 1e9;
    page.one("keeptime_offers", "gauge", "Requests that wait for agents.", seen.offers);
    page.one("keeptime_waiting", "gauge", "Requests that wait for room.", seen.waiting);
    page.one("keeptime_nodes", "gauge", "Nodes of the cluster.", seen.nodes);
    page.one("keeptime_nodes_drained", "gauge", "Nodes out of service.", seen.drained);
    page.one("keeptime_nodes_away", "gauge", "Nodes in service that are not there.", seen.away);
    page.one("keeptime_agents_connected", "gauge", "Nodes that are there.", shared.hub.count());
    page.one("keeptime_applications", "gauge", "Applications that are known.", seen.applications);
    page.one("keeptime_steps_total", "counter", "Inputs carried out.", count(&counters.steps));
    page.one("keeptime_step_seconds_total", "counter", "Time that they took.", seconds);
    page.one(
        "keeptime_batches_total",
        "counter",
        "Batches made durable.",
        count(&counters.batches),
    );
    page.one(
        "keeptime_write_failures_total",
        "counter",
        "Times that nothing could be recorded.",
        count(&counters.failures),
    );
    page.one("keeptime_snapshots_total", "counter", "Snapshots.", count(&counters.snapshots));
    page.one(
        "keeptime_clock_steps_back_total",
        "counter",
        "Times that the clock was set back.",
        count(&counters.clock_steps_back),
    );
    page.certificates(shared.certificate.as_ref().map(OwnCertificate::until), &seen.ends);
    page.sites(&lock(&shared.overview));
    page.one("keeptime_ledger_revision", "gauge", "Durable batches.", status.head.get());
    page.one("keeptime_ledger_epoch", "gauge", "Which writer in turn.", status.epoch.get());
    if let Some(sync) = status.sync_time {
        let help = "What the last write took, sync included.";
        page.one("keeptime_ledger_write_seconds", "gauge", help, sync.as_secs_f64());
    }
    Ok(page.0)
}

fn look(engine: &Engine, ends: &[(NodeIndex, WallTime)]) -> Seen {
    let topology = engine.cluster().topology();
    let is_away = |node: &NodeIndex| !engine.is_connected(*node) && engine.drained(*node).is_none();
    Seen {
        by_state: engine.book().states().clone(),
        offers: engine.offer_count(),
        waiting: engine.waiting_count(),
        nodes: topology.nodes().len(),
        drained: engine.drained_count(),
        away: topology.node_indices().filter(is_away).count(),
        applications: engine.book().applications().len(),
        ends: ends.iter().map(|(node, end)| (topology.node(*node).name.clone(), *end)).collect(),
    }
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// When certificates end: who is to renew them is told in time. Without a door over TCP there are none.
    fn certificates(&mut self, own: Option<WallTime>, agents: &[(Name, WallTime)]) {
        let Some(own) = own.map(dates::unix_seconds) else { return };
        let help = "When the broker's own certificate ends, in Unix time.";
        self.one("keeptime_certificate_end_seconds", "gauge", help, own);
        let name = "keeptime_agent_certificate_end_seconds";
        self.begin(name, "gauge", "When the certificate ends that a node's agent showed.");
        for (node, end) in agents {
            self.line(name, &format!("{{node=\"{node}\"}}"), dates::unix_seconds(*end));
        }
    }

    /// What is seen of web sites. A site whose balancers do not all answer has no line of its requests.
    fn sites(&mut self, overview: &Overview) {
        let total = "keeptime_site_moves_unfinished_total";
        let help = "Moves of web sites' nodes that did not wait for all requests.";
        self.one(total, "counter", help, overview.moves_unfinished);
        type Figure = fn(&SiteView) -> Option<f64>;
        let figures: [(&str, &str, Figure); 6] = [
            ("nodes", "Nodes that serve a web site.", |site| Some(site.nodes.len() as f64)),
            ("nodes_hard", "Nodes that it is to have for certain.", |site| {
                Some(f64::from(site.spec.guarantee.hard))
            }),
            ("arrivals_per_second", "Requests that arrive.", |site| {
                Some(site.load?.arrivals_per_second)
            }),
            ("requests_queued", "Requests that wait for a node.", |site| {
                Some(site.load?.queued as f64)
            }),
            ("requests_in_flight", "Requests that nodes work on.", |site| {
                Some(site.load?.in_flight as f64)
            }),
            ("problems", "What `site top` says is wrong.", |site| Some(site.problems.len() as f64)),
        ];
        for (name, help, figure) in figures {
            let name = format!("keeptime_site_{name}");
            self.begin(&name, "gauge", help);
            for site in &overview.sites {
                if let Some(value) = figure(site) {
                    self.line(&name, &format!("{{site=\"{}\"}}", site.spec.name), value);
                }
            }
        }
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.begin(name, kind, help);
        self.line(name, "", value);
    }
}
