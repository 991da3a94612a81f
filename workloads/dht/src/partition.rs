//! A partition as a state machine: from what it hears and who there is to what it says (pure).
//!
//! It has its extent but for what its children have. Requests for what it has not go to the child that
//! has it, or to one beside it: the widest, up to a thousandth of the hash space, that has the index, or else
//! the least of those that are wider.
//! From there they go down only. (In the paper they go up to the first partition that has both, so that
//! the super-partition has a part in half of all requests.) All that follows from the [`Chart`], which is looked at
//! whenever somebody may have come or gone: a child that is gone leaves its extent to the parent, with
//! a note that records are lost there; one that is new gets the records that are its business.

use crate::chart::{Chart, Living};
use crate::extent::{Extent, index_of, within, without};
use crate::message::{Answer, HOPS_MOST, Message, Outcome, Record, Request, Version};
use keeptime_fabric::ResourceId;
use serde_bytes::ByteBuf;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Requests that wait while a partition gets its records: more than clients ask in that time, and
/// each asks one thing at once.
const PARKED_MOST: usize = 4096;
/// How often its server asks a partition to leave before what it gives away at the time counts as lost on the way:
/// ten seconds.
const HELD_UP_MOST: u32 = 20;
/// Bytes of records that are handed over in one message.
const RECORDS_BYTES: usize = 1 << 20;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Say it.
    Send(ResourceId, Message),
    /// Tell a client, who has this tag for it.
    Answer(ResourceId, u64, Answer),
    /// Call [`Partition::look`] with what there is now.
    Look,
    /// Nothing is left to be done here: everything is elsewhere.
    Ended,
}

/// A partition.
#[derive(Debug)]
pub struct Partition {
    me: ResourceId,
    extent: Extent,
    generation: u32,
    stage: Stage,
    /// By where they begin.
    children: BTreeMap<u64, Neighbour>,
    /// Who has what it has not, by where they begin.
    beside: BTreeMap<u64, Neighbour>,
    /// Who has what none of these has, the least first.
    around: Vec<Neighbour>,
    handing: Option<Handing>,
    /// Who has said that it makes a partition of what it was given, and has not been seen yet.
    waiting: BTreeSet<ResourceId>,
    /// By index, then key.
    records: BTreeMap<(u32, ByteBuf), (Version, ByteBuf)>,
    /// Where what is not found may have been lost.
    lost: Vec<Extent>,
    /// What was handed over to whom, until they say that they have it.
    unthanked: BTreeMap<ResourceId, Handed>,
    /// Those of them who did not get it.
    missed: BTreeSet<ResourceId>,
}

#[derive(Debug)]
enum Stage {
    /// Has not got its records yet.
    Joining {
        giver: ResourceId,
        parked: VecDeque<(u8, Request)>,
    },
    Serving,
    /// Everything is there.
    Moved {
        to: ResourceId,
    },
}

/// Another partition, as the chart has it.
#[derive(Debug)]
struct Neighbour {
    extent: Extent,
    id: ResourceId,
}

/// What a server is to make a partition of.
#[derive(Debug)]
struct Handing {
    extent: Extent,
    server: ResourceId,
    /// How often something else waited for it since.
    held_up: u32,
}

#[derive(Debug, Default)]
struct Handed {
    records: Vec<Record>,
    lost: Vec<Extent>,
}

/// Whose an index is.
enum Way {
    Here,
    There(ResourceId),
    Unknown,
}

impl Partition {
    /// The partition `me` of what `giver` gave.
    pub fn joining(me: ResourceId, extent: Extent, generation: u32, giver: ResourceId) -> Self {
        let stage = Stage::Joining { giver, parked: VecDeque::new() };
        Self::new(me, extent, generation, stage)
    }

    /// The super-partition `me`, of a table that is new or has lost what nobody else has.
    pub fn founded(me: ResourceId, is_new: bool) -> Self {
        let mut founded = Self::new(me, Extent::ALL, 0, Stage::Serving);
        founded.lost.extend((!is_new).then_some(Extent::ALL));
        founded
    }

    fn new(me: ResourceId, extent: Extent, generation: u32, stage: Stage) -> Self {
        Self {
            me,
            extent,
            generation,
            stage,
            children: BTreeMap::new(),
            beside: BTreeMap::new(),
            around: Vec::new(),
            handing: None,
            waiting: BTreeSet::new(),
            records: BTreeMap::new(),
            lost: Vec::new(),
            unthanked: BTreeMap::new(),
            missed: BTreeSet::new(),
        }
    }

