//! What is malleable becomes slower such that somebody else can be had, and faster when there is room.

use super::offering::{Place, Telling};
use super::{Engine, Timeout};
use crate::book::Reservation;
use crate::cluster::Resource;
use crate::malleable::{Form, Left, asked, granted, whole_second};
use crate::offers::{Kind, Proposal, span};
use crate::pieces::Piece;
use crate::queue::Asked;
use crate::room::Room;
use keeptime_calendar::Span;
use keeptime_model::assignment::LaterCpu;
use keeptime_model::name::Name;
use keeptime_model::reservation::{
    Ask, Grant, Handle, NodeChoice, Request, RequestKey, Resources, State, UserName,
};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A request that waits until others have become slower.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub asked: Asked,
    pub slower: BTreeSet<Handle>,
}

/// What was found for a request that does not fit as things are.
pub(super) struct Way {
    /// What would be granted,
    pub proposal: Proposal,
    /// if these were slower,
    pub slower: Vec<(Arc<Reservation>, Form)>,
    /// and these began at another time.
    pub deferred: Vec<(Arc<Reservation>, Form)>,
}

/// Of a malleable reservation.
pub(super) type Malleable = (Arc<Reservation>, Left);

/// What is asked for, and by whom.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    /// As which it came.
    handle: Handle,
    owner: &'a UserName,
    key: &'a RequestKey,
    request: &'a Request,
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
    /// How malleable reservations have to be slower, or begin at another time, for `request`, which came as `handle`, to fit;
    /// nothing if it does not fit then. Tried in the slot tables, which are as they were in the end.
    pub(super) fn find_way(
        &mut self,
        handle: Handle,
        owner: &UserName,
        key: &RequestKey,
        request: &Request,
    ) -> Option<Way> {
        if self.book.malleable().is_empty() {
            return None;
        }
        let wanted = Wanted { handle, owner, key, request };
        self.find_way_beside(wanted, &[]).or_else(|| {
            // Beside what is to begin later there is no way: that may have to begin later still.
            let deferred = self.deferrable();
            if deferred.is_empty() { None } else { self.find_way_beside(wanted, &deferred) }
        })
    }

    /// The same, where `deferred` may begin at another time, too.
    fn find_way_beside(&mut self, wanted: Wanted<'_>, deferred: &[Malleable]) -> Option<Way> {
        let when = self.with_delay(self.span_of(wanted.request));
        let beside = self.in_the_way(wanted.request, when, deferred);
        let mut room = self.room(wanted.request, when, &beside, deferred);
        let suffices = |room: &Option<Room>| room.as_ref().is_none_or(Room::may_suffice);
        if !suffices(&room) {
            return None;
        }
        deferred.iter().for_each(|(reservation, _)| self.release(reservation.handle));
        let mut slowed = Vec::new();
        for (reservation, left) in beside {
            let form = self.try_slowest(&reservation, &left, when);
            if let Some(room) = &mut room {
                let has = form.map_or(left.form().most(), |form| form.cpu);
                let less = has.get().saturating_sub(left.least(self.turns(&left, when)).get());
                room.loses(&self.nodes_in(&reservation), less.into());
            }
            if let Some(form) = form {
                slowed.push((reservation, left, form));
            }
            if !suffices(&room) {
                break;
            }
        }
        slowed.reverse();
        let way = match suffices(&room) && !(slowed.is_empty() && deferred.is_empty()) {
            false => None,
            true => {
                // What will be given back by then is free.
                for (reservation, _, form) in &slowed {
                    let pieces = self.pieces_in(reservation, *form);
                    self.hold_only(reservation.handle, &pieces);
                }
                self.try_way(wanted, &slowed, deferred)
            }
        };
        let tried = slowed.iter().map(|(reservation, ..)| reservation);
        let tried: Vec<_> =
            tried.chain(deferred.iter().map(|(reservation, _)| reservation)).collect();
        self.hold_all_again(&tried);
        way.filter(|way| way.deferred.is_empty() || self.can_be_gone(way))
    }

    /// Who may be slower for `request` to fit `when` it is to be, the least urgent first: those may have to be the slowest.
    fn in_the_way(&self, request: &Request, when: Span, deferred: &[Malleable]) -> Vec<Malleable> {
        let named = named_by(request);
        let has_one_of = |grant: &Grant| {
            named.as_ref().is_none_or(|named| grant.nodes.iter().any(|node| named.contains(node)))
        };
        let is_deferred = |handle| deferred.iter().any(|(found, _)| found.handle == handle);
        let beside = self.malleable(self.now).into_iter().filter(|(reservation, _)| {
            let is_in_its_way = reservation.grant.as_ref().is_some_and(has_one_of);
            is_during(reservation, when) && is_in_its_way && !is_deferred(reservation.handle)
        });
        beside.rev().take(SLOWED_MAX).collect()
    }

    /// Room for `request` as it may become at the most, were these as slow as they could be by themselves, and those elsewhere;
    /// nothing where it is not known yet of which nodes it takes how much.
    fn room(
        &self,
        request: &Request,
        when: Span,
        beside: &[Malleable],
        deferred: &[Malleable],
    ) -> Option<Room> {
        let Ask::Resources(Resources { nodes, cpu_ppm, .. }) = &request.ask else { return None };
        let all = self.cluster.topology().node_indices();
        let asked: BTreeSet<_> = match named_by(request) {
            None => all.collect(),
            Some(names) => names.iter().filter_map(|name| self.cluster.node(name).ok()).collect(),
        };
        let needed = match nodes {
            NodeChoice::Any(count) => *count as usize,
            NodeChoice::Named(_) => asked.len(),
        };
        let free = asked
            .into_iter()
            .map(|node| (node, self.cluster.least_free(&self.calendar, when, Resource::Cpu(node))));
        let nodes = self.cluster.topology().nodes().len();
        let mut room = Room::new(nodes, needed, cpu_ppm.get().into(), free);
        let slower = beside.iter().map(|one| (one, one.1.least(self.turns(&one.1, when)).get()));
        let elsewhere = deferred.iter().filter(|(reservation, _)| is_during(reservation, when));
        for ((reservation, left), least) in slower.chain(elsewhere.map(|one| (one, 0))) {
            let less = left.form().most().get().saturating_sub(least);
            room.gains(&self.nodes_in(reservation), less.into());
        }
        Some(room)
    }

    /// The positions of the nodes that a reservation has.
    fn nodes_in(&self, reservation: &Reservation) -> Vec<NodeIndex> {
        let nodes = reservation.grant.as_ref().map(|grant| self.cluster.nodes(grant));
        nodes.and_then(Result::ok).unwrap_or_default()
    }

    /// When what is slower during `wanted` may have more again.
    fn turns(&self, left: &Left, wanted: Span) -> Vec<WallTime> {
        let over = wanted.to().map(whole_second);
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
        slowed: &[(Arc<Reservation>, Left, Form)],
        deferred: &[Malleable],
    ) -> Option<Way> {
        let Wanted { handle, owner, key, request } = wanted;
        let (key, request, place) = (key.clone(), request.clone(), Place::Own(handle));
        let proposal = self.plan(owner, key, request, place, Telling::Reason).ok()?;
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
        way.deferred.iter().for_each(|(reservation, _)| self.release(reservation.handle));
        let forms = way.deferred.iter().chain(&way.slower);
        let fits = forms.clone().all(|(reservation, form)| self.hold_in(reservation, *form));
        let tried: Vec<_> = forms.map(|(reservation, _)| reservation).collect();
        self.hold_all_again(&tried);
        fits
    }

    /// Holds what is recorded of these, whatever they hold by now.
    fn hold_all_again(&mut self, tried: &[&Arc<Reservation>]) {
        tried.iter().for_each(|reservation| self.release(reservation.handle));
        tried.iter().for_each(|reservation| self.hold_again(reservation));
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
        let mut all: Vec<_> =
            found.filter_map(|found| Some((Arc::clone(found), Left::of(found, at)?))).collect();
        all.sort_by_key(|(found, left)| (left.by(), found.handle));
        all
    }

    /// Holds the form of a reservation that is the slowest during `wanted` and for which there is room, beside what it has
    /// until it changes; nothing if it cannot be slower.
    fn try_slowest(
        &mut self,
        reservation: &Reservation,
        left: &Left,
        wanted: Span,
    ) -> Option<Form> {
        let mut forms: Vec<_> = ends(left.form().until, left.by())
            .filter_map(|end| left.slower(end))
            .chain(self.slower_until(reservation, left, wanted))
            .collect();
        forms.sort_by_key(|form| (form.cpu, form.until));
        forms.into_iter().find(|form| self.hold_in(reservation, *form))
    }

    /// Slower until `wanted` is over, and as fast as there is room for from then on.
    fn slower_until(&mut self, reservation: &Reservation, left: &Left, wanted: Span) -> Vec<Form> {
        let (now, by) = (left.form(), left.by());
        let Some(grant) = &reservation.grant else { return Vec::new() };
        let turns = self.turns(left, wanted);
        if turns.is_empty() {
            return Vec::new();
        }
        self.release(reservation.handle);
        let mut forms = Vec::new();
        for from_unix_nanos in turns {
            for end in ends(from_unix_nanos.max(now.until), by) {
                let after = span(from_unix_nanos, Some(end));
                let cpu_ppm = CpuPpm::new(self.free_beside(&reservation.owner, grant, after));
                forms.extend(left.slower_until(LaterCpu { from_unix_nanos, cpu_ppm }, end));
            }
        }
        self.hold_again(reservation);
        forms
    }

    /// Holds what a reservation takes in a form, beside what it holds; whether there is room for it.
    pub(super) fn hold_in(&mut self, reservation: &Reservation, form: Form) -> bool {
        let pieces = self.pieces_in(reservation, form);
        self.hold_beside(reservation.handle, pieces).is_ok()
    }

    /// Holds a reservation in another form, and no more than that; whether there is room for it.
    fn try_form(&mut self, reservation: &Reservation, form: Form) -> bool {
        let pieces = self.pieces_in(reservation, form);
        self.hold_instead(reservation.handle, pieces)
    }

    /// What a reservation takes in a form, and when.
    pub(super) fn pieces_in(&mut self, reservation: &Reservation, form: Form) -> Vec<Piece> {
        let Some(grant) = granted(reservation, form) else { return Vec::new() };
        let span = span(form.begins, Some(form.until));
        self.pieces(&reservation.owner, &reservation.request.ask, &grant, span)
    }

    /// Who has to be slower, and how much, for what is held by now: what is most urgent stays as fast as it can be.
    fn no_slower_than_needed(
        &mut self,
        slowed: &[(Arc<Reservation>, Left, Form)],
    ) -> Vec<(Arc<Reservation>, Form)> {
        let mut slower = Vec::new();
        for (reservation, left, slowest) in slowed {
            let now = left.form();
            if self.try_form(reservation, now) {
                continue;
            }
            let more = (now.cpu.get() - slowest.cpu.get()) / STEPS;
            let steps = (1..STEPS).rev().map(|step| CpuPpm::new(slowest.cpu.get() + more * step));
            // Where there is no room to be so slow to the end, there may be for a while.
            let mut forms = steps.flat_map(|cpu| {
                let until = slowest.later.and_then(|later| left.with_both(cpu, Some(later)));
                left.with(cpu).into_iter().chain(until)
            });
            let found = forms.find(|form| self.try_form(reservation, *form));
            slower.push((Arc::clone(reservation), found.unwrap_or(*slowest)));
        }
        slower
    }

    /// Has reservations begin at another time and become slower; `asked` waits for that.
    pub(super) fn make_way(&mut self, asked: Asked, way: Way) {
        let by = &asked.caller.user;
        let kind = || Kind::Change { by: by.clone(), agreed_by: None };
        // Nobody is asked about these. They may take one another's places.
        way.deferred.iter().for_each(|(reservation, _)| self.release(reservation.handle));
        for (reservation, form) in way.deferred {
            if let Some(proposal) = in_form(&reservation, form) {
                self.grant(reservation.handle, proposal, &kind());
            }
        }
        let offered = way.slower.into_iter().filter_map(|(reservation, form)| {
            self.change_form(&reservation, form, kind());
            let handle = reservation.handle;
            self.offers.contains_key(&handle).then_some(handle)
        });
        let slower: BTreeSet<_> = offered.collect();
        self.has_room |= slower.is_empty();
        let asked = Asked { may_make_way: false, ..asked };
        self.waiting.push(Waiting { asked, slower });
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
        for Waiting { asked, .. } in self.waiting.extract_if(.., ready).collect::<Vec<_>>() {
            let handle = asked.handle;
            self.decide(asked);
            // It came to nothing: who became slower for it need not be.
            if !self.offers.contains_key(&handle) && !self.is_live(handle) {
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
        for (reservation, left) in self.malleable(at) {
            let form = match reservation.state {
                State::Active => self.faster(&reservation, &left),
                _ => self.sooner(&reservation, &left, at),
            };
            if let Some(form) = form {
                let by = reservation.owner.clone();
                self.change_form(&reservation, form, Kind::Change { by, agreed_by: Some(at) });
            }
        }
    }

    /// With what is free before it has another share, if it has one, and after that.
    fn faster(&mut self, reservation: &Reservation, left: &Left) -> Option<Form> {
        let (grant, now) = (reservation.grant.as_ref()?, left.form());
        let at = self.now;
        let mut free = |span| self.free_beside(&reservation.owner, grant, span);
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
    fn sooner(&mut self, reservation: &Reservation, left: &Left, start: WallTime) -> Option<Form> {
        let (grant, now) = (reservation.grant.as_ref()?, left.form());
        let sooner = left.sooner(start)?;
        let before = span(start, Some(now.begins.min(sooner.form().until)));
        let free = self.free_beside(&reservation.owner, grant, before);
        let form = sooner.with(now.cpu.min(CpuPpm::new(free)))?;
        (form.until <= now.until).then_some(form)
    }

    /// CPU that is free of each node of a grant during `span`, and of its owner's share, in millionths.
    fn free_beside(&mut self, owner: &UserName, grant: &Grant, span: Span) -> u32 {
        let [user, _] = self.tables_of(owner);
        let of_user = self.calendar.table(user).map_or(0, |table| table.least_free(span));
        let nodes = self.cluster.nodes(grant).unwrap_or_default();
        let on = |node| self.cluster.least_free(&self.calendar, span, Resource::Cpu(node));
        let each = nodes.iter().map(|node| on(*node)).min().unwrap_or(0);
        let each = each.min(of_user / (nodes.len() as u64).max(1));
        u32::try_from(each).unwrap_or(u32::MAX)
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
