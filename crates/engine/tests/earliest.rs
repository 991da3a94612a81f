//! When any nodes are asked for, the earliest start that a refusal tells is that of a look at every node in
//! every second. On a star, where no link between switches can be in the way, and some of whose nodes are away.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::{Answer, Call, CallError};
use keeptime_model::reservation::{NodeChoice, Request};
use proptest::prelude::*;
use world::{World, at, request};

const NODES: u32 = 6;
/// Twice as many seconds as it takes until nothing that is asked here is busy any more, and every node counts.
const SECONDS: usize = 1_000;
/// Later than agents are told ahead, so that nobody has to be asked.
const FIRST: u64 = 1_000;
/// When it is asked. Who is away by then has been so for no longer.
const NOW: u64 = 300;
/// So much later who is offered a start is granted it still.
const ACCEPTED_WITHIN: u64 = 60;

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

    /// When it is granted as it is asked for, or offered otherwise, where nodes are away for so long.
    fn earliest(&self, asked: &Asked, away: &[Option<u64>]) -> Option<u64> {
        let is_offered = |start: &u64| self.fits(asked, *start, away, ACCEPTED_WITHIN);
        let is_granted = self.fits(asked, asked.from, away, 0);
        let later = || (asked.from..SECONDS as u64 / 2).find(is_offered);
        is_granted.then_some(asked.from).or_else(later)
    }

    /// Whether enough nodes have room from `start` on, and count for that `later` than now.
    fn fits(&self, asked: &Asked, start: u64, away: &[Option<u64>], later: u64) -> bool {
        let more = asked.of_node();
        let fits = |used: &Amounts| (0..2).all(|of| used[of] + more[of] <= ALL[of]);
        let seconds = &self.0[start as usize..][..asked.seconds as usize];
        let is_free = |node: &usize| seconds.iter().all(|second| fits(&second[*node]));
        let ahead = FIRST + start - (NOW + later);
        let counts = |node: &usize| {
            away[*node].is_none_or(|away| ahead > 600 && ahead >= 4 * (away + later))
        };
        let nodes = 0..NODES as usize;
        nodes.filter(is_free).filter(counts).count() >= asked.nodes as usize
    }
}

proptest! {
    #[test]
    fn the_earliest_start_is_that_of_a_look_at_every_second(
        before in prop::collection::vec(asked(), 0..14),
        away in prop::collection::vec(prop::option::of(80..210u64), NODES as usize),
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
        let mut gone: Vec<_> = (0..NODES).zip(&away).filter_map(|(node, away)| Some(((*away)?, node))).collect();
        gone.sort_unstable();
        let mut left = NOW;
        for (away, node) in gone.into_iter().rev() {
            world.pass(left - away);
            world.disconnect(node);
            left = away;
        }
        world.pass(left);
        let found = match world.call("ada", Call::Consider { request: then.request() }).unwrap() {
            Ok(Answer::Possible { from, .. }) => Some(from),
            Err(CallError::Refused { refusal, .. }) => refusal.earliest_start_unix_nanos,
            other => panic!("{other:?}"),
        };
        prop_assert_eq!(found, seconds.earliest(&then, &away).map(|start| at(FIRST + start)));
    }
}
