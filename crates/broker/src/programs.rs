//! What MPI programs ask for: a desk for each job, which has its reservation extended and answers
//! the agents. What is to be asked for is decided by [`keeptime_mpiqos::desk`].

mod goal;
mod post;

use crate::agents::Hub;
use crate::core::{Handle, Unavailable};
use crate::vital;
use goal::JobProfile;
use keeptime_agent::link::{LINE_BYTES_MAX, ToAgent};
use keeptime_credentials::dates;
use keeptime_engine::agents::Session;
use keeptime_engine::book::Reservation;
use keeptime_engine::{Call, CallError, Caller};
use keeptime_locks::lock;
use keeptime_model::extension::Extension;
use keeptime_model::name::Name;
use keeptime_model::reservation::{self, Grant};
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::WallTime;
use keeptime_mpiqos::desk::{Desk, Situation, Step};
use keeptime_mpiqos::wire::{Answer, RankAnswer, RankState};
use post::{Post, Said};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, interval, sleep, timeout};

/// Bytes of one node's reports that no desk has heard yet, the newest of each job: what is made of them takes a few times as
/// much. 32 jobs of a node may say as much there as one line holds; usual ones say a few KiB.
const UNHEARD_BYTES_MAX: usize = 32 * LINE_BYTES_MAX as usize;
/// A report counts as so many bytes at least, which are kept beside it.
const REPORT_BYTES_MIN: usize = 1 << 10;
/// Desks that one node has opened and of which nobody knows yet whether there is such a reservation, in which it has a part:
/// more than its agent has connections, and fewer than may wait for a look at the state. What it says to others that are open is
/// taken beside these.
const OPENED_MAX: usize = 1_024;
/// A desk that nobody says anything to for so long is closed, if nothing is asked for there.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Agents come back and report within this time after the broker started, and ranks to an agent that
/// did.
const EARLY: Duration = Duration::from_secs(10);
/// It is looked so often for agents that said nothing in that time.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A reservation that is just being changed is tried again so often, after so long.
const BUSY_TRIES: u32 = 100;
const BUSY_WAIT: Duration = Duration::from_millis(10);
/// After so long it is tried again what cannot be done for the moment, for as long as somebody asks for it: a disk is full for
/// as long as it is.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// One for each job that has ranks.
pub struct Desks {
    place: Arc<Place>,
    open: Mutex<BTreeMap<reservation::Handle, Arc<Post>>>,
    rooms: BTreeMap<NodeIndex, Room>,
    arrivals: Mutex<Vec<Arrival>>,
}

/// Whoever has the certificate of a node may say what it likes, as fast as it can: so much of it is kept.
struct Room {
    /// Of reports that were not heard yet.
    bytes: Arc<Semaphore>,
    /// Desks that it has opened and that are not known to be wanted.
    opened: Arc<Semaphore>,
}

/// What every desk needs.
struct Place {
    core: Handle,
    hub: Arc<Hub>,
    nodes: BTreeMap<NodeIndex, Name>,
    addresses: BTreeMap<Name, Ipv4Addr>,
    began: WallTime,
    early_until: Instant,
}

/// A reservation that can be extended: whose it is, what it holds, since when, and what is known of its
/// program.
struct Live {
    owner: Caller,
    grant: Grant,
    since: WallTime,
    profile: JobProfile,
}

/// All that ranks of a job ask for on one node.
#[derive(Debug)]
pub struct Report {
    /// The node,
    pub node: NodeIndex,
    /// and its connection.
    pub session: Session,
    /// Answered under the same number.
    pub number: u64,
    /// The ranks.
    pub ranks: Vec<RankState>,
    /// How long the line was.
    pub bytes: usize,
}

/// A new connection of a node's agent.
struct Arrival {
    node: NodeIndex,
    session: Session,
    at: Instant,
}

/// The desk of one job, and which connection of each node it has heard.
#[derive(Default)]
struct Open {
    desk: Desk,
    heard: BTreeMap<NodeIndex, Session>,
    /// Whose last report is not answered yet.
    askers: BTreeMap<NodeIndex, Asker>,
    /// Whether anything was said by a node that has a part in the reservation, which is still there.
    is_wanted: bool,
    /// Taken of the node that opened it until it is known to be wanted.
    opening: Option<OwnedSemaphorePermit>,
    /// Whether something is to be done that could not be.
    is_behind: bool,
}

/// Where an answer goes.
struct Asker {
    session: Session,
    number: u64,
}