    /// Hears something.
    pub fn hear(&mut self, from: ResourceId, message: Message) -> Vec<Output> {
        match message {
            Message::Routed { hops, request } => self.request(hops, request),
            Message::Records { records } => self.take(records),
            Message::Welcome { lost } => {
                self.note_lost(lost);
                let mut outputs = vec![Output::Send(from, Message::Thanks)];
                if matches!(self.stage, Stage::Joining { giver, .. } if giver == from) {
                    outputs.extend(self.serve());
                }
                outputs
            }
            Message::Thanks => {
                self.unthanked.remove(&from);
                if self.is_over() { vec![Output::Ended] } else { Vec::new() }
            }
            Message::Declined { extent } => {
                self.handing.take_if(|handing| handing.extent == extent && handing.server == from);
                if self.is_over() { vec![Output::Ended] } else { Vec::new() }
            }
            Message::Identified => {
                self.waiting.insert(from);
                vec![Output::Look]
            }
            Message::Look => vec![Output::Look],
            Message::Leave { server } if from.context == self.me.context => self.leave(server),
            // Not a partition's business.
            _ => Vec::new(),
        }
    }

    /// Something that was sent to `to` did not arrive.
    pub fn undelivered(&mut self, to: ResourceId) {
        if self.unthanked.contains_key(&to) {
            self.missed.insert(to);
        }
    }

    /// What was to be given to `server` was not sent: it makes nothing of it, and whoever asks next may have it.
    pub fn not_given(&mut self, server: ResourceId) {
        self.handing.take_if(|handing| handing.server == server);
    }

    /// Compares with who there is. `chart` was taken after everything that was heard.
    pub fn look(&mut self, chart: &Chart) -> Vec<Output> {
        // Nobody there: whatever they had is lost, and told by who finds that out.
        self.unthanked.retain(|to, _| chart.has(*to));
        let missed = std::mem::take(&mut self.missed);
        let mut outputs: Vec<_> = missed.iter().flat_map(|to| self.say_handed(*to)).collect();
        let is_mine = |living: &Living| living.giver == Some(self.me);
        self.handing.take_if(|Handing { extent, server, .. }| {
            let mut made = chart.partitions().filter(|living| is_mine(living));
            !chart.has(*server) || made.any(|living| living.extent == *extent)
        });
        if let Stage::Moved { .. } = self.stage {
            outputs.extend(self.release(|_| true));
            outputs.extend(self.is_over().then_some(Output::Ended));
            return outputs;
        }
        let neighbour = |living: &Living| Neighbour { extent: living.extent, id: living.id };
        let beside = chart.beside(self.extent);
        self.beside = beside.iter().map(|l| (l.extent.start(), neighbour(l))).collect();
        self.around = chart.around(self.extent).iter().map(neighbour).collect();
        outputs.extend(self.compare_children(chart));
        // After that: what is known to be lost goes along.
        if let Some(senior) = chart.holder(self.extent)
            && (senior.generation, senior.id) > (self.generation, self.me)
        {
            outputs.extend(self.move_to(senior.id));
            return outputs;
        }
        outputs.extend(self.release(|id| chart.has(id)));
        if matches!(self.stage, Stage::Joining { giver, .. } if !chart.has(giver)) {
            // Whatever it still sends is taken, but there may have been more.
            self.note_lost(vec![self.extent]);
            outputs.extend(self.serve());
        }
        outputs
    }

    fn compare_children(&mut self, chart: &Chart) -> Vec<Output> {
        let wanted = chart.children(self.extent);
        let is_wanted = |extent| wanted.iter().any(|living| living.extent == extent);
        let mut lost = Vec::new();
        self.children.retain(|_, child| {
            let stays = is_wanted(child.extent);
            // One that lives is another's child now.
            lost.extend((!stays && !chart.has(child.id)).then_some(child.extent));
            stays
        });
        // What its own children have, they have still.
        let lost = wanted.iter().fold(lost, |lost, living| without(&lost, living.extent));
        self.lost.extend(lost);
        let mut outputs = Vec::new();
        for living in wanted {
            let (extent, id) = (living.extent, living.id);
            let before = self.children.insert(extent.start(), Neighbour { extent, id });
            // One that takes another's place has what there is from that one; but if it was given this
            // here, it waits to be told that it may begin. (Two tables that meet have two of some.)
            if before.is_some_and(|before| before.id == id || living.giver != Some(self.me)) {
                continue;
            }
            let records = self.take_out(extent);
            let lost = within(&self.lost, extent);
            self.lost = without(&self.lost, extent);
            if living.giver == Some(self.me) || !records.is_empty() || !lost.is_empty() {
                outputs.extend(self.hand(id, Handed { records, lost }));
            }
        }
        outputs
    }

