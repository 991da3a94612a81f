//! From a request to an offer: planned on what is free, held in the slot tables, told to agents.

use super::{Engine, Ticket, Timeout};
use crate::absences::Absences;
use crate::admission::{Admission, Denied, Outcome};
use crate::book::Reservation;
use crate::call::{Answer, CallError};
use crate::mask::NodeMask;
use crate::offers::{Declined, Kind, Offer, Proposal, span};
use crate::policy::Policy;
use crate::refusal::{Reason, Refusal};
use keeptime_calendar::ResourceId;
use keeptime_model::Invalid;
use keeptime_model::assignment::{CpuMechanism, LaterCpu};
use keeptime_model::name::Name;
use keeptime_model::reservation::{
    Ask, Grant, Handle, NodeChoice, Request, RequestKey, Resources, State, UserName,
};
use keeptime_model::units::{BitsPerSecond, Nanos, WallTime};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// A start that lies back by no more than this is meant to be now: clocks differ, and so do people.
const PAST_MAX: Nanos = Nanos::from_secs(60);

/// Whose place a request takes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place<'a> {
    /// Its own: it came as this. Nodes may be kept from it for those who came before and wait.
    Own(Handle),
    /// That of one that is lost.
    OfLost,
    /// That of a reservation which it changes. Nodes that this has not, or not so early or for so long, may be kept from it for
    /// all who wait.
    OfOld(&'a Reservation),
}

impl<'a> Place<'a> {
    pub(super) fn old(self) -> Option<&'a Reservation> {
        match self {
            Self::OfOld(old) => Some(old),
            Self::Own(_) | Self::OfLost => None,
        }
    }
}

/// What somebody asks for. Borrowed: it is planned at every try from the queue, and few come to something.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub owner: &'a UserName,
    pub key: &'a RequestKey,
    pub request: &'a Request,
    pub place: Place<'a>,
    pub number: Number,
}

impl<'a> Wanted<'a> {
    /// One reservation more, unless it takes the place of one that is there, or is a web site's.
    pub fn new(
        owner: &'a UserName,
        key: &'a RequestKey,
        request: &'a Request,
        place: Place<'a>,
    ) -> Self {
        let number = match (place.old(), &request.ask) {
            (None, Ask::Goal { .. } | Ask::Resources(_)) => Number::More,
            _ => Number::Same,
        };
        Self { owner, key, request, place, number }
    }

    /// What takes the place of a reservation that is about to be lost, or was lost just before the broker was killed: its
    /// user has no more of them then than before.
    pub fn instead(owner: &'a UserName, key: &'a RequestKey, request: &'a Request) -> Self {
        Self { owner, key, request, place: Place::OfLost, number: Number::Same }
    }
}

/// What is told of a request that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Telling {
    /// Why.
    Reason,
    /// Also when it would fit, and what less would. That costs several times as much to find.
    Offers,
}

/// Whether what is asked for is one more of those that its user may have at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    /// One more.
    More,
    /// It takes the place of one that counts, or is nobody's.
    Same,
}

impl Engine {
    /// What would be granted now; otherwise why not, with as much about that as `telling` says.
    pub(super) fn plan(
        &mut self,
        wanted: Wanted<'_>,
        telling: Telling,
    ) -> Result<Proposal, Declined> {
        let times = self.times_of(wanted)?;
        let user = self.counted_in(wanted.owner, &wanted.request.ask);
        self.calendar.settle();
        self.plan_at(times, wanted, user, telling)
    }

    /// From when until when it is wanted, if it may be.
    pub(super) fn times_of(
        &self,
        wanted: Wanted<'_>,
    ) -> Result<(WallTime, Option<WallTime>), Denied> {
        let Wanted { owner, request, place, number, .. } = wanted;
        let old = place.old();
        request.check()?;
        self.check_site_node(&request.ask, old)?;
        let from = self.start(request, old)?;
        let until = request.duration_nanos.map(|duration| from.saturating_add(duration));
        if let Some(duration) = request.duration_nanos.filter(|_| until <= Some(self.now)) {
            let expected =
                format!("more than {}: it has begun so long ago", self.now.saturating_since(from));
            return Err(Invalid::new("duration_nanos", duration.get(), expected).into());
        }
        check_deadline(request, until)?;
        self.check_limits(owner, from, number, old)?;
        if let Some(old) = old {
            self.check_stays(old, request, until)?;
        }
        if let (Place::Own(_), Some(name)) = (place, self.unknown(&request.among)) {
            let expected = format!("nodes {}", self.cluster.of_it());
            return Err(Invalid::new("among", name, expected).into());
        }
        Ok((from, until))
    }

