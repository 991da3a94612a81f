//! What waits for the desk of one job: of each node the newest. A report is about all that ranks of the job ask for there, so
//! that nothing is lost with those before it.

use super::Report;
use keeptime_engine::agents::Session;
use keeptime_locks::lock;
use keeptime_model::topology::NodeIndex;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// What was said and not heard yet.
#[derive(Debug, Default)]
pub(super) struct Post {
    said: Mutex<BTreeMap<NodeIndex, Said>>,
    arrived: Notify,
}

/// What a desk hears.
#[derive(Debug)]
pub(super) enum Said {
    Report {
        report: Report,
        /// Its room until it was heard.
        _room: OwnedSemaphorePermit,
    },
    /// Nothing is asked for on this node: its agent has long been there, and said nothing.
    Silence(NodeIndex, Session),
}

impl Post {
    /// In the place of what the node said before.
    pub fn put(&self, said: Said) {
        let mut all = lock(&self.said);
        let (node, _) = said.from();
        if all.get(&node).is_none_or(|waiting| said.supersedes(waiting)) {
            all.insert(node, said);
            self.arrived.notify_one();
        }
    }

    /// Waits until something was said since it was last waited for.
    pub async fn arrival(&self) {
        self.arrived.notified().await;
    }

    /// All that waits.
    pub fn take(&self) -> Vec<Said> {
        std::mem::take(&mut *lock(&self.said)).into_values().collect()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        lock(&self.said).is_empty()
    }
}

impl Said {
    /// Which node, and over which connection.
    pub fn from(&self) -> (NodeIndex, Session) {
        match self {
            Self::Report { report: Report { node, session, .. }, .. }
            | Self::Silence(node, session) => (*node, *session),
        }
    }

    /// A connection that was replaced says nothing more, and one that has said something is not silent.
    fn supersedes(&self, waiting: &Self) -> bool {
        let newness = |said: &Self| (said.from().1, matches!(said, Self::Report { .. }));
        newness(self) >= newness(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    fn report(node: u32, session: u64, number: u64) -> Said {
        let (node, session) = (NodeIndex(node), Session(session));
        let report = Report { node, session, number, ranks: Vec::new(), bytes: 10 };
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        Said::Report { report, _room: room }
    }

    fn silence(node: u32, session: u64) -> Said {
        Said::Silence(NodeIndex(node), Session(session))
    }

    fn put<const COUNT: usize>(post: &Post, all: [Said; COUNT]) {
        all.into_iter().for_each(|said| post.put(said));
    }

    /// What waits: of which node, and the number of its report.
    fn waiting(post: &Post) -> Vec<(u32, Option<u64>)> {
        let one = |said: Said| match said {
            Said::Report { report, .. } => (report.node.0, Some(report.number)),
            Said::Silence(node, _) => (node.0, None),
        };
        post.take().into_iter().map(one).collect()
    }

    #[test]
    fn of_each_node_the_newest_waits() {
        let post = Post::default();
        put(&post, [report(1, 1, 7), report(2, 2, 3), report(1, 1, 8)]);
        assert_eq!(waiting(&post), [(1, Some(8)), (2, Some(3))]);
        assert!(post.is_empty());
        // An agent that began anew counts anew.
        put(&post, [report(1, 1, 9), report(1, 3, 1), report(1, 1, 10)]);
        assert_eq!(waiting(&post), [(1, Some(1))]);
    }

    #[test]
    fn silent_is_who_has_said_nothing_over_its_last_connection() {
        let post = Post::default();
        put(&post, [report(1, 1, 7), silence(1, 2), report(2, 2, 7), silence(2, 2)]);
        assert_eq!(waiting(&post), [(1, None), (2, Some(7))]);
        put(&post, [silence(1, 2), report(1, 2, 1)]);
        assert_eq!(waiting(&post), [(1, Some(1))]);
    }
}
