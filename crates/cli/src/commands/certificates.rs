//! `keeptime broker certificates`: a small authority in a directory, and what it issues.

mod list;

use crate::arguments::{CertificatesArguments, NodeNames};
use crate::certificates::{Site, authority_files};
use anyhow::{Context, Result};
use keeptime_credentials::identity::Identity;
use keeptime_credentials::tls::OwnFiles;
use keeptime_model::name::Name;
use keeptime_model::topology::Topology;
use std::fs;

/// Lists what there is, if that is wanted. Else withdraws what is to be withdrawn, then issues what is asked for; certificates that are there already are renewed,
/// with new keys.
///
/// # Errors
/// The first that cannot be made.
pub fn run(arguments: &CertificatesArguments) -> Result<()> {
    if arguments.list {
        return list::run(&arguments.directory, arguments.json);
    }
    let (directory, lasts) = (arguments.directory.as_path(), arguments.lasts);
    let nodes = nodes(arguments)?;
    let own = authority_files(directory);
    let is_new = !own.certificate.exists();
    let site = Site::open(directory)?;
    if is_new {
        let (certificate, key) = (own.certificate.display(), own.key.display());
        println!("{certificate}: a new authority; nobody else may have {key}");
    }
    // First: a certificate that is issued may take the place of the one that is meant.
    if !arguments.revoke.is_empty() {
        site.revoke(&arguments.revoke)?;
        arguments.revoke.iter().for_each(|path| println!("{}: revoked", path.display()));
    }
    if !arguments.broker.is_empty() {
        let files = site.issue_to_broker(&arguments.broker, lasts)?;
        tell(&files, &format!("the broker at {}", arguments.broker.join(", ")));
    }
    let users = arguments.users.iter().cloned().map(Identity::User);
    for identity in nodes.into_iter().map(Identity::Node).chain(users) {
        tell(&site.issue_to(&identity, lasts)?, &identity.to_string());
    }
    Ok(())
}

fn tell(files: &OwnFiles, whom: &str) {
    println!("{}: {whom}", files.certificate.display());
}

fn nodes(arguments: &CertificatesArguments) -> Result<Vec<Name>> {
    let mut nodes: Vec<_> = NodeNames::all(&arguments.nodes).cloned().collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_credentials::dates;
    use keeptime_credentials::tls::{Clients, HTTP, Server, ServerFiles};
    use keeptime_credentials::untrusted::Untrusted;
    use keeptime_model::units::Nanos;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use std::path::{Path, PathBuf};

    /// The certificate that ada has after the command.
    fn issue(directory: &Path, revoke: Vec<PathBuf>) -> CertificateDer<'static> {
        let arguments = CertificatesArguments {
            directory: directory.into(),
            broker: vec!["localhost".into()],
            nodes: vec![],
            topology: None,
            users: vec!["ada".parse().unwrap()],
            lasts: Nanos::from_secs(3_600),
            revoke,
            list: false,
            json: false,
        };
        run(&arguments).unwrap();
        CertificateDer::from_pem_file(directory.join("users/ada.pem")).unwrap()
    }

    #[test]
    fn what_is_withdrawn_is_what_was_there_and_not_what_takes_its_place() {
        // One command for a key that was stolen: a new certificate, and the old one is no good any more.
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let stolen = issue(directory.path(), vec![]);
        let new = issue(directory.path(), vec![at("users/ada.pem")]);
        let (certificate, key) = (at("broker.pem"), at("broker-key.pem"));
        let (ca, list) = (at("ca.pem"), at("revoked.pem"));
        let (client_ca, revoked) = (Some(ca.as_path()), Some(list.as_path()));
        let files = ServerFiles { certificate: &certificate, key: &key, client_ca, revoked };
        let server = Server::read(files, Clients::Any, HTTP).unwrap();
        let who = |shown: CertificateDer<'static>| {
            server.identify(&[shown], dates::now()).map(|peer| peer.identity)
        };
        assert_eq!(who(stolen), Err(Untrusted::TheirsRevoked));
        assert_eq!(who(new), Ok(Identity::User("ada".parse().unwrap())));
    }
}
