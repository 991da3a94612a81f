//! Web sites that share the cluster's nodes: what is promised to each, and what stands in front of it.

use crate::Invalid;
use crate::name::Name;
use crate::reservation::{NodeChoice, Resources};
use crate::service::{ServiceName, check_services};
use crate::units::{CpuPpm, Nanos};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Most balancers of one site: all of them are asked several times a second.
pub const BALANCERS_MAX: usize = 16;

/// How long a node that leaves a site may take, where nothing else is said: as long as balancers usually give what they
/// take out (the delay of Amazon's for a deregistration), and longer than a request that somebody waits for.
pub const DRAIN_MOST: Nanos = Nanos::from_secs(300);

/// How many nodes a site is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guarantee {
    /// Never taken, needed or not.
    pub hard: u32,
    /// Held when needed, unless a site of higher priority needs them for its own guarantee.
    pub soft: u32,
    /// Never more.
    pub max: u32,
}

/// A site as an operator describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteSpec {
    /// Its name.
    pub name: Name,
    /// What it is promised.
    pub guarantee: Guarantee,
    /// Greater goes first.
    pub priority: u32,
    /// CPU of each of its nodes; nothing = all of it, for its services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ppm: Option<CpuPpm>,
    /// What serves it on every node, and has that CPU as long as the node is the site's; none = nobody has it,
    /// and servers share what jobs leave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceName>,
    /// Where its servers listen, on every node: nginx and Apache know them by that.
    #[serde(default = "http")]
    pub port: u16,
    /// So long a node that leaves may work on the requests that it has; what is left then is not waited for. Nothing
    /// (`null`) = as long as they take; [`DRAIN_MOST`] where it is left out.
    #[serde(default = "drain_most")]
    pub drain_most_nanos: Option<Nanos>,
    /// All that stand in front of it.
    pub balancers: Vec<BalancerPlace>,
}

/// A site that has nodes, or is to have some.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostedSite {
    /// What it is.
    pub spec: SiteSpec,
    /// Whether it is removed when its nodes are drained.
    pub is_leaving: bool,
}

/// One node of one site, as it is reserved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteNode {
    /// Which site it serves.
    pub site: Name,
    /// The node.
    pub node: Name,
    /// CPU on it.
    pub cpu_ppm: CpuPpm,
    /// What serves the site there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceName>,
}

/// Where one site is configured at one balancer, in text one of [`BalancerPlace::FORMS`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum BalancerPlace {
    /// A backend of an HAProxy on the broker's machine.
    HaProxy {
        /// Of its Runtime API, with level `admin`.
        socket: PathBuf,
        /// The backend.
        backend: String,
    },
    /// An upstream of an nginx on the broker's machine.
    Nginx {
        /// Its configuration; the file of the upstream lies beside it.
        configuration: PathBuf,
        /// The upstream.
        upstream: String,
        /// Where it sends the access log of this upstream, and the broker listens.
        log: SocketAddr,
    },
    /// A balancer of an Apache.
    Apache {
        /// Where its manager listens.
        manager: SocketAddr,
        /// The manager's page there.
        path: String,
        /// The balancer.
        balancer: String,
    },
}

impl SiteSpec {
    /// Checks what does not depend on other sites nor on the cluster.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), Invalid> {
        match self.cpu_ppm {
            Some(none) if none == CpuPpm::default() => {
                return Err(Invalid::new("cpu_ppm", none, "more than 0 %"));
            }
            None if self.services.is_empty() => {
                let expected = "a share, where no services are named that could have all of a node";
                return Err(Invalid::missing("cpu_ppm", expected));
            }
            Some(_) | None => {}
        }
        check_services(&self.services)?;
        if self.port == 0 {
            return Err(Invalid::new("port", 0, "1 to 65535"));
        }
        if self.drain_most_nanos == Some(Nanos::new(0)) {
            // One means that nothing is waited for, another that there is no limit.
            let expected = "more than no time, or nothing where there is to be no limit";
            return Err(Invalid::new("drain_most_nanos", 0, expected));
        }
        let count = self.balancers.len();
        if !(1..=BALANCERS_MAX).contains(&count) {
            let expected = format!("1 to {BALANCERS_MAX} balancers");
            return Err(Invalid::new("balancers", count, expected));
        }
        let is_again = |(at, place): &(usize, &BalancerPlace)| {
            self.balancers[..*at].iter().any(|before| before.clashes_with(place))
        };
        match self.balancers.iter().enumerate().find(is_again) {
            Some((_, twice)) => Err(Invalid::new("balancers", twice, "every balancer once")),
            None => Ok(()),
        }
    }

    /// Checks that it has no balancer's backend together with another site: at every look each of them would
    /// take out what the other has put in.
    ///
    /// # Errors
    /// The first balancer that one of `others` has.
    pub fn check_beside<'a>(
        &self,
        others: impl IntoIterator<Item = &'a SiteSpec>,
    ) -> Result<(), Invalid> {
        for other in others {
            let is_taken = |place: &&BalancerPlace| {
                other.balancers.iter().any(|theirs| theirs.clashes_with(place))
            };
            if let Some(taken) = self.balancers.iter().find(is_taken) {
                let expected = format!("one that no other site has; {} has it", other.name);
                return Err(Invalid::new("balancers", taken, expected));
            }
        }
        Ok(())
    }
}

