//! The agents' connections: they dial, say what they hold, are told what to enforce. The agent's end
//! is [`keeptime_agent::link`].
//!
//! A node has one connection: a second takes the place of the first. Whatever goes wrong with one
//! ends it; the agent comes back, and both compare.

use crate::core::{Handle, Unavailable};
use crate::door;
use crate::misread::Misread;
use crate::programs::{Desks, Report};
use crate::tcp::linger;
use keeptime_agent::link::{FromAgent, LINE_BYTES_MAX, ToAgent, VERSION};
use keeptime_engine::Input;
use keeptime_engine::agents::{Act, Enforcement, Order, Session};
use keeptime_locks::lock;
use keeptime_model::assignment::Assignment;
use keeptime_model::name::Name;
use keeptime_model::node_load::NodeCounters;
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::{Nanos, WallTime};
use std::collections::BTreeMap;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

/// Orders that wait for one agent. One that is further behind is cut off: when it comes back, it is
/// told what it shall hold then, not how that came about.
const ORDERS_MAX: usize = 1_024;
/// Connections to the socket beside one for each node: those that are replaced, and strangers.
const CONNECTIONS_SPARE: usize = 64;
/// Of each text of an agent: people read no further, and why it refuses something is recorded.
const TEXT_CHARS_MAX: usize = 1_000;
/// What one node cannot enforce: there are not so many kinds of it.
const NOT_ENFORCED_MAX: usize = 64;
/// Lines of 16 MiB in which an agent tells what it holds: a GiB, where what the broker itself holds of each node is less.
const HOLDING_LINES_MAX: usize = 64;
/// A new connection says who it is within this time, and each line of what it holds; and takes a line.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// An agent that says how busy its node is lives: the engine is told so at most this often, which is often in
/// the time of any lease.
const HEARD_EVERY: Duration = Duration::from_millis(500);

/// Which agents are connected, and the way to each.
#[derive(Debug, Default)]
pub struct Hub(Mutex<Connections>);

#[derive(Debug, Default)]
struct Connections {
    last: u64,
    by_node: BTreeMap<NodeIndex, Connection>,
}

#[derive(Debug)]
struct Connection {
    session: Session,
    /// Dropping it ends the connection.
    orders: mpsc::Sender<ToAgent>,
    told: Told,
    counted: Counted,
}

/// How busy an agent's node is.
#[derive(Debug, Default)]
struct Counted {
    /// It was asked, and has not answered yet.
    is_asked: bool,
    latest: Option<NodeCounters>,
}

/// What an agent tells about its node, and shows.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// What it cannot enforce, and why.
    pub not_enforced: Vec<String>,
    /// Its processor.
    pub processor: Option<String>,
    /// It says how busy it is when it is asked.
    pub counts: bool,
    /// The last second of the certificate that it showed: those of this machine show none.
    pub certificate_until: Option<WallTime>,
}

/// An agent that has said hello.
struct Known {
    node: NodeIndex,
    told: Told,
    enforcement: Enforcement,
    holding: Vec<Assignment>,
}

impl Hub {
    /// Sends an order, if the agent still has this connection.
    pub fn send(&self, node: NodeIndex, session: Session, order: Order) {
        self.tell(node, session, line(order));
    }

    /// Tells something, if the agent still has this connection.
    pub fn tell(&self, node: NodeIndex, session: Session, said: ToAgent) {
        let mut connections = lock(&self.0);
        let Some(connection) = connections.by_node.get(&node) else { return };
        if connection.session == session && connection.orders.try_send(said).is_err() {
            connections.by_node.remove(&node);
        }
    }

    /// Ends this connection of a node, if it is still the one. Its agent comes back.
    pub fn hang_up(&self, node: NodeIndex, session: Session) {
        self.leave(node, session);
    }

    /// Ends all connections. Agents come back.
    pub fn disconnect_all(&self) {
        lock(&self.0).by_node.clear();
    }