    /// What of it children have is theirs to tell.
    fn note_lost(&mut self, lost: Vec<Extent>) {
        let children = self.children.values();
        self.lost.extend(children.fold(lost, |lost, child| without(&lost, child.extent)));
    }

    /// Begins to do what is asked.
    fn serve(&mut self) -> Vec<Output> {
        let before = std::mem::replace(&mut self.stage, Stage::Serving);
        let Stage::Joining { parked, .. } = before else { return Vec::new() };
        parked.into_iter().flat_map(|(hops, request)| self.request(hops, request)).collect()
    }

    fn move_to(&mut self, to: ResourceId) -> Vec<Output> {
        let (records, lost) = (self.take_out(self.extent), std::mem::take(&mut self.lost));
        let before = std::mem::replace(&mut self.stage, Stage::Moved { to });
        self.waiting.remove(&to);
        let mut outputs = self.hand(to, Handed { records, lost });
        if let Stage::Joining { parked, .. } = before {
            let parked = parked.into_iter();
            outputs.extend(parked.flat_map(|(hops, request)| self.request(hops, request)));
        }
        outputs
    }

    /// Everything is elsewhere, and nobody waits for it.
    fn is_over(&self) -> bool {
        let is_moved = matches!(self.stage, Stage::Moved { .. });
        is_moved && self.unthanked.is_empty() && self.handing.is_none()
    }

    /// Whom it gave something that is another's by now may begin: they get it from there. (Tables that
    /// were founded apart become one: its place in the tree is not what it was.)
    fn release(&mut self, is_there: impl Fn(ResourceId) -> bool) -> Vec<Output> {
        let there: Vec<_> = self.waiting.extract_if(.., |id| is_there(*id)).collect();
        if !there.is_empty() && matches!(self.stage, Stage::Moved { .. }) {
            // Whatever has become of it meanwhile.
            self.handing = None;
        }
        let is_child = |id: &ResourceId| self.children.values().any(|child| child.id == *id);
        let others: Vec<_> = there.into_iter().filter(|id| !is_child(id)).collect();
        others.into_iter().flat_map(|id| self.hand(id, Handed::default())).collect()
    }

    fn leave(&mut self, server: ResourceId) -> Vec<Output> {
        // One thing at a time; who wants it says it again. What was given, or the answer to it, may have been lost
        // where nodes could not reach each other.
        if let Some(handing) = &mut self.handing {
            handing.held_up += 1;
        }
        self.handing.take_if(|handing| handing.held_up > HELD_UP_MOST);
        if self.handing.is_some() || !matches!(self.stage, Stage::Serving) {
            return Vec::new();
        }
        self.handing = Some(Handing { extent: self.extent, server, held_up: 0 });
        let (extent, generation) = (self.extent, self.generation + 1);
        vec![Output::Send(server, Message::Given { number: None, extent, generation })]
    }

    /// Gives records to whom they belong.
    fn hand(&mut self, to: ResourceId, handed: Handed) -> Vec<Output> {
        let all = self.unthanked.entry(to).or_default();
        all.records.extend(handed.records);
        all.lost.extend(handed.lost);
        self.say_handed(to)
    }

    fn say_handed(&self, to: ResourceId) -> Vec<Output> {
        let Some(handed) = self.unthanked.get(&to) else { return Vec::new() };
        let mut parts = vec![Vec::new()];
        let mut bytes = 0;
        for record in &handed.records {
            let length = record.key.len() + record.value.len();
            if bytes > 0 && bytes + length > RECORDS_BYTES {
                parts.push(Vec::new());
                bytes = 0;
            }
            bytes += length;
            parts.last_mut().into_iter().for_each(|part| part.push(record.clone()));
        }
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        let mut outputs: Vec<_> =
            parts.map(|records| Output::Send(to, Message::Records { records })).collect();
        outputs.push(Output::Send(to, Message::Welcome { lost: handed.lost.clone() }));
        outputs
    }