impl BalancerPlace {
    /// How one is written.
    pub const FORMS: &'static str = "haproxy:SOCKET/BACKEND, nginx:CONFIGURATION/UPSTREAM@LOG or \
        apache:http://ADDRESS:PORT/PATH/BALANCER";

    /// Whether both are the same backend of the same balancer, or need for themselves what there is once: the
    /// file beside nginx's configuration, and where its log is heard.
    pub fn clashes_with(&self, other: &Self) -> bool {
        let (
            Self::Nginx { configuration, upstream, log },
            Self::Nginx { configuration: others, upstream: name, log: address },
        ) = (self, other)
        else {
            return self == other;
        };
        log == address || (upstream == name && configuration.parent() == others.parent())
    }
}

impl SiteNode {
    /// Checks what does not depend on a cluster.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), Invalid> {
        check_services(&self.services)?;
        self.resources().check()
    }

    /// What is reserved for it.
    pub fn resources(&self) -> Resources {
        let nodes = NodeChoice::Named(vec![self.node.clone()]);
        Resources { nodes, cpu_ppm: self.cpu_ppm, ..Resources::nothing() }
    }
}

impl FromStr for BalancerPlace {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let place = match text.split_once(':') {
            Some(("haproxy", place)) => haproxy(place),
            Some(("nginx", place)) => nginx(place),
            Some(("apache", place)) => apache(place),
            _ => None,
        };
        place.ok_or_else(|| Invalid::new("balancers", text, Self::FORMS))
    }
}

/// `SOCKET/BACKEND`
fn haproxy(place: &str) -> Option<BalancerPlace> {
    let (socket, backend) = path_and_name(place)?;
    Some(BalancerPlace::HaProxy { socket: socket.into(), backend: backend.into() })
}

/// `CONFIGURATION/UPSTREAM@LOG`
fn nginx(place: &str) -> Option<BalancerPlace> {
    let (place, log) = place.rsplit_once('@')?;
    let (configuration, upstream) = path_and_name(place)?;
    let (configuration, upstream) = (configuration.into(), upstream.into());
    Some(BalancerPlace::Nginx { configuration, upstream, log: listener(log)? })
}

/// `http://ADDRESS:PORT/PATH/BALANCER`
fn apache(place: &str) -> Option<BalancerPlace> {
    let page = place.strip_prefix("http://")?;
    let (manager, place) = page.split_at(page.find('/')?);
    let (path, balancer) = path_and_name(place)?;
    let (path, balancer) = (path.into(), balancer.into());
    Some(BalancerPlace::Apache { manager: listener(manager)?, path, balancer })
}

fn path_and_name(text: &str) -> Option<(&str, &str)> {
    let parts = text.rsplit_once('/');
    parts.filter(|(path, name)| path.starts_with('/') && !name.is_empty())
}

/// Nobody listens on port 0.
fn listener(text: &str) -> Option<SocketAddr> {
    text.parse().ok().filter(|address: &SocketAddr| address.port() > 0)
}

fn drain_most() -> Option<Nanos> {
    Some(DRAIN_MOST)
}

/// The port that clients take where none is said.
fn http() -> u16 {
    80
}

crate::as_text!(BalancerPlace);