    /// What was checked, planned for these times.
    pub(super) fn plan_at(
        &self,
        (from, until): (WallTime, Option<WallTime>),
        wanted: Wanted<'_>,
        user: Option<[ResourceId; 2]>,
        telling: Telling,
    ) -> Result<Proposal, Declined> {
        let Wanted { owner, key, request, place, .. } = wanted;
        let old = place.old();
        let stays = old.map(|old| self.stays_on(old, request)).unwrap_or_default();
        let ask = asked_on(&request.ask, stays);
        let span = span(from, until);
        let admission = Admission {
            mechanism: request.cpu_mechanism,
            kept: self.kept_from(place, request, from, until),
            outside: match stays {
                [] => self.outside(&request.among),
                stays => self.outside(stays),
            },
            drained: self.drained_for(old, request, (from, until)),
            stays,
            ..self.admission(user)
        };
        let Outcome { granted, decision } = admission.grant(&ask, span);
        // Its program runs on: what it was given beside stays, unless its nodes do not.
        let granted = granted.and_then(|grant| match old.and_then(|old| old.grant.as_ref()) {
            Some(before) if before.nodes == grant.nodes && !before.extension.is_empty() => {
                admission.extend(grant, before.extension.clone(), span)
            }
            _ => Ok(grant),
        });
        // Who changes something else keeps what was promised for later.
        let granted = granted.and_then(|grant| {
            let later = old.and_then(|old| kept_later(old, request, &grant, from));
            if later.is_none() {
                return Ok(grant);
            }
            let grant = Grant { later, ..grant };
            admission.fits(&grant, span).map(|()| grant)
        });
        match granted {
            Ok(grant) => {
                let (owner, key, request) = (owner.clone(), key.clone(), request.clone());
                Ok(Proposal { owner, key, request, from, until, grant, decision })
            }
            Err(Denied::Refused(mut refusal)) => {
                if telling == Telling::Offers {
                    self.counsel(wanted, admission, &ask, span, &mut refusal);
                }
                Err(Declined { denied: Denied::Refused(refusal), decision })
            }
            Err(invalid) => Err(invalid.into()),
        }
    }

    pub(super) fn start(
        &self,
        request: &Request,
        old: Option<&Reservation>,
    ) -> Result<WallTime, Invalid> {
        let kept = old.map(|old| old.from_unix_nanos);
        let begun = old.filter(|old| old.state == State::Active);
        // What lay back when it was asked for, or ahead by a clock that was wrong, is not when it began.
        let asked = begun.and_then(|begun| begun.request.from_unix_nanos);
        match (request.from_unix_nanos.or(kept), kept) {
            (None, _) => Ok(self.now),
            (Some(from), Some(kept)) if from == kept || asked == Some(from) => Ok(kept),
            (Some(from), _) if begun.is_some() => {
                let expected = "nothing: it has started";
                Err(Invalid::new("from_unix_nanos", from.unix_nanos(), expected))
            }
            (Some(from), _) if from >= self.now => Ok(from),
            (Some(from), _) if self.now.saturating_since(from) <= PAST_MAX => Ok(self.now),
            (Some(from), _) => {
                let expected = format!("{} or later: now", self.now.unix_nanos());
                Err(Invalid::new("from_unix_nanos", from.unix_nanos(), expected))
            }
        }
    }

    fn check_limits(
        &self,
        owner: &UserName,
        from: WallTime,
        number: Number,
        old: Option<&Reservation>,
    ) -> Result<(), Denied> {
        let Policy { ahead_max_nanos, user_reservations, .. } = self.policy;
        // What was granted when one might ask further ahead keeps its start.
        let is_kept = old.is_some_and(|old| old.from_unix_nanos == from);
        if !is_kept && from.saturating_since(self.now) > ahead_max_nanos {
            return Err(Reason::TooFarAhead { ahead_max_nanos }.into());
        }
        if number == Number::More && self.count_of(owner) >= user_reservations {
            return Err(Reason::TooMany { user_reservations }.into());
        }
        Ok(())
    }

