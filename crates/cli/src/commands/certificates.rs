//! `keeptime broker certificates`: a small authority in a directory, and what it issues.

use crate::arguments::CertificatesArguments;
use crate::certificates::{Site, authority_files};
use anyhow::{Context, Result};
use keeptime_credentials::identity::Identity;
use keeptime_credentials::tls::OwnFiles;
use keeptime_model::name::Name;
use keeptime_model::topology::Topology;
use std::fs;

/// Issues what is asked for; certificates that are there already are renewed, with new keys.
///
/// # Errors
/// The first that cannot be made.
pub fn run(arguments: &CertificatesArguments) -> Result<()> {
    let (directory, lasts) = (arguments.directory.as_path(), arguments.lasts);
    let nodes = nodes(arguments)?;
    let own = authority_files(directory);
    let is_new = !own.certificate.exists();
    let site = Site::open(directory)?;
    if is_new {
        let (certificate, key) = (own.certificate.display(), own.key.display());
        println!("{certificate}: a new authority; nobody else may have {key}");
    }
    if !arguments.broker.is_empty() {
        let files = site.issue_to_broker(&arguments.broker, lasts)?;
        tell(&files, &format!("the broker at {}", arguments.broker.join(", ")));
    }
    let users = arguments.users.iter().cloned().map(Identity::User);
    for identity in nodes.into_iter().map(Identity::Node).chain(users) {
        tell(&site.issue_to(&identity, lasts)?, &identity.to_string());
    }
    if !arguments.revoke.is_empty() {
        site.revoke(&arguments.revoke)?;
        arguments.revoke.iter().for_each(|path| println!("{}: revoked", path.display()));
    }
    Ok(())
}

fn tell(files: &OwnFiles, whom: &str) {
    println!("{}: {whom}", files.certificate.display());
}

fn nodes(arguments: &CertificatesArguments) -> Result<Vec<Name>> {
    let mut nodes = arguments.nodes.clone();
    if let Some(path) = &arguments.topology {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let topology = Topology::from_toml(&text);
        let topology = topology.with_context(|| format!("in {}", path.display()))?;
        nodes.extend(topology.nodes().iter().map(|node| node.name.clone()));
    }
    nodes.sort();
    nodes.dedup();
    Ok(nodes)
}
