//! What is malleable becomes slower such that somebody else can be had, and faster when there is room.

use super::calls::Change;
use super::offering::{Telling, Wanted};
use super::{Engine, Ticket, Timeout};
use crate::book::Reservation;
use crate::call::Caller;
use crate::cluster::Resource;
use crate::malleable::{Form, Left, asked, granted};
use crate::offers::{Kind, Proposal, span};
use crate::pieces::{Elastic, Piece, parted};
use crate::queue::Asked;
use crate::room::Room;
use keeptime_calendar::{ResourceId, Span};
use keeptime_model::assignment::LaterCpu;
use keeptime_model::name::Name;
use keeptime_model::reservation::{
    Ask, Grant, Handle, NodeChoice, Request, Resources, State, UserName,
};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What waits until others have become slower.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub pending: Pending,
    pub slower: BTreeSet<Handle>,
}

/// What is decided once more when they have.
#[derive(Debug, Clone)]
pub(super) enum Pending {
    New(Asked),
    Change(Change),
}

/// What was found for a request that does not fit as things are.
pub(super) struct Way {
    /// What would be granted,
    pub proposal: Proposal,
    /// if these were slower,
    pub slower: Vec<(Malleable, Form)>,
    /// and these began at another time.
    pub deferred: Vec<(Malleable, Form)>,
}

/// A reservation that may become another form.
#[derive(Debug, Clone)]
pub(super) struct Malleable {
    pub reservation: Arc<Reservation>,
    pub left: Left,
    pub takes: Elastic,
}

/// What room is sought for, and when it is to be.
#[derive(Clone, Copy)]
struct Sought<'a> {
    wanted: Wanted<'a>,
    when: Span,
}

/// So long after there is more room it is looked who becomes faster: who comes next has had its turn.
const FASTER_AFTER: Nanos = Nanos::from_secs(1);
/// What is faster by less than this part is not worth a change on every node.
const FASTER_PART: u32 = 20;
/// Between its deadline and its end now, as often as that is halved, the latest end is sought for which there is room.
const HALVINGS: u32 = 5;
/// So many are tried at the most: everybody else waits meanwhile.
const SLOWED_MAX: usize = 64;
/// In so many steps from as slow as can be to as fast as now it is tried how much slower one has to be.
const STEPS: u32 = 4;

impl Engine {
    /// How malleable reservations have to be slower, or begin at another time, for what is wanted, which takes nobody's place,
    /// to fit; nothing if it does not fit then. Tried in the slot tables, which are as they were in the end.
    pub(super) fn find_way(&mut self, wanted: Wanted<'_>) -> Option<Way> {
        let when = self.span_of(wanted.request);
        let way = self.find_way_for(Sought { wanted, when })?;
        self.can_be_gone(&way).then_some(way)
    }

    /// How others have to be for what is wanted in the place of `old`, which keeps what it has until that is changed, to fit;
    /// nothing if it does not fit then.
    pub(super) fn find_way_to_change(
        &mut self,
        old: &Reservation,
        wanted: Wanted<'_>,
    ) -> Option<Way> {
        let request = wanted.request;
        let from = self.start(request, Some(old)).ok()?;
        let until = request.duration_nanos.map(|duration| from.saturating_add(duration));
        let when = span(from, until).after(self.now);
        let way = self.without(old, |engine| engine.find_way_for(Sought { wanted, when }))?;
        self.can_be_gone(&way).then_some(way)
    }

    fn find_way_for(&mut self, sought: Sought<'_>) -> Option<Way> {
        let mut all = self.malleable(self.now);
        // Agents that are away do not say that it is slower.
        all.retain(|one| {
            !self.is_told(&one.reservation) || self.all_connected(one.reservation.handle)
        });
        self.find_way_beside(sought, &all, &[]).or_else(|| {
            // Beside what is to begin later there is no way: that may have to begin later still.
            let deferred = self.deferrable(&all);
            if deferred.is_empty() { None } else { self.find_way_beside(sought, &all, &deferred) }
        })
    }

