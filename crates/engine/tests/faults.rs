//! Whatever happens (agents that refuse, fall silent, go and come back, orders that are lost, brokers
//! that are killed before or after a record is durable, clocks that are set back): nothing is
//! promised twice, every reservation is whole or absent, the record says all, and when the trouble
//! is over, agents enforce exactly what was granted.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::event::Granted;
use keeptime_engine::{Answer, Call, Event, Input};
use keeptime_model::extension::Extension;
use keeptime_model::reservation::{Handle, NodeChoice, OnLoss, Request, State};
use keeptime_model::topology::LinkDirection;
use keeptime_model::units::{CpuPpm, WallTime};
use proptest::prelude::*;
use std::collections::BTreeMap;
use world::{Manner, START, World, request};

const NODES: u32 = 4;

#[derive(Debug, Clone)]
enum Op {
    Reserve {
        key: u8,
        nodes: Vec<u8>,
        percent: u32,
        mbit: u64,
        ahead: u64,
        seconds: u64,
        moves: bool,
    },
    Modify {
        which: u8,
        nodes: Vec<u8>,
        percent: u32,
        mbit: u64,
        ahead: u64,
        seconds: u64,
    },
    Extend {
        which: u8,
        percent: u32,
        mbit: u64,
    },
    Cancel {
        which: u8,
    },
    Obey {
        node: u32,
    },
    Pump,
    Pass {
        seconds: u64,
    },
    Back {
        seconds: u64,
    },
    Manner {
        node: u32,
        manner: u8,
    },
    LoseOrder {
        node: u32,
    },
    Disconnect {
        node: u32,
    },
    Connect {
        node: u32,
    },
    /// The agent's machine starts anew: it holds nothing any more.
    Reboot {
        node: u32,
    },
    Restart,
    /// The broker is killed after it decided and before that is durable.
    RestartTorn,
}

fn op() -> impl Strategy<Value = Op> {
    let node = 0..NODES;
    let which = 0u8..6;
    let nodes = prop::collection::vec(0u8..NODES as u8, 0..3);
    let seconds = prop_oneof![Just(0u64), 1u64..30, 500u64..900];
    let ahead = prop_oneof![2 => Just(0u64), 1 => 1u64..40, 1 => 500u64..1_300];
    let what = (nodes, 1u32..101, 0u64..70, ahead, seconds);
    prop_oneof![
        6 => (0u8..12, what.clone(), any::<bool>()).prop_map(
            |(key, (nodes, percent, mbit, ahead, seconds), moves)| Op::Reserve {
                key, nodes, percent, mbit, ahead, seconds, moves
            }
        ),
        3 => (which.clone(), what).prop_map(
            |(which, (nodes, percent, mbit, ahead, seconds))| Op::Modify {
                which, nodes, percent, mbit, ahead, seconds
            }
        ),
        3 => (which.clone(), 0u32..101, 0u64..70)
            .prop_map(|(which, percent, mbit)| Op::Extend { which, percent, mbit }),
        2 => which.prop_map(|which| Op::Cancel { which }),
        6 => node.clone().prop_map(|node| Op::Obey { node }),
        3 => Just(Op::Pump),
        4 => prop_oneof![1u64..5, 8u64..40, 400u64..700].prop_map(|seconds| Op::Pass { seconds }),
        1 => (1u64..4_000).prop_map(|seconds| Op::Back { seconds }),
        1 => (node.clone(), 0u8..3).prop_map(|(node, manner)| Op::Manner { node, manner }),
        1 => node.clone().prop_map(|node| Op::LoseOrder { node }),
        1 => node.clone().prop_map(|node| Op::Disconnect { node }),
        2 => node.clone().prop_map(|node| Op::Connect { node }),
        1 => node.prop_map(|node| Op::Reboot { node }),
        1 => Just(Op::Restart),
        1 => Just(Op::RestartTorn),
    ]
}

fn choice(nodes: &[u8]) -> NodeChoice {
    let names: std::collections::BTreeSet<_> =
        nodes.iter().map(|n| format!("n{}", n + 1)).collect();
    match names.is_empty() {
        true => NodeChoice::Any(2),
        false => NodeChoice::Named(names.iter().map(|name| name.parse().unwrap()).collect()),
    }
}

fn ask(world: &World, nodes: &[u8], percent: u32, mbit: u64, ahead: u64, seconds: u64) -> Request {
    let since_start = world.now.saturating_since(START).get() / 1_000_000_000;
    let from = if ahead == 0 { 0 } else { since_start + ahead };
    let mbit = if choice(nodes).count() < 2 { 0 } else { mbit };
    request(choice(nodes), percent, mbit, from, seconds)
}

