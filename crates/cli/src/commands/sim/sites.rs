//! `keeptime sim sites`: what web sites that share a cluster would have of it.

use super::policies::each_once;
use super::{Failing, Results, path_text, percent, progress_bar, topology};
use crate::arguments::{SimSitesArguments, SimulatedCluster};
use crate::commands::{Ending, print_json};
use crate::files;
use anyhow::{Context, Result};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::site::Guarantee;
use keeptime_model::units::{Nanos, Share, text};
use keeptime_whatif::failures::Reliabilities;
use keeptime_whatif::sites::{
    Demand, Hosting, PolicyKind, ServiceTime, SiteSummary, Spread, Summary, Terms,
};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// All that the same summaries come of again.
#[derive(Debug, Serialize)]
struct Header<'a> {
    version: &'static str,
    #[serde(serialize_with = "text::serialize")]
    topology: &'a SimulatedCluster,
    #[serde(serialize_with = "path_text")]
    sites: &'a Path,
    hours: u64,
    #[serde(serialize_with = "text::serialize")]
    swing: Share,
    #[serde(serialize_with = "text::serialize")]
    period: Nanos,
    #[serde(serialize_with = "text::serialize")]
    service: Nanos,
    #[serde(serialize_with = "text::serialize")]
    within: Nanos,
    #[serde(flatten)]
    failing: Option<Failing>,
    seed: u64,
}

/// What counts here of all that `keeptime site list --json` prints: such a file will do, and so will a shorter one. How
/// long requests take no broker knows: that is added by hand.
#[derive(Debug, Deserialize)]
struct SitesFile {
    sites: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    spec: Spec,
    load: Option<Load>,
    service: Option<Service>,
}

#[derive(Debug, Deserialize)]
struct Spec {
    name: Name,
    guarantee: Guarantee,
    priority: u32,
}

#[derive(Debug, Deserialize)]
struct Load {
    arrivals_per_second: f64,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "distribution", rename_all = "kebab-case", deny_unknown_fields)]
enum Service {
    Exponential {
        #[serde(deserialize_with = "text::deserialize")]
        mean: Nanos,
    },
    Lognormal {
        #[serde(deserialize_with = "text::deserialize")]
        mean: Nanos,
        variation: f64,
    },
}

/// Simulates what was asked for under each policy and prints what came of it.
pub(super) fn run(arguments: &SimSitesArguments) -> Result<Ending> {
    let failing = Failing::of(&arguments.failing)?;
    let failures = failing.as_ref().map(Failing::checked).transpose()?.unwrap_or_default();
    let hosting = hosting(arguments, failures)?;
    let mut summaries = Vec::new();
    for policy in each_once(&arguments.policy) {
        let summary = simulate(&hosting, policy, minutes(arguments));
        // Told at once: the next may be interrupted.
        eprintln!("{policy} has ended: {}", figures(&summary));
        summaries.push(summary);
    }
    if arguments.json {
        let header = Header::of(arguments, failing);
        print_json(&Results { header, log: None, summaries: &summaries })?;
    } else {
        print!("{}", summaries.iter().map(table).collect::<Vec<_>>().join("\n"));
    }
    Ok(Ending::Done)
}

fn hosting(arguments: &SimSitesArguments, failures: Reliabilities) -> Result<Hosting> {
    let SimSitesArguments { swing, period, service, within, seed, .. } = *arguments;
    let minutes = minutes(arguments);
    let terms = Terms { minutes, swing, period, service, in_time: within, failures, seed };
    let demands = read(&arguments.sites)?;
    let made = Hosting::new(topology(&arguments.topology)?, demands, terms);
    Ok(made.map_err(|invalid| place(invalid, &arguments.sites))?)
}

fn minutes(arguments: &SimSitesArguments) -> u64 {
    60 * arguments.hours
}

/// The error as whoever wrote it knows the field: of an argument, or of the file.
fn place(invalid: Invalid, path: &Path) -> Invalid {
    let argument = match invalid.field.as_str() {
        "nodes" => Some("--topology"),
        "period" => Some("--period"),
        "service" => Some("--service"),
        _ => None,
    };
    match argument {
        Some(argument) => Invalid { field: argument.into(), ..invalid },
        None => files::placed(invalid, path),
    }
}

fn read(path: &Path) -> Result<Vec<Demand>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(demands(&text).map_err(|invalid| files::placed(invalid, path))?)
}

fn demands(text: &str) -> Result<Vec<Demand>, Invalid> {
    let read: Result<SitesFile, _> = serde_json::from_str(text);
    let file = read.map_err(|error| Invalid::new("", error, FORM))?;
    file.sites.into_iter().map(Entry::demand).collect()
}

impl Entry {
    fn demand(self) -> Result<Demand, Invalid> {
        let Spec { name, guarantee, priority } = self.spec;
        let service = self.service.map(ServiceTime::from);
        match self.load {
            Some(Load { arrivals_per_second: per_second }) => {
                Ok(Demand { name, guarantee, priority, per_second, service })
            }
            None => {
                let expected = "{ \"arrivals_per_second\": NUMBER }";
                Err(Invalid::missing(format!("sites.{name}.load"), expected))
            }
        }
    }
}

impl From<Service> for ServiceTime {
    fn from(service: Service) -> Self {
        match service {
            Service::Exponential { mean } => Self { mean, spread: Spread::Exponential },
            Service::Lognormal { mean, variation } => {
                Self { mean, spread: Spread::Lognormal { variation } }
            }
        }
    }
}

