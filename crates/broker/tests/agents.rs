//! What an agent may say to the broker, over a connection in memory.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_agent::link::{FromAgent, ToAgent, VERSION};
use keeptime_broker::agents::{Hub, Reception, Speaker};
use keeptime_broker::core::{Core, CoreError, Handle};
use keeptime_credentials::dates::now;
use keeptime_engine::refusal::Reason;
use keeptime_engine::{Call, CallError, Caller, Cluster, Policy};
use keeptime_ledger::{Fault, MemoryDisk, MemoryLedger, Writer};
use keeptime_model::assignment::{Assignment, TrafficClass};
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::Request;
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::{CpuPpm, Nanos};
use keeptime_mpiqos::wire::{Ask, AskState, Communicator, RankAnswer, RankState, Terms};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
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
    /// On a connection of its own.
    fn connect(reception: &Reception) -> Self {
        let (near, far) = tokio::io::duplex(64 << 10);
        let reception = reception.clone();
        tokio::spawn(async move {
            let (read, write) = tokio::io::split(near);
            reception.receive(read, write, Speaker::Any, std::future::pending()).await;
        });
        let (read, said) = tokio::io::split(far);
        Self { heard: BufReader::new(read).lines(), said }
    }

    async fn say(&mut self, said: &FromAgent) {
        self.try_to_say(said).await.unwrap();
    }

    async fn hear(&mut self) -> ToAgent {
        self.try_to_hear().await.unwrap()
    }

    async fn try_to_say(&mut self, said: &FromAgent) -> io::Result<()> {
        let line = serde_json::to_string(said).unwrap() + "\n";
        self.said.write_all(line.as_bytes()).await
    }

    /// Nothing where it is cut off.
    async fn try_to_hear(&mut self) -> Option<ToAgent> {
        let line = self.heard.next_line().await.ok()??;
        Some(serde_json::from_str(&line).unwrap())
    }

    /// What the only rank of `r1` is answered; nothing where the agent is cut off before.
    async fn ask(&mut self, rank: &RankState) -> Option<RankAnswer> {
        let ranks = vec![rank.clone()];
        let programs = FromAgent::Programs { number: 1, job: "r1".parse().unwrap(), ranks };
        for said in [hello(Vec::new(), None), programs] {
            self.try_to_say(&said).await.ok()?;
        }
        loop {
            if let ToAgent::Programs { mut answers, .. } = self.try_to_hear().await? {
                return answers.remove(&rank.number);
            }
        }
    }
}

/// Of the agent of the first node.
fn hello(not_enforced: Vec<String>, processor: Option<String>) -> FromAgent {
    FromAgent::Hello {
        version: VERSION,
        node: "n1".parse().unwrap(),
        not_enforced,
        refused: BTreeSet::new(),
        processor,
        counts: false,
        holding: vec![],
        more: false,
    }
}

/// A broker of one node, in a thread of its own.
struct Running {
    hub: Arc<Hub>,
    handle: Handle,
    reception: Reception,
    thread: JoinHandle<Result<(), CoreError>>,
}

impl Running {
    /// Recording there.
    fn on(disk: &MemoryDisk) -> Self {
        let topology = Topology::from_toml(&topology(1)).unwrap();
        let cluster = Cluster::new(topology.clone(), |rate| rate).unwrap();
        let writer = Writer::start(MemoryLedger::open(disk).unwrap()).unwrap();
        let (hub, policy) = (Arc::new(Hub::default()), Policy::default());
        let lease = policy.agent_lease_nanos;
        let (core, handle, ..) = Core::new(cluster, policy, writer, Arc::clone(&hub)).unwrap();
        let thread = std::thread::spawn(move || core.run());
        let reception = Reception::new(Arc::clone(&hub), handle.clone(), &topology, lease);
        Self { hub, handle, reception, thread }
    }
}

/// The only rank of a program that wants 30 % of a CPU.
fn rank() -> RankState {
    let terms = Terms {
        class: TrafficClass::BestEffort,
        bits_per_second: Default::default(),
        message_bytes_max: Default::default(),
        cpu_ppm: CpuPpm::from_percent(30),
        disk_read_bytes_per_second: Default::default(),
        disk_write_bytes_per_second: Default::default(),
        within_nanos: Default::default(),
        paced: true,
    };
    let communicator = Communicator { members: vec![0], index: 0, talk: Pattern::AllToAll };
    RankState { number: 0, size: 1, asks: vec![Ask { communicator, change: 1, terms, seen: None }] }
}

#[tokio::test]
async fn texts_of_any_length_are_cut_short_and_the_broker_goes_on() {
    // What one agent says is remembered, shown and recorded: no agent ends the broker with it.
    let Running { hub, handle, reception, thread } = Running::on(&MemoryDisk::default());
    let mut agent = Agent::connect(&reception);
    agent.say(&hello(vec!["x".repeat(5_000); 1_000], Some("y".repeat(5_000)))).await;
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

// Goal: what nobody knows of any more is taken back, whichever line it is told by. Method: two jobs of a broker that has lost its
// records, in two lines.
#[tokio::test]
async fn all_lines_of_what_an_agent_holds_are_compared() {
    let Running { handle, reception, thread, .. } = Running::on(&MemoryDisk::default());
    let mut agent = Agent::connect(&reception);
    let held = |job: &str| {
        let until = now().saturating_add(Nanos::from_secs(60));
        Assignment::new(job.parse().unwrap(), CpuPpm::from_percent(1), until)
    };
    let mut first = hello(Vec::new(), None);
    let FromAgent::Hello { holding, more, .. } = &mut first else { panic!() };
    (*holding, *more) = (vec![held("r7")], true);
    agent.say(&first).await;
    agent.say(&FromAgent::Holding { assignments: vec![held("r8")], more: false }).await;
    assert!(matches!(agent.hear().await, ToAgent::Welcome { .. }));
    for expected in ["r7", "r8"] {
        let ToAgent::Withdraw { job, .. } = agent.hear().await else { panic!("no order") };
        assert_eq!(job.as_str(), expected);
    }
    handle.stop();
    thread.join().unwrap().unwrap();
}

// Goal: a disk that is full for a moment refuses nothing to a program for good. Method: a rank asks in that moment; its agent,
// which is cut off, comes back and says the same, as agents do.
#[tokio::test]
async fn a_rank_that_asks_while_nothing_can_be_recorded_is_granted_it_later() {
    let disk = MemoryDisk::default();
    let Running { handle, reception, thread, .. } = Running::on(&disk);
    // In two hours, so that no agent has to be asked.
    let from_unix_nanos = Some(now().saturating_add(Nanos::from_secs(7_200)));
    let request = Request { from_unix_nanos, ..request(1, 10, 0, 60) };
    let caller = Caller { user: "ada".parse().unwrap(), operator: false };
    let call = Call::Reserve { key: "one".parse().unwrap(), request };
    handle.call(caller, call).await.unwrap().unwrap();
    disk.fail_append(1, Fault::Full);
    let answer = loop {
        if let Some(answer) = Agent::connect(&reception).ask(&rank()).await {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(answer.answers[0].state, AskState::Granted, "{answer:?}");
    handle.stop();
    thread.join().unwrap().unwrap();
}