fn carry_out(world: &mut World, op: &Op) {
    match op {
        Op::Reserve { key, nodes, percent, mbit, ahead, seconds, moves } => {
            let on_loss = if *moves { OnLoss::Move } else { OnLoss::Tell };
            let request =
                Request { on_loss, ..ask(world, nodes, *percent, *mbit, *ahead, *seconds) };
            world.begin("ada", Call::Reserve { key: format!("k{key}").parse().unwrap(), request });
        }
        Op::Modify { which, nodes, percent, mbit, ahead, seconds } => {
            if let Some(handle) = live(world, *which) {
                let request = ask(world, nodes, *percent, *mbit, *ahead, *seconds);
                world.begin("ada", Call::Modify { handle, request });
            }
        }
        Op::Extend { which, percent, mbit } => {
            if let Some(handle) = live(world, *which) {
                let flows = match mbit {
                    0 => vec![],
                    mbit => vec![world::flow(0, 1, *mbit)],
                };
                let cpu_ppm = CpuPpm::from_percent(*percent);
                let extension = Extension { flows, cpu_ppm, ..Extension::default() };
                world.begin("ada", Call::Extend { handle, extension });
            }
        }
        Op::Cancel { which } => {
            if let Some(handle) = live(world, *which) {
                world.begin("ada", Call::Cancel { handle });
            }
        }
        Op::Obey { node } => {
            world.obey(*node);
        }
        Op::Pump => world.pump(),
        Op::Pass { seconds } => world.pass(*seconds),
        Op::Back { seconds } => {
            let back = world.now.unix_nanos() - seconds * world::SECOND;
            world.now = WallTime::from_unix_nanos(back);
            world.input(Input::Passed);
            world.now = world.engine.now();
        }
        Op::Manner { node, manner } => {
            let manner = [Manner::Obeys, Manner::Refuses, Manner::Silent][*manner as usize];
            world.agents[*node as usize].manner = manner;
        }
        Op::LoseOrder { node } => {
            // Only with its connection.
            if world.agents[*node as usize].inbox.pop_front().is_some() {
                world.disconnect(*node);
            }
        }
        Op::Disconnect { node } => world.disconnect(*node),
        Op::Connect { node } => {
            world.disconnect(*node);
            world.connect(*node);
        }
        Op::Reboot { node } => {
            world.disconnect(*node);
            world.agents[*node as usize].holding.clear();
        }
        Op::Restart => world.restart(),
        Op::RestartTorn => {
            let request = ask(world, &[0], 5, 0, 700, 50);
            let call = Call::Reserve { key: "torn".parse().unwrap(), request };
            let caller = world::caller("bob");
            let ticket = keeptime_engine::Ticket(0);
            // Nothing of this step becomes durable or leaves.
            world.engine.step(world.moment(), Input::Call { ticket, caller, call });
            world.restart();
        }
    }
}

fn live(world: &World, which: u8) -> Option<Handle> {
    let all = world.engine.book().reservations();
    let live: Vec<_> = all.values().filter(|r| r.state.is_live()).map(|r| r.handle).collect();
    (!live.is_empty()).then(|| live[which as usize % live.len()])
}

/// What live reservations take of every resource at each instant where one begins: none is more
/// than there is. Counted from the book, without the slot tables.
fn check_capacity(world: &World) {
    let book = world.engine.book();
    let live: Vec<_> = book.reservations().values().filter(|r| r.state.is_live()).collect();
    let names: Vec<_> = world.topology.nodes().iter().map(|node| &node.name).collect();
    for begin in live.iter().map(|r| r.from_unix_nanos) {
        let at_once = live.iter().filter(|r| {
            r.from_unix_nanos <= begin && r.until_unix_nanos.is_none_or(|until| begin < until)
        });
        let (mut cpu, mut links) = (BTreeMap::new(), BTreeMap::new());
        for reservation in at_once {
            let grant = reservation.grant.as_ref().unwrap();
            let nodes: Vec<_> =
                grant.nodes.iter().map(|name| world.topology.find_node(name).unwrap()).collect();
            for node in &nodes {
                *cpu.entry(*node).or_insert(0u64) += u64::from(grant.cpu().get());
            }
            let pattern = grant.pattern.as_ref();
            let flows = pattern.map_or(vec![], |p| p.flows(nodes.len() as u32).unwrap());
            let flows = flows.iter().map(|flow| (flow.from, flow.to, grant.bits_per_second));
            let beside = grant.extension.premium().map(|f| (f.from, f.to, f.bits_per_second));
            for (from, to, rate) in flows.chain(beside) {
                let path = world.topology.path(nodes[from as usize], nodes[to as usize]);
                for LinkDirection(direction) in path {
                    *links.entry(direction).or_insert(0u64) += rate.get();
                }
            }
        }
        assert!(cpu.values().all(|used| *used <= 1_000_000), "{cpu:?} of {names:?}");
        assert!(links.values().all(|used| *used <= 100_000_000), "{links:?}");
    }
}

