//! Asks about the records of a region on another node, and asks again until there is an answer.

use super::layout::{Address, SLOT};
use super::packet::{Answer, AnsweredBy, Asked, LONGEST, Question, Refusal, SLOTS_MOST};
use super::sequence::{Seen, unpack};
use crate::progress::{Wait, after};
use crate::random;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long an answer may take before the question is sent again: longer than a network and a
/// responder that is held up a little take. Doubled each time.
const AGAIN_AFTER: Duration = Duration::from_millis(2);
/// Datagrams that are no answer to the question and are passed over at once: late answers to others, and copies. Who is sent
/// more of them than that goes on when the time is over, and not when they end.
const STRAYS_MOST: u32 = 64;

/// What an answer says, and who has given it.
type Said = Result<(u64, AnsweredBy), Refusal>;

/// Why there is no answer.
#[derive(Debug)]
pub enum Unanswered {
    /// It says that it cannot.
    Refused(Refusal),
    /// Nothing came in time.
    Silent,
    /// What was to be added may or may not have been.
    Unconfirmed,
    /// The kernel says so.
    System(io::Error),
}

/// One who asks, at one address.
#[derive(Debug)]
pub struct Asker {
    socket: UdpSocket,
    address: IpAddr,
    region: Address,
    wait: Wait,
    number: u64,
    session: Option<Session>,
    /// What arrived, and slots of one version.
    bytes: Box<[u8; LONGEST + 1]>,
    slots: Vec<u8>,
}

/// One who adds.
#[derive(Debug)]
struct Session {
    name: u64,
    /// Its last question.
    number: u64,
}

impl Asker {
    /// Asks at `address`, and finds out within `time` whether it answers.
    ///
    /// # Errors
    /// If it does not, or the region is not there.
    pub fn new(
        address: IpAddr,
        region: Address,
        wait: Wait,
        time: Duration,
    ) -> Result<Self, Unanswered> {
        let any: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(SocketAddr::new(address, region.port))?;
        socket.set_nonblocking(true)?;
        let slots = Vec::with_capacity(region.layout.stride() as usize * SLOT);
        let (number, bytes) = (random()?, Box::new([0; LONGEST + 1]));
        let session = None;
        let mut asker = Self { socket, address, region, wait, number, session, bytes, slots };
        match asker.slots(0, 0, 1, Instant::now() + time) {
            // Whether it is just being written does not matter: somebody answers for it.
            Ok(_) | Err(Unanswered::Refused(Refusal::Busy)) => Ok(asker),
            Err(why) => Err(why),
        }
    }

    /// Where it asks.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Reads the data of a record. None if it was written meanwhile.
    pub fn read(
        &mut self,
        record: u32,
        data: &mut [u8],
        deadline: Instant,
    ) -> Result<Option<(Seen, AnsweredBy)>, Unanswered> {
        self.slots.clear();
        let stride = self.region.layout.stride();
        let mut of_first = None;
        for offset in (0..stride).step_by(usize::from(SLOTS_MOST)) {
            let count = (stride - offset).min(u32::from(SLOTS_MOST)) as u8;
            let (sequence, by) = match self.slots(record, offset, count, deadline) {
                Err(Unanswered::Refused(Refusal::Busy)) => return Ok(None),
                other => other?,
            };
            // The pieces are of one version, or all of them are asked for again.
            let (first, _) = *of_first.get_or_insert((sequence, by));
            if first != sequence {
                return Ok(None);
            }
        }
        Ok(of_first.map(|(_, by)| (unpack(&self.slots, data), by)))
    }

    /// Asks for the first slot of a record, once, and waits for nothing.
    pub fn say(&mut self, record: u32) -> Result<Question, Unanswered> {
        let question = self.next(record, 0, 1);
        self.send(&question.encode())?;
        Ok(question)
    }

