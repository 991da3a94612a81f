//! What a node's daemon answers to whoever measures, and how to ask it: round trips and streams of
//! messages, over whatever carries them.
//!
//! A message whose tag is [`TAKEN`] is taken and forgotten; any other is sent back as it came. Since
//! messages of a pair stay in order, the answer to the last of a stream tells that all were taken.

use crate::attributes::Attributes;
use crate::config::Config;
use crate::context::{Context, Resource};
use crate::error::{OpenError, RecvError, RegisterError, SendError};
use crate::frame::EAGER_MOST;
use crate::id::ResourceId;
use crate::matching::{Match, Tag};
use crate::threads;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The tag of messages that are not answered.
pub const TAKEN: Tag = Tag(0);
/// The attribute that tells at which port the node's directory server is: over bridges nobody else's is
/// reached.
pub const DIRECTORY: &str = "directory";
/// The longest message that is answered: one that has come whole before anybody looks at it, so that
/// nobody who stops in the middle of one holds up the others.
pub const BYTES_MOST: usize = EAGER_MOST;

/// Answers, until it is dropped.
#[derive(Debug)]
pub struct Echo {
    resource: Arc<Resource>,
    thread: Option<JoinHandle<()>>,
}

/// Asks one of them. One thread asks at a time.
#[derive(Debug)]
pub struct Probe {
    resource: Resource,
    peer: ResourceId,
    last: u64,
}

/// Nobody will answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EchoError {
    /// There is no context for it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot be found.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// It has no thread.
    #[error("cannot start a thread that answers")]
    Thread(#[source] io::Error),
}

/// A question was not answered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// It was not sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// Its answer did not come.
    #[error(transparent)]
    Recv(#[from] RecvError),
}

/// What finds all that answer.
pub fn query() -> Attributes {
    crate::attrs! { "service" => "echo" }
}

impl Echo {
    /// Answers on `node`, whose directory server is there already, at `directory`.
    ///
    /// # Errors
    /// If there is no directory, or the kernel does not give what is needed.
    pub fn start(mut config: Config, node: &str, directory: SocketAddr) -> Result<Self, EchoError> {
        config.message_most = BYTES_MOST as u64;
        let context = Context::open(config)?;
        let attributes = query().with("node", node).with(DIRECTORY, directory.port().to_string());
        let resource = Arc::new(context.register(attributes)?);
        let (answers, own) = (resource.clone(), context.id());
        let thread = threads::spawn("echo", move || {
            loop {
                match answers.recv(Match::any()) {
                    Ok(message) if message.from.context == own => break,
                    Ok(message) if message.tag == TAKEN => {}
                    // Whoever does not take an answer at once is not waited for.
                    Ok(message) => drop(answers.try_send(message.from, message.tag, message.data)),
                    // An answer that was not delivered: whoever asked is gone.
                    Err(_) => {}
                }
            }
        });
        Ok(Self { resource, thread: Some(thread.map_err(EchoError::Thread)?) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // Within a context messages are taken as long as the resource is there.
        let _ = self.resource.send(self.resource.id(), TAKEN, &[]);
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Probe {
    /// Asks `peer`, an [`Echo`].
    ///
    /// # Errors
    /// If it cannot be registered, so that answers would not arrive.
    pub fn new(context: &Context, peer: ResourceId) -> Result<Self, RegisterError> {
        let resource = context.register(crate::attrs! { "service" => "probe" })?;
        Ok(Self { resource, peer, last: TAKEN.0 })
    }

    /// How long a message of `data` takes there and back.
    ///
    /// # Errors
    /// If it is too long, or the answer does not come within `time`.
    pub fn round_trip(&mut self, data: &[u8], time: Duration) -> Result<Duration, ProbeError> {
        let start = Instant::now();
        self.ask(data, start + time)?;
        Ok(start.elapsed())
    }

    /// How long it takes until `count` messages of `data` are all taken.
    ///
    /// # Errors
    /// If they are too long, or that is not so within `time`.
    pub fn stream(
        &mut self,
        data: &[u8],
        count: u32,
        time: Duration,
    ) -> Result<Duration, ProbeError> {
        let start = Instant::now();
        let deadline = start + time;
        for _ in 0..count {
            self.send(TAKEN, data, deadline)?;
        }
        self.ask(&[], deadline)?;
        Ok(start.elapsed())
    }

    fn ask(&mut self, data: &[u8], deadline: Instant) -> Result<(), ProbeError> {
        // A tag of its own: an answer that came too late for another question is not this one's.
        self.last += 1;
        let tag = Tag(self.last);
        self.send(tag, data, deadline)?;
        let left = deadline.saturating_duration_since(Instant::now());
        self.resource.recv_within(Match::tag(tag.0).from(self.peer), left)?;
        Ok(())
    }

    fn send(&self, tag: Tag, data: &[u8], deadline: Instant) -> Result<(), ProbeError> {
        let (bytes, most) = (data.len(), BYTES_MOST as u64);
        if bytes > BYTES_MOST {
            return Err(SendError::TooLong { bytes, most }.into());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        Ok(self.resource.send_within(self.peer, tag, data, left)?)
    }
}