    /// How many reservations a user has, or will have if nothing is in the way: those that wait for room, for agents, or
    /// until others are slower, too.
    fn count_of(&self, owner: &UserName) -> u32 {
        let is_one_more = |offer: &&Offer| {
            let is_new = matches!(offer.kind, Kind::New { .. });
            let is_of_a_site = matches!(offer.proposal.request.ask, Ask::SiteNode(_));
            is_new && !is_of_a_site && offer.proposal.owner == *owner
        };
        let offered = self.offers.values().filter(is_one_more).count();
        let asked = self.waiting.iter().filter_map(|waiting| waiting.pending.asked());
        let asked = asked.filter(|asked| asked.caller.user == *owner).count();
        let undecided = u32::try_from(offered + asked).unwrap_or(u32::MAX);
        let decided = self.book.live(owner).saturating_add(self.queue.count_of(owner));
        decided.saturating_add(undecided)
    }

    /// Admission of requests that count in these tables of their user.
    pub(super) fn admission(&self, user: Option<[ResourceId; 2]>) -> Admission<'_> {
        Admission {
            cluster: &self.cluster,
            calendar: &self.calendar,
            book: &self.book,
            agents: &self.agents,
            absences: self.absences(),
            user,
            shares: self.shares,
            mechanism: CpuMechanism::Auto,
            kept: NodeMask::default(),
            outside: NodeMask::default(),
            drained: NodeMask::default(),
            stays: &[],
        }
    }

    /// Who is away now.
    pub(super) fn absences(&self) -> Absences {
        Absences::AsOf { now: self.moment(), told_ahead: self.policy.tell_ahead_nanos }
    }

    /// The nodes on which what runs stays when it is changed, in the order of its ranks: its program is where it is, and would be
    /// ended. Whoever names other nodes, those that it may have, or another number has said so, and none are told; nor where an
    /// application is for other numbers.
    fn stays_on<'r>(&self, old: &'r Reservation, request: &Request) -> &'r [Name] {
        let has = old.nodes();
        let count = has.len() as u32;
        let is_as_many = match &request.ask {
            Ask::Goal { application, goal } => {
                let known = self.book.applications().get(application);
                let is_for = known.is_some_and(|known| known.application.nodes().contains(&count));
                is_for && goal.nodes.is_none_or(|number| number == count)
            }
            Ask::Resources(Resources { nodes: NodeChoice::Any(number), .. }) => *number == count,
            Ask::Resources(_) | Ask::SiteNode(_) => false,
        };
        let may_have = |name| request.among.is_empty() || request.among.contains(name);
        let stays = old.state == State::Active && is_as_many && has.iter().all(may_have);
        if stays { has } else { &[] }
    }

    /// All nodes but those of `among`; none where any will do.
    pub(super) fn outside<'n>(&self, among: impl IntoIterator<Item = &'n Name>) -> NodeMask {
        let mut among = among.into_iter().peekable();
        if among.peek().is_none() {
            return NodeMask::default();
        }
        let among = among.filter_map(|name| self.cluster.node(name).ok());
        NodeMask::all_but(self.cluster.topology().nodes().len(), among)
    }

    /// The first of these that the cluster does not have: it may have had it when the request was granted.
    fn unknown<'n>(&self, among: &'n BTreeSet<Name>) -> Option<&'n Name> {
        among.iter().find(|name| self.cluster.node(name).is_err())
    }

    /// What starts until then is told to agents now.
    pub(super) fn told_until(&self) -> WallTime {
        self.now.saturating_add(self.policy.tell_ahead_nanos)
    }

    /// Whether its agents know of a live reservation: it starts soon, or has started.
    pub(super) fn is_told(&self, live: &Reservation) -> bool {
        // In a snapshot that was made before `ClockAccepted` took back what a clock that was ahead had said, what
        // runs may begin much later.
        live.state == State::Active || live.from_unix_nanos <= self.told_until()
    }

    /// Holds a proposal and asks its agents, or grants it at once where they need not be asked yet.
    pub(super) fn offer(
        &mut self,
        handle: Handle,
        proposal: Proposal,
        kind: Kind,
        tickets: Vec<Ticket>,
    ) -> Option<Answer> {
        let soon = proposal.from <= self.told_until();
        if let Err(refusal) = self.hold(handle, &proposal, &kind) {
            // Only a change can fail here: who has more than one may have by now has it for no longer than before.
            self.answer_each(tickets, &Err(CallError::Refused { handle: None, refusal }));
            return None;
        }
        if !soon {
            self.grant(handle, proposal, &kind);
            return self.current(handle);
        }
        // What is changed has what is reserved and no more until that is granted, on nodes that it leaves too.
        self.take_spare_back(handle);
        let Proposal { owner, grant, from, until, .. } = &proposal;
        let yielding = self.make_room(handle, grant);
        let assignments =
            self.cluster.assignments(handle, owner, grant, *from, *until, BitsPerSecond::ZERO);
        let assignments = assignments.unwrap_or_default();
        let waiting = assignments.keys().copied().collect();
        let deadline = self.after(self.patience(&kind, *until));
        self.timeouts.insert((deadline, Timeout::Offer(handle)));
        self.offers.insert(handle, Offer { kind, proposal, waiting, yielding, tickets, deadline });
        for (node, assignment) in assignments {
            let sent = self.agents.tell(node, handle, assignment);
            self.send(sent);
        }
        None
    }

    /// How long agents have to answer: something new is not granted when its time is over, nor when the time is over in
    /// which it may be offered elsewhere.
    fn patience(&self, kind: &Kind, until: Option<WallTime>) -> Nanos {
        let within = self.policy.answer_within_nanos;
        let Kind::New { elsewhere_until, .. } = kind else { return within };
        let lasts = until.map(|until| until.saturating_since(self.now));
        let is_offered = elsewhere_until.map(|until| until.saturating_sub(self.steady));
        [lasts, is_offered].into_iter().flatten().fold(within, Nanos::min)
    }

    /// Takes a proposal from the slot tables. A change that agents are asked about takes what it has and what
    /// it will have until they have answered, so that either can be gone back to.
    pub(super) fn hold(
        &mut self,
        handle: Handle,
        proposal: &Proposal,
        kind: &Kind,
    ) -> Result<(), Box<Refusal>> {
        let Proposal { owner, request, grant, .. } = proposal;
        let pieces = self.pieces(owner, &request.ask, grant, proposal.span());
        let outcome = match kind {
            // It was planned with what its user had with the lost one, which they may have been promised when limits
            // were others.
            Kind::New { replaces: Some(_), .. } => self.hold_beyond_limits(handle, &pieces),
            _ => self.hold_beside(handle, pieces),
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(keeptime_calendar::Refusal::Lacks(lacks)) => {
                let user = self.counted_in(owner, &request.ask);
                let reason = self.admission(user).all_lacking(&lacks);
                Err(Box::new(reason.into()))
            }
            Err(bug) => unreachable!("what was admitted is held: {bug}"),
        }
    }
}