    /// The answer to that, if it comes before `until`. None if the record was being written.
    pub fn hear(
        &mut self,
        question: &Question,
        data: &mut [u8],
        until: Instant,
    ) -> Result<Option<(Seen, AnsweredBy)>, Unanswered> {
        self.slots.clear();
        match self.receive(question, until)?.ok_or(Unanswered::Silent)? {
            Ok((_, by)) => Ok(Some((unpack(&self.slots, data), by))),
            Err(Refusal::Busy) => Ok(None),
            Err(refusal) => Err(Unanswered::Refused(refusal)),
        }
    }

    /// Adds to the counter of a record, once. Returns what it was.
    pub fn add(
        &mut self,
        record: u32,
        amount: u64,
        deadline: Instant,
    ) -> Result<(u64, AnsweredBy), Unanswered> {
        // A session that was forgotten while nothing was asked is begun anew, once.
        for _ in 0..2 {
            let (session, number) = self.session(record, deadline)?;
            let question = self.question(number, record, Asked::Add { session, amount });
            let answer = self.ask(&question, deadline);
            if !matches!(answer, Ok((Ok(_), _))) {
                self.session = None;
            }
            match answer {
                Ok((Ok(answer), _)) => return Ok(answer),
                // The first copy was refused, so nothing was added.
                Ok((Err(Refusal::NoSession), 1)) => {}
                Ok((Err(Refusal::NoSession), _)) | Err(_) => return Err(Unanswered::Unconfirmed),
                Ok((Err(refusal), _)) => return Err(Unanswered::Refused(refusal)),
            }
        }
        Err(Unanswered::Refused(Refusal::NoSession))
    }

    /// Has a session, so that what is added is added once.
    pub fn begin_adding(&mut self, record: u32, deadline: Instant) -> Result<(), Unanswered> {
        if self.session.is_none() {
            let name = random()?;
            let question = self.question(name, record, Asked::Open { session: name });
            self.ask(&question, deadline)?.0.map_err(Unanswered::Refused)?;
            self.session = Some(Session { name, number: 0 });
        }
        Ok(())
    }

    /// The session, and the number of its next question.
    fn session(&mut self, record: u32, deadline: Instant) -> Result<(u64, u64), Unanswered> {
        self.begin_adding(record, deadline)?;
        let session = self.session.as_mut().ok_or(Unanswered::Silent)?;
        session.number += 1;
        Ok((session.name, session.number))
    }

    fn slots(
        &mut self,
        record: u32,
        offset: u32,
        slots: u8,
        deadline: Instant,
    ) -> Result<(u64, AnsweredBy), Unanswered> {
        let question = self.next(record, offset, slots);
        let (answer, _) = self.ask(&question, deadline)?;
        answer.map_err(Unanswered::Refused)
    }

    /// The next question for slots.
    fn next(&mut self, record: u32, offset: u32, slots: u8) -> Question {
        self.number = self.number.wrapping_add(1);
        self.question(self.number, record, Asked::Read { offset, slots })
    }

    /// Asks until there is an answer. Returns it, and how often it was asked.
    fn ask(&mut self, question: &Question, deadline: Instant) -> Result<(Said, u32), Unanswered> {
        let bytes = question.encode();
        let (mut pause, mut tries) = (AGAIN_AFTER, 0);
        while tries == 0 || Instant::now() < deadline {
            self.send(&bytes)?;
            tries += 1;
            if let Some(said) = self.receive(question, (Instant::now() + pause).min(deadline))? {
                return Ok((said, tries));
            }
            pause *= 2;
        }
        Err(Unanswered::Silent)
    }

