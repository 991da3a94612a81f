//! A client: asks a partition, any one, and asks again where that came to nothing.

use crate::chart::Chart;
use crate::message::{
    Answer, KEY_MOST, Message, Outcome, Record, Request, TAGS, VALUE_MOST, Version, decode, encode,
};
use crate::misses::Misses;
use crate::survey::Survey;
use keeptime_fabric::{
    Attributes, Config, Context, FindError, Match, OpenError, RegisterError, Resource, Wait, attrs,
};
use serde_bytes::ByteBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// How long an answer is waited for before the question is asked again: many times what it takes.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// How soon to ask again who could not answer.
const BUSY_TIME: Duration = Duration::from_millis(20);

/// Why a client has no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No context.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The directory does not say who there is.
    #[error(transparent)]
    Find(#[from] FindError),
    /// Too long.
    #[error("a {what} of {bytes} bytes: at most {most} are stored")]
    TooLong {
        /// Key or value.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// What would be stored.
        most: usize,
    },
    /// Nobody could answer in time.
    #[error("table {name:?}: no answer within {} s ({why})", within.as_secs_f64())]
    Silent {
        /// Of the table.
        name: String,
        /// How long it was tried.
        within: Duration,
        /// What was the matter last.
        why: &'static str,
    },
}

/// What a query found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// This value.
    Value(Vec<u8>),
    /// Nothing was stored.
    Nothing,
    /// Nothing is there, and it may have been lost with a server that was killed.
    Lost,
}

/// A client of one table: one question at a time.
#[derive(Debug)]
pub struct Client {
    context: Arc<Context>,
    resource: Resource,
    survey: Survey,
    name: String,
    number: u64,
    /// Time of the last version.
    time: u64,
    patience: Duration,
    misses: Misses,
    hops: u64,
}

impl Client {
    /// A client of the table `name` that tries for as long as `patience`.
    ///
    /// # Errors
    /// If there is no directory on this node.
    pub fn open(
        mut config: Config,
        name: &str,
        patience: Duration,
        misses: Misses,
    ) -> Result<Self, ClientError> {
        // An answer comes over several partitions: who spun for it would take the time that they need.
        config.wait = Wait::Block;
        config.message_most = config.message_most.max(2 * VALUE_MOST as u64);
        let context = Arc::new(Context::open(config)?);
        // No table has a client for a part of it.
        let attributes: Attributes = attrs! { "service" => "dht-client", "name" => name };
        let resource = context.register(attributes)?;
        let survey = Survey::new(context.clone(), name)?;
        let name = name.into();
        let (number, time, hops) = (TAGS, 0, 0);
        Ok(Self { context, resource, survey, name, number, time, patience, misses, hops })
    }

    /// Stores `value` under `key`. When this returns, every query finds it.
    ///
    /// # Errors
    /// If one is too long, or nobody answers.
    pub fn store(&mut self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        check("key", key, KEY_MOST)?;
        check("value", value, VALUE_MOST)?;
        loop {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.time = (self.time + 1).max(since.as_nanos() as u64);
            let version = Version { time: self.time, origin: self.resource.id() };
            let (key, value) = (ByteBuf::from(key), ByteBuf::from(value));
            let record = Record { key, version, value };
            let store =
                |number| Request::Store { client: version.origin, number, record: record.clone() };
            match self.ask(store)? {
                // This client's clock is behind; what it stores is later all the same.
                Outcome::Older { time } => self.time = self.time.max(time),
                _ => return Ok(()),
            }
        }
    }

    /// What is stored under `key`.
    ///
    /// # Errors
    /// If nobody answers.
    pub fn query(&mut self, key: &[u8]) -> Result<Found, ClientError> {
        check("key", key, KEY_MOST)?;
        let client = self.resource.id();
        let query = |number| Request::Query { client, number, key: ByteBuf::from(key) };
        Ok(match self.ask(query)? {
            Outcome::Found(value) => Found::Value(value.into_vec()),
            Outcome::Lost => Found::Lost,
            _ => Found::Nothing,
        })
    }

    /// Partitions that all requests so far have passed.
    pub fn hops(&self) -> u64 {
        self.hops
    }

    /// The table's partitions and servers.
    ///
    /// # Errors
    /// If the directory does not answer.
    pub fn chart(&self) -> Result<Arc<Chart>, ClientError> {
        Ok(self.survey.chart()?)
    }

    /// Asks any partition, until there is an answer.
    fn ask(&mut self, request: impl Fn(u64) -> Request) -> Result<Outcome, ClientError> {
        let deadline = Instant::now() + self.patience;
        let mut why = "no partition is there";
        while Instant::now() < deadline {
            let chart = self.survey.chart()?;
            let count = chart.partitions().len();
            let any = (count > 0).then(|| fastrand::usize(..count));
            let Some(entry) = any.and_then(|any| chart.partitions().nth(any)) else {
                thread::park_timeout(BUSY_TIME);
                continue;
            };
            self.number += 1;
            self.misses.look_for(&self.context, entry.id);
            let message = Message::Routed { hops: 0, request: request(self.number) };
            let sent =
                self.resource.send_within(entry.id, message.tag(), encode(&message), ANSWER_TIME);
            if sent.is_err() {
                why = "partitions cannot be reached";
                thread::park_timeout(BUSY_TIME);
                continue;
            }
            // Of questions that were given up, answers may come yet: they are for nobody.
            match self.resource.recv_within(Match::tag(self.number), ANSWER_TIME) {
                Ok(message) => match decode::<Answer>(&message.data) {
                    Some(Answer { hops, outcome }) if outcome != Outcome::Busy => {
                        self.hops += u64::from(hops);
                        return Ok(outcome);
                    }
                    _ => {
                        why = "nobody had that part";
                        thread::park_timeout(BUSY_TIME);
                    }
                },
                Err(_) => why = "no answer came",
            }
            while let Ok(Some(_)) = self.resource.try_recv(Match::any()) {}
        }
        Err(ClientError::Silent { name: self.name.clone(), within: self.patience, why })
    }
}

fn check(what: &'static str, bytes: &[u8], most: usize) -> Result<(), ClientError> {
    let bytes = bytes.len();
    if bytes > most { Err(ClientError::TooLong { what, bytes, most }) } else { Ok(()) }
}