/// Why a reservation cannot be looked at, or extended.
#[derive(Debug)]
enum Obstacle {
    /// Nobody can say now: that is no answer to what is asked for.
    NotNow,
    /// In the user's words.
    Refused(String),
}

impl Desks {
    /// For the nodes of `topology`. Made inside of a runtime.
    pub fn new(core: Handle, hub: Arc<Hub>, topology: &Topology) -> Arc<Self> {
        let nodes = topology.node_indices().map(|at| (at, topology.node(at).name.clone()));
        let address =
            |node: &keeptime_model::topology::Node| Some((node.name.clone(), node.address?));
        let addresses = topology.nodes().iter().filter_map(address).collect();
        let (began, early_until) = (dates::now(), Instant::now() + EARLY);
        let place = Place { core, hub, nodes: nodes.collect(), addresses, began, early_until };
        let rooms = topology.node_indices().map(|at| (at, Room::new())).collect();
        let (open, arrivals) = (Mutex::default(), Mutex::default());
        let desks = Arc::new(Self { place: Arc::new(place), open, rooms, arrivals });
        vital::spawn("what looks for agents that say nothing", Arc::clone(&desks).count_silence());
        desks
    }

    /// An agent has connected. It reports at once what ranks ask for that it knows, and ranks that lost
    /// it call again within a second or two. Where it still says nothing of a job after ten seconds, the
    /// program has ended while one of the two was away, and nobody else would ever say so.
    pub fn arrived(&self, node: NodeIndex, session: Session) {
        lock(&self.arrivals).push(Arrival { node, session, at: Instant::now() });
    }

    /// Hands a report to the desk of its job. Jobs that are no reservations have none: what they may
    /// have is between the node and whoever asked for it there.
    pub fn take(self: &Arc<Self>, job: &Name, report: Report) {
        let Ok(handle) = job.as_str().parse::<reservation::Handle>() else {
            let why = format!("{job} is no reservation of this broker");
            return self.place.refuse(job, &report, &why);
        };
        let taken = self.rooms.get(&report.node).and_then(|room| room.take(report.bytes));
        if let Some(room) = taken {
            self.say(handle, Said::Report { report, _room: room });
        }
    }

    /// One that is not taken is not answered: the rank asks again.
    fn say(self: &Arc<Self>, handle: reservation::Handle, said: Said) {
        let mut open = lock(&self.open);
        let post = match open.entry(handle) {
            Entry::Occupied(at) => at.into_mut(),
            Entry::Vacant(at) => {
                let (node, _) = said.from();
                let opening = self.rooms.get(&node).and_then(Room::open);
                // Silence is told of once, and of reservations that are there.
                if opening.is_none() && matches!(said, Said::Report { .. }) {
                    return;
                }
                at.insert(self.open(handle, opening))
            }
        };
        post.put(said);
    }

    fn open(
        self: &Arc<Self>,
        handle: reservation::Handle,
        opening: Option<OwnedSemaphorePermit>,
    ) -> Arc<Post> {
        let (desks, post) = (Arc::clone(self), Arc::<Post>::default());
        let read = Arc::clone(&post);
        let open = Open { opening, ..Open::default() };
        tokio::spawn(async move { desks.serve(handle, open, &read).await });
        post
    }

    /// Tells desks of agents that have nothing to say to them.
    async fn count_silence(self: Arc<Self>) {
        let mut looks = interval(LOOK_EVERY);
        loop {
            looks.tick().await;
            let is_due = |arrival: &mut Arrival| arrival.at.elapsed() >= EARLY;
            let due: Vec<_> = lock(&self.arrivals).extract_if(.., is_due).collect();
            if due.is_empty() {
                continue;
            }
            match self.place.extended().await {
                Ok(extended) => self.say_silence(&due, extended),
                // They are due at the next look, too.
                Err(why) if why.is_passing() => lock(&self.arrivals).extend(due),
                Err(_) => return,
            }
        }
    }

    fn say_silence(
        self: &Arc<Self>,
        due: &[Arrival],
        extended: Vec<(reservation::Handle, Vec<Name>)>,
    ) {
        for (handle, nodes) in extended {
            let has_part = |due: &&Arrival| {
                self.place.nodes.get(&due.node).is_some_and(|name| nodes.contains(name))
            };
            for Arrival { node, session, .. } in due.iter().filter(has_part) {
                self.say(handle, Said::Silence(*node, *session));
            }
        }
    }