    /// What the agent of a node tells about it; nothing while it is away.
    pub fn told(&self, node: NodeIndex) -> Told {
        let connections = lock(&self.0);
        connections.by_node.get(&node).map(|c| c.told.clone()).unwrap_or_default()
    }

    /// Asks agents how busy their nodes are, but for those that have not answered the last time.
    pub fn ask_loads(&self, is_wanted: impl Fn(NodeIndex) -> bool) {
        for (node, connection) in &mut lock(&self.0).by_node {
            let is_due = connection.told.counts && !connection.counted.is_asked && is_wanted(*node);
            // Who takes no orders is cut off by the next one.
            connection.counted.is_asked |=
                is_due && connection.orders.try_send(ToAgent::Count).is_ok();
        }
    }

    /// What connected agents answered last.
    pub fn loads(&self) -> Vec<(NodeIndex, NodeCounters)> {
        let connections = lock(&self.0);
        let latest = |(node, c): (&NodeIndex, &Connection)| Some((*node, c.counted.latest?));
        connections.by_node.iter().filter_map(latest).collect()
    }

    fn counted(&self, node: NodeIndex, session: Session, counters: Option<NodeCounters>) {
        let mut connections = lock(&self.0);
        if let Some(connection) = connections.by_node.get_mut(&node)
            && connection.session == session
        {
            connection.counted.is_asked = false;
            // Who cannot say is known by what gets no newer.
            connection.counted.latest = counters.or(connection.counted.latest);
        }
    }

    /// Until when the certificates hold that connected agents showed.
    pub fn certificate_ends(&self) -> Vec<(NodeIndex, WallTime)> {
        let connections = lock(&self.0);
        let end = |(node, c): (&NodeIndex, &Connection)| Some((*node, c.told.certificate_until?));
        connections.by_node.iter().filter_map(end).collect()
    }

    /// How many agents are connected.
    pub fn count(&self) -> usize {
        lock(&self.0).by_node.len()
    }

    fn enter(&self, node: NodeIndex, told: Told) -> (Session, mpsc::Receiver<ToAgent>) {
        let (orders, received) = mpsc::channel(ORDERS_MAX);
        let mut connections = lock(&self.0);
        connections.last += 1;
        let session = Session(connections.last);
        let connection = Connection { session, orders, told, counted: Counted::default() };
        connections.by_node.insert(node, connection);
        (session, received)
    }

    fn leave(&self, node: NodeIndex, session: Session) {
        let mut connections = lock(&self.0);
        if connections.by_node.get(&node).is_some_and(|c| c.session == session) {
            connections.by_node.remove(&node);
        }
    }
}

/// What every connection needs.
#[derive(Clone)]
pub struct Reception {
    hub: Arc<Hub>,
    core: Handle,
    desks: Arc<Desks>,
    misread: Arc<Misread>,
    nodes: Arc<BTreeMap<Name, NodeIndex>>,
    lease: Nanos,
}

/// Who is at the other end, as the door found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Speaker {
    /// Whoever may speak for any node.
    Any,
    /// The agent of a node.
    Node {
        /// Which.
        name: Name,
        /// The last second of its certificate.
        until: WallTime,
    },
    /// Somebody who is no agent, and why.
    Nobody(String),
}