    /// What the kernel has no room for is lost, as it may be on its way; so is what is sent to a daemon that
    /// is not there now.
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self.socket.send(bytes) {
            Err(error) if !is_passing(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// The answer to `question`, if it comes before `until`. Others are late ones.
    fn receive(&mut self, question: &Question, until: Instant) -> io::Result<Option<Said>> {
        let sleep_at = match self.wait {
            Wait::Spin => until,
            Wait::Block => Instant::now(),
            Wait::SpinFor(time) => after(time),
        };
        let mut strays = 0;
        loop {
            match self.socket.recv(&mut self.bytes[..]) {
                Ok(length) => {
                    let decoded = Answer::decode(&self.bytes[..length]);
                    if let Some((answer, slots)) = decoded.filter(|(a, _)| a.question == *question)
                    {
                        self.slots.extend_from_slice(slots);
                        return Ok(Some(answer.result.map(|value| (value, answer.by))));
                    }
                    strays += 1;
                    if strays < STRAYS_MOST {
                        continue;
                    }
                }
                Err(error) if !is_passing(&error) => return Err(error),
                Err(_) => {}
            }
            let now = Instant::now();
            if now >= until {
                return Ok(None);
            }
            if now < sleep_at {
                std::hint::spin_loop();
                continue;
            }
            // Rounded up: one that ends early would be followed by another one.
            let time = PollTimeout::try_from(until - now + Duration::from_millis(1));
            let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            // Interrupted: looks again.
            let _ = poll(&mut ready, time.unwrap_or(PollTimeout::MAX));
        }
    }

    fn question(&self, number: u64, record: u32, asked: Asked) -> Question {
        let Address { slot, key, .. } = self.region;
        Question { number, key, region: slot, record, asked }
    }
}

/// Whether the same call may well succeed later.
fn is_passing(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionRefused, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionRefused | Interrupted | WouldBlock)
        || error.raw_os_error() == Some(libc::ENOBUFS)
}

impl From<io::Error> for Unanswered {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::layout::Layout;
    use super::*;
    use std::thread;

    /// For anything, on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    /// A region of which it is answered, to the first question, that; and who has answered, and answers nothing more.
    pub fn opened(refusal: Refusal) -> (Result<Asker, Unanswered>, UdpSocket) {
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        let socket = UdpSocket::bind((here, 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        let answering = thread::spawn(move || {
            answers(&socket, refusal);
            // Copies of the question find somebody there.
            socket
        });
        let region = Address { slot: 3, key: 7, port, layout: Layout::CELL };
        let opened = Asker::new(here, region, Wait::Block, LONG);
        (opened, answering.join().unwrap())
    }

    /// Answers one question with that.
    pub fn answers(socket: &UdpSocket, refusal: Refusal) {
        socket.set_read_timeout(Some(LONG)).unwrap();
        let mut bytes = [0; LONGEST];
        let (length, from) = socket.recv_from(&mut bytes).unwrap();
        let question = Question::decode(&bytes[..length]).unwrap();
        let answer = Answer { question, by: AnsweredBy::Responder, result: Err(refusal) };
        socket.send_to(&answer.encode(&[]), from).unwrap();
    }

    /// Its publisher writes at any time: what is opened may be in the middle of that.
    #[test]
    fn a_region_that_is_being_written_can_be_opened() {
        assert!(opened(Refusal::Busy).0.is_ok());
        let (gone, _) = opened(Refusal::Gone);
        assert!(matches!(gone, Err(Unanswered::Refused(Refusal::Gone))), "{gone:?}");
    }

    /// Goal: whoever sends other things all the while, as fast as they are read, holds nobody up. Method: the time is over, and
    /// the answer lies behind as many as are passed over.
    #[test]
    fn who_is_sent_what_is_no_answer_goes_on_when_the_time_is_over() {
        let (asker, other_end) = opened(Refusal::Busy);
        let mut asker = asker.unwrap();
        let question = asker.next(0, 0, 1);
        let answer = Answer { question, by: AnsweredBy::Responder, result: Err(Refusal::Busy) };
        let to = asker.socket.local_addr().unwrap();
        for _ in 0..STRAYS_MOST {
            other_end.send_to(b"no answer", to).unwrap();
        }
        other_end.send_to(&answer.encode(&[]), to).unwrap();
        let over = Instant::now();
        assert!(matches!(asker.receive(&question, over), Ok(None)));
        assert!(matches!(asker.receive(&question, over), Ok(Some(Err(Refusal::Busy)))));
    }
}