    /// How some of all that are malleable have to be slower, and `deferred` of them may have to begin at another time, for what
    /// is sought to fit.
    fn find_way_beside(
        &mut self,
        sought: Sought<'_>,
        all: &[Malleable],
        deferred: &[Malleable],
    ) -> Option<Way> {
        let Sought { wanted, when } = sought;
        let when = self.with_delay(when);
        let beside = in_the_way(wanted.request, when, all, deferred);
        if beside.is_empty() && deferred.is_empty() {
            return None;
        }
        let mut room = self.room(sought, &beside, deferred);
        if room.is_given_up() {
            return None;
        }
        let handles: Vec<_> =
            beside.iter().chain(deferred).map(|one| one.reservation.handle).collect();
        let way = self.tried(handles, |engine| {
            deferred.iter().for_each(|one| engine.release(one.reservation.handle));
            let slowed = engine.as_slow_as_can_be(beside, when, &mut room)?;
            if slowed.is_empty() && deferred.is_empty() {
                return None;
            }
            // What will be given back by then is free.
            for (one, form) in &slowed {
                let pieces = engine.pieces_in(one, *form);
                engine.hold_only(one.reservation.handle, pieces);
            }
            engine.try_way(wanted, &slowed, deferred)
        });
        debug_assert!(way.is_none() || room.may_suffice(), "there is room that was not counted");
        way
    }

    /// Room for what is wanted as it may become at the most, were these as slow as they could be by themselves, and those
    /// elsewhere. Where it is not known yet of which nodes it takes how much there may be room.
    fn room(&self, sought: Sought<'_>, beside: &[Malleable], deferred: &[Malleable]) -> Room {
        // It may also be just as it is asked for, and not a little later.
        let Sought { wanted: Wanted { request, .. }, when: exactly } = sought;
        let when = self.with_delay(exactly);
        let Ask::Resources(Resources { nodes, cpu_ppm, rank_cpu_ppm, .. }) = &request.ask else {
            return Room::default();
        };
        let each = rank_cpu_ppm.iter().chain([cpu_ppm]).min().map_or(0, |least| least.get());
        let asked: Vec<_> = match named_by(request) {
            None => self.cluster.topology().node_indices().collect(),
            Some(names) => names.iter().filter_map(|name| self.cluster.node(name).ok()).collect(),
        };
        let needed = match nodes {
            NodeChoice::Any(count) => *count as usize,
            NodeChoice::Named(_) => asked.len(),
        };
        let free = asked.into_iter().map(|node| {
            (node, self.cluster.least_free(&self.calendar, exactly, Resource::Cpu(node)))
        });
        let nodes = self.cluster.topology().nodes().len();
        let mut room = Room::new(nodes, needed, each.into(), free);
        let slower = beside.iter().map(|one| (one, self.least(one, when)));
        let elsewhere = deferred.iter().filter(|one| is_during(&one.reservation, when));
        for (one, least) in slower.chain(elsewhere.map(|one| (one, CpuPpm::default()))) {
            // Where it ends sooner or goes elsewhere, so does what it was extended by.
            let more = one.reservation.grant.as_ref().map(|grant| grant.extension.cpu_ppm.get());
            let has = one.left.form().most().get().saturating_add(more.unwrap_or_default());
            room.gains(self.nodes_in(one), has.saturating_sub(least.get()).into());
        }
        room
    }

    /// Has all of these, who are in the way of what is wanted, hold also what they would have if they were as slow as there is
    /// room for; as what. Nothing if `room` does not suffice then.
    fn as_slow_as_can_be(
        &mut self,
        beside: Vec<Malleable>,
        wanted: Span,
        room: &mut Room,
    ) -> Option<Vec<(Malleable, Form)>> {
        let mut slowed = Vec::new();
        for one in beside {
            if room.is_given_up() {
                return None;
            }
            let (now, form) = (one.left.form(), self.try_slowest(&one, wanted));
            let ends_sooner = |form: &Form| {
                form.until < now.until && wanted.to().is_none_or(|to| form.until < to)
            };
            let has = match form {
                Some(form) if ends_sooner(&form) => CpuPpm::default(),
                Some(form) => form.cpu,
                None => now.most(),
            };
            let less = has.get().saturating_sub(self.least(&one, wanted).get());
            room.loses(self.nodes_in(&one), less.into());
            slowed.extend(form.map(|form| (one, form)));
        }
        slowed.reverse();
        (!room.is_given_up()).then_some(slowed)
    }

    /// No form in which it is slower during `wanted` has less at any time then.
    fn least(&self, one: &Malleable, wanted: Span) -> CpuPpm {
        let turns = |later: LaterCpu| wanted.to().is_none_or(|to| later.from_unix_nanos < to);
        // With more CPU than it is to have after that it may be over during `wanted`.
        if one.left.form().later.is_some_and(turns) {
            return CpuPpm::default();
        }
        one.left.least(self.turns(&one.left, wanted))
    }

