//! Agents over TCP: the certificate says which node's it is, and it speaks for no other.

use super::handshake::secure;
use super::keys::{KeyRing, Shown};
use super::places::{Place, Places};
use crate::agents::{Reception, Speaker};
use keeptime_credentials::dates;
use keeptime_credentials::identity::Identity;
use keeptime_credentials::tls::Peer;
use keeptime_credentials::untrusted::Untrusted;
use keeptime_model::name::Name;
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
        let node = whose(shown.peer(server, dates::now()), |node| self.reception.knows(node));
        drop(keys);
        let (read, write) = tokio::io::split(stream);
        let node = match node {
            Ok(node) => node,
            Err(why) => {
                let nobody = Speaker::Nobody(why);
                return self.reception.receive(read, write, nobody, future::pending()).await;
            }
        };
        // Nothing but its own end may end what follows: whoever is served has to be taken leave of.
        if !place.leave() {
            return;
        }
        let (_place_of_node, is_lost) = self.nodes.enter(node.clone());
        let outlived = self.keys.outlive(&shown, |keys| keys.agents.as_ref());
        let over = async move {
            tokio::select! {
                () = outlived => {}
                Ok(()) = is_lost => {}
            }
        };
        self.reception.receive(read, write, Speaker::Node(node), over).await;
    }
}

/// The node that a certificate is for, or why it is for none of this cluster.
fn whose(
    peer: Option<Result<Peer, Untrusted>>,
    is_known: impl Fn(&Name) -> bool,
) -> Result<Name, String> {
    match peer {
        Some(Ok(Peer { identity: Identity::Node(node), .. })) if is_known(&node) => Ok(node),
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
    use keeptime_model::units::WallTime;

    #[test]
    fn a_place_of_a_node_is_for_the_certificate_of_one_that_is_there() {
        let shown = |identity| {
            let peer = Peer { identity, until: WallTime::from_unix_nanos(0) };
            whose(Some(Ok(peer)), |node| node.as_str() == "n1")
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
