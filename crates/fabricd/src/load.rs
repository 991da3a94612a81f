//! Publishes how busy the node is.

use keeptime_fabric::real_time::{self, Priority};
use keeptime_fabric::region::{CELL, Layout, PublishError, Region};
use keeptime_fabric::{Config, Context, OpenError, node_load};
use keeptime_linux::load::{LoadError, Scope};
use keeptime_model::errors::chain;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

/// How old what is published gets: a small part of the time in which sites' nodes are moved, and so long that
/// counting takes no CPU to speak of.
pub const RENEWED_EVERY: Duration = Duration::from_millis(20);

/// Publishes, until it is dropped.
#[derive(Debug)]
pub struct LoadPublisher {
    real_time: io::Result<()>,
    /// Dropped, the thread ends.
    goes_on: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Nothing can be published.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadPublisherError {
    /// The kernel does not count.
    #[error(transparent)]
    Count(#[from] LoadError),
    /// There is no context for it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no region for it.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// It has no thread.
    #[error("cannot start a thread that publishes")]
    Thread(#[source] io::Error),
}

impl LoadPublisher {
    /// Publishes what `scope` counts as the load of `node`, whose directory and regions are there already.
    ///
    /// # Errors
    /// If nothing is counted, or there is no place for it.
    pub fn start(config: Config, node: &str, scope: Scope) -> Result<Self, LoadPublisherError> {
        // What cannot be counted is told at once, and before anybody finds a cell that says nothing.
        scope.count()?;
        let context = Context::open(config)?;
        let attributes = node_load::query().with(node_load::NODE, node);
        let region = context.publish(attributes, Layout::CELL)?;
        let (goes_on, ended) = channel::<()>();
        let (told, schedule) = channel();
        let publishing = move || {
            let _ = told.send(real_time::hurry(Priority::Renew));
            let _open = context;
            let mut is_counted = true;
            loop {
                renew(&region, &scope, &mut is_counted);
                if ended.recv_timeout(RENEWED_EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("node-load".into()).spawn(publishing);
        let thread = Some(thread.map_err(LoadPublisherError::Thread)?);
        let real_time = schedule.recv().unwrap_or_else(|error| Err(io::Error::other(error)));
        Ok(Self { real_time, goes_on: Some(goes_on), thread })
    }

    /// Whether it has a real-time schedule, or why not: without one, what is published on a busy node is older
    /// than it should be.
    pub fn real_time(&self) -> &io::Result<()> {
        &self.real_time
    }
}

impl Drop for LoadPublisher {
    fn drop(&mut self) {
        self.goes_on = None;
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}

/// What cannot be counted leaves the cell as it is: it gets old, which counts as silence. Said when it begins.
fn renew(region: &Region, scope: &Scope, is_counted: &mut bool) {
    let counted = scope.count();
    match &counted {
        Ok(counters) => {
            let cell: [u8; CELL] = node_load::encode(counters);
            // A cell is written as a cell.
            let _ = region.write(0, &cell);
        }
        Err(error) if *is_counted => {
            tracing::warn!(error = %chain(error), "the node's load is not published");
        }
        Err(_) => {}
    }
    *is_counted = counted.is_ok();
}