    /// The nodes that a reservation has.
    fn nodes_in<'a>(&'a self, one: &'a Malleable) -> impl Iterator<Item = NodeIndex> + 'a {
        let of_cpu = self.is_cpu(&one.reservation.owner);
        one.takes.shares(of_cpu).filter_map(|(table, _)| match self.cluster.resource(table)? {
            Resource::Cpu(node) => Some(node),
            _ => None,
        })
    }

    /// Tells slot tables of CPU: those of the nodes, and of what a user has in all.
    fn is_cpu(&self, owner: &UserName) -> impl Fn(ResourceId) -> bool {
        let of_user = self.users.get(owner).map(|[of_cpu, _]| *of_cpu);
        move |table| match self.cluster.resource(table) {
            Some(resource) => matches!(resource, Resource::Cpu(_)),
            None => Some(table) == of_user,
        }
    }

    /// When what is slower during `wanted` may have more again.
    fn turns(&self, left: &Left, wanted: Span) -> Vec<WallTime> {
        let over = wanted.to().map(WallTime::whole_second_ceil);
        let now = left.form().later.map(|later| later.from_unix_nanos);
        // When agents have answered, it is still to come.
        let known = left.from().saturating_add(self.policy.answer_within_nanos);
        let turns = [over, now].into_iter().flatten();
        turns.filter(|turn| known <= *turn && *turn < left.by()).collect()
    }

    /// Whether `wanted` fits beside those that are as slow as can be, and those that are deferred, which hold nothing, fit
    /// beside it; as what.
    fn try_way(
        &mut self,
        wanted: Wanted<'_>,
        slowed: &[(Malleable, Form)],
        deferred: &[Malleable],
    ) -> Option<Way> {
        let proposal = self.plan(wanted, Telling::Reason).ok()?;
        // No reservation has this number yet.
        let next = Handle::new(self.next);
        let Proposal { owner, request, grant, .. } = &proposal;
        let spans = [self.with_delay(proposal.span()), proposal.span()];
        let held = spans.into_iter().any(|span| {
            let pieces = self.pieces(owner, &request.ask, grant, span);
            self.hold_beside(next, pieces).is_ok()
        });
        debug_assert!(held, "what was proposed fits");
        let slower = self.no_slower_than_needed(slowed);
        let deferred = self.lay_anew(deferred);
        self.release(next);
        Some(Way { proposal, slower, deferred: deferred? })
    }

    /// Whether what is deferred has room while agents are asked about the rest, which has what it has and what it will have.
    fn can_be_gone(&mut self, way: &Way) -> bool {
        if way.deferred.is_empty() {
            return true;
        }
        let forms = way.deferred.iter().chain(&way.slower);
        let handles: Vec<_> = forms.clone().map(|(one, _)| one.reservation.handle).collect();
        self.tried(handles, |engine| {
            way.deferred.iter().for_each(|(one, _)| engine.release(one.reservation.handle));
            forms.clone().all(|(one, form)| engine.hold_in(one, *form))
        })
    }

    /// When a request is to be, if it is as it is asked for.
    pub(super) fn span_of(&self, request: &Request) -> Span {
        let from = request.from_unix_nanos.unwrap_or(self.now).max(self.now);
        span(from, request.duration_nanos.map(|duration| from.saturating_add(duration)))
    }

    /// A span that may begin and end so much later: who has to make way is asked first, and then it is decided once more.
    fn with_delay(&self, exact: Span) -> Span {
        let delay = self.policy.answer_within_nanos;
        span(exact.from(), exact.to().map(|to| to.saturating_add(delay)))
    }

    /// Reservations that may become another form, with what is left at `at`, the most urgent first.
    pub(super) fn malleable(&self, at: WallTime) -> Vec<Malleable> {
        let live = self.book.malleable().iter().filter(|handle| !self.offers.contains_key(handle));
        let found = live.filter_map(|handle| self.book.reservations().get(handle));
        let of = |found: &Arc<Reservation>| {
            let (left, takes) = (Left::of(found, at)?, self.elastic(found)?);
            Some(Malleable { reservation: Arc::clone(found), left, takes })
        };
        let mut all: Vec<_> = found.filter_map(of).collect();
        all.sort_by_key(|one| (one.left.by(), one.reservation.handle));
        all
    }

