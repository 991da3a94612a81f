//! When any nodes are asked for, the earliest start that a refusal tells is that of a look at every node in
//! every second. On a star, where no link between switches can be in the way.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::{Answer, Call, CallError};
use keeptime_model::reservation::{NodeChoice, Request};
use proptest::prelude::*;
use world::{World, at, request};

const NODES: u32 = 6;
/// Seconds until nothing that is asked here is busy any more.
const SECONDS: usize = 200;
/// Later than agents are told ahead, so that nobody has to be asked.
const FIRST: u64 = 1_000;

/// Some of a node: CPU in per cent, and what it sends and receives in Mbit/s.
type Amounts = [u64; 2];

/// All of a node, and as much for its link both ways.
const ALL: Amounts = [100, 100];

/// So much on each of some nodes.
#[derive(Debug, Clone)]
struct Asked {
    nodes: u32,
    from: u64,
    seconds: u64,
    percent: u32,
    mbit: u64,
}

impl Asked {
    fn request(&self) -> Request {
        let Self { nodes, from, seconds, percent, mbit } = *self;
        request(NodeChoice::Any(nodes), percent, mbit, FIRST + from, seconds)
    }

    /// Of each node: every one sends to every other.
    fn of_node(&self) -> Amounts {
        [u64::from(self.percent), self.mbit * u64::from(self.nodes - 1)]
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    let percents = prop::sample::select(vec![30u32, 50, 100]);
    let rates = prop::sample::select(vec![0u64, 10, 20]);
    (1..=NODES, 0..40u64, 1..30u64, percents, rates).prop_map(
        |(nodes, from, seconds, percent, mbit)| Asked { nodes, from, seconds, percent, mbit },
    )
}

/// What is used of each node in each second.
struct Seconds(Vec<[Amounts; NODES as usize]>);

impl Seconds {
    fn take(&mut self, asked: &Asked, nodes: &[usize]) {
        for second in &mut self.0[asked.from as usize..][..asked.seconds as usize] {
            for node in nodes {
                let used = &mut second[*node];
                *used = [0, 1].map(|of| used[of] + asked.of_node()[of]);
            }
        }
    }

    fn earliest(&self, asked: &Asked) -> Option<u64> {
        let more = asked.of_node();
        let fits = |used: &Amounts| (0..2).all(|of| used[of] + more[of] <= ALL[of]);
        let starts_at = |start: &usize| {
            let seconds = &self.0[*start..][..asked.seconds as usize];
            let free = |node: &usize| seconds.iter().all(|second| fits(&second[*node]));
            (0..NODES as usize).filter(free).count() >= asked.nodes as usize
        };
        (asked.from as usize..SECONDS / 2).find(starts_at).map(|start| start as u64)
    }
}

proptest! {
    #[test]
    fn the_earliest_start_is_that_of_a_look_at_every_second(
        before in prop::collection::vec(asked(), 0..14),
        then in asked(),
    ) {
        let mut world = World::star(NODES);
        let mut seconds = Seconds(vec![[[0; 2]; NODES as usize]; SECONDS]);
        for (number, asked) in before.into_iter().enumerate() {
            let Ok(handle) = world.reserve(&format!("k{number}"), asked.request()) else { continue };
            let grant = world.engine.book().reservations()[&handle].grant.clone().unwrap();
            let node = |name| world.engine.cluster().node(name).unwrap().0 as usize;
            seconds.take(&asked, &grant.nodes.iter().map(node).collect::<Vec<_>>());
        }
        let found = match world.call("ada", Call::Consider { request: then.request() }).unwrap() {
            Ok(Answer::Possible { from, .. }) => Some(from),
            Err(CallError::Refused { refusal, .. }) => refusal.earliest_start_unix_nanos,
            other => panic!("{other:?}"),
        };
        prop_assert_eq!(found, seconds.earliest(&then).map(|start| at(FIRST + start)));
    }
}
