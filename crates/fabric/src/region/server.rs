//! Where the regions of a node are: their memory is the daemon's, so that they can be read whatever
//! their publishers do. One thread hands memory over, one for each kind of addresses answers questions of other nodes.

use super::hand::{self, Ask, Reply, VERSION};
use super::layout::Layout;
use super::memory::Mapped;
use super::packet::{LONGEST, Question};
use super::respond::{Held, Sessions, respond};
use super::room::{Counted, MEMORY_MOST, REGIONS_MOST, REGIONS_OF_A_USER, makes_way};
use super::sequence::Words;
use crate::mapping::Access;
use crate::random;
use crate::real_time::{Priority, Rationed};
use crate::sockets::{accepted, datagrams, user_of};
use crate::threads;
use keeptime_locks::{read, write};
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fchmod};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, PipeReader, PipeWriter};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Callers that are taken at once: those that are there already wait for no more.
const CALLERS_AT_ONCE: usize = 64;
/// How often the responder looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(200);

const LISTENER: u64 = 0;
const BELL: u64 = 1;
const FIRST_CONNECTION: u64 = 16;

/// Where the memory of regions comes from, and who else may look at it.
pub trait Memories: Send {
    /// New memory, filled with zeros, that cannot be cut.
    ///
    /// # Errors
    /// If there is none.
    fn create(&mut self, layout: Layout) -> io::Result<OwnedFd>;

    /// The region in place `slot` is ready to be read.
    ///
    /// # Errors
    /// If that cannot be made known: then it is not published.
    fn install(&mut self, slot: u32, memory: BorrowedFd<'_>) -> io::Result<()>;

    /// It is no more.
    fn remove(&mut self, slot: u32);

    /// A descriptor of `memory` by which it can only be read.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn for_reading(&self, memory: BorrowedFd<'_>) -> io::Result<OwnedFd>;
}

/// Memory without a name, which only this daemon and those that it hands it to can see.
#[derive(Debug, Default)]
pub struct PlainMemories;

/// What a region server is to be.
#[derive(Debug, Clone)]
pub struct RegionServerConfig {
    /// The name that programs of this node ask for: the directory's.
    pub name: String,
    /// Where questions of other nodes are answered, on every interface; 0: any port that is free.
    pub port: u16,
}

/// A running region server. Ends when dropped, and with it all regions of the node.
#[derive(Debug)]
pub struct RegionServer {
    port: u16,
    real_time: io::Result<()>,
    stop: Arc<AtomicBool>,
    bell: Arc<EventFd>,
    threads: Vec<JoinHandle<()>>,
}

type Table = RwLock<Vec<Option<Held<Mapped>>>>;

impl RegionServer {
    /// Starts it. `memories` is told the port on which questions are answered.
    ///
    /// # Errors
    /// If there is one of this name on this node already, the port is not to be had, or `memories`
    /// fails.
    pub fn start(
        config: &RegionServerConfig,
        memories: impl FnOnce(u16) -> io::Result<Box<dyn Memories>>,
    ) -> io::Result<Self> {
        let listener = hand::serve(&config.name)?;
        let sockets = datagrams(config.port)?;
        let port = sockets[0].local_addr()?.port();
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = Arc::new(EventFd::from_flags(flags)?);
        let stop = Arc::new(AtomicBool::new(false));
        let table: Arc<Table> = Arc::default();
        let (life, alive) = io::pipe()?;
        let shell = Shell {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            listener,
            bell: bell.clone(),
            stop: stop.clone(),
            port,
            memories: memories(port)?,
            table: table.clone(),
            connections: BTreeMap::new(),
            next: FIRST_CONNECTION,
            life,
            _alive: alive,
        };
        shell.epoll.add(&shell.listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        shell.epoll.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        // Made before its threads, so that it ends the first if the second cannot be made.
        let real_time = Ok(());
        let mut server = Self { port, real_time, stop: stop.clone(), bell, threads: Vec::new() };
        server.threads.push(threads::spawn("regions", move || shell.run())?);
        for socket in sockets {
            socket.set_read_timeout(Some(LOOK_EVERY))?;
            let (told, schedule) = std::sync::mpsc::channel();
            let (table, stop) = (table.clone(), stop.clone());
            let answering = threads::spawn("regions-answer", move || {
                let (hurries, rationed) = match Rationed::new(Priority::Answer) {
                    Ok(rationed) => (Ok(()), Some(rationed)),
                    Err(error) => (Err(error), None),
                };
                let _ = told.send(hurries);
                answer(&socket, &table, &stop, rationed);
            })?;
            server.threads.push(answering);
            let hurries = schedule.recv().unwrap_or_else(|error| Err(io::Error::other(error)));
            if hurries.is_err() {
                server.real_time = hurries;
            }
        }
        Ok(server)
    }

    /// Where questions of other nodes are answered.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the thread that answers has a real-time schedule, or why not: without one, other
    /// programs of the node hold up its answers.
    pub fn real_time(&self) -> &io::Result<()> {
        &self.real_time
    }
}

impl Drop for RegionServer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.bell.write(1);
        for thread in self.threads.drain(..) {
            // It has panicked and said so, or it is done.
            let _ = thread.join();
        }
    }
}