impl fmt::Display for BalancerPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HaProxy { socket, backend } => {
                write!(f, "haproxy:{}/{backend}", socket.display())
            }
            Self::Nginx { configuration, upstream, log } => {
                write!(f, "nginx:{}/{upstream}@{log}", configuration.display())
            }
            Self::Apache { manager, path, balancer } => {
                write!(f, "apache:http://{manager}{path}/{balancer}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_balancers_place_reads_back_and_others_are_told_how() {
        for text in [
            "haproxy:/run/haproxy.sock/shop",
            "nginx:/etc/nginx/nginx.conf/shop@127.0.0.1:5140",
            "apache:http://127.0.0.1:8080/balancer-manager/shop",
            "apache:http://[::1]:8080/balancer-manager/shop",
        ] {
            assert_eq!(text.parse::<BalancerPlace>().unwrap().to_string(), text);
        }
        for wrong in [
            "varnish:/run/shop",
            "haproxy:shop",
            "haproxy:/run/sock/",
            "haproxy:run/s/shop",
            "nginx:/etc/nginx/nginx.conf/shop",
            "nginx:/etc/nginx/nginx.conf/shop@localhost:5140",
            "nginx:/etc/nginx/nginx.conf/shop@127.0.0.1:0",
            "apache:127.0.0.1:8080/balancer-manager/shop",
            "apache:http://127.0.0.1:8080/shop",
            "apache:http://127.0.0.1/balancer-manager/shop",
        ] {
            let error = wrong.parse::<BalancerPlace>().unwrap_err();
            assert!(error.expected.contains("haproxy:SOCKET/BACKEND"), "{error}");
        }
    }

    #[test]
    fn a_site_without_cpu_services_or_balancers_is_refused() {
        let place: BalancerPlace = "haproxy:/run/s/shop".parse().unwrap();
        let spec = SiteSpec {
            name: "shop".parse().unwrap(),
            guarantee: Guarantee { hard: 1, soft: 1, max: 1 },
            priority: 1,
            cpu_ppm: Some(CpuPpm::from_percent(10)),
            services: vec![],
            port: 80,
            drain_most_nanos: None,
            balancers: vec![place.clone()],
        };
        let field = |spec: SiteSpec| spec.check().unwrap_err().field;
        assert_eq!(spec.check(), Ok(()));
        let nothing = Some(CpuPpm::default());
        assert_eq!(field(SiteSpec { cpu_ppm: nothing, ..spec.clone() }), "cpu_ppm");
        assert_eq!(field(SiteSpec { cpu_ppm: None, ..spec.clone() }), "cpu_ppm");
        let nginx = vec!["nginx@shop".parse().unwrap()];
        let whole = SiteSpec { cpu_ppm: None, services: nginx.clone(), ..spec.clone() };
        assert_eq!(whole.check(), Ok(()));
        let twice = [&nginx[..], &nginx].concat();
        assert_eq!(field(SiteSpec { services: twice, ..spec.clone() }), "services");
        assert_eq!(field(SiteSpec { port: 0, ..spec.clone() }), "port");
        let at_once = Some(Nanos::new(0));
        let at_once = SiteSpec { drain_most_nanos: at_once, ..spec.clone() };
        assert_eq!(field(at_once), "drain_most_nanos");
        assert_eq!(field(SiteSpec { balancers: vec![], ..spec.clone() }), "balancers");
        assert_eq!(field(SiteSpec { balancers: vec![place.clone(), place], ..spec }), "balancers");
    }

    // Goal: sites that were recorded before there was a limit have the usual one, and one without a limit keeps that.
    // Method: a site without the word, with `null`, and with a number; each is written and read again.
    #[test]
    fn a_limit_for_drains_that_is_left_out_is_the_usual_one_and_null_is_none() {
        let read = |limit: &str| {
            let text = format!(
                "{{ \"name\": \"shop\", \"guarantee\": {{ \"hard\": 1, \"soft\": 1, \"max\": 1 }},
                \"priority\": 1, {limit} \"balancers\": [\"haproxy:/run/s/shop\"] }}"
            );
            let spec: SiteSpec = serde_json::from_str(&text).unwrap();
            let written = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<SiteSpec>(&written).unwrap(), spec);
            spec.drain_most_nanos
        };
        assert_eq!(read(""), Some(DRAIN_MOST));
        assert_eq!(read("\"drain_most_nanos\": null,"), None);
        assert_eq!(read("\"drain_most_nanos\": 1000000,"), Some(Nanos::from_millis(1)));
    }

    #[test]
    fn places_clash_where_one_would_undo_what_the_other_does() {
        let clash = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|text| text.parse::<BalancerPlace>().unwrap());
            assert_eq!(one.clashes_with(&other), other.clashes_with(&one));
            one.clashes_with(&other)
        };
        assert!(clash("haproxy:/run/s/shop", "haproxy:/run//s/shop"));
        assert!(!clash("haproxy:/run/s/shop", "haproxy:/run/s/blog"));
        assert!(!clash("haproxy:/run/s/shop", "haproxy:/run/t/shop"));
        assert!(!clash("haproxy:/run/s/shop", "nginx:/run/s/shop@127.0.0.1:5140"));
        let nginx = "nginx:/etc/nginx/nginx.conf/shop@127.0.0.1:5140";
        assert!(clash(nginx, "nginx:/etc/nginx/nginx.conf/shop@127.0.0.1:5141"), "one file");
        assert!(clash(nginx, "nginx:/etc/nginx/other.conf/shop@127.0.0.1:5141"), "one file, too");
        assert!(clash(nginx, "nginx:/srv/nginx.conf/blog@127.0.0.1:5140"), "one log");
        assert!(!clash(nginx, "nginx:/etc/nginx/nginx.conf/blog@127.0.0.1:5141"));
        assert!(!clash(nginx, "nginx:/srv/nginx.conf/shop@127.0.0.1:5141"));
        let apache = "apache:http://127.0.0.1:8080/balancer-manager/shop";
        assert!(clash(apache, apache));
        assert!(!clash(apache, "apache:http://127.0.0.1:8081/balancer-manager/shop"));
    }
}
