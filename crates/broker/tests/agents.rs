//! What an agent may say to the broker, over a connection in memory.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_agent::link::{FromAgent, ToAgent, VERSION};
use keeptime_broker::agents::{Hub, Reception, Speaker};
use keeptime_broker::core::Core;
use keeptime_engine::call::Reason;
use keeptime_engine::{Call, CallError, Caller, Cluster, Policy};
use keeptime_ledger::{MemoryDisk, MemoryLedger, Writer};
use keeptime_model::topology::{NodeIndex, Topology};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf,
};
use world::{request, topology};

/// The agent's end.
struct Agent {
    heard: Lines<BufReader<ReadHalf<DuplexStream>>>,
    said: WriteHalf<DuplexStream>,
}

impl Agent {
    fn new(stream: DuplexStream) -> Self {
        let (read, said) = tokio::io::split(stream);
        Self { heard: BufReader::new(read).lines(), said }
    }

    async fn say(&mut self, said: &FromAgent) {
        let line = serde_json::to_string(said).unwrap() + "\n";
        self.said.write_all(line.as_bytes()).await.unwrap();
    }

    async fn hear(&mut self) -> ToAgent {
        serde_json::from_str(&self.heard.next_line().await.unwrap().unwrap()).unwrap()
    }
}

#[tokio::test]
async fn texts_of_any_length_are_cut_short_and_the_broker_goes_on() {
    // What one agent says is remembered, shown and recorded: no agent ends the broker with it.
    let topology = Topology::from_toml(&topology(1)).unwrap();
    let cluster = Cluster::new(topology.clone(), |rate| rate).unwrap();
    let writer = Writer::start(MemoryLedger::open(&MemoryDisk::default()).unwrap()).unwrap();
    let (hub, policy) = (Arc::new(Hub::default()), Policy::default());
    let lease = policy.agent_lease_nanos;
    let (core, handle, ..) = Core::new(cluster, policy, writer, Arc::clone(&hub)).unwrap();
    let thread = std::thread::spawn(move || core.run());
    let reception = Reception::new(Arc::clone(&hub), handle.clone(), &topology, lease);
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(async move {
        let (read, write) = tokio::io::split(near);
        reception.receive(read, write, Speaker::Any, std::future::pending()).await;
    });
    let mut agent = Agent::new(far);
    let hello = FromAgent::Hello {
        version: VERSION,
        node: "n1".parse().unwrap(),
        not_enforced: vec!["x".repeat(5_000); 1_000],
        refused: BTreeSet::new(),
        processor: Some("y".repeat(5_000)),
        counts: false,
        holding: vec![],
    };
    agent.say(&hello).await;
    assert!(matches!(agent.hear().await, ToAgent::Welcome { .. }));
    while !handle.read(|engine| engine.is_connected(NodeIndex(0))).await.unwrap() {
        tokio::task::yield_now().await;
    }
    let told = hub.told(NodeIndex(0));
    assert_eq!((told.not_enforced.len(), told.not_enforced[0].len()), (64, 1_000));
    assert_eq!(told.processor.unwrap().len(), 1_000);

    let core = handle.clone();
    let asked = tokio::spawn(async move {
        let key = "one".parse().unwrap();
        let caller = Caller { user: "ada".parse().unwrap(), operator: false };
        core.call(caller, Call::Reserve { key, request: request(1, 10, 0, 60) }).await
    });
    let ToAgent::Enforce { number, .. } = agent.hear().await else { panic!("no order") };
    // Longer than a batch of the ledger, if that is of more than one record.
    let refusal = Some("z".repeat(2 << 20));
    agent.say(&FromAgent::Answer { number, refusal }).await;
    let why = match *asked.await.unwrap().unwrap().unwrap_err() {
        CallError::Refused { refusal, .. } => match refusal.reason {
            Reason::AgentRefused { why, .. } => why,
            other => panic!("{other:?}"),
        },
        other => panic!("{other}"),
    };
    assert_eq!(why.len(), 1_000);
    handle.stop();
    thread.join().unwrap().unwrap();
}