    async fn serve(&self, handle: reservation::Handle, mut open: Open, post: &Post) {
        loop {
            let patience = if open.is_behind { AGAIN_AFTER } else { IDLE_MAX };
            let is_silent = timeout(patience, post.arrival()).await.is_err();
            // What has arrived may have been heard in the place of what was said before.
            if !open.is_behind && post.is_empty() {
                if is_silent && open.desk.is_idle() && self.close(handle, post) {
                    return;
                }
                continue;
            }
            self.place.hear(handle, &mut open, post).await;
            // One that was opened by who has no business there lasts for one look.
            if !open.is_wanted && self.close(handle, post) {
                return;
            }
        }
    }

    /// Closes a desk, unless something was said to it meanwhile.
    fn close(&self, handle: reservation::Handle, post: &Post) -> bool {
        let mut desks = lock(&self.open);
        let is_done = post.is_empty();
        if is_done {
            desks.remove(&handle);
        }
        is_done
    }
}

impl Room {
    fn new() -> Self {
        let of = |count| Arc::new(Semaphore::new(count));
        Self { bytes: of(UNHEARD_BYTES_MAX), opened: of(OPENED_MAX) }
    }

    /// Room for a report, if there is any.
    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = bytes.clamp(REPORT_BYTES_MIN, UNHEARD_BYTES_MAX);
        Arc::clone(&self.bytes).try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }

    /// Room for a desk that is opened.
    fn open(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.opened).try_acquire_owned().ok()
    }
}

impl Open {
    fn is_wanted_after_all(&mut self) {
        (self.is_wanted, self.opening) = (true, None);
    }
}

impl Place {
    /// Nodes that have no part in the reservation have no say in it.
    async fn hear(&self, handle: reservation::Handle, open: &mut Open, post: &Post) {
        let job = handle.job();
        open.is_behind = false;
        let live = self.live(handle).await;
        // Not before, since what is said meanwhile takes the place of what waits.
        let all = post.take();
        let grant = match live {
            Ok(live) => live.grant,
            // The broker ends. The next one hears all of it again.
            Err(Obstacle::NotNow) => return,
            Err(Obstacle::Refused(why)) => {
                *open = Open { opening: open.opening.take(), ..Open::default() };
                let reports = all.iter().filter_map(|said| match said {
                    Said::Report { report, .. } => Some(report),
                    Said::Silence(..) => None,
                });
                return reports.for_each(|report| self.refuse(&job, report, &why));
            }
        };
        open.desk.keep_to(&grant.nodes);
        for said in all {
            let (node, session) = said.from();
            let name = self.nodes.get(&node).filter(|name| grant.nodes.contains(name));
            match (said, name) {
                (Said::Report { report, .. }, None) => {
                    self.refuse(&job, &report, "this node has no part in the reservation");
                }
                (Said::Report { report: Report { number, ranks, .. }, .. }, Some(name)) => {
                    open.is_wanted_after_all();
                    open.heard.insert(node, session);
                    open.desk.report(name, ranks);
                    // What is answered to the last one is about all that it asks for.
                    open.askers.insert(node, Asker { session, number });
                }
                (Said::Silence(..), Some(name)) if open.heard.get(&node) < Some(&session) => {
                    open.is_wanted_after_all();
                    open.desk.report(name, Vec::new());
                }
                (Said::Silence(..), _) => {}
            }
        }
        // Else nothing is known of what ranks ask for, and nothing is to be given back.
        if open.is_wanted {
            self.work(handle, open).await;
        }
    }

    /// Has the reservation extended until nothing is left to do, and answers. As long as that cannot be done nobody is
    /// answered: agents say that they wait, and what was granted holds.
    async fn work(&self, handle: reservation::Handle, open: &mut Open) {
        let Open { desk, askers, is_behind, .. } = open;
        loop {
            let Live { owner, grant, since, profile } = match self.live(handle).await {
                Ok(live) => live,
                Err(Obstacle::NotNow) => return,
                Err(Obstacle::Refused(why)) => {
                    return self.answer_all(handle, askers, |node| desk.refused(node, &why));
                }
            };
            let address = |name: &Name| self.addresses.get(name).copied();
            let addresses: Vec<_> =
                grant.nodes.iter().map(|n| address(n).unwrap_or(Ipv4Addr::UNSPECIFIED)).collect();
            // Of a reservation that is younger than this broker, nobody asked another one for anything. One of a time to come
            // is older: its broker's clock was ahead.
            let is_older = since < self.began || since > dates::now();
            let is_early = is_older && Instant::now() < self.early_until;
            let (grant, addresses, profile) = (&grant, addresses.as_slice(), &profile);
            let situation = Situation { grant, addresses, is_early, profile };
            let Step::Extend(key, extension) = desk.next(&situation) else {
                return self.answer_all(handle, askers, |node| desk.answers(node, &situation));
            };
            let outcome = match self.extend(handle, &owner, extension).await {
                Ok(()) => Ok(()),
                Err(Obstacle::NotNow) => {
                    *is_behind = true;
                    return;
                }
                // What nobody asks for any more stays until something is said again.
                Err(Obstacle::Refused(_)) if key.is_none() => {
                    return self.answer_all(handle, askers, |node| desk.answers(node, &situation));
                }
                Err(Obstacle::Refused(why)) => Err(why),
            };
            desk.tried(key.as_ref(), outcome);
        }
    }

