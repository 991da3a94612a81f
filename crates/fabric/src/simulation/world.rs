//! Three nodes with a context each: time passes, everybody does what there is to do, and what must hold is looked at.

mod reach;
mod trouble;

use super::clock::Clock;
use super::context::{Context, MESSAGE_MOST};
use super::ledger::{Counts, Ledger};
use super::line::{GONE_AFTER, Line};
use super::resource::Resource;
use super::{Bug, Fault};
use crate::flow::{WINDOW, WINDOW_CARRIED};
use crate::frame::EAGER_MOST;
use crate::id::{ContextId, ResourceId};
use crate::inbox::NO_LINK;
use crate::junction::Junction;
use crate::matching::Match;
use crate::streams::ALONE_MOST;
use keeptime_random::Random;
use reach::{Call, Reach};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

const NODES: usize = 3;
/// Of two nodes.
const PAIRS: usize = 3;
/// Of each context.
const RESOURCES: usize = 2;
/// What happens before everything is to become quiet.
const STEPS: usize = 60;
/// How often links are looked after, as the keeper does it.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// When there is no more trouble: rounds until everything is to be quiet, and how long they take, at first, then, and
/// while it is quiet already.
const ROUNDS_MOST: usize = 900;
const QUIET_ROUNDS: usize = 3;
const SHORT_ROUNDS: usize = 200;
const SHORT: Duration = Duration::from_millis(5);
const MIDDLE: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(1);
/// Bytes that a bridge reads at once.
const CARRIED: usize = 16 << 10;
/// Last things that happened that are told.
const LOG_MOST: usize = 40;

/// What one run has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What became of how many messages.
    pub counts: Counts,
    /// Calls for contexts that were no more, and such as were given up before they came.
    pub refused: usize,
    /// Connections that went over bridges.
    pub bridged: usize,
    /// When it was over.
    pub ended_at: Duration,
}

/// Where a context is, as the directory has it.
struct Known {
    node: usize,
    /// It is no more, and is forgotten then.
    until: Option<Duration>,
}

/// All of it.
pub struct World {
    clock: Clock,
    /// What the clock counts from, for those who reckon with times of this machine.
    start: Instant,
    random: Random,
    bug: Option<Bug>,
    faults: Vec<Fault>,
    /// There is no more trouble.
    is_over: bool,
    reach: [Reach; PAIRS],
    nodes: [Option<Rc<Context>>; NODES],
    resources: [Vec<Resource>; NODES],
    /// All that there ever was.
    named: Vec<ResourceId>,
    directory: BTreeMap<ContextId, Known>,
    lines: Vec<Line>,
    calls: Vec<Call>,
    /// Until when two nodes do not reach each other.
    parted: [Option<Duration>; PAIRS],
    ledger: Ledger,
    looked: Duration,
    last: u64,
    refused: usize,
    bridged: usize,
    bytes: Vec<u8>,
    log: VecDeque<String>,
}

