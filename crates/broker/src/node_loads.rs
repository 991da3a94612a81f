//! Reads what nodes publish of their load in the fabric. One thread finds nodes, which may take long; another
//! reads all of them at once, ten times a second. Nobody waits for either.

use keeptime_fabric::region::{Reader, RegionError, look};
use keeptime_fabric::{Config, Context, Record, ResourceId, Wait, node_load};
use keeptime_linux::vital;
use keeptime_locks::lock;
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::node_load::NodeCounters;
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Nodes come and go with their daemons: nobody waits for a new one within this time.
const FIND_EVERY: Duration = Duration::from_secs(1);
/// Often enough that a node is silent only when several questions in a row went unanswered.
const READ_EVERY: Duration = Duration::from_millis(100);
/// An answer takes some ten microseconds, and on a busy node without real time as long as others let it wait.
const ANSWER_WITHIN: Duration = Duration::from_millis(50);

/// The loads of the nodes of a fabric, as they were read last. Its threads end soon after it is dropped.
#[derive(Debug)]
pub struct NodeLoads(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    open: Mutex<BTreeMap<Name, Open>>,
    latest: Mutex<BTreeMap<Name, NodeCounters>>,
}

/// A node that was found.
#[derive(Debug, Clone)]
struct Open {
    id: ResourceId,
    reader: Arc<Reader>,
}

impl NodeLoads {
    /// Looks in the fabric whose daemon is called `fabric` on this machine, now or later.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start(fabric: &str) -> io::Result<Self> {
        // Made before its threads, so that the first ends if the second cannot be.
        let loads = Self(Arc::default());
        let (finding, reading) = (Arc::clone(&loads.0), Arc::clone(&loads.0));
        let mut config = Config::default();
        config.directory = fabric.into();
        // Nobody sends it anything, and it has no answer that is worth a busy processor.
        config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        config.wait = Wait::Block;
        vital::spawn("node-loads-find", move || finding.find(&config))?;
        vital::spawn("node-loads-read", move || reading.read())?;
        Ok(loads)
    }

    /// The last that was read of each node, however old.
    pub fn latest(&self) -> BTreeMap<Name, NodeCounters> {
        lock(&self.0.latest).clone()
    }
}

impl Drop for NodeLoads {
    fn drop(&mut self) {
        self.0.stop.store(true, Relaxed);
    }
}

impl Shared {
    fn goes_on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    /// Until it is to stop: opens what nodes publish, and forgets what is gone.
    fn find(&self, config: &Config) {
        let (mut context, mut is_known) = (None, true);
        while self.goes_on() {
            let found = self.find_once(config, &mut context);
            match &found {
                // Said once each time that it begins.
                Err(why) if is_known => {
                    tracing::warn!(
                        "nodes' loads are not known: fabric {}: {why}",
                        config.directory
                    );
                }
                _ => {}
            }
            is_known = found.is_ok();
            thread::sleep(FIND_EVERY);
        }
    }

    fn find_once(&self, config: &Config, context: &mut Option<Context>) -> Result<(), String> {
        let open = match context.take() {
            Some(open) => open,
            None => Context::open(config.clone()).map_err(told)?,
        };
        let records = open.find(node_load::query()).all().map_err(told)?;
        self.follow(context.insert(open), &records);
        Ok(())
    }

    fn follow(&self, context: &Context, records: &[Record]) {
        let is_there = |open: &Open| records.iter().any(|record| record.id == open.id);
        lock(&self.open).retain(|_, open| is_there(open));
        for record in records {
            let Some(node) = node(record).filter(|_| self.goes_on()) else { continue };
            if lock(&self.open).contains_key(&node) {
                continue;
            }
            // One that cannot be reached is tried again; until then it is silent, and its load unknown.
            if let Ok(reader) = context.open_region(record) {
                let open = Open { id: record.id, reader: Arc::new(reader) };
                lock(&self.open).insert(node, open);
            }
        }
    }

    /// Until it is to stop.
    fn read(&self) {
        while self.goes_on() {
            self.read_once();
            thread::sleep(READ_EVERY);
        }
    }

    fn read_once(&self) {
        let open = lock(&self.open).clone();
        let readers: Vec<_> = open.values().map(|open| &*open.reader).collect();
        let found = look(&readers, 0, ANSWER_WITHIN);
        let mut latest = lock(&self.latest);
        latest.retain(|node, _| open.contains_key(node));
        for ((node, opened), found) in open.into_iter().zip(found) {
            match found.map(|(cell, _)| node_load::decode(&cell)) {
                Ok(Some(counters)) => drop(latest.insert(node, counters)),
                // Its daemon has ended; another may publish by another name.
                Err(RegionError::Gone(_)) => {
                    lock(&self.open).retain(|_, open| open.id != opened.id);
                }
                // What was read before gets old.
                Ok(None) | Err(_) => {}
            }
        }
    }
}

/// Whose load a resource is; nothing if it speaks for another node than its own.
fn node(record: &Record) -> Option<Name> {
    let named = record.attributes.value(node_load::NODE)?;
    (named == record.home.node).then(|| named.parse().ok())?
}

fn told(error: impl Error + 'static) -> String {
    chain(&error)
}
