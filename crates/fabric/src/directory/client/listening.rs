//! The thread that hears the server and, when that has ended, joins the next one, to which it says
//! everything anew.

use super::state::{Shared, State};
use crate::directory::name_of;
use crate::directory::protocol::{ContextInfo, Request, VERSION};
use crate::directory::state::SILENCE_MOST;
use crate::sockets::{call, expect_trusted};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::SockType;
use nix::unistd::geteuid;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How often a server that is not there, or refuses this program, is tried again.
const AGAIN_EVERY: Duration = Duration::from_millis(100);
/// How often it is looked what is held no longer.
const LET_GO_EVERY: Duration = Duration::from_millis(500);
/// How often a resource is registered again that the next server has not taken: it may be refused
/// itself, as long as others take the one before it for the living one.
const REJECTED_EVERY: Duration = Duration::from_millis(500);

impl Shared {
    /// Connects and says everything that the server has to know.
    pub(super) fn join(&self) -> io::Result<UnixStream> {
        // One that does not read for so long counts as gone, as it does for other servers: whoever
        // says something to it has the lock, and all others would wait with that one.
        let stream = call(&name_of(&self.name), SockType::Stream, SILENCE_MOST)?;
        let stream = UnixStream::from(stream);
        expect_trusted(&stream, geteuid().as_raw())?;
        let watched = stream.try_clone()?;
        let mut state = self.lock();
        if state.is_closed {
            // Whoever has closed it waits for this thread, which would wait for what this server
            // says.
            return Err(io::ErrorKind::NotConnected.into());
        }
        state.connection.begin(stream);
        state.say_everything(&self.context);
        Ok(watched)
    }

    /// Hears what the server says, this one and the next, until the client is dropped. `stream` is
    /// that of the server.
    pub(super) fn listen(&self, mut stream: UnixStream) {
        let mut tried = Instant::now();
        loop {
            self.listen_to(&stream);
            stream = loop {
                // Whoever refuses this program, as a server of another version does, would be asked
                // all the while.
                if !self.rest_until(tried + AGAIN_EVERY) {
                    return;
                }
                tried = Instant::now();
                if let Ok(next) = self.join() {
                    break next;
                }
            };
        }
    }

    /// Waits until then. Returns false as soon as the client is dropped.
    fn rest_until(&self, then: Instant) -> bool {
        let mut state = self.lock();
        while !state.is_closed {
            let time = then.saturating_duration_since(Instant::now());
            if time.is_zero() {
                return true;
            }
            state = self.wait_for_change(state, time);
        }
        false
    }

    /// Hears one server, until the connection ends.
    fn listen_to(&self, stream: &UnixStream) {
        let mut said = Instant::now();
        loop {
            let rest = self.lock().rest();
            let mut watched = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
            // Interrupted: as if something had come.
            let _ = poll(&mut watched, rest);
            let mut state = self.lock();
            if said.elapsed() >= REJECTED_EVERY {
                said = Instant::now();
                state.say_rejected();
            }
            state.hear_all();
            state.subscriptions.let_go(Instant::now());
            let stands = state.connection.stands();
            drop(state);
            self.notify_all();
            if !stands {
                return;
            }
        }
    }
}

impl State {
    /// Says everything that a server has to know which has heard nothing yet.
    fn say_everything(&mut self, context: &ContextInfo) {
        let (context, claim) = (context.clone(), self.standing.welcome().and_then(|w| w.claim));
        self.connection.say(&Request::Hello { version: VERSION, context, claim });
        self.registrations.reject_all();
        self.say_rejected();
        self.subscriptions.begin_settling();
        for (number, query) in self.subscriptions.queries() {
            self.connection.say(&Request::Subscribe { number, query: query.clone() });
        }
        for request in self.asked.open() {
            self.connection.say(request);
        }
    }

    /// How long there is nothing to be said again, and nothing to be let go.
    fn rest(&self) -> PollTimeout {
        let every = match (self.registrations.are_unsettled(), self.subscriptions.are_settling()) {
            (false, false) => return PollTimeout::NONE,
            (true, false) => REJECTED_EVERY,
            (false, true) => LET_GO_EVERY,
            (true, true) => REJECTED_EVERY.min(LET_GO_EVERY),
        };
        PollTimeout::try_from(every).unwrap_or(PollTimeout::NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{PLACE, accept, listen, say, serve, welcome};
    use super::super::{Client, DirectoryError};
    use super::*;
    use crate::directory::protocol::Answer;
    use std::thread;

    /// A daemon of another version has come in place of the one that this program knew.
    #[test]
    fn a_server_that_refuses_is_tried_now_and_then_and_its_reason_is_told() {
        let (name, listener, home) = listen("refuses");
        let refused = Answer::Refused { number: None, why: "another version".into() };
        thread::scope(|scope| {
            let served = scope.spawn(|| {
                serve(accept(&listener), |request| match request {
                    Request::Hello { .. } => Some(vec![welcome()]),
                    _ => None,
                });
                for _ in 0..4 {
                    say(&mut accept(&listener), std::slice::from_ref(&refused));
                }
            });
            let client = Client::connect(&name, home).unwrap();
            assert_eq!(client.shared.lock().standing.silence(), DirectoryError::Silent);
            let start = Instant::now();
            // With which the first one ends.
            client.drop_resource(PLACE);
            served.join().unwrap();
            assert!(start.elapsed() >= 3 * AGAIN_EVERY, "{:?}", start.elapsed());
            let why = DirectoryError::Refused("another version".into());
            assert_eq!(client.shared.lock().standing.silence(), why);
        });
    }

    /// Whoever drops a client waits for the thread that hears the server.
    #[test]
    fn who_is_dropped_joins_no_server() {
        let (name, _listener, context) = listen("dropped");
        let shared = Shared::new(name, context);
        assert!(shared.join().is_ok());
        shared.lock().is_closed = true;
        assert!(shared.join().is_err());
    }
}