impl World {
    /// That of a seed, before anything has happened.
    pub fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut random = Random::new(seed);
        let faults = Fault::ALL.into_iter().filter(|_| random.is_one_in(2)).collect();
        let reach = [(); PAIRS].map(|()| Reach::of(&mut random));
        let mut world = Self {
            clock: Clock::default(),
            start: Instant::now(),
            random,
            bug,
            faults,
            is_over: false,
            reach,
            nodes: Default::default(),
            resources: Default::default(),
            named: Vec::new(),
            directory: BTreeMap::new(),
            lines: Vec::new(),
            calls: Vec::new(),
            parted: [None; PAIRS],
            ledger: Ledger::default(),
            looked: Duration::ZERO,
            last: 0,
            refused: 0,
            bridged: 0,
            bytes: vec![0; CARRIED],
            log: VecDeque::new(),
        };
        (0..NODES).for_each(|node| world.begin(node));
        world
    }

    /// What goes wrong in it.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// The last things that happened.
    pub fn log(self) -> VecDeque<String> {
        self.log
    }

    /// Everything that happens.
    ///
    /// # Errors
    /// If something does not hold.
    pub fn live(&mut self) -> Result<Report, String> {
        for _ in 0..STEPS {
            self.step()?;
        }
        self.is_over = true;
        self.parted = [None; PAIRS];
        (0..NODES).for_each(|node| self.begin(node));
        // Until everybody has found out who is gone.
        self.settle(GONE_AFTER + 2 * LOOK_EVERY)?;
        self.linked_to_gone().map_or(Ok(()), Err)?;
        // Until whoever is still there has found out that the other end has given up a stream.
        self.settle(ALONE_MOST)?;
        let first = self.ledger.counts().letters;
        self.greet_all();
        self.settle(Duration::ZERO)?;
        self.ledger.missing(first).map_or(Ok(()), Err)?;
        let (counts, ended_at) = (self.ledger.counts(), self.clock.now());
        Ok(Report { counts, refused: self.refused, bridged: self.bridged, ended_at })
    }

    fn step(&mut self) -> Result<(), String> {
        match self.random.below(8) {
            0..=3 => self.post(),
            4 | 5 => self.go_wrong()?,
            _ => {}
        }
        let most = match self.random.below(8) {
            0..=4 => 2,
            5 | 6 => 40,
            _ => 1000,
        };
        let time = self.time(Duration::from_millis(most));
        self.round(time)
    }

    /// Less than `most`.
    fn time(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random.below(most.as_nanos() as u64))
    }

    /// Some messages from one resource to another.
    fn post(&mut self) {
        let node = self.random.index(NODES);
        let others: Vec<_> = self.all_but(node).collect();
        let is_any = self.random.is_one_in(8);
        let known = if is_any { &self.named } else { &others };
        let (to, at) = (self.random.pick(known).copied(), self.random.index(RESOURCES));
        for _ in 0..=self.random.below(6) {
            let (length, is_lent) = (self.length(), self.random.is_one_in(2));
            let (Some(to), Some(from)) = (to, self.resources[node].get_mut(at)) else { return };
            if to.context != from.id.context {
                from.post(&mut self.ledger, to, length, is_lent);
            }
        }
    }

    /// The resources of all other nodes.
    fn all_but(&self, node: usize) -> impl Iterator<Item = ResourceId> {
        let others = self.resources.iter().enumerate().filter(move |(other, _)| *other != node);
        others.flat_map(|(_, resources)| resources.iter().map(|resource| resource.id))
    }

    fn length(&mut self) -> usize {
        match self.random.below(16) {
            0..=8 => self.random.index(200),
            9..=11 => self.random.index(EAGER_MOST + 1),
            12..=14 => EAGER_MOST + 1 + self.random.index(MESSAGE_MOST - EAGER_MOST),
            _ => MESSAGE_MOST + 1,
        }
    }

    /// One message from each to each, when nothing goes wrong any more.
    fn greet_all(&mut self) {
        for node in 0..NODES {
            let others: Vec<_> = self.all_but(node).collect();
            for from in &mut self.resources[node] {
                others.iter().for_each(|to| from.post(&mut self.ledger, *to, 100, false));
            }
        }
    }

    /// A context begins, unless there is one.
    fn begin(&mut self, node: usize) {
        if self.nodes[node].is_some() {
            return;
        }
        self.last += 1;
        let context = Rc::new(Context::new(ContextId::new(self.last), &self.clock, self.bug));
        self.directory.insert(context.id, Known { node, until: None });
        (0..RESOURCES).for_each(|_| self.open(node, &context));
        self.nodes[node] = Some(context);
    }

    fn open(&mut self, node: usize, context: &Context) {
        let id =
            ResourceId { context: context.id, place: context.junction.inboxes.open().unwrap() };
        self.named.push(id);
        self.resources[node].push(Resource::new(id));
    }

    /// So much time passes; then everybody does what there is to do, but for nodes that are busy.
    fn round(&mut self, time: Duration) -> Result<(), String> {
        self.clock.pass(time);
        let now = self.clock.now();
        self.directory.retain(|_, known| known.until.is_none_or(|until| now < until));
        self.lines.retain(Line::is_open);
        self.lines.iter_mut().for_each(|line| line.carry(&mut self.bytes));
        let is_busy = [(); NODES].map(|()| self.is(Fault::Busy) && self.random.is_one_in(2));
        self.take_calls(is_busy)?;
        let looks_after = now >= self.looked + LOOK_EVERY;
        if looks_after {
            self.looked = now;
        }
        for (node, is_busy) in is_busy.into_iter().enumerate() {
            let Some(context) = self.nodes[node].clone() else { continue };
            if looks_after {
                context.junction.look_after_links(&*context);
            }
            if !is_busy {
                self.tend(node, &context)?;
            }
        }
        self.check()
    }

    /// Whether this is what goes wrong.
    fn is(&self, fault: Fault) -> bool {
        !self.is_over && self.faults.contains(&fault)
    }

    /// Connections are taken by whom they are for, if that one is still there.
    fn take_calls(&mut self, is_busy: [bool; NODES]) -> Result<(), String> {
        let now = self.clock.now();
        self.calls.sort_by_key(|call| call.there_at);
        let due = self.calls.partition_point(|call| call.there_at <= now);
        let due: Vec<_> = self.calls.drain(..due).collect();
        for call in due {
            let to = call.nodes[1];
            if is_busy[to] {
                self.calls.push(call);
                continue;
            }
            // Without anybody there the caller finds it closed.
            let Some(context) = self.nodes[to].clone() else { continue };
            let is_taken = context.greeted(&call.greeting, call.ends)?;
            self.refused += usize::from(!is_taken);
        }
        Ok(())
    }

    /// What threads of a context do that wait, and its keeper.
    fn tend(&mut self, node: usize, context: &Context) -> Result<(), String> {
        context.tend();
        for stream in context.junction.streams.all() {
            if stream.is_due(self.start + self.clock.now()) {
                self.make_rails(node, context, &stream);
                stream.looked();
            }
        }
        for at in 0..self.resources[node].len() {
            while let Some(peer) = self.resources[node][at].next_peer(context, &mut self.ledger)? {
                let link = self.link_to(node, context, peer);
                let resource = &mut self.resources[node][at];
                if !resource.send(context, &mut self.ledger, link.as_ref())? {
                    break;
                }
            }
            let (most, wanted) = self.appetite();
            for _ in 0..most {
                if !self.resources[node][at].take(context, &mut self.ledger, &wanted)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// How much a receiver takes now, and what.
    fn appetite(&mut self) -> (u64, Match) {
        if self.is_over {
            return (64, Match::any());
        }
        let is_idle = self.is(Fault::Lazy) && !self.random.is_one_in(8);
        let most = if is_idle { 0 } else { self.random.below(6) };
        let from = self.random.pick(&self.named).copied().filter(|_| self.random.is_one_in(4));
        (most, from.map_or(Match::any(), |from| Match::any().from(from)))
    }

    /// What holds after every step, besides what became of messages.
    fn check(&self) -> Result<(), String> {
        for (context, resources) in self.nodes.iter().zip(&self.resources) {
            let Some(context) = context else { continue };
            context.mistake().map_or(Ok(()), Err)?;
            check_links(context)?;
            for resource in resources {
                check_windows(context, resource.id)?;
            }
        }
        Ok(())
    }

    /// Without any more trouble everything becomes quiet, and stays so for so long.
    fn settle(&mut self, time: Duration) -> Result<(), String> {
        let (until, mut quiet) = (self.clock.now() + time, 0);
        for round in 0..ROUNDS_MOST {
            let time = match round {
                _ if quiet > 0 => LONG,
                0..SHORT_ROUNDS => SHORT,
                _ => MIDDLE,
            };
            self.round(time)?;
            quiet = if self.restless().is_none() { quiet + 1 } else { 0 };
            if quiet >= QUIET_ROUNDS && self.clock.now() >= until {
                return Ok(());
            }
        }
        Err(self.restless().unwrap_or_else(|| "it does not stay quiet".into()))
    }

    /// Who waits for what, if anybody does.
    fn restless(&self) -> Option<String> {
        let is_there = |id: ContextId, link: u32| {
            let context = self.nodes.iter().flatten().find(|context| context.id == id);
            context.is_some_and(|context| context.junction.links.numbered(link).is_some())
        };
        self.ledger.open(is_there).or_else(|| self.busy())
    }

    /// Who has a link to a context that is no more, if anybody has.
    fn linked_to_gone(&self) -> Option<String> {
        let is_gone = |peer| !self.nodes.iter().flatten().any(|context| context.id == peer);
        self.nodes.iter().flatten().find_map(|context| {
            let view = context.junction.links.view();
            let gone = view.all().map(|link| link.peer).find(|peer| is_gone(*peer))?;
            Some(format!("{} has a link to {gone}, which is no more", context.id))
        })
    }

    /// Who has something to do, if anybody has.
    fn busy(&self) -> Option<String> {
        if !self.calls.is_empty() {
            return Some("calls are not taken".into());
        }
        let busy = self.nodes.iter().zip(&self.resources).find_map(|(context, resources)| {
            let context = context.as_ref()?;
            resources.iter().find(|resource| !resource.is_idle(context))
        });
        busy.map(|busy| format!("{} is not done", busy.id))
    }

    fn note(&mut self, what: String) {
        if self.log.len() >= LOG_MOST {
            self.log.pop_front();
        }
        self.log.push_back(format!("{:?} {what}", self.clock.now()));
    }
}

/// What is over is not kept, and who begins to send by another link has given up the one before.
fn check_links(context: &Context) -> Result<(), String> {
    let (id, Junction { links, streams, .. }) = (context.id, &context.junction);
    let (view, mut begun) = (links.view(), BTreeSet::new());
    for link in view.all() {
        if link.broken().is_some() {
            return Err(format!("{id} keeps a link to {} that is over", link.peer));
        }
        if link.has_begun_before(u32::MAX) && !begun.insert(link.peer) {
            return Err(format!("{} sends to {id} by two links", link.peer));
        }
    }
    let kept = streams.all().into_iter().find(|stream| links.numbered(stream.link.id).is_none());
    kept.map_or(Ok(()), |stream| {
        Err(format!("{id} keeps a stream to {} that is over", stream.link.peer))
    })
}

/// No sender has more waiting at a receiver than that has lent it; and what came by links that are over is known as that.
fn check_windows(context: &Context, id: ResourceId) -> Result<(), String> {
    let Junction { inboxes, links, .. } = &context.junction;
    let charged_by = |link| inboxes.with(id.place, |inbox| inbox.charged_by(link)).unwrap_or(0);
    let (view, mut known) = (links.view(), charged_by(NO_LINK));
    for link in view.all() {
        let window = if link.in_memory { WINDOW } else { WINDOW_CARRIED };
        let charged = charged_by(link.id);
        if charged > window {
            let peer = link.peer;
            return Err(format!("{id} holds {charged} of {peer}, which may send {window}"));
        }
        known += charged;
    }
    let charged = inboxes.with(id.place, |inbox| inbox.charged()).unwrap_or(0);
    if charged != known {
        return Err(format!("{id} holds {charged}, and knows by which links {known} came"));
    }
    Ok(())
}
