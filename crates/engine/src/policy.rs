//! Times and limits that an operator sets.

use keeptime_model::units::{Bytes, Nanos, Share};
use serde::{Deserialize, Serialize};

/// How patient and how generous the broker is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// A node whose agent has said nothing for so long is away, and what runs there is lost.
    pub agent_lease_nanos: Nanos,
    /// Agents accept within this time, or what was held is given back.
    pub answer_within_nanos: Nanos,
    /// So long before its start an agent is told of a reservation: it will enforce it then, whether
    /// the broker is up or not.
    pub tell_ahead_nanos: Nanos,
    /// Reservations start at most so far ahead.
    pub ahead_max_nanos: Nanos,
    /// The earliest start is sought so far ahead.
    pub search_ahead_nanos: Nanos,
    /// What is over is remembered for so long, with its key.
    pub remember_nanos: Nanos,
    /// The part of all CPU that one user may have reserved at any time. Nodes of web sites are nobody's here and below:
    /// what sites may have is said by their guarantees.
    #[serde(rename = "user_cpu_ppm")]
    pub user_cpu: Share,
    /// The part of what all nodes can send that one user may have reserved at any time.
    #[serde(rename = "user_bandwidth_ppm")]
    pub user_bandwidth: Share,
    /// Reservations that one user may have at a time, with those that wait for room, for agents or for others.
    pub user_reservations: u32,
    /// What the reservations of one user may take of the broker's memory, about: those that they have, and those that are
    /// over and remembered. Who has so much is refused more, of which nothing is remembered.
    #[serde(rename = "user_memory_bytes")]
    pub user_memory: Bytes,
    /// Requests that may wait for room at a time. Whenever there may be some, each of them is tried, which takes some
    /// tenths of a millisecond in a large cluster, and everybody else waits meanwhile. A thousand tries are made in a second
    /// at the most, after a few hundred at once.
    pub waiting_requests: u32,
    /// Of one user.
    pub user_waiting_requests: u32,
}

impl Default for Policy {
    fn default() -> Self {
        const ALL: Share = Share::from_percent(100).expect("at most 100");
        const DAY: u64 = 24 * 3600;
        Self {
            agent_lease_nanos: Nanos::from_secs(10),
            answer_within_nanos: Nanos::from_secs(2),
            tell_ahead_nanos: Nanos::from_secs(600),
            ahead_max_nanos: Nanos::from_secs(366 * DAY),
            search_ahead_nanos: Nanos::from_secs(366 * DAY),
            remember_nanos: Nanos::from_secs(DAY),
            user_cpu: ALL,
            user_bandwidth: ALL,
            user_reservations: 100_000,
            user_memory: Bytes::new(4_000_000_000),
            waiting_requests: 256,
            user_waiting_requests: 64,
        }
    }
}