/// Answers questions until `stop`. Whoever reaches the node may ask: that goes before what others compute as far as it is
/// `rationed`, and no further.
fn answer(socket: &UdpSocket, table: &Table, stop: &AtomicBool, mut rationed: Option<Rationed>) {
    let mut sessions = Sessions::default();
    let mut bytes = [0; LONGEST + 1];
    let mut slots = Vec::with_capacity(LONGEST);
    while !stop.load(Relaxed) {
        // Nobody waits for an answer now.
        if let Some(rationed) = &mut rationed {
            rationed.look();
        }
        // Time-outs, and what the kernel says about answers that nobody took.
        let Ok((length, from)) = socket.recv_from(&mut bytes) else { continue };
        let Some(question) = Question::decode(&bytes[..length]) else { continue };
        let answer = {
            let table = read(table);
            let region = table.get(question.region as usize).and_then(Option::as_ref);
            respond(question, region, &mut sessions, &mut slots)
        };
        if let Some(answer) = answer {
            // If it is lost, it is asked for again.
            let _ = socket.send_to(&answer.encode(&slots), from);
        }
    }
}

/// The thread that hands memory over.
struct Shell {
    epoll: Epoll,
    listener: OwnedFd,
    bell: Arc<EventFd>,
    stop: Arc<AtomicBool>,
    port: u16,
    memories: Box<dyn Memories>,
    table: Arc<Table>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// What is handed to readers: it ends with the other one, which nobody else has.
    life: PipeReader,
    _alive: PipeWriter,
}

struct Connection {
    socket: OwnedFd,
    user: u32,
    /// What it publishes.
    region: Option<Published>,
}

struct Published {
    slot: u32,
    layout: Layout,
    memory: OwnedFd,
}