    /// Holds the form of a reservation that is the slowest during `wanted` and for which there is room, beside what it has
    /// until it changes; nothing if it cannot be slower.
    fn try_slowest(&mut self, one: &Malleable, wanted: Span) -> Option<Form> {
        let left = &one.left;
        let mut forms: Vec<_> = ends(left.form().until, left.by())
            .filter_map(|end| left.slower(end))
            .chain(self.slower_until(one, wanted))
            .collect();
        forms.sort_by_key(|form| (form.cpu, form.until));
        forms.into_iter().find(|form| self.hold_in(one, *form))
    }

    /// Slower until `wanted` is over, and as fast as there is room for from then on.
    fn slower_until(&mut self, one: &Malleable, wanted: Span) -> Vec<Form> {
        let (left, turns) = (&one.left, self.turns(&one.left, wanted));
        if turns.is_empty() {
            return Vec::new();
        }
        let (handle, now, by) = (one.reservation.handle, left.form(), left.by());
        self.tried([handle], |engine| {
            engine.release(handle);
            let until = |from_unix_nanos: WallTime, end| {
                let after = span(from_unix_nanos, Some(end));
                let cpu_ppm = CpuPpm::new(engine.free_beside(one, after));
                left.slower_until(LaterCpu { from_unix_nanos, cpu_ppm }, end)
            };
            let forms = |turn: WallTime| {
                ends(turn.max(now.until), by).filter_map(move |end| until(turn, end))
            };
            turns.into_iter().flat_map(forms).collect()
        })
    }

    /// Holds what a reservation takes in a form, beside what it holds; whether there is room for it.
    pub(super) fn hold_in(&mut self, one: &Malleable, form: Form) -> bool {
        let pieces = self.pieces_in(one, form);
        self.hold_beside(one.reservation.handle, pieces).is_ok()
    }

    /// Holds a reservation in another form, and no more than that; whether there is room for it.
    fn try_form(&mut self, one: &Malleable, form: Form) -> bool {
        let pieces = self.pieces_in(one, form);
        self.hold_instead(one.reservation.handle, pieces)
    }

    /// What a reservation takes in a form, and when, of what is not past.
    pub(super) fn pieces_in(&self, one: &Malleable, form: Form) -> Vec<Piece> {
        let is_cpu = self.is_cpu(&one.reservation.owner);
        let all = span(form.begins, Some(form.until)).after(self.now);
        let turn = form.later.map(|later| later.from_unix_nanos);
        let piece = |span: Span| {
            let demands = one.takes.with(form.at(span.from()), &is_cpu);
            Piece { span, demands }
        };
        parted(all, turn).into_iter().map(piece).collect()
    }

    /// Who has to be slower, and how much, for what is held by now: what is most urgent stays as fast as it can be.
    fn no_slower_than_needed(&mut self, slowed: &[(Malleable, Form)]) -> Vec<(Malleable, Form)> {
        let mut slower = Vec::new();
        for (one, slowest) in slowed {
            let (left, now) = (&one.left, one.left.form());
            if self.try_form(one, now) {
                continue;
            }
            let more = (now.cpu.get() - slowest.cpu.get()) / STEPS;
            let steps = (1..STEPS).rev().map(|step| CpuPpm::new(slowest.cpu.get() + more * step));
            // Where there is no room to be so slow to the end, there may be for a while.
            let mut forms = steps.flat_map(|cpu| {
                let until = slowest.later.and_then(|later| left.with_both(cpu, Some(later)));
                left.with(cpu).into_iter().chain(until)
            });
            let found = forms.find(|form| self.try_form(one, *form));
            slower.push((one.clone(), found.unwrap_or(*slowest)));
        }
        slower
    }

    /// Has reservations begin at another time and become slower; what is `pending` waits for that.
    pub(super) fn make_way(&mut self, pending: Pending, way: Way) {
        let by = &pending.caller().user;
        let kind = || Kind::Change { by: by.clone(), agreed_by: None };
        // Nobody is asked about these. They may take one another's places.
        way.deferred.iter().for_each(|(one, _)| self.release(one.reservation.handle));
        for (Malleable { reservation, .. }, form) in way.deferred {
            if let Some(proposal) = in_form(&reservation, form) {
                self.grant(reservation.handle, proposal, &kind());
            }
        }
        let offered = way.slower.into_iter().filter_map(|(Malleable { reservation, .. }, form)| {
            self.change_form(&reservation, form, kind());
            let handle = reservation.handle;
            self.offers.contains_key(&handle).then_some(handle)
        });
        let slower: BTreeSet<_> = offered.collect();
        self.has_room |= slower.is_empty();
        self.waiting.push(Waiting { pending: pending.made_way(), slower });
    }

