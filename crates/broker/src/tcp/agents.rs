//! Agents over TCP: the certificate says which node's it is, and it speaks for no other.

use super::handshake::secure;
use super::keys::{KeyRing, Shown};
use crate::agents::{Reception, Speaker};
use keeptime_credentials::dates;
use keeptime_credentials::identity::Identity;
use keeptime_credentials::tls::Peer;
use tokio::net::TcpStream;

/// What every connection needs.
#[derive(Clone)]
pub(super) struct Agents {
    pub keys: KeyRing,
    pub reception: Reception,
}

impl Agents {
    /// One connection, from its first byte.
    pub async fn receive(self, stream: TcpStream) {
        let keys = self.keys.now();
        let Some(server) = &keys.agents else { return };
        let Some(stream) = secure(stream, server.config()).await else { return };
        let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
        let shown = Shown { chain: chain.unwrap_or_default(), ..Shown::default() };
        let speaker = match shown.peer(server, dates::now()) {
            Some(Ok(Peer { identity: Identity::Node(node), .. })) => Speaker::Node(node),
            Some(Ok(Peer { identity, .. })) => {
                Speaker::Nobody(format!("the certificate is that of {identity}, and not a node's"))
            }
            Some(Err(untrusted)) => Speaker::Nobody(untrusted.to_string()),
            None => Speaker::Nobody("a node's certificate is needed".into()),
        };
        drop(keys);
        let (read, write) = tokio::io::split(stream);
        let outlived = self.keys.outlive(&shown, |keys| keys.agents.as_ref());
        self.reception.receive(read, write, speaker, outlived).await;
    }
}