    /// Reservations that have what ranks asked for, and their nodes.
    async fn extended(&self) -> Result<Vec<(reservation::Handle, Vec<Name>)>, Unavailable> {
        let find = |engine: &keeptime_engine::Engine| {
            let all = engine.book().reservations().iter();
            let extended = all.filter_map(|(handle, one)| {
                let grant = one.grant.as_ref().filter(|grant| !grant.extension.is_empty())?;
                one.state.is_live().then(|| (*handle, grant.nodes.clone()))
            });
            extended.collect()
        };
        self.core.read(find).await
    }

    /// Waits while the broker is too busy to look.
    async fn live(&self, handle: reservation::Handle) -> Result<Live, Obstacle> {
        let find = move |engine: &keeptime_engine::Engine| {
            let book = engine.book();
            let found = Arc::clone(book.reservations().get(&handle)?);
            let known = |name: &Name| Some(book.applications().get(name)?.fitted.as_ref());
            let profile = JobProfile::of(found.grant.as_ref(), known);
            Some((found, profile))
        };
        let found = loop {
            match self.core.read(find).await {
                Ok(found) => break found,
                Err(why) if why.is_passing() => sleep(AGAIN_AFTER).await,
                Err(_) => return Err(Obstacle::NotNow),
            }
        };
        let refused = |error: CallError| Obstacle::Refused(error.to_string());
        let (found, profile) = found.ok_or_else(|| refused(CallError::NotFound { handle }))?;
        let Reservation { owner, state, grant, since_unix_nanos: since, .. } =
            Arc::unwrap_or_clone(found);
        match grant.filter(|_| state.is_live()) {
            Some(grant) => {
                let owner = Caller { user: owner, operator: false };
                Ok(Live { owner, grant, since, profile })
            }
            None => Err(refused(CallError::Over { handle, state })),
        }
    }

    async fn extend(
        &self,
        handle: reservation::Handle,
        owner: &Caller,
        extension: Extension,
    ) -> Result<(), Obstacle> {
        for _ in 0..BUSY_TRIES {
            let call = Call::Extend { handle, extension: extension.clone() };
            match self.core.call(owner.clone(), call).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => match *error {
                    CallError::Busy { .. } => sleep(BUSY_WAIT).await,
                    error => return Err(Obstacle::Refused(error.to_string())),
                },
                Err(_) => return Err(Obstacle::NotNow),
            }
        }
        Err(Obstacle::NotNow)
    }

    fn answer_all(
        &self,
        handle: reservation::Handle,
        askers: &mut BTreeMap<NodeIndex, Asker>,
        answers: impl Fn(&Name) -> BTreeMap<u32, RankAnswer>,
    ) {
        for (node, Asker { session, number }) in std::mem::take(askers) {
            let Some(name) = self.nodes.get(&node) else { continue };
            let said = ToAgent::Programs { number, job: handle.job(), answers: answers(name) };
            self.hub.tell(node, session, said);
        }
    }

    fn refuse(&self, job: &Name, report: &Report, why: &str) {
        let refused = |rank: &RankState| {
            (rank.number, RankAnswer::all(rank.asks.len(), &Answer::refused(why)))
        };
        let answers = report.ranks.iter().map(refused).collect();
        let said = ToAgent::Programs { number: report.number, job: job.clone(), answers };
        self.hub.tell(report.node, report.session, said);
    }
}