impl<'a> Header<'a> {
    fn of(arguments: &'a SimSitesArguments, failing: Option<Failing>) -> Self {
        let SimSitesArguments { topology, sites, .. } = arguments;
        let SimSitesArguments { hours, swing, period, service, within, seed, .. } = *arguments;
        let version = env!("CARGO_PKG_VERSION");
        Self { version, topology, sites, hours, swing, period, service, within, failing, seed }
    }
}

fn simulate(hosting: &Hosting, policy: PolicyKind, minutes: u64) -> Summary {
    let bar = progress_bar(minutes, "minutes").with_message(policy.as_str());
    let summary = hosting.run(policy, &mut |over| bar.set_position(over));
    bar.finish_and_clear();
    summary
}

/// What is said of all sites together.
fn figures(summary: &Summary) -> String {
    let Summary { moves, nodes_away, utilisation_percent, .. } = summary;
    let utilisation = percent(*utilisation_percent);
    format!("moves {moves}, nodes away {nodes_away}, utilisation {utilisation}")
}

/// A line for each site.
fn table(summary: &Summary) -> String {
    let longest = summary.sites.iter().map(|site| site.name.as_str().len()).max();
    let width = longest.unwrap_or(0).max(COLUMNS[0].len());
    let sites: String = summary.sites.iter().map(|site| row(width, cells(site))).collect();
    let head = row(width, COLUMNS.map(String::from));
    format!("{}: {}\n{head}{sites}", summary.policy, figures(summary))
}

fn cells(site: &SiteSummary) -> [String; COLUMNS.len()] {
    let SiteSummary { nodes_least, nodes_mean, nodes_most, .. } = site;
    [
        site.name.to_string(),
        site.hard.to_string(),
        percent(site.hard_met_percent),
        format!("{:.1}", site.below_hard_seconds),
        format!("{nodes_least} / {nodes_mean:.1} / {nodes_most}"),
        site.requests.to_string(),
        percent(site.in_time_percent),
        site.unanswered.to_string(),
    ]
}

fn row(width: usize, cells: [String; COLUMNS.len()]) -> String {
    let [site, hard, met, below, nodes, requests, in_time, unanswered] = cells;
    format!(
        "{site:<width$} {hard:>5} {met:>8} {below:>9} {nodes:>22} {requests:>11} {in_time:>8} \
         {unanswered:>10}\n"
    )
}

const COLUMNS: [&str; 8] = [
    "site",
    "hard",
    "met",
    "below, s",
    "nodes, least/mean/most",
    "requests",
    "in time",
    "unanswered",
];
const FORM: &str = "what `keeptime site list --json` prints, or as in `keeptime sim sites --help`";

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: what a broker tells of its sites is read as it is.
    #[test]
    fn what_a_broker_tells_of_its_sites_is_what_is_asked_of_them() {
        let told = serde_json::json!({
            "sites": [{
                "spec": {
                    "name": "shop", "guarantee": { "hard": 1, "soft": 4, "max": 8 }, "priority": 3,
                    "cpu_ppm": 10_000, "port": 80, "balancers": ["haproxy:/run/haproxy.sock/shop"],
                },
                "is_leaving": false, "nodes": ["n1"], "past": [], "problems": [],
                "load": { "arrivals_per_second": 12.5, "queued": 0, "in_flight": 1 },
            }],
            "nodes": [], "moves": [],
        });
        let guarantee = Guarantee { hard: 1, soft: 4, max: 8 };
        let name = "shop".parse().unwrap();
        let expected = Demand { name, guarantee, priority: 3, per_second: 12.5, service: None };
        assert_eq!(demands(&told.to_string()), Ok(vec![expected]));
    }

    #[test]
    fn the_example_of_the_help_is_accepted() {
        use clap::CommandFactory;
        let command = crate::arguments::Arguments::command();
        let sites = command.find_subcommand("sim").unwrap().find_subcommand("sites").unwrap();
        let help = sites.get_after_long_help().unwrap().to_string();
        let (_, example) = help.split_once("in the mean of a day:\n\n").unwrap();
        let (example, _) = example.split_once("\n\n").unwrap();
        let read = demands(example).unwrap();
        let asked: Vec<_> = read.iter().map(|of| of.per_second).collect();
        assert_eq!(asked, [600.0, 400.0]);
        let spread = Spread::Lognormal { variation: 1.5 };
        let service = ServiceTime { mean: Nanos::from_millis(8), spread };
        assert_eq!([read[0].service, read[1].service], [None, Some(service)]);
    }

    #[test]
    fn a_table_has_a_line_for_each_site_all_as_wide() {
        let site = |name: &str| SiteSummary {
            name: name.parse().unwrap(),
            hard: 2,
            hard_met_percent: 99.5,
            below_hard_seconds: 43.2,
            nodes_least: 1,
            nodes_mean: 4.5,
            nodes_most: 7,
            requests: 1_000_000,
            in_time_percent: 98.76,
            unanswered: 12,
        };
        let sites = vec![site("shop"), site("a-site-with-a-long-name")];
        let summary = Summary {
            policy: "keeptime",
            sites,
            moves: 14,
            utilisation_percent: 43.21,
            nodes_away: 3,
        };
        let text = table(&summary);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "keeptime: moves 14, nodes away 3, utilisation 43.2 %");
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1..].iter().all(|line| line.len() == lines[1].len()), "{text}");
        let words: Vec<_> = lines[2].split_whitespace().collect();
        assert_eq!(words.join(" "), "shop 2 99.5 % 43.2 1 / 4.5 / 7 1000000 98.8 % 12");
    }
}
