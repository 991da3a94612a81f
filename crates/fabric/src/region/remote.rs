//! A region on another node: asked at one of the node's addresses as long as there is an answer, and then at whichever has one.

use super::ask::{Asker, Unanswered};
use super::layout::Address;
use super::packet::{AnsweredBy, Question};
use super::sequence::Seen;
use crate::progress::Wait;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long each of a node's addresses is tried.
const TRY_TIME: Duration = Duration::from_millis(250);

/// The way there.
#[derive(Debug)]
pub struct Remote {
    asker: Asker,
    addresses: Vec<IpAddr>,
    region: Address,
    wait: Wait,
}

impl Remote {
    /// Asks at the first of `addresses` that answers.
    ///
    /// # Errors
    /// If none does.
    pub fn open(addresses: Vec<IpAddr>, region: Address, wait: Wait) -> Result<Self, Unanswered> {
        let asker = first_that_answers(&addresses, region, wait, TRY_TIME)?;
        Ok(Self { asker, addresses, region, wait })
    }

    #[cfg(test)]
    pub fn of(asker: Asker, region: Address) -> Self {
        Self { addresses: vec![asker.address()], asker, region, wait: Wait::Block }
    }

    /// Reads the data of a record. None if it was written meanwhile.
    ///
    /// # Errors
    /// If no address answers before `deadline`.
    pub fn read(
        &mut self,
        record: u32,
        data: &mut [u8],
        deadline: Instant,
    ) -> Result<Option<(Seen, AnsweredBy)>, Unanswered> {
        self.wherever(deadline, |asker, until| asker.read(record, data, until))
    }

    /// Adds to the counter of a record, once. Returns what it was.
    ///
    /// # Errors
    /// If no address answers before `deadline`. What was asked at one that does not answer any more may have been added: it is not
    /// asked again at another, the next is.
    pub fn add(
        &mut self,
        record: u32,
        amount: u64,
        deadline: Instant,
    ) -> Result<(u64, AnsweredBy), Unanswered> {
        self.wherever(deadline, |asker, until| asker.begin_adding(record, until))?;
        self.asker.add(record, amount, deadline)
    }

    /// Asks for the first slot of a record, once, and waits for nothing.
    ///
    /// # Errors
    /// If the kernel cannot.
    pub fn say(&mut self, record: u32) -> Result<Question, Unanswered> {
        self.asker.say(record)
    }

    /// The answer to that, if it comes before `until`. None if the record was being written.
    ///
    /// # Errors
    /// If it does not.
    pub fn hear(
        &mut self,
        question: &Question,
        data: &mut [u8],
        until: Instant,
    ) -> Result<Option<(Seen, AnsweredBy)>, Unanswered> {
        self.asker.hear(question, data, until)
    }

    /// What `ask` brings where it is asked now, or if nobody answers there for a while, where somebody does.
    fn wherever<T>(
        &mut self,
        deadline: Instant,
        mut ask: impl FnMut(&mut Asker, Instant) -> Result<T, Unanswered>,
    ) -> Result<T, Unanswered> {
        let own = self.asker.address();
        let is_another = |address: &IpAddr| *address != own;
        if !self.addresses.iter().any(is_another) {
            return ask(&mut self.asker, deadline);
        }
        match ask(&mut self.asker, deadline.min(Instant::now() + TRY_TIME)) {
            Err(Unanswered::Silent | Unanswered::System(_)) => {
                let others: Vec<_> = self.addresses.iter().copied().filter(is_another).collect();
                let left = deadline.saturating_duration_since(Instant::now());
                let each = TRY_TIME.min(left / (others.len() as u32 + 1));
                // If none answers, it may be that this one was only held up.
                if let Ok(asker) = first_that_answers(&others, self.region, self.wait, each) {
                    self.asker = asker;
                }
                ask(&mut self.asker, deadline)
            }
            answered => answered,
        }
    }
}

/// One who asks at the first of `addresses` that answers within `time`.
fn first_that_answers(
    addresses: &[IpAddr],
    region: Address,
    wait: Wait,
    time: Duration,
) -> Result<Asker, Unanswered> {
    let mut last = Unanswered::Silent;
    for address in addresses {
        match Asker::new(*address, region, wait, time) {
            Ok(asker) => return Ok(asker),
            Err(why) => last = why,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::super::ask::tests::{answers, opened};
    use super::super::layout::{CELL, Layout};
    use super::super::packet::Refusal;
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket};
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::thread;

    /// For anything, on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    /// Goal: whoever reads a region goes on when the network by which it did so is down, if its node has another. Method: a node with two
    /// addresses, at the first of which one question is answered and no more; what is answered is that it is being written.
    #[test]
    fn a_region_is_asked_for_at_another_address_when_one_is_silent() {
        let (asker, silent) = opened(Refusal::Busy);
        let (asker, port) = (asker.unwrap(), silent.local_addr().unwrap().port());
        let [first, second] = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last)));
        let answering = UdpSocket::bind((second, port)).unwrap();
        let region = Address { slot: 3, key: 7, port, layout: Layout::CELL };
        let addresses = vec![first, second];
        let mut remote = Remote { asker, addresses, region, wait: Wait::Block };
        let nobody = remote.read(0, &mut [0; CELL], Instant::now());
        assert!(matches!(nobody, Err(Unanswered::Silent)), "{nobody:?}");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    answers(&answering, Refusal::Busy);
                }
            });
            let start = Instant::now();
            let mut read = || remote.read(0, &mut [0; CELL], Instant::now() + 4 * TRY_TIME);
            while !matches!(read(), Ok(None)) && start.elapsed() < LONG {}
            is_over.store(true, Relaxed);
            // So that it looks.
            answering.send_to(&remote.asker.say(0).unwrap().encode(), (second, port)).unwrap();
        });
        assert_eq!(remote.asker.address(), second);
    }
}