/// Why a connection ended.
#[derive(Debug, Error)]
enum Ended {
    #[error("the agent hung up")]
    HungUp,
    #[error("the agent was replaced or cut off")]
    CutOff,
    #[error("what let it in is good no more, or a newer one has its place")]
    Outlived,
    #[error("{0}")]
    Unwelcome(String),
    #[error("a line cannot be read: {0}")]
    Misread(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Broker(#[from] Unavailable),
}

impl Reception {
    /// For the agents of `topology`, which have to say something within `lease`.
    pub fn new(hub: Arc<Hub>, core: Handle, topology: &Topology, lease: Nanos) -> Self {
        let name = |node| (topology.node(node).name.clone(), node);
        let nodes = Arc::new(topology.node_indices().map(name).collect());
        let desks = Desks::new(core.clone(), Arc::clone(&hub), topology);
        Self { hub, core, desks, misread: Arc::default(), nodes, lease }
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is such a node.
    pub fn knows(&self, node: &Name) -> bool {
        self.nodes.contains_key(node)
    }

    /// Serves whoever connects.
    pub async fn serve(self, listener: UnixListener) {
        let room = Arc::new(Semaphore::new(self.nodes.len() + CONNECTIONS_SPARE));
        loop {
            let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!("no agent can connect: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let reception = self.clone();
            tokio::spawn(async move {
                let speaker = local(&stream);
                let (read, write) = stream.into_split();
                reception.receive(read, write, speaker, std::future::pending()).await;
                drop(place);
            });
        }
    }

    /// One connection, on which `speaker` speaks, until it ends or has `outlived` what let it in.
    pub async fn receive(
        &self,
        read: impl AsyncRead + Unpin,
        write: impl AsyncWrite + Unpin,
        speaker: Speaker,
        outlived: impl Future<Output = ()>,
    ) {
        let lines = Lines::of(read);
        let ended = self.converse(lines, write, speaker, outlived).await;
        tracing::debug!("a connection of an agent ended: {ended}");
    }

    async fn converse(
        &self,
        mut lines: Lines<impl AsyncRead + Unpin>,
        mut write: impl AsyncWrite + Unpin,
        speaker: Speaker,
        outlived: impl Future<Output = ()>,
    ) -> Ended {
        let mut outlived = pin!(outlived);
        let greeted = tokio::select! {
            greeted = self.greet(&mut lines, &mut write, speaker) => greeted,
            () = &mut outlived => Err(Ended::Outlived),
        };
        let Known { node, told, enforcement, holding } = match greeted {
            Ok(known) => known,
            Err(ended) => return ended,
        };
        let (session, orders) = self.hub.enter(node, told);
        self.desks.arrived(node, session);
        let ended = tokio::select! {
            ended = self.listen(node, session, enforcement, holding, lines) => ended,
            ended = pass_on(orders, write) => ended,
            () = &mut outlived => Err(Ended::Outlived),
        };
        self.hub.leave(node, session);
        // If the broker ends, so does what it knows of the connection.
        let _ = self.core.agent(Input::Disconnected { node, session }).await;
        ended.err().unwrap_or(Ended::HungUp)
    }

    /// Until it has heard that it is welcome, or why not.
    async fn greet(
        &self,
        lines: &mut Lines<impl AsyncRead + Unpin>,
        write: &mut (impl AsyncWrite + Unpin),
        speaker: Speaker,
    ) -> Result<Known, Ended> {
        let said = self.hello(lines, speaker).await;
        // It may have been long, and what follows is not.
        lines.line = Vec::new();
        match said {
            Ok(known) => {
                say(write, &ToAgent::Welcome { lease_nanos: self.lease }).await?;
                Ok(known)
            }
            Err(Ended::Unwelcome(reason)) => {
                tracing::warn!("an agent is not welcome: {reason}");
                say(write, &ToAgent::Unwelcome { reason: reason.clone() }).await?;
                linger(tokio::io::join(&mut lines.reader, write)).await;
                Err(Ended::Unwelcome(reason))
            }
            Err(ended) => Err(ended),
        }
    }

    /// Nothing is read of who is no agent. A line is as long as a hello can be, with all that a node may hold.
    async fn hello(
        &self,
        lines: &mut Lines<impl AsyncRead + Unpin>,
        speaker: Speaker,
    ) -> Result<Known, Ended> {
        let refuse = |reason: String| Err(Ended::Unwelcome(reason));
        let (own, certificate_until) = match speaker {
            Speaker::Any => (None, None),
            Speaker::Node { name, until } => (Some(name), Some(until)),
            Speaker::Nobody(why) => return refuse(why),
        };
        lines.node = own;
        let said = self.hear_soon(lines).await?;
        let Some(FromAgent::Hello {
            version,
            node: name,
            not_enforced,
            refused,
            processor,
            counts,
            holding,
            more,
        }) = said
        else {
            return refuse("a connection begins with hello".into());
        };
        if version != VERSION {
            return refuse(format!("version {version}; this broker speaks version {VERSION}"));
        }
        if let Some(own) = lines.node.as_ref().filter(|own| **own != name) {
            return refuse(format!(
                "the certificate is that of {own}, which cannot speak for {name}"
            ));
        }
        match self.nodes.get(&name) {
            Some(node) => {
                lines.node = Some(name);
                let holding = self.held(lines, holding, more).await?;
                // What an agent that is asked to enforce cannot, it refuses.
                let enforcement = match refused.is_empty() && !not_enforced.is_empty() {
                    true => Enforcement::Nothing,
                    false => Enforcement::AllBut(refused),
                };
                let not_enforced = not_enforced.iter().take(NOT_ENFORCED_MAX);
                let told = Told {
                    not_enforced: not_enforced.map(|text| brief(text)).collect(),
                    processor: processor.as_deref().map(brief),
                    counts,
                    certificate_until,
                };
                Ok(Known { node: *node, told, enforcement, holding })
            }
            None => refuse(format!("there is no node {name} in the cluster")),
        }
    }

    /// All that an agent holds, of which its hello has told the `first`.
    async fn held(
        &self,
        lines: &mut Lines<impl AsyncRead + Unpin>,
        first: Vec<Assignment>,
        mut more: bool,
    ) -> Result<Vec<Assignment>, Ended> {
        let (mut held, mut count) = (first, 1);
        while more {
            if count == HOLDING_LINES_MAX {
                let most = format!("{HOLDING_LINES_MAX} lines of {LINE_BYTES_MAX} bytes");
                return Err(Ended::Unwelcome(format!("what it holds has no room in {most}")));
            }
            let Some(FromAgent::Holding { assignments, more: further }) =
                self.hear_soon(lines).await?
            else {
                return Err(Ended::Unwelcome("what it holds is not told to its end".into()));
            };
            held.extend(assignments);
            (more, count) = (further, count + 1);
        }
        Ok(held)
    }

    async fn listen(
        &self,
        node: NodeIndex,
        session: Session,
        enforcement: Enforcement,
        holding: Vec<Assignment>,
        mut lines: Lines<impl AsyncRead + Unpin>,
    ) -> Result<(), Ended> {
        self.core.agent(Input::Connected { node, session, enforcement, holding }).await?;
        let mut heard = Instant::now();
        while let Some(said) = self.hear(&mut lines).await? {
            let input = match said {
                FromAgent::Counted(counters) => {
                    self.hub.counted(node, session, counters);
                    // Ten times a second nobody needs to know that it lives.
                    if heard.elapsed() < HEARD_EVERY {
                        continue;
                    }
                    Input::Heard { node, session }
                }
                FromAgent::Answer { number, refusal } => {
                    let refusal = refusal.as_deref().map(brief);
                    Input::Answered { node, session, number, refusal }
                }
                FromAgent::Beat => Input::Heard { node, session },
                FromAgent::Programs { number, job, ranks } => {
                    let bytes = lines.line.len();
                    self.desks.take(&job, Report { node, session, number, ranks, bytes });
                    Input::Heard { node, session }
                }
                _ => return Err(Ended::Unwelcome("one hello is enough".into())),
            };
            heard = Instant::now();
            self.core.agent(input).await?;
        }
        Ok(())
    }

    /// The next line of who is to say now what it is.
    async fn hear_soon(
        &self,
        lines: &mut Lines<impl AsyncRead + Unpin>,
    ) -> Result<Option<FromAgent>, Ended> {
        timeout(HELLO_WITHIN, self.hear(lines)).await.map_err(|_| Ended::HungUp)?
    }

    /// The next line. One that cannot be read ends the connection, and operators are told, since the agent comes back with
    /// the same.
    async fn hear(
        &self,
        lines: &mut Lines<impl AsyncRead + Unpin>,
    ) -> Result<Option<FromAgent>, Ended> {
        let said = lines.next().await;
        if let Err(Ended::Misread(why)) = &said {
            self.misread.tell(lines.node.as_ref(), why);
        }
        said
    }
}

/// As much of what an agent says as is taken.
fn brief(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

async fn pass_on(
    mut orders: mpsc::Receiver<ToAgent>,
    mut write: impl AsyncWrite + Unpin,
) -> Result<(), Ended> {
    while let Some(order) = orders.recv().await {
        say(&mut write, &order).await?;
    }
    Err(Ended::CutOff)
}

async fn say(write: &mut (impl AsyncWrite + Unpin), said: &ToAgent) -> io::Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    let written = async {
        write.write_all(&line).await?;
        // What was taken may not have left yet.
        write.flush().await
    };
    let written = timeout(HELLO_WITHIN, written).await;
    written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// On a Unix socket it is who the kernel says.
fn local(stream: &UnixStream) -> Speaker {
    if stream.peer_cred().is_ok_and(|peer| door::may_be_agent(peer.uid())) {
        return Speaker::Any;
    }
    Speaker::Nobody("only root and the broker's own user may be agents".into())
}

fn line(Order { number, act }: Order) -> ToAgent {
    match act {
        Act::Enforce(assignment) => {
            ToAgent::Enforce { number, assignment: Arc::unwrap_or_clone(assignment) }
        }
        Act::Withdraw(job) => ToAgent::Withdraw { number, job },
    }
}

struct Lines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    /// Whose they are, as far as that is known: a node of the cluster.
    node: Option<Name>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn of(read: R) -> Self {
        Self { reader: BufReader::new(read), line: Vec::new(), node: None }
    }

    /// The next line; nothing at the end.
    async fn next(&mut self) -> Result<Option<FromAgent>, Ended> {
        self.line.clear();
        let mut bounded = (&mut self.reader).take(LINE_BYTES_MAX);
        bounded.read_until(b'\n', &mut self.line).await?;
        if self.line.last() != Some(&b'\n') {
            let is_cut = self.line.len() as u64 == LINE_BYTES_MAX;
            let too_long = || Ended::Misread(format!("it is longer than {LINE_BYTES_MAX} bytes"));
            return if is_cut { Err(too_long()) } else { Ok(None) };
        }
        let said = serde_json::from_slice(&self.line);
        said.map(Some).map_err(|error| Ended::Misread(brief(&error.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testing::Still;
    use keeptime_model::units::CpuPpm;
    use std::collections::BTreeSet;
    use std::future;
    use tokio::io::DuplexStream;

    /// A connection to a broker that knows no agent yet, and what comes of it.
    fn connect(
        speaker: Speaker,
        outlived: impl Future<Output = ()>,
    ) -> (DuplexStream, impl Future<Output = ()>) {
        let Still { topology, hub, handle, .. } = Still::new();
        let reception = Reception::new(hub, handle, &topology, Nanos::from_secs(10));
        let (near, far) = tokio::io::duplex(1 << 10);
        let (read, write) = tokio::io::split(near);
        let received = async move { reception.receive(read, write, speaker, outlived).await };
        (far, received)
    }

    // Goal: who is no agent cannot have the broker read and wait. Method: nothing is said by who is not.
    #[tokio::test]
    async fn who_is_no_agent_hears_so_before_saying_anything() {
        let nobody = Speaker::Nobody("a user's certificate".into());
        let (far, received) = connect(nobody, future::pending());
        let hear = async {
            let mut told = String::new();
            BufReader::new(far).read_line(&mut told).await.unwrap();
            told
        };
        let ((), told) = tokio::join!(received, hear);
        assert!(told.contains("a user's certificate"), "{told}");
    }

    #[tokio::test]
    async fn a_silent_connection_ends_with_what_let_it_in() {
        let speaker =
            Speaker::Node { name: "n1".parse().unwrap(), until: WallTime::from_unix_nanos(0) };
        let (_far, received) = connect(speaker, future::ready(()));
        let ended = timeout(HELLO_WITHIN / 2, received).await;
        assert!(ended.is_ok(), "it was waited for its hello");
    }

    // Goal: an agent of another version, which comes back again and again, is noticed, and which node's it is. Method: what
    // cannot be read comes before its hello, and behind it.
    #[tokio::test]
    async fn an_agent_that_is_not_understood_is_told_of_by_its_node() {
        // The core hears of the agent, as long as it is there.
        let Still { topology, hub, handle, core: _core, .. } = Still::new();
        let node = topology.node(NodeIndex(0)).name.clone();
        let reception = Reception::new(hub, handle, &topology, Nanos::from_secs(10));
        let hello = format!(
            "{{\"hello\": {{\"version\": {VERSION}, \"node\": \"{node}\", \"not_enforced\": [], \
             \"holding\": []}}}}\n"
        );
        for (said, whose) in [("\"sing\"\n".into(), None), (hello + "\"sing\"\n", Some(&node))] {
            assert!(!reception.misread.has_told(whose));
            let received = reception.receive(
                said.as_bytes(),
                tokio::io::sink(),
                Speaker::Any,
                future::pending(),
            );
            timeout(HELLO_WITHIN, received).await.unwrap();
            assert!(reception.misread.has_told(whose), "{said}");
        }
    }

    /// What an agent hears that says hello, and this behind it.
    async fn answered(hello: &FromAgent, said: &[FromAgent]) -> ToAgent {
        let (far, received) = connect(Speaker::Any, future::pending());
        let (read, mut write) = tokio::io::split(far);
        let talk = async move {
            for line in [hello].into_iter().chain(said) {
                let text = serde_json::to_string(line).unwrap() + "\n";
                // Who is refused hears why, and no more is read.
                let _ = write.write_all(text.as_bytes()).await;
            }
            let told = BufReader::new(read).lines().next_line().await.unwrap().unwrap();
            serde_json::from_str(&told).unwrap()
        };
        tokio::join!(talk, received).0
    }

    /// Of an agent that holds so many jobs, or more.
    fn hello(jobs: usize, more: bool) -> FromAgent {
        FromAgent::Hello {
            version: VERSION,
            node: "n1".parse().unwrap(),
            not_enforced: vec![],
            refused: BTreeSet::new(),
            processor: None,
            counts: false,
            holding: (1..=jobs).map(held).collect(),
            more,
        }
    }

    fn held(number: usize) -> Assignment {
        let job = format!("r{number}").parse().unwrap();
        Assignment::new(job, CpuPpm::from_percent(1), WallTime::from_unix_nanos(9))
    }

    // Goal: no node is locked out by what it was granted. Method: many jobs at once, and some by lines that follow; who says
    // that more follows and then something else, or goes on for ever, is refused.
    #[tokio::test]
    async fn an_agent_is_welcome_whatever_it_holds() {
        let follows = |more| FromAgent::Holding { assignments: vec![held(7)], more };
        let welcome = |answer: ToAgent| matches!(answer, ToAgent::Welcome { .. });
        assert!(welcome(answered(&hello(4_097, false), &[]).await));
        assert!(welcome(answered(&hello(1, true), &[follows(true), follows(false)]).await));
        for (said, expected) in [
            (vec![follows(true), FromAgent::Beat], "not told to its end"),
            (vec![follows(true); HOLDING_LINES_MAX], "no room in 64 lines"),
        ] {
            let answer = answered(&hello(1, true), &said).await;
            let is_told =
                matches!(&answer, ToAgent::Unwelcome { reason } if reason.contains(expected));
            assert!(is_told, "{answer:?}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_read_of_a_line_is_said_briefly() {
        let long = format!("\"{}\"\n", "x".repeat(2 * TEXT_CHARS_MAX));
        let endless = vec![b' '; LINE_BYTES_MAX as usize];
        let cases = [
            (&b"\"sing\"\n"[..], "unknown variant `sing`"),
            (long.as_bytes(), "unknown variant `xxx"),
            (&endless, "it is longer than 16777216 bytes"),
        ];
        for (said, expected) in cases {
            let Err(Ended::Misread(why)) = Lines::of(said).next().await else {
                panic!("it was read")
            };
            assert!(why.starts_with(expected) && why.len() <= TEXT_CHARS_MAX, "{why}");
        }
        assert!(matches!(Lines::of(&b"\"be"[..]).next().await, Ok(None)), "it hung up");
    }

    fn order(number: u64) -> Order {
        Order { number, act: Act::Withdraw("r1".parse().unwrap()) }
    }

    #[test]
    fn a_second_connection_of_a_node_replaces_the_first() {
        let hub = Hub::default();
        let (first, mut first_orders) = hub.enter(NodeIndex(0), Told::default());
        let (second, mut second_orders) =
            hub.enter(NodeIndex(0), Told { not_enforced: vec!["disk".into()], ..Told::default() });
        assert!(second.0 > first.0);
        hub.send(NodeIndex(0), first, order(1));
        hub.send(NodeIndex(0), second, order(2));
        assert!(first_orders.blocking_recv().is_none(), "it was cut off");
        let told = second_orders.blocking_recv().unwrap();
        assert!(matches!(told, ToAgent::Withdraw { number: 2, .. }));
        hub.leave(NodeIndex(0), first);
        assert_eq!((hub.count(), hub.told(NodeIndex(0)).not_enforced.len()), (1, 1));
    }

    #[test]
    fn who_has_not_answered_is_not_asked_again() {
        let hub = Hub::default();
        let counts = Told { counts: true, ..Told::default() };
        let (session, mut orders) = hub.enter(NodeIndex(0), counts);
        let (_, mut silent) = hub.enter(NodeIndex(1), Told::default());
        let counters = |at| NodeCounters {
            at: Nanos::new(at),
            cpu_used: Nanos::new(0),
            cpu: keeptime_model::units::CpuPpm::from_percent(100),
            runnable: 0,
        };
        (0..3).for_each(|_| hub.ask_loads(|_| true));
        assert_eq!(orders.try_recv(), Ok(ToAgent::Count));
        assert!(orders.try_recv().is_err() && silent.try_recv().is_err(), "it cannot say");
        hub.counted(NodeIndex(0), session, Some(counters(7)));
        hub.counted(NodeIndex(0), Session(99), Some(counters(8)));
        assert_eq!(hub.loads(), [(NodeIndex(0), counters(7))], "of this connection alone");
        hub.ask_loads(|_| false);
        assert!(orders.try_recv().is_err(), "another says so");
        hub.ask_loads(|_| true);
        assert_eq!(orders.try_recv(), Ok(ToAgent::Count));
        hub.counted(NodeIndex(0), session, None);
        assert_eq!(hub.loads(), [(NodeIndex(0), counters(7))], "it gets no newer");
        hub.ask_loads(|_| true);
        assert_eq!(orders.try_recv(), Ok(ToAgent::Count), "it is asked again");
    }

    #[test]
    fn an_agent_that_takes_no_orders_is_cut_off() {
        let hub = Hub::default();
        let (session, _orders) = hub.enter(NodeIndex(0), Told::default());
        for number in 0..=ORDERS_MAX as u64 {
            assert_eq!(hub.count(), 1, "{number}");
            hub.send(NodeIndex(0), session, order(number));
        }
        assert_eq!(hub.count(), 0);
    }
}
