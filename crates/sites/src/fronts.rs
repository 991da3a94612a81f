//! The balancers that sites name.

use keeptime_balancers::apache::Apache;
use keeptime_balancers::balancer::Balancer;
use keeptime_balancers::front::Front;
use keeptime_balancers::haproxy::HaProxy;
use keeptime_balancers::nginx::Nginx;
use keeptime_balancers::traffic::Server;
use keeptime_model::Invalid;
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::site::{BalancerPlace, SiteSpec};
use keeptime_model::topology::Node;
use std::net::Ipv4Addr;

/// All balancers of a site on these nodes; they are asked first when the front is.
///
/// # Errors
/// If one cannot be named so.
pub fn front<'a>(
    spec: &SiteSpec,
    nodes: impl IntoIterator<Item = (&'a Name, Option<Ipv4Addr>)>,
) -> Result<Front, Invalid> {
    let servers = servers(spec, nodes);
    let balancers = spec.balancers.iter().map(|place| balancer(place, &servers));
    balancers.collect::<Result<_, _>>().map(Front::new)
}

/// Asks every balancer of a site whether it has the site and all `nodes`. Blocks for as long as they
/// take.
///
/// # Errors
/// The first that does not.
pub fn check(spec: &SiteSpec, nodes: &[Node]) -> Result<(), Invalid> {
    let servers = servers(spec, nodes.iter().map(|node| (&node.name, node.address)));
    for place in &spec.balancers {
        check_addresses(place, nodes)?;
        let refuse = |expected| Invalid::new("balancers", place, expected);
        let known = balancer(place, &servers)?.known();
        let known = known.map_err(|error| {
            refuse(format!("a balancer that runs and has this site: {}", chain(&error)))
        })?;
        let missing = nodes.iter().filter(|node| !known.contains(&node.name));
        let missing: Vec<_> = missing.map(|node| node.name.as_str()).collect();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            return Err(refuse(format!("one with a server for every node; it lacks {missing}")));
        }
    }
    Ok(())
}

/// HAProxy's servers are called as nodes are; those of others are known by where they listen.
fn check_addresses(place: &BalancerPlace, nodes: &[Node]) -> Result<(), Invalid> {
    let unknown = nodes.iter().find(|node| node.address.is_none());
    match (place, unknown) {
        (BalancerPlace::HaProxy { .. }, _) | (_, None) => Ok(()),
        (_, Some(node)) => {
            let expected = "an HAProxy, or a topology that says the address of every node";
            let expected = format!("{expected}; of {} it does not", node.name);
            Err(Invalid::new("balancers", place, expected))
        }
    }
}

/// Where a site's servers listen.
fn servers<'a>(
    spec: &SiteSpec,
    nodes: impl IntoIterator<Item = (&'a Name, Option<Ipv4Addr>)>,
) -> Vec<Server> {
    let server = |(name, address): (&Name, Option<Ipv4Addr>)| {
        Some(Server { name: name.clone(), address: (address?, spec.port).into() })
    };
    nodes.into_iter().filter_map(server).collect()
}

fn balancer(place: &BalancerPlace, servers: &[Server]) -> Result<Box<dyn Balancer>, Invalid> {
    match place {
        BalancerPlace::HaProxy { socket, backend } => Ok(Box::new(HaProxy::new(socket, backend)?)),
        BalancerPlace::Nginx { configuration, upstream, log } => {
            let nginx = Nginx::new(configuration, upstream, servers.to_vec())?;
            Ok(Box::new(nginx.with_log(*log)))
        }
        BalancerPlace::Apache { manager, path, balancer } => {
            Ok(Box::new(Apache::new(*manager, path, balancer, servers.to_vec())?))
        }
        other => Err(Invalid::new("balancers", other, BalancerPlace::FORMS)),
    }
}
