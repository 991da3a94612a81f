//! Agents over TCP: the certificate says which node's it is, and it speaks for no other.

use super::handshake::secure;
use super::keys::{KeyRing, Shown};
use super::places::{Place, Places};
use crate::agents::{Reception, Speaker};
use keeptime_credentials::certificate::ends_soon;
use keeptime_credentials::dates;
use keeptime_credentials::identity::Identity;
use keeptime_credentials::tls::Peer;
use keeptime_credentials::untrusted::Untrusted;
use keeptime_model::name::Name;
use keeptime_model::units::WallTime;
use std::future;
use std::net::IpAddr;
use tokio::net::TcpStream;

/// What every connection needs.
#[derive(Clone)]
pub(super) struct Agents {
    pub keys: KeyRing,
    pub reception: Reception,
    /// For those of which it is known whose they are.
    pub nodes: Places<Name>,
}

impl Agents {
    /// One connection, from its first byte; `place` is its own until it is known whose it is.
    pub async fn receive(self, stream: TcpStream, place: Place<IpAddr>) {
        let keys = self.keys.now();
        let Some(server) = &keys.agents else { return };
        let Some(stream) = secure(stream, server.config()).await else { return };
        let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
        let shown = Shown { chain: chain.unwrap_or_default(), ..Shown::default() };
        let now = dates::now();
        let known = whose(shown.peer(server, now), |node| self.reception.knows(node));
        drop(keys);
        let (read, write) = tokio::io::split(stream);
        let (node, until) = match known {
            Ok(known) => known,
            Err(why) => {
                let nobody = Speaker::Nobody(why);
                return self.reception.receive(read, write, nobody, future::pending()).await;
            }
        };
        // Nothing but its own end may end what follows: whoever is served has to be taken leave of.
        if !place.leave() {
            return;
        }
        if let Some(warning) = warning_of_end(&node, until, now) {
            tracing::warn!("{warning}");
        }
        let (_place_of_node, is_lost) = self.nodes.enter(node.clone());
        let outlived = self.keys.outlive(&shown, |keys| keys.agents.as_ref());
        let over = async move {
            tokio::select! {
                () = outlived => {}
                Ok(()) = is_lost => {}
            }
        };
        let speaker = Speaker::Node { name: node, until };
        self.reception.receive(read, write, speaker, over).await;
    }
}

/// What operators are told of a certificate that holds, and is to be renewed.
fn warning_of_end(node: &Name, until: WallTime, now: WallTime) -> Option<String> {
    let end = dates::show(until);
    ends_soon(until, now).then(|| format!("the certificate of {node} expires at {end}: renew it"))
}

/// The node that a certificate is for, and its last second; or why it is for none of this cluster.
fn whose(
    peer: Option<Result<Peer, Untrusted>>,
    is_known: impl Fn(&Name) -> bool,
) -> Result<(Name, WallTime), String> {
    match peer {
        Some(Ok(Peer { identity: Identity::Node(node), until })) if is_known(&node) => {
            Ok((node, until))
        }
        Some(Ok(Peer { identity: Identity::Node(node), .. })) => {
            Err(format!("there is no node {node} in the cluster"))
        }
        Some(Ok(Peer { identity, .. })) => {
            Err(format!("the certificate is that of {identity}, and not a node's"))
        }
        Some(Err(untrusted)) => Err(untrusted.to_string()),
        None => Err("a node's certificate is needed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_credentials::certificate::NoIdentity;

    // Goal: operators hear of a node's certificate while there is time to renew it, and of no other.
    #[test]
    fn a_certificate_that_ends_soon_is_told_when_its_agent_connects() {
        let day = |day: i64| dates::from_unix_seconds(day * 86_400);
        let n1 = "n1".parse().unwrap();
        assert_eq!(warning_of_end(&n1, day(90), day(76)), None);
        let told = warning_of_end(&n1, day(90), day(77)).unwrap();
        assert_eq!(told, "the certificate of n1 expires at 1970-04-01T00:00:00Z: renew it");
    }

    #[test]
    fn a_place_of_a_node_is_for_the_certificate_of_one_that_is_there() {
        let shown = |identity| {
            let peer = Peer { identity, until: WallTime::from_unix_nanos(0) };
            whose(Some(Ok(peer)), |node| node.as_str() == "n1").map(|(node, _)| node)
        };
        assert_eq!(shown(Identity::Node("n1".parse().unwrap())), Ok("n1".parse().unwrap()));
        let other = shown(Identity::Node("n2".parse().unwrap())).unwrap_err();
        assert_eq!(other, "there is no node n2 in the cluster");
        let user = shown(Identity::User("ada".parse().unwrap())).unwrap_err();
        assert_eq!(user, "the certificate is that of user ada, and not a node's");
        let nameless = whose(Some(Err(NoIdentity::Missing.into())), |_| true);
        assert!(nameless.is_err() && whose(None, |_| true).is_err());
    }
}
