//! Calls to other servers: each on a thread of its own, over bridges if need be, until both ends have said hail.

use crate::bridge::{self, Search, Survey, request::Whom};
use crate::directory::protocol::{Reply, encode};
use crate::directory::seal::{End, HAIL, Hail, SEAL, Sealers, Stranger};
use crate::door::ClusterKey;
use crate::networks::discover;
use crate::{random_bytes, threads};
use nix::sys::eventfd::EventFd;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const DIAL_TIME: Duration = Duration::from_secs(1);
/// How long a server may take to say hail, bridges on the way included.
const HAIL_TIME: Duration = Duration::from_secs(5);

/// Calls other servers.
pub(super) struct Dialer {
    key: Option<ClusterKey>,
    survey: Survey,
    /// Rung when a call has ended.
    bell: Arc<EventFd>,
    calls: (Sender<Dialed>, Receiver<Dialed>),
}

/// A call that has ended.
pub(super) struct Dialed {
    pub address: SocketAddr,
    /// The connection, and with what it is sealed.
    pub result: Result<(TcpStream, Option<Sealers>), DialError>,
}

/// Why another server is not told anything.
pub(super) enum DialError {
    /// It does not answer.
    Silent,
    /// Somebody else does.
    Stranger(Stranger),
}

impl Dialer {
    pub(super) fn new(key: Option<ClusterKey>, bell: Arc<EventFd>) -> Self {
        Self { key, survey: Survey::default(), bell, calls: channel() }
    }

    /// Calls the server at `address`, over `bridges` if it cannot be reached otherwise.
    pub(super) fn dial(&self, address: SocketAddr, bridges: Vec<bridge::Known>) {
        let (sender, bell) = (self.calls.0.clone(), self.bell.clone());
        let (key, survey) = (self.key.clone(), self.survey.clone());
        let dial = move || {
            let result = call(address, &bridges, &survey, key.as_ref());
            // Nobody waits for it any more when the server has ended.
            let _ = sender.send(Dialed { address, result });
            let _ = bell.write(1);
        };
        if let Err(error) = threads::spawn("dial", dial) {
            let _ = self.calls.0.send(Dialed { address, result: Err(error.into()) });
            let _ = self.bell.write(1);
        }
    }

    /// A call that has ended, if there is one.
    pub(super) fn next(&self) -> Option<Dialed> {
        self.calls.1.try_recv().ok()
    }
}

impl From<io::Error> for DialError {
    fn from(_: io::Error) -> Self {
        Self::Silent
    }
}

impl From<Stranger> for DialError {
    fn from(stranger: Stranger) -> Self {
        Self::Stranger(stranger)
    }
}

fn call(
    address: SocketAddr,
    bridges: &[bridge::Known],
    survey: &Survey,
    key: Option<&ClusterKey>,
) -> Result<(TcpStream, Option<Sealers>), DialError> {
    let stream = reach(address, bridges, survey)?;
    let sealers = hail(&stream, key)?;
    Ok((stream, sealers))
}

/// Connects to another server, over bridges if it cannot be reached otherwise.
fn reach(address: SocketAddr, bridges: &[bridge::Known], survey: &Survey) -> io::Result<TcpStream> {
    let straight = TcpStream::connect_timeout(&address, DIAL_TIME);
    let over = |error| {
        let (own, peer, whom) = (discover()?, [address], Whom::Directory);
        let search = Search { own: &own, bridges, peer: &peer, whom, much: false };
        let ways = survey.ways(&search, &[]);
        let mut calls = ways.iter().map(|way| survey.call(way, whom));
        calls.find_map(Result::ok).ok_or(error)
    };
    straight.or_else(over)
}

/// Says hail to the server at the other end, and hears its own and that it has the key.
fn hail(mut stream: &TcpStream, key: Option<&ClusterKey>) -> Result<Option<Sealers>, DialError> {
    let own = Hail::new(key, random_bytes()?);
    stream.write_all(&own.encode())?;
    stream.set_read_timeout(Some(HAIL_TIME))?;
    let mut bytes = [0; HAIL];
    stream.read_exact(&mut bytes)?;
    let other = Hail::decode(&bytes)?;
    let Some(mut sealers) = own.meets(&other, End::Caller, key)? else { return Ok(None) };
    let (mut life, mut seal) = (Vec::new(), [0; SEAL]);
    encode(&Reply::Alive, &mut life);
    stream.read_exact(&mut life)?;
    stream.read_exact(&mut seal)?;
    sealers.heard.open(&life, seal)?;
    Ok(Some(sealers))
}
