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
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

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

/// Checks that no balancer's backend is named twice, by a site or by it and one of `others`, where their paths lead to the same
/// file by different ways: the record tells such names apart. Looks at the file system.
///
/// # Errors
/// The first balancer that is.
pub fn check_beside(spec: &SiteSpec, others: &[SiteSpec]) -> Result<(), Invalid> {
    let spec = by_real_paths(spec);
    spec.check()?;
    let others = others.iter().filter(|other| other.name != spec.name);
    let others: Vec<_> = others.map(by_real_paths).collect();
    spec.check_beside(&others)
}

fn by_real_paths(spec: &SiteSpec) -> SiteSpec {
    let balancers = spec.balancers.iter().map(by_real_path).collect();
    SiteSpec { balancers, ..spec.clone() }
}

fn by_real_path(place: &BalancerPlace) -> BalancerPlace {
    // What is not there is called as it was.
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.into());
    match place.clone() {
        BalancerPlace::HaProxy { socket, backend } => {
            BalancerPlace::HaProxy { socket: real(&socket), backend }
        }
        BalancerPlace::Nginx { configuration, upstream, log } => {
            BalancerPlace::Nginx { configuration: real(&configuration), upstream, log }
        }
        other => other,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::site::Guarantee;
    use keeptime_model::units::CpuPpm;
    use std::os::unix::fs::symlink;

    fn spec(site: &str, places: &[String]) -> SiteSpec {
        SiteSpec {
            name: site.parse().unwrap(),
            guarantee: Guarantee { hard: 1, soft: 1, max: 1 },
            priority: 1,
            cpu_ppm: Some(CpuPpm::from_percent(10)),
            services: vec![],
            port: 80,
            drain_most_nanos: None,
            balancers: places.iter().map(|place| place.parse().unwrap()).collect(),
        }
    }

    // Goal: two sites that take each other's nodes out of one backend are not accepted, whatever they call it. Method: a
    // directory that has two names, as /run has another in /var.
    #[test]
    fn a_backend_that_is_reached_by_two_paths_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let [run, alias] = ["run", "var-run"].map(|name| directory.path().join(name));
        fs::create_dir(&run).unwrap();
        symlink(&run, &alias).unwrap();
        for name in ["haproxy.sock", "nginx.conf"] {
            fs::write(run.join(name), "").unwrap();
        }
        let haproxy = |at: &Path| format!("haproxy:{}/haproxy.sock/shop", at.display());
        let nginx = |at: &Path, port: u16| {
            format!("nginx:{}/nginx.conf/shop@127.0.0.1:{port}", at.display())
        };
        let field = |spec: &SiteSpec, others: &[SiteSpec]| {
            check_beside(spec, others).err().map(|invalid| invalid.field)
        };
        let taken = Some("balancers".to_string());
        for (one, other) in
            [(haproxy(&run), haproxy(&alias)), (nginx(&run, 5_140), nginx(&alias, 5_141))]
        {
            let (shop, blog) = (
                spec("shop", std::slice::from_ref(&one)),
                spec("blog", std::slice::from_ref(&other)),
            );
            assert_eq!(shop.check_beside([&blog]), Ok(()), "by their names they are two");
            assert_eq!(field(&blog, std::slice::from_ref(&shop)), taken);
            assert_eq!(field(&spec("shop", &[one.clone(), other.clone()]), &[]), taken);
            assert_eq!(field(&spec("shop", &[other]), &[shop]), None, "described anew");
        }
        let gone = directory.path().join("gone");
        assert_eq!(field(&spec("shop", &[haproxy(&gone)]), &[spec("blog", &[])]), None);
    }
}
