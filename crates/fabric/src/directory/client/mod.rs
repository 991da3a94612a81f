//! A program's side of the directory: questions and their answers, which are kept and kept right by
//! what the server pushes. Who looks at an answer first reads what was pushed until then: what a
//! register elsewhere has told before it returned is seen by every look that begins after it. When
//! the server ends, everything is said anew to the next one. That one knows what there is when
//! other programs and servers have told it, which takes a moment: until then watchers are not told
//! that something is gone of which it has not heard, and looks find what it has heard of.
//!
//! | module | owns |
//! |---|---|
//! | `asking`, `finding`, `watching` | one answer; a look at what there is; what happens to it |
//! | `welcome`, `registrations` | what the server says of the program; what the program registers |
//! | `subscriptions`, `subscription` | the questions that are kept; one of them |
//! | `listening`, `connection` | the thread that hears each server in turn; on what it does |
//! | `state` | what is known, under one lock |

mod asking;
mod connection;
mod finding;
mod listening;
mod registrations;
mod state;
mod subscription;
mod subscriptions;
#[cfg(test)]
mod testing;
mod watching;
mod welcome;

pub use asking::DirectoryError;
pub use watching::{Event, Watch};
pub use welcome::Welcome;

use super::protocol::{ContextInfo, Introduction, Request};
use crate::attributes::Attributes;
use crate::id::{ContextId, Place};
use crate::threads;
use state::Shared;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The connection to the server, and everything that was said on it.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

impl Client {
    /// Connects to the server `name` of this node, for `context`.
    ///
    /// # Errors
    /// If there is none, or it refuses.
    pub fn connect(name: &str, context: ContextInfo) -> Result<Self, DirectoryError> {
        let shared = Arc::new(Shared::new(name.into(), context));
        let unreachable = |error: io::Error| {
            let (name, why) = (name.into(), error.to_string());
            DirectoryError::Unreachable { name, why }
        };
        let stream = shared.join().map_err(unreachable)?;
        let reading = shared.clone();
        let reader = threads::spawn("directory-client", move || reading.listen(stream));
        let reader = reader.map_err(unreachable)?;
        let client = Self { shared, reader: Some(reader) };
        client.shared.welcome()?;
        Ok(client)
    }

    /// What the server, or the last one, has said of this program.
    pub fn welcome(&self) -> Welcome {
        let welcome = self.shared.lock().standing.welcome().cloned();
        welcome.unwrap_or_else(|| unreachable!("no client without one"))
    }

    /// Registers a resource. When this returns, every program that asks finds it.
    ///
    /// # Errors
    /// If the server refuses, or does not answer.
    pub fn register(&self, place: Place, attributes: Attributes) -> Result<(), DirectoryError> {
        attributes.check().map_err(|invalid| DirectoryError::Refused(invalid.to_string()))?;
        self.ask(|number| Request::Register { number, place, attributes }).map(drop)
    }

    /// Drops it, without waiting until every server knows.
    pub fn drop_resource(&self, place: Place) {
        let mut state = self.shared.lock();
        state.registrations.remove(place);
        let number = state.next_number();
        state.connection.say(&Request::Drop { number, place });
    }

    /// Where a context is, if it is anywhere, and what to show it.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn resolve(&self, context: ContextId) -> Result<Option<Introduction>, DirectoryError> {
        self.ask(|number| Request::Resolve { number, context })
    }

    /// Ends the connection. Whoever waits for an answer, or asks from now on, gets none.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        state.connection.shut_down();
        drop(state);
        self.shared.notify_all();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{PLACE, accept, listen, serve, welcome};
    use super::*;
    use crate::attrs;
    use std::thread;

    /// A server would disconnect who says something so long, and so would each that it is said to
    /// again.
    #[test]
    fn what_no_server_takes_is_not_said() {
        let (name, listener, home) = listen("long");
        let long = attrs! { "a" => "b".repeat(2 << 20) };
        let why = DirectoryError::Refused(long.check().unwrap_err().to_string());
        thread::scope(|scope| {
            let served = scope.spawn(|| {
                let mut asked = 0;
                serve(accept(&listener), |request| match request {
                    Request::Hello { .. } => Some(vec![welcome()]),
                    _ => {
                        asked += 1;
                        None
                    }
                });
                asked
            });
            let client = Client::connect(&name, home).unwrap();
            assert_eq!(client.find(&long, None, |_| Some(())), Err(why.clone()));
            assert_eq!(client.register(PLACE, long), Err(why));
            drop(client);
            assert_eq!(served.join().unwrap(), 0);
        });
    }
}