    /// Keeps what is to be here, and passes on what is not.
    fn take(&mut self, records: Vec<Record>) -> Vec<Output> {
        let mut elsewhere: BTreeMap<ResourceId, Vec<Record>> = BTreeMap::new();
        for record in records {
            let index = index_of(&record.key);
            match self.way(index) {
                Way::Here => drop(self.store(index, record)),
                Way::There(id) => elsewhere.entry(id).or_default().push(record),
                // Nobody who knows this table gives that.
                Way::Unknown => {}
            }
        }
        let hand = |(to, records)| self.hand(to, Handed { records, lost: Vec::new() });
        elsewhere.into_iter().flat_map(hand).collect()
    }

    fn take_out(&mut self, extent: Extent) -> Vec<Record> {
        let Ok(start) = u32::try_from(extent.start()) else { return Vec::new() };
        let mut from_start = self.records.split_off(&(start, ByteBuf::new()));
        if let Ok(end) = u32::try_from(extent.end()) {
            self.records.append(&mut from_start.split_off(&(end, ByteBuf::new())));
        }
        let record = |((_, key), (version, value))| Record { key, version, value };
        from_start.into_iter().map(record).collect()
    }

    fn way(&self, index: u32) -> Way {
        if let Stage::Moved { to } = self.stage {
            return Way::There(to);
        }
        if self.extent.contains(index) {
            return holder(&self.children, index).map_or(Way::Here, Way::There);
        }
        let around = || self.around.iter().find(|outer| outer.extent.contains(index));
        let other = holder(&self.beside, index).or_else(|| Some(around()?.id));
        other.map_or(Way::Unknown, Way::There)
    }

    fn request(&mut self, hops: u8, request: Request) -> Vec<Output> {
        let index = request.index();
        match self.way(index) {
            Way::There(to) if hops < HOPS_MOST => {
                vec![Output::Send(to, Message::Routed { hops: hops + 1, request })]
            }
            Way::There(_) | Way::Unknown => vec![busy(hops, &request)],
            Way::Here => match &mut self.stage {
                Stage::Joining { parked, .. } if parked.len() < PARKED_MOST => {
                    parked.push_back((hops, request));
                    Vec::new()
                }
                Stage::Joining { .. } => vec![busy(hops, &request)],
                _ => vec![self.fulfil(index, hops, request)],
            },
        }
    }

    fn fulfil(&mut self, index: u32, hops: u8, request: Request) -> Output {
        match request {
            Request::Split { server, number, .. } => self.split(index, server, number),
            Request::Store { client, number, record } => {
                Output::Answer(client, number, Answer { hops, outcome: self.store(index, record) })
            }
            Request::Query { client, number, key } => {
                Output::Answer(client, number, Answer { hops, outcome: self.query(index, key) })
            }
        }
    }

    /// A part of what is around `index` and nobody else's.
    fn split(&mut self, index: u32, server: ResourceId, number: u64) -> Output {
        let refused = Output::Send(server, Message::Refused { number });
        if self.handing.is_some() {
            return refused;
        }
        let index = u64::from(index);
        let before = self.children.range(..=index).next_back();
        let start = before.map_or(self.extent.start(), |(_, child)| child.extent.end());
        let after = self.children.range(index..).next();
        let end = after.map_or(self.extent.end(), |(start, _)| *start);
        let Some(extent) = Extent::new(start, end).and_then(Extent::part) else {
            return refused;
        };
        self.handing = Some(Handing { extent, server, held_up: 0 });
        Output::Send(server, Message::Given { number: Some(number), extent, generation: 0 })
    }

    fn store(&mut self, index: u32, Record { key, version, value }: Record) -> Outcome {
        let there = self.records.entry((index, key));
        let there = there.or_insert_with(|| (version, ByteBuf::new()));
        if version < there.0 {
            return Outcome::Older { time: there.0.time };
        }
        *there = (version, value);
        Outcome::Stored
    }

    fn query(&self, index: u32, key: ByteBuf) -> Outcome {
        match self.records.get(&(index, key)) {
            Some((_, value)) => Outcome::Found(value.clone()),
            None if self.lost.iter().any(|lost| lost.contains(index)) => Outcome::Lost,
            None => Outcome::NotFound,
        }
    }
}

/// Who of those that have nothing in common has `index`.
fn holder(all: &BTreeMap<u64, Neighbour>, index: u32) -> Option<ResourceId> {
    let (_, before) = all.range(..=u64::from(index)).next_back()?;
    before.extent.contains(index).then_some(before.id)
}

impl Request {
    /// Where it is to be done.
    pub fn index(&self) -> u32 {
        match self {
            Self::Split { index, .. } => *index,
            Self::Store { record, .. } => index_of(&record.key),
            Self::Query { key, .. } => index_of(key),
        }
    }
}