/// Every reservation that has started is told to all of its nodes, and no answer came before its
/// record.
fn check_whole(world: &World) {
    for reservation in world.engine.book().reservations().values() {
        if reservation.state == State::Active {
            for name in &reservation.grant.as_ref().unwrap().nodes {
                let node = world.topology.find_node(name).unwrap();
                let told = world.engine.told(node).any(|(handle, ..)| handle == reservation.handle);
                assert!(told, "{} is active and {name} does not know", reservation.handle);
            }
        }
    }
    for answer in world.answers.values() {
        if let Ok(Answer::Reservation(reservation)) = answer {
            let granted = |(_, event): &(WallTime, keeptime_engine::Event)| {
                event.handle() == Some(reservation.handle)
            };
            assert!(world.record.iter().any(granted), "an answer without a record");
        }
    }
}

/// The trouble ends: agents obey and are connected, time goes on a little.
fn calm_down(world: &mut World) {
    for agent in &mut world.agents {
        agent.manner = Manner::Obeys;
    }
    world.connect_all();
    world.pump();
    world.pass(30);
    assert_eq!(world.engine.offer_count(), 0, "offers are granted or given up");
}

/// Everyone enforces what was granted, and nobody anything else.
fn check_enforced(world: &World) {
    for node in world.topology.node_indices() {
        let told: BTreeMap<_, _> =
            world.engine.told(node).map(|(handle, a, _)| (handle.job(), a.clone())).collect();
        let now = world.now;
        let mut holding = world.agents[node.0 as usize].holding.clone();
        holding.retain(|_, assignment| assignment.until_unix_nanos > now);
        assert_eq!(holding, told, "node {}", node.0);
        assert!(world.engine.told(node).all(|(.., accepted)| accepted));
    }
    let mut wanted = BTreeMap::new();
    for reservation in world.engine.book().reservations().values() {
        let soon = world.now.saturating_add(world.engine.policy().tell_ahead_nanos);
        if reservation.state.is_live() && reservation.from_unix_nanos <= soon {
            for name in &reservation.grant.as_ref().unwrap().nodes {
                wanted.entry(name.clone()).or_insert_with(Vec::new).push(reservation.handle);
            }
        }
    }
    for node in world.topology.node_indices() {
        let name = &world.topology.node(node).name;
        let told: Vec<_> = world.engine.told(node).map(|(handle, ..)| handle).collect();
        assert_eq!(told, wanted.remove(name).unwrap_or_default(), "{name}");
    }
}

/// The slot tables after a replay are those of the engine, when nothing is being offered.
fn check_replay(world: &World) {
    let again = world.replayed();
    assert!(again.book() == world.engine.book(), "the record adds up to the state");
    let held = |(id, held): (_, &keeptime_calendar::calendar::Held)| {
        let demands: Vec<_> = held.demands.iter().filter(|d| d.amount > 0).copied().collect();
        (id, held.span, demands)
    };
    let [mine, its] =
        [&world.engine, &again].map(|e| e.calendar().reservations().map(held).collect::<Vec<_>>());
    assert_eq!(mine, its);
}

fn try_all(ops: &[Op]) {
    let mut world = World::star(NODES);
    for op in ops {
        carry_out(&mut world, op);
        check_capacity(&world);
        check_whole(&world);
    }
    calm_down(&mut world);
    check_enforced(&world);
    check_replay(&world);
}

fn cases() -> u32 {
    std::env::var("KEEPTIME_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn nothing_is_promised_twice_and_nothing_granted_is_lost(
        ops in prop::collection::vec(op(), 1..60)
    ) {
        try_all(&ops);
    }
}

/// The check can fail: an agent that says yes and does nothing is found.
#[test]
#[should_panic(expected = "node 1")]
fn an_agent_that_lies_is_found() {
    let mut world = World::star(NODES);
    world.agents[1].manner = Manner::Lies;
    let request = request(world::named(&["n1", "n2"]), 10, 0, 0, 600);
    world.begin("ada", Call::Reserve { key: "k".parse().unwrap(), request });
    world.pump();
    check_enforced(&world);
}

/// A record that promises something twice is not believed: what came second is failed.
#[test]
fn a_record_that_promises_twice_is_not_believed() {
    let mut world = World::star(NODES);
    world.reserve("k", request(world::named(&["n1"]), 60, 0, 5_000, 60)).unwrap();
    let (time, Event::Granted { granted, .. }) = world.record[0].clone() else { panic!() };
    let granted = Box::new(Granted { key: "forged".parse().unwrap(), ..*granted });
    world.record.push((time, Event::Granted { handle: Handle::new(2), granted }));
    world.restart();
    check_capacity(&world);
    assert_eq!(world.kinds(), ["granted", "granted", "failed"]);
}
