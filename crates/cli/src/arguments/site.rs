//! The words about web sites.

use super::{BrokerPlace, manual};
use clap::{Args, Subcommand};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::service::ServiceName;
use keeptime_model::site::{BalancerPlace, Guarantee, SiteSpec};
use keeptime_model::units::{CpuPpm, Nanos};
use std::str::FromStr;

#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// Give a web site nodes of the cluster, as many as its load needs, or describe it anew
    Add(SiteAddArguments),
    /// Remove a web site: its nodes are drained first
    Remove(SiteRemoveArguments),
    /// List web sites: their nodes, loads, and what is wrong with their balancers
    List(SiteListArguments),
    /// Show web sites, a picture of their last minute, how busy every node is and who says so, and the last moves with
    /// their reasons, again every second
    Top(SiteTopArguments),
}

#[derive(Debug, Args)]
#[command(after_help = manual::SITE_ADD)]
pub struct SiteAddArguments {
    /// The site's name
    pub name: Name,
    /// Nodes that are never taken from it, needed or not
    #[arg(long)]
    pub hard: u32,
    /// Nodes that it has when it needs them, unless a site of higher priority needs them for its own
    /// guarantee [default: as many as --hard]
    #[arg(long)]
    pub soft: Option<u32>,
    /// It is never given more nodes [default: as many as --soft]
    #[arg(long)]
    pub max: Option<u32>,
    /// Greater goes first
    #[arg(long, default_value_t = 1)]
    pub priority: u32,
    /// CPU that is reserved for it on each of its nodes [default: all of it, for what --app names]
    #[arg(long, required_unless_present = "services")]
    pub cpu: Option<CpuPpm>,
    /// What serves it on the nodes: a systemd service that runs there already, as nginx@shop. It has that CPU, and
    /// no more, as long as the node is the site's. Without, servers share what jobs leave of a node. Repeat for others
    #[arg(long = "app", value_name = "SERVICE")]
    pub services: Vec<ServiceName>,
    /// Where its servers listen on the nodes; HAProxy knows that by itself
    #[arg(long, default_value_t = 80)]
    pub port: u16,
    /// A balancer in front of it: haproxy:SOCKET/BACKEND or nginx:CONFIGURATION/UPSTREAM@LOG on the broker's
    /// machine, or apache:http://ADDRESS:PORT/PATH/BALANCER. It has a server for every node of the cluster.
    /// Repeat for others
    #[arg(long = "backend", value_name = "BALANCER", required = true)]
    pub balancers: Vec<BalancerPlace>,
    /// How long a node that leaves the site may work on the requests that it has, as in 30s or 1h, or never, for as
    /// long as they take. What HAProxy has in flight then is ended, what others have is left, and the node is moved
    #[arg(long, value_name = "SPAN|never", default_value = "5min")]
    pub drain_most: DrainMost,
    /// Print what was added as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub place: BrokerPlace,
}

/// A limit for drains, or that there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainMost(pub Option<Nanos>);

impl FromStr for DrainMost {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        if text == "never" { Ok(Self(None)) } else { text.parse().map(|most| Self(Some(most))) }
    }
}

#[derive(Debug, Args)]
pub struct SiteRemoveArguments {
    /// The site's name
    pub name: Name,
    #[command(flatten)]
    pub place: BrokerPlace,
}

#[derive(Debug, Args)]
pub struct SiteListArguments {
    /// Print JSON, instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub place: BrokerPlace,
}

#[derive(Debug, Args)]
pub struct SiteTopArguments {
    /// Show them once and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON once and end
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub place: BrokerPlace,
}

impl SiteAddArguments {
    /// The site that was described.
    pub fn spec(&self) -> SiteSpec {
        let soft = self.soft.unwrap_or(self.hard);
        let max = self.max.unwrap_or(soft);
        SiteSpec {
            name: self.name.clone(),
            guarantee: Guarantee { hard: self.hard, soft, max },
            priority: self.priority,
            cpu_ppm: self.cpu,
            services: self.services.clone(),
            port: self.port,
            drain_most_nanos: self.drain_most.0,
            balancers: self.balancers.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;
    use keeptime_model::site::DRAIN_MOST;

    fn described(words: &[&str]) -> Result<SiteSpec, clap::Error> {
        let shop = ["keeptime", "site", "add", "shop", "--hard", "1", "--cpu", "10%"];
        let backend = ["--backend", "haproxy:/run/haproxy.sock/shop"];
        let words = shop.into_iter().chain(backend).chain(words.iter().copied());
        let Command::Site(SiteCommand::Add(add)) = Arguments::try_parse_from(words)?.command else {
            panic!("it is another command")
        };
        Ok(add.spec())
    }

    #[test]
    fn a_site_has_the_usual_limit_for_drains_another_or_none() {
        let limit = |words: &[&str]| described(words).map(|spec| spec.drain_most_nanos).ok();
        assert_eq!(limit(&[]), Some(Some(DRAIN_MOST)));
        assert_eq!(limit(&["--drain-most", "1.5s"]), Some(Some(Nanos::from_millis(1_500))));
        assert_eq!(limit(&["--drain-most", "never"]), Some(None));
        assert_eq!(limit(&["--drain-most", "soon"]), None);
        let nothing = described(&["--drain-most", "0s"]).unwrap();
        assert_eq!(nothing.check().unwrap_err().field, "drain_most_nanos");
    }
}