fn busy(hops: u8, request: &Request) -> Output {
    match *request {
        Request::Split { server, number, .. } => Output::Send(server, Message::Refused { number }),
        Request::Store { client, number, .. } | Request::Query { client, number, .. } => {
            Output::Answer(client, number, Answer { hops, outcome: Outcome::Busy })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::of_table;
    use keeptime_fabric::ContextId;
    use keeptime_fabric::id::Place;

    /// A server's share where tables are measured.
    const EACH: usize = 32;

    fn id(slot: u32) -> ResourceId {
        ResourceId { context: ContextId::new(1), place: Place { slot, generation: 0 } }
    }

    /// Indexes that lie anywhere, the same in every run.
    struct Indexes(u64);

    impl Indexes {
        fn draw(&mut self) -> u32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 32) as u32
        }
    }

    /// What partitions of a table have when they are made, as servers ask for them: each a part of what is around any index.
    fn extents(count: usize) -> Vec<Extent> {
        let (mut made, mut parts) = (vec![Extent::ALL], vec![Extent::ALL]);
        let mut indexes = Indexes(1);
        while made.len() < count {
            let index = indexes.draw();
            let at = parts.iter().position(|part| part.contains(index)).unwrap();
            let whole = parts.swap_remove(at);
            let part = whole.part().unwrap();
            parts.extend(whole.without(part).chain([part]));
            made.push(part);
        }
        made
    }

    /// A table of so many partitions, all of which know of each other.
    fn table(count: usize) -> BTreeMap<ResourceId, Partition> {
        let made: Vec<_> = (0..).map(id).zip(extents(count)).collect();
        let mut chart = Chart::default();
        for (id, extent) in &made {
            chart.appeared(*id, &Living::attributes(of_table("t"), *extent, 0, None));
        }
        let nobody = id(u32::MAX);
        let partition = |(id, extent)| {
            let mut partition = Partition::joining(id, extent, 0, nobody);
            partition.look(&chart);
            (id, partition)
        };
        made.into_iter().map(partition).collect()
    }

    /// Which partition answers a query that `entry` is asked, and how many it has passed before.
    fn asked(
        table: &mut BTreeMap<ResourceId, Partition>,
        entry: ResourceId,
        key: &[u8],
    ) -> (ResourceId, u8) {
        let client = id(u32::MAX);
        let request = Request::Query { client, number: 1, key: ByteBuf::from(key) };
        let (mut at, mut message) = (entry, Message::Routed { hops: 0, request });
        loop {
            let outputs = table.get_mut(&at).unwrap().hear(client, message);
            match outputs.into_iter().next() {
                Some(Output::Send(to, next)) => (at, message) = (to, next),
                Some(Output::Answer(_, _, Answer { hops, outcome: Outcome::Lost })) => {
                    return (at, hops);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// A server that cannot be reached for a moment does not keep others from a part of the table for as long as it lives.
    #[test]
    fn what_was_not_given_is_given_to_others() {
        let (one, other) = (id(1), id(2));
        let mut partition = Partition::founded(id(0), true);
        let mut is_given = |not_given: Option<ResourceId>, server| {
            not_given.into_iter().for_each(|server| partition.not_given(server));
            let request = Request::Split { index: 7, server, number: 1 };
            let outputs = partition.hear(server, Message::Routed { hops: 0, request });
            matches!(&outputs[..], [Output::Send(to, Message::Given { .. })] if *to == server)
        };
        assert!(is_given(None, one));
        assert!(!is_given(None, other) && !is_given(Some(other), other), "it is on its way");
        assert!(is_given(Some(one), other));
    }

    /// Goal: more nodes answer more, since a request is no more work for them. Method: tables as large as those of four and of
    /// eight servers are asked in any partition. Each knows straight who has what is asked for, and all know the same.
    #[test]
    fn requests_pass_one_partition_however_many_there_are() {
        const QUERIES: u32 = 1000;
        for count in [4 * EACH, 8 * EACH] {
            let mut table = table(count);
            let (mut entries, mut passed) = (Indexes(2), 0);
            for key in 0..QUERIES {
                let entry = id(entries.draw() % count as u32);
                let (at, hops) = asked(&mut table, entry, &key.to_le_bytes());
                assert_eq!((at, 0), asked(&mut table, at, &key.to_le_bytes()), "{key}");
                passed += u32::from(hops);
            }
            assert!(passed <= QUERIES * 11 / 10, "{passed} for {QUERIES} of {count} partitions");
        }
    }
}