    fn change_form(&mut self, reservation: &Reservation, form: Form, kind: Kind) {
        if let Some(proposal) = in_form(reservation, form) {
            self.offer(reservation.handle, proposal, kind, Vec::new());
        }
    }

    /// A reservation is not being changed any more.
    pub(super) fn is_settled(&mut self, handle: Handle) {
        for waiting in &mut self.waiting {
            self.has_room |= waiting.slower.remove(&handle) && waiting.slower.is_empty();
        }
    }

    /// Requests for which others have become slower, or could not, are decided.
    pub(super) fn go_on_with_what_waited(&mut self) {
        let ready = |waiting: &mut Waiting| waiting.slower.is_empty();
        for Waiting { pending, .. } in self.waiting.extract_if(.., ready).collect::<Vec<_>>() {
            let comes_to_something = match pending {
                Pending::New(asked) => {
                    let handle = asked.handle;
                    self.decide(asked);
                    self.offers.contains_key(&handle) || self.is_live(handle)
                }
                Pending::Change(change) => {
                    let (handle, ticket) = (change.handle, change.ticket);
                    if let Some(answer) = self.modify(change).transpose() {
                        self.answer(ticket, answer);
                    }
                    self.offers.contains_key(&handle)
                }
            };
            // Who became slower for nothing need not be.
            if !comes_to_something {
                self.faster_soon();
            }
        }
    }

    /// In a while it is looked what can become faster, if anything can.
    pub(super) fn faster_soon(&mut self) {
        if !self.book.malleable().is_empty() {
            self.in_a_while(FASTER_AFTER, Timeout::Faster);
        }
    }

    /// What is malleable takes what is free of its nodes' CPU, the most urgent first: what runs goes faster, and what would
    /// begin later begins now, where it may.
    pub(super) fn go_faster(&mut self) {
        if !self.waiting.is_empty() {
            // What others became slower for is not taken.
            self.faster_soon();
            return;
        }
        // It is as slow as it is until then: what it will have done by then is not reckoned with sooner.
        let at = self.now.saturating_add(self.policy.answer_within_nanos);
        for one in self.malleable(at) {
            let reservation = &one.reservation;
            let form = match reservation.state {
                State::Active => self.faster(&one),
                _ => self.sooner(&one, at),
            };
            if let Some(form) = form {
                let by = reservation.owner.clone();
                self.change_form(reservation, form, Kind::Change { by, agreed_by: Some(at) });
            }
        }
    }

    /// With what is free before it has another share, if it has one, and after that.
    fn faster(&self, one: &Malleable) -> Option<Form> {
        let (left, now, at) = (&one.left, one.left.form(), self.now);
        let free = |span| self.free_beside(one, span);
        let more = |cpu: CpuPpm, free: u32| CpuPpm::new(cpu.get().saturating_add(free));
        let form = match now.later {
            None => {
                let free = free(span(at, Some(now.until)));
                left.with(more(now.cpu, free))?
            }
            Some(LaterCpu { from_unix_nanos, cpu_ppm }) => {
                let before = free(span(at, Some(from_unix_nanos)));
                let after = free(span(from_unix_nanos, Some(now.until)));
                let later = LaterCpu { cpu_ppm: more(cpu_ppm, after), from_unix_nanos };
                left.with_both(more(now.cpu, before).min(later.cpu_ppm), Some(later))?
            }
        };
        let is_worth_it = |more: CpuPpm, now: CpuPpm| {
            more.get().saturating_sub(now.get()) > now.get() / FASTER_PART
        };
        let then = |form: Form| form.later.map_or(form.cpu, |later| later.cpu_ppm);
        (is_worth_it(form.cpu, now.cpu) || is_worth_it(then(form), then(now))).then_some(form)
    }

    /// Begun at `start`, on the same nodes: as fast as it was to be, or as is free until it was to begin, if it ends no later
    /// by that.
    fn sooner(&self, one: &Malleable, start: WallTime) -> Option<Form> {
        let now = one.left.form();
        let sooner = one.left.sooner(start)?;
        let before = span(start, Some(now.begins.min(sooner.form().until)));
        let free = self.free_beside(one, before);
        let form = sooner.with(now.cpu.min(CpuPpm::new(free)))?;
        (form.until <= now.until).then_some(form)
    }