/// What is asked for, on these nodes; where there are none, as it is.
fn asked_on<'a>(ask: &'a Ask, nodes: &[Name]) -> Cow<'a, Ask> {
    let mut asked = Cow::Borrowed(ask);
    if nodes.is_empty() {
        return asked;
    }
    match asked.to_mut() {
        Ask::Goal { goal, .. } => goal.nodes = Some(nodes.len() as u32),
        Ask::Resources(asked) => asked.nodes = NodeChoice::Named(nodes.to_vec()),
        Ask::SiteNode(_) => {}
    }
    asked
}

/// What `old` will have more, where `request` asks for the same CPU for as long, which `grant` gives it on its nodes: as long
/// after its beginning as before.
fn kept_later(
    old: &Reservation,
    request: &Request,
    grant: &Grant,
    from: WallTime,
) -> Option<LaterCpu> {
    let before = &old.request;
    let (Ask::Resources(had), Ask::Resources(has)) = (&before.ask, &request.ask) else {
        return None;
    };
    let has_grant = old.grant.as_ref().filter(|before| before.nodes == grant.nodes)?;
    let is_same = had.cpu_ppm == has.cpu_ppm && before.duration_nanos == request.duration_nanos;
    let later = has_grant.later.filter(|_| is_same && request.malleable.is_some())?;
    let after = later.from_unix_nanos.saturating_since(old.from_unix_nanos);
    Some(LaterCpu { from_unix_nanos: from.saturating_add(after), ..later })
}

/// What is malleable does not end after its deadline.
fn check_deadline(request: &Request, until: Option<WallTime>) -> Result<(), Invalid> {
    match request.malleable.map(|malleable| malleable.by_unix_nanos).zip(until) {
        Some((by, until)) if by < until => {
            let expected = format!("{} or later: when it ends", until.unix_nanos());
            Err(Invalid::new("malleable.by_unix_nanos", by.unix_nanos(), expected))
        }
        _ => Ok(()),
    }
}
