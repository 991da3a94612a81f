//! The way of a message in: to its inbox, from there to who wants it, and what its sender is told.

use super::catcher::Catcher;
use super::{Core, Patience};
use crate::context::Message;
use crate::error::RecvError;
use crate::frame::{Frame, Malformed, Reason, Refusal};
use crate::id::{Place, ResourceId};
use crate::inbox::{Arrived, Body, Inbox, Left, Taken, Undelivered};
use crate::link::{Home, Link};
use crate::matching::Match;
use crate::progress::Parker;
use std::sync::Arc;

impl Core {
    /// The first message that `wanted` wants.
    ///
    /// # Errors
    /// If there is none in time, or what became of one that was sent.
    #[inline(always)]
    pub fn receive(
        &self,
        place: Place,
        wanted: Match,
        patience: Patience,
    ) -> Result<Message, RecvError> {
        loop {
            let catcher = Catcher::new(self, place, wanted).ok_or(RecvError::TimedOut)?;
            let gone = match patience {
                Patience::None => catcher.look(),
                Patience::Until(deadline) => catcher.wait(deadline),
            };
            match catcher.caught.into_inner() {
                // Nearly all are, and moved once.
                Some(Taken::Message(Arrived { from, tag, body: Body::Whole(data), .. }, None)) => {
                    return Ok(Message { from, tag, data });
                }
                Some(Taken::Message(message, credit)) => {
                    if let Some(message) = self.complete(place, message, credit) {
                        return Ok(message);
                    }
                }
                Some(Taken::Notice(undelivered)) => return Err(undelivered.into()),
                // One that seemed gone has called: nothing of it is there yet.
                None if gone.is_none() && patience.is_left() => {}
                None => return Err(gone.map_or(RecvError::TimedOut, RecvError::Gone)),
            }
        }
    }

    /// Gives back what is due for a message that was taken. None if it was offered and has not arrived: its sender is told.
    #[cold]
    fn complete(&self, place: Place, message: Arrived, credit: Option<u64>) -> Option<Message> {
        let Arrived { from, tag, body, link, .. } = message;
        if let Some(bytes) = credit {
            self.give_back(place, link, bytes);
        }
        let data = match body {
            Body::Whole(data) => data,
            Body::Offered(offered) => {
                let data = offered.link.assembled(offered.token);
                // It held up what its sender has sent after it. Who was woken for it may be another than this thread.
                self.fetched(place);
                data?.into()
            }
        };
        Some(Message { from, tag, data })
    }

    /// Closes an inbox: who sent what nobody took is told.
    pub fn close(&self, place: Place) {
        self.release(place, None);
        let Some(Left { messages, owed, senders }) = self.junction.inboxes.close(place) else {
            return;
        };
        for (number, bytes) in owed {
            self.give_back(place, number, bytes);
        }
        for message in messages {
            self.reject(place, message);
        }
        senders.iter().for_each(|parker| self.progress.wake(parker));
    }

    /// [`Home::deliver`] by a thread that waits itself as `own`, if it does.
    pub(super) fn deliver_by(
        &self,
        own: Option<&Arc<Parker>>,
        to: Place,
        message: Arrived,
    ) -> Result<Option<Refusal>, Malformed> {
        let deliver = |inbox: &mut Inbox, message| inbox.deliver(message, own);
        match self.junction.inboxes.give(to, message, deliver) {
            Ok(receiver) => {
                receiver?.iter().for_each(|parker| self.progress.wake(parker));
                Ok(None)
            }
            Err(reason) => Ok(Some(reason)),
        }
    }

    /// Tells the sender of `message` that nobody took it.
    fn reject(&self, to: Place, message: Arrived) {
        let (from, tag) = (message.from, message.tag);
        if message.link == 0 {
            let to = ResourceId { context: self.id, place: to };
            return self.notify(from.place, Undelivered { to, tag, reason: Reason::Gone });
        }
        let (from, bytes, reason) = (from.place, message.charge, Refusal::Gone);
        let rejected = |token| Frame::Rejected { from, to, tag, token, bytes, reason };
        match message.body {
            Body::Offered(offered) => {
                // Of a link that is over as well: what has arrived is not kept.
                offered.link.reject_offer(offered.token, rejected(offered.token));
                self.flush_soon(&offered.link);
            }
            Body::Whole(_) => {
                if let Some(link) = self.junction.links.numbered(message.link) {
                    self.answer(&link, rejected(0));
                }
            }
        }
    }

    /// Tells by the link of this number, if it is there, that `place` has taken so much of what came by it.
    fn give_back(&self, place: Place, number: u32, bytes: u64) {
        if let Some(link) = self.junction.links.numbered(number) {
            self.answer(&link, Frame::Credit { place, bytes });
        }
    }

    /// Says `frame`, now or as soon as there is room, whatever this thread does next.
    fn answer(&self, link: &Link, frame: Frame) {
        link.answer(frame);
        self.flush_soon(link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attrs;
    use crate::config::Config;
    use crate::context::Context;
    use crate::directory::{Server, ServerConfig};
    use crate::flow::CHARGE_LEAST;
    use crate::frame::EAGER_MOST;
    use crate::matching::Tag;
    use std::thread;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);

    fn sleeper() -> Arc<Parker> {
        thread::spawn(Parker::current).join().unwrap()
    }

    /// Goal: what a long message held up does not wait for the next that comes. Method: a thread that only looks takes the long
    /// one, after another that wants it was woken for its end; a third wants the short one behind it.
    #[test]
    fn who_takes_a_long_message_wakes_who_wants_what_it_held_up() {
        let name = format!("receiving-{}", std::process::id());
        let (node, address) = ("n1".into(), ([127, 0, 0, 1], 0).into());
        let server = ServerConfig { name: name.clone(), node, address, members: vec![], key: None };
        let _server = Server::start(server).unwrap();
        let config = Config { directory: name, ..Config::default() };
        let open = || Context::open(config.clone()).unwrap();
        let (here, there) = (open(), open());
        let (receiver, sender) =
            (here.register(attrs! {}).unwrap(), there.register(attrs! {}).unwrap());
        let (core, to) = (here.core(), receiver.id());
        let inbox = core.junction.inboxes.at(to.place).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                sender.send_within(to, Tag(1), vec![0; EAGER_MOST + 1], LONG).unwrap();
                sender.send_within(to, Tag(2), b"", LONG).unwrap();
                there.flush(LONG).unwrap();
            });
            while inbox.with(|inbox| inbox.charged()) != Some(2 * u64::from(CHARGE_LEAST)) {
                core.progress.look(core);
            }
            let [for_long, for_all] = [sleeper(), sleeper()];
            let taken = std::iter::repeat_with(|| {
                inbox.with(|inbox| {
                    inbox.delist_receiver(&for_all);
                    inbox.enlist_receiver(Match::tag(1), &for_long);
                    inbox.enlist_receiver(Match::any(), &for_all);
                });
                receiver.try_recv(Match::tag(1)).unwrap()
            });
            assert_eq!(taken.flatten().next().unwrap().data.len(), EAGER_MOST + 1);
            let sleeps = inbox.with(Inbox::next_receiver).flatten();
            assert!(sleeps.is_none(), "beside a message that it may take");
        });
    }
}