    /// CPU of each node that a reservation may have beside what is held during `span`, its owner's share too, in millionths.
    fn free_beside(&self, one: &Malleable, span: Span) -> u32 {
        let free = |table| self.calendar.table(table).map_or(0, |table| table.least_free(span));
        let shares = one.takes.shares(self.is_cpu(&one.reservation.owner));
        let each = shares.map(|(table, times)| free(table) / times.max(1)).min().unwrap_or(0);
        u32::try_from(each).unwrap_or(u32::MAX)
    }
}

impl Pending {
    /// A request that comes to a reservation of its own, if it does.
    pub fn asked(&self) -> Option<&Asked> {
        match self {
            Self::New(asked) => Some(asked),
            Self::Change(_) => None,
        }
    }

    /// The same, to add to it who is to be answered.
    pub fn asked_mut(&mut self) -> Option<&mut Asked> {
        match self {
            Self::New(asked) => Some(asked),
            Self::Change(_) => None,
        }
    }

    /// Whether `ticket` is to be answered so.
    pub fn has(&self, ticket: Ticket) -> bool {
        match self {
            Self::New(asked) => asked.tickets.contains(&ticket),
            Self::Change(change) => change.ticket == ticket,
        }
    }

    /// Whoever was to be answered so is gone. Whether it was the last who waited for it.
    pub fn forget(&mut self, ticket: Ticket) -> bool {
        match self {
            Self::New(asked) => asked.forget(ticket),
            Self::Change(change) => change.ticket == ticket,
        }
    }

    fn caller(&self) -> &Caller {
        match self {
            Self::New(asked) => &asked.caller,
            Self::Change(change) => &change.caller,
        }
    }

    /// Others have become slower for it: not again.
    fn made_way(self) -> Self {
        match self {
            Self::New(asked) => Self::New(Asked { may_make_way: false, ..asked }),
            Self::Change(change) => Self::Change(Change { may_make_way: false, ..change }),
        }
    }
}

/// A reservation in another form.
fn in_form(reservation: &Reservation, form: Form) -> Option<Proposal> {
    Some(Proposal {
        owner: reservation.owner.clone(),
        key: reservation.key.clone(),
        request: asked(reservation, form)?,
        from: form.begins,
        until: Some(form.until),
        grant: granted(reservation, form)?,
        decision: None,
    })
}

/// Who of all may be slower for `request` to fit `when` it is to be, the least urgent first: those may have to be the slowest.
fn in_the_way(
    request: &Request,
    when: Span,
    all: &[Malleable],
    deferred: &[Malleable],
) -> Vec<Malleable> {
    let named = named_by(request);
    let has_one_of = |grant: &Grant| {
        named.as_ref().is_none_or(|named| grant.nodes.iter().any(|node| named.contains(node)))
    };
    let is_deferred = |handle| deferred.iter().any(|found| found.reservation.handle == handle);
    let is_in_its_way = |Malleable { reservation, .. }: &&Malleable| {
        is_during(reservation, when)
            && reservation.grant.as_ref().is_some_and(has_one_of)
            && !is_deferred(reservation.handle)
    };
    all.iter().rev().filter(is_in_its_way).take(SLOWED_MAX).cloned().collect()
}

/// Whether some of what is recorded of a reservation is during `when`.
fn is_during(reservation: &Reservation, when: Span) -> bool {
    span(reservation.from_unix_nanos, reservation.until_unix_nanos).overlaps(when)
}

/// Between `until` and `by`, the latest first, each half as far from `until` as the one before.
fn ends(until: WallTime, by: WallTime) -> impl Iterator<Item = WallTime> {
    (0..=HALVINGS).map(move |times| {
        let more = by.saturating_since(until).get() >> times;
        until.saturating_add(Nanos::new(more))
    })
}

/// The nodes that a request names, or of which it is to have some; nothing = any will do.
fn named_by(request: &Request) -> Option<BTreeSet<&Name>> {
    match &request.ask {
        Ask::Resources(Resources { nodes: NodeChoice::Named(names), .. }) => {
            Some(names.iter().collect())
        }
        _ => (!request.among.is_empty()).then(|| request.among.iter().collect()),
    }
}