impl std::fmt::Debug for Desks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desks").field("nodes", &self.place.nodes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testing::Still;
    use keeptime_model::assignment::TrafficClass;
    use keeptime_model::pattern::Pattern;
    use keeptime_model::reservation::{Ask as Asked, NodeChoice, Request, Resources};
    use keeptime_model::units::{CpuPpm, Nanos};
    use keeptime_mpiqos::wire::{Ask, Communicator, Terms};

    /// Longer than any look takes.
    const SOON: Duration = Duration::from_secs(60);

    /// Looks at the state until so many wait that the next one is told so.
    async fn crowd(core: &Handle) {
        loop {
            tokio::select! {
                biased;
                Err(_) = core.read(|_| ()) => return,
                // It waits, whether somebody hears the answer or not.
                () = std::future::ready(()) => {}
            }
        }
    }

    /// What a node says of no ranks, in a line of so many bytes.
    fn report(node: NodeIndex, bytes: usize) -> Report {
        Report { node, session: Session(1), number: 1, ranks: Vec::new(), bytes }
    }

    /// The only node says something of the job with this number.
    fn take(desks: &Arc<Desks>, number: u64, bytes: usize) {
        let job = reservation::Handle::new(number).job();
        desks.take(&job, report(NodeIndex(0), bytes));
    }

    /// A node says something to the desk that reads this.
    fn put(post: &Post, node: NodeIndex) {
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        post.put(Said::Report { report: report(node, 10), _room: room });
    }

    // Goal: whoever has a node's certificate has a bounded part of the memory. Method: short reports and long ones of ever more
    // jobs, while nobody says whether there are such reservations.
    #[tokio::test]
    async fn of_what_one_node_says_a_bounded_part_waits_to_be_heard() {
        for (bytes, count) in [(10, 1_024), (LINE_BYTES_MAX as usize, 32)] {
            let Still { topology, core: _core, handle, hub, .. } = Still::new();
            let desks = Desks::new(handle, hub, &topology);
            (1..=2 * count).for_each(|number| take(&desks, number, bytes));
            assert_eq!(lock(&desks.open).len() as u64, count, "of {bytes} bytes each");
        }
    }

    // Goal: no job has the room of others, whatever it says while nobody hears it. Method: one says twice as much as has room,
    // before and after its desk begins to look whether there is such a reservation; another one is heard of for the first time,
    // and one that is known says that its ranks have left.
    #[tokio::test]
    async fn the_newest_report_of_a_job_takes_the_place_of_those_before() {
        let Still { topology, core: _core, handle, hub, .. } = Still::new();
        let desks = Desks::new(handle, hub, &topology);
        let line = LINE_BYTES_MAX as usize;
        take(&desks, 2, line);
        for _ in 0..2 {
            (0..UNHEARD_BYTES_MAX / line).for_each(|_| take(&desks, 1, line));
            sleep(BUSY_WAIT).await;
        }
        take(&desks, 2, 10);
        take(&desks, 3, 10);
        let room = desks.rooms[&NodeIndex(0)].bytes.available_permits();
        assert_eq!(room, UNHEARD_BYTES_MAX - line - 2 * REPORT_BYTES_MIN);
        assert_eq!(lock(&desks.open).len(), 3);
    }

    // Goal: that ranks have left is heard where something may be granted, whatever desks their node opens. Method: as many as it
    // may open, beside one that is wanted.
    #[tokio::test]
    async fn what_is_said_to_an_open_desk_is_taken_whatever_its_node_opens() {
        let Still { topology, core: _core, handle, hub, .. } = Still::new();
        let desks = Desks::new(handle, hub, &topology);
        (1..=2 * OPENED_MAX as u64).for_each(|number| take(&desks, number, 10));
        let first = Arc::clone(&lock(&desks.open)[&reservation::Handle::new(1)]);
        assert_eq!(first.take().len(), 1);
        take(&desks, 1, 10);
        assert_eq!(first.take().len(), 1);
    }

    // Method: as many as may wait, which are all told so.
    #[tokio::test]
    async fn where_there_is_no_reservation_a_desk_is_closed_at_once() {
        let Still { topology, core, handle, hub, .. } = Still::new();
        let desks = Desks::new(handle.clone(), hub, &topology);
        (1..=1_024).for_each(|number| take(&desks, number, 10));
        let thread = std::thread::spawn(move || core.run());
        let closed = async {
            while !lock(&desks.open).is_empty() {
                sleep(BUSY_WAIT).await;
            }
        };
        timeout(IDLE_MAX / 2, closed).await.unwrap();
        let Room { bytes, opened } = &desks.rooms[&NodeIndex(0)];
        let room = (bytes.available_permits(), opened.available_permits());
        assert_eq!(room, (UNHEARD_BYTES_MAX, OPENED_MAX), "there is room for more");
        handle.stop();
        thread.join().unwrap().unwrap();
    }

    // Goal: a node that has no part in a reservation has no say in it, also where nobody else has said anything yet. Method: a
    // reservation so far ahead that no agent is asked, with what its ranks were granted, at a new desk.
    #[tokio::test]
    async fn who_has_no_part_in_it_has_nothing_given_back() {
        let Still { topology, core, handle, hub, .. } = Still::new();
        let desks = Desks::new(handle.clone(), hub, &topology);
        let thread = std::thread::spawn(move || core.run());
        let (nodes, cpu_ppm) = (NodeChoice::Any(1), CpuPpm::from_percent(10));
        let resources = Resources { nodes, cpu_ppm, ..Resources::nothing() };
        let request = Request {
            from_unix_nanos: Some(dates::now().saturating_add(Nanos::from_secs(7_200))),
            duration_nanos: Some(Nanos::from_secs(60)),
            ..Request::new(Asked::Resources(resources))
        };
        let ada = Caller { user: "ada".parse().unwrap(), operator: false };
        let call = Call::Reserve { key: "one".parse().unwrap(), request };
        handle.call(ada.clone(), call).await.unwrap().unwrap();
        let one = reservation::Handle::new(1);
        let granted = Extension { cpu_ppm: CpuPpm::from_percent(30), ..Extension::default() };
        let call = Call::Extend { handle: one, extension: granted.clone() };
        handle.call(ada, call).await.unwrap().unwrap();
        let opened = || desks.rooms[&NodeIndex(0)].opened.available_permits();
        let opening = desks.rooms[&NodeIndex(0)].open();
        let (mut open, post) = (Open { opening, ..Open::default() }, Post::default());
        put(&post, NodeIndex(7));
        desks.place.hear(one, &mut open, &post).await;
        assert!(!open.is_wanted && opened() < OPENED_MAX);
        let live = desks.place.live(one).await.unwrap();
        assert_eq!(live.grant.extension, granted);
        // One that has a part needs none of the room for desks that may be of no use.
        put(&post, NodeIndex(0));
        desks.place.hear(one, &mut open, &post).await;
        assert!(open.is_wanted && opened() == OPENED_MAX);
        handle.stop();
        thread.join().unwrap().unwrap();
    }

    // Goal: what a running program was granted is not given back because the broker is crowded for a moment, after which the
    // first node to report would be the only one known. Method: a desk of a rank, which is to hear nothing new.
    #[tokio::test]
    async fn a_desk_is_kept_while_the_broker_is_crowded() {
        let Still { topology, core, handle, hub, .. } = Still::new();
        let desks = Desks::new(handle.clone(), hub, &topology);
        let mut open = Open::default();
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
        let asks = vec![Ask { communicator, change: 1, terms, seen: None }];
        let rank = RankState { number: 0, size: 1, asks };
        open.desk.report(&"n1".parse().unwrap(), vec![rank]);
        crowd(&handle).await;
        let one = reservation::Handle::new(1);
        let post = Post::default();
        let heard = timeout(2 * AGAIN_AFTER, desks.place.hear(one, &mut open, &post)).await;
        assert!(heard.is_err() && !open.desk.is_idle(), "it waits");
        let thread = std::thread::spawn(move || core.run());
        timeout(SOON, desks.place.hear(one, &mut open, &post)).await.unwrap();
        assert!(open.desk.is_idle(), "there is no such reservation");
        handle.stop();
        thread.join().unwrap().unwrap();
    }

    #[tokio::test]
    async fn agents_that_said_nothing_while_the_broker_was_crowded_are_counted_later() {
        // A look that fails for a moment is made again, with the same agents.
        let Still { topology, core, handle, hub, .. } = Still::new();
        crowd(&handle).await;
        let desks = Desks::new(handle.clone(), hub, &topology);
        let at = Instant::now() - EARLY;
        lock(&desks.arrivals).push(Arrival { node: NodeIndex(0), session: Session(1), at });
        sleep(2 * LOOK_EVERY).await;
        assert_eq!(lock(&desks.arrivals).len(), 1);
        let thread = std::thread::spawn(move || core.run());
        let counted = async {
            while !lock(&desks.arrivals).is_empty() {
                sleep(BUSY_WAIT).await;
            }
        };
        timeout(SOON, counted).await.unwrap();
        handle.stop();
        thread.join().unwrap().unwrap();
    }
}