impl Shell {
    fn run(mut self) {
        let mut events = [EpollEvent::empty(); 64];
        while !self.stop.load(Relaxed) {
            // Interrupted: as if nothing had happened.
            let ready = self.epoll.wait(&mut events, EpollTimeout::NONE).unwrap_or(0);
            for event in &events[..ready] {
                match event.data() {
                    LISTENER => self.accept(),
                    BELL => drop(self.bell.read()),
                    id => self.serve(id),
                }
            }
        }
        let all: Vec<u64> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|id| self.close(id));
    }

    fn accept(&mut self) {
        for _ in 0..CALLERS_AT_ONCE {
            let Some(socket) = accepted(hand::accept(self.listener.as_fd())) else { return };
            let Ok(user) = user_of(&socket) else { continue };
            self.make_room(user);
            let event = EpollEvent::new(EpollFlags::EPOLLIN, self.next);
            if self.epoll.add(&socket, event).is_ok() {
                self.connections.insert(self.next, Connection { socket, user, region: None });
                self.next += 1;
            }
        }
    }

    /// For one more connection of `user`.
    fn make_room(&mut self, user: u32) {
        let counted = |(id, connection): (&u64, &Connection)| (*id, connection.counted());
        let all: Vec<_> = self.connections.iter().map(counted).collect();
        if let Some(oldest) = makes_way(&all, user) {
            self.close(oldest);
        }
    }

    fn serve(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        match hand::hear(connection.socket.as_fd()) {
            Ok(Some(ask)) => self.answer(id, &ask),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // Closed, or not one of ours.
            Ok(None) | Err(_) => self.close(id),
        }
    }

    fn answer(&mut self, id: u64, ask: &Ask) {
        let (reply, memory) = match *ask {
            Ask::Publish { version, .. } | Ask::Open { version, .. } if version != VERSION => {
                (refused(format!("version {version}: {VERSION} is spoken here")), None)
            }
            Ask::Publish { records, bytes, adds, .. } => {
                match self.publish(id, records, bytes, adds) {
                    Ok((reply, memory)) => (reply, Some(memory)),
                    Err(why) => (refused(why), None),
                }
            }
            Ask::Open { slot, key, .. } => self.open(id, slot, key),
        };
        let Some(connection) = self.connections.get(&id) else { return };
        // Whoever knows of memory alone takes what comes last.
        let life = matches!(ask, Ask::Open { .. }).then_some(self.life.as_fd());
        let is_said = match &memory {
            Some(memory) => {
                let handed_over: Vec<_> = life.into_iter().chain([memory.as_fd()]).collect();
                hand::say(connection.socket.as_fd(), &reply, &handed_over).is_ok()
            }
            None => hand::say(connection.socket.as_fd(), &reply, &[]).is_ok(),
        };
        if !is_said {
            self.close(id);
        }
    }

    fn publish(
        &mut self,
        id: u64,
        records: u32,
        bytes: u32,
        adds: bool,
    ) -> Result<(Reply, OwnedFd), String> {
        let text = |error: io::Error| error.to_string();
        let layout = hand::layout_of(records, bytes, adds).map_err(|error| error.to_string())?;
        let connection = self.connections.get(&id).ok_or("the connection is gone")?;
        if connection.region.is_some() {
            return Err("one region for each connection, and this one has one".into());
        }
        let user = connection.user;
        if self.regions_of(user).count() >= REGIONS_OF_A_USER {
            return Err(format!(
                "programs of user {user} have {REGIONS_OF_A_USER} regions on this node, which is the most"
            ));
        }
        let memory: usize = self.regions_of(user).map(|region| region.layout.memory()).sum();
        let left = MEMORY_MOST.saturating_sub(memory);
        if layout.memory() > left {
            let asked = layout.memory();
            return Err(format!(
                "a region of {asked} bytes: the regions of a user have {MEMORY_MOST} on a node, and user {user} has {left} left"
            ));
        }
        let slot = free_slot(&self.table)
            .ok_or_else(|| format!("this node has {REGIONS_MOST} regions, which is the most"))?;
        // 0 is the key of what is gone.
        let key = random().map_err(text)?.max(1);
        let memory = self.memories.create(layout).map_err(text)?;
        let words = Mapped::new(&memory, layout, Access::Write).map_err(text)?;
        for (index, word) in layout.head(key).into_iter().enumerate() {
            words.word(index).store(word, Release);
        }
        // Before anything that would have to be undone.
        let copy = memory.try_clone().map_err(text)?;
        self.memories.install(slot, memory.as_fd()).map_err(text)?;
        set(&self.table, slot, Some(Held { key, layout, words }));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.region = Some(Published { slot, layout, memory });
        }
        Ok((Reply::Here { slot, key, port: self.port, writable: true }, copy))
    }

    /// All that this user's programs publish.
    fn regions_of(&self, user: u32) -> impl Iterator<Item = &Published> {
        let of_user = self.connections.values().filter(move |connection| connection.user == user);
        of_user.filter_map(|connection| connection.region.as_ref())
    }

    fn open(&self, id: u64, slot: u32, key: u64) -> (Reply, Option<OwnedFd>) {
        let adds = {
            let table = read(&self.table);
            let held = table.get(slot as usize).and_then(Option::as_ref);
            held.filter(|held| held.key == key).map(|held| held.layout.adds())
        };
        let of_region = |connection: &&Connection| {
            connection.region.as_ref().is_some_and(|region| region.slot == slot)
        };
        let publisher = self.connections.values().find(of_region);
        let (Some(adds), Some(Connection { user: owner, region: Some(region), .. })) =
            (adds, publisher)
        else {
            return (Reply::Gone, None);
        };
        let user = self.connections.get(&id).map(|connection| connection.user);
        // Memory that may be changed is handed to those alone who could change it anyway.
        let writable = adds && (user == Some(*owner) || user == Some(0));
        let memory = if writable {
            region.memory.try_clone()
        } else {
            self.memories.for_reading(region.memory.as_fd())
        };
        match memory {
            Ok(memory) => (Reply::Here { slot, key, port: self.port, writable }, Some(memory)),
            Err(error) => (refused(error.to_string()), None),
        }
    }

    /// A connection ends, and with it what it published.
    fn close(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let _ = self.epoll.delete(&connection.socket);
        if let Some(Published { slot, .. }) = connection.region {
            self.memories.remove(slot);
            if let Some(held) = set(&self.table, slot, None) {
                // Those who have it mapped see that it is gone.
                held.words.word(0).store(0, Release);
            }
        }
    }
}

impl Connection {
    fn counted(&self) -> Counted {
        Counted { user: self.user, publishes: self.region.is_some() }
    }
}

impl Memories for PlainMemories {
    fn create(&mut self, layout: Layout) -> io::Result<OwnedFd> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memory = memfd_create("keeptime-region", flags)?;
        nix::unistd::ftruncate(&memory, layout.memory() as i64)?;
        // As the kernel makes it, everybody who is handed it for reading could open it anew for writing.
        fchmod(&memory, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(memory)
    }

    fn install(&mut self, _: u32, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn remove(&mut self, _: u32) {}

    fn for_reading(&self, memory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        Ok(open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?)
    }
}

fn refused(why: String) -> Reply {
    Reply::Refused { why }
}

fn free_slot(table: &Table) -> Option<u32> {
    let table = read(table);
    let free = table.iter().position(Option::is_none).unwrap_or(table.len()) as u32;
    (free < REGIONS_MOST).then_some(free)
}

/// Puts `held` into its place, and returns what was there.
fn set(table: &Table, slot: u32, held: Option<Held<Mapped>>) -> Option<Held<Mapped>> {
    let mut table = write(table);
    let slot = slot as usize;
    if table.len() <= slot {
        table.resize_with(slot + 1, || None);
    }
    std::mem::replace(&mut table[slot], held)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever they belong to.
    #[test]
    fn a_node_has_so_many_regions_and_no_more() {
        let (table, layout) = (Table::default(), Layout::CELL);
        let memory = PlainMemories.create(layout).unwrap();
        for slot in 0..REGIONS_MOST {
            assert_eq!(free_slot(&table), Some(slot));
            let words = Mapped::new(&memory, layout, Access::Read).unwrap();
            set(&table, slot, Some(Held { key: 1, layout, words }));
        }
        assert_eq!(free_slot(&table), None);
        set(&table, 7, None);
        assert_eq!(free_slot(&table), Some(7));
    }
}
