//! Where other servers are or were, and when each is called (pure). Who was cut off is called for as
//! long as there is room to remember it, ever less often: it is found again after any time, and one
//! that is gone for good costs next to nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

/// How often a server is called that was there just now, or that was configured.
const DIAL_EVERY: Duration = Duration::from_secs(1);
/// Others are called again after this part of the time that they had been silent for: when an outage
/// ends, they are found within a tenth of its length.
const DIAL_PART: u32 = 10;
/// How often those are called that have been silent for very long.
const DIAL_RARELY: Duration = Duration::from_secs(300);
/// How long an address is kept without a sign of it while its server is reached at another one.
const SPARE_FOR: Duration = Duration::from_secs(300);
/// Addresses that were learned and are not connected to, as many as are kept: when nobody has answered
/// at any for very long, these are four calls a second.
const IDLE_MOST: usize = 1024;

/// All of them.
#[derive(Debug)]
pub struct Members(BTreeMap<SocketAddr, Member>);

/// Where a server is or was. A server on several networks has several addresses; one connection to it
/// is enough.
#[derive(Debug)]
struct Member {
    configured: bool,
    /// Whose server it is, once that is known.
    node: Option<String>,
    /// There is a connection to it, or one is being made.
    busy: bool,
    /// When a connection was last asked for.
    tried: Option<Duration>,
    /// When there was last a sign of it.
    seen: Duration,
    /// Why nothing was to be said to what was there.
    strange: Option<String>,
}

impl Members {
    /// Those that were configured.
    pub fn new(configured: impl IntoIterator<Item = SocketAddr>) -> Self {
        let new = |address| (address, Member::new(true, Duration::ZERO));
        Self(configured.into_iter().map(new).collect())
    }

    /// Others say that the server of `node` is there. What was found out here stands: on another
    /// network the same address may be somebody else's.
    pub fn learn(&mut self, node: &str, address: SocketAddr, now: Duration) {
        let member = self.0.entry(address).or_insert_with(|| Member::new(false, now));
        member.node.get_or_insert_with(|| node.into());
    }

    /// The server of `node` says itself that it is there.
    pub fn appeared(&mut self, node: &str, address: SocketAddr, now: Duration) {
        let member = self.0.entry(address).or_insert_with(|| Member::new(false, now));
        (member.node, member.seen) = (Some(node.into()), now);
    }

    /// What is there was connected to.
    pub fn connected(&mut self, address: SocketAddr, now: Duration) {
        if let Some(member) = self.0.get_mut(&address) {
            (member.seen, member.strange) = (now, None);
        }
    }

    /// What is there says that it is the server of `node`.
    pub fn welcomed(&mut self, node: &str, address: SocketAddr) {
        if let Some(member) = self.0.get_mut(&address) {
            member.node = Some(node.into());
        }
    }

    /// The connection to it has ended.
    pub fn lost(&mut self, address: SocketAddr, now: Duration) {
        if let Some(member) = self.0.get_mut(&address) {
            (member.busy, member.seen) = (false, now);
        }
    }

    /// It could not be connected to.
    pub fn failed(&mut self, address: SocketAddr) {
        if let Some(member) = self.0.get_mut(&address) {
            member.busy = false;
        }
    }

    /// Nothing is to be said to what is there. Returns whether that is news. It is called again like one that
    /// does not answer: whoever it is may have taken the place of a server that is down.
    pub fn is_strange(&mut self, address: SocketAddr, why: &str) -> bool {
        let Some(member) = self.0.get_mut(&address) else { return false };
        member.busy = false;
        let is_news = member.strange.as_deref() != Some(why);
        member.strange = Some(why.into());
        is_news
    }

    /// Whom to call now; from then on they are being called. Servers of the nodes `reached` are not.
    pub fn due(&mut self, reached: &BTreeSet<&str>, now: Duration) -> Vec<SocketAddr> {
        self.forget(reached, now);
        let mut due = Vec::new();
        for (address, member) in &mut self.0 {
            if !member.busy && !member.is_of(reached) && member.is_due(now) {
                (member.busy, member.tried) = (true, Some(now));
                due.push(*address);
            }
        }
        due
    }

    /// Forgets addresses that are not used, and those of which there was no sign for longest when
    /// there are too many.
    fn forget(&mut self, reached: &BTreeSet<&str>, now: Duration) {
        self.0.retain(|_, member| {
            let is_spare = member.is_idle() && member.is_of(reached);
            !is_spare || now.saturating_sub(member.seen) < SPARE_FOR
        });
        let idle = self.0.iter().filter(|(_, member)| member.is_idle());
        let mut idle: Vec<_> = idle.map(|(address, member)| (member.seen, *address)).collect();
        idle.sort_unstable();
        for (_, address) in &idle[..idle.len().saturating_sub(IDLE_MOST)] {
            self.0.remove(address);
        }
    }
}

impl Member {
    fn new(configured: bool, seen: Duration) -> Self {
        Self { configured, node: None, busy: false, tried: None, seen, strange: None }
    }

    /// Whether it may be forgotten.
    fn is_idle(&self) -> bool {
        !self.configured && !self.busy
    }

    fn is_of(&self, nodes: &BTreeSet<&str>) -> bool {
        self.node.as_deref().is_some_and(|node| nodes.contains(node))
    }

    fn is_due(&self, now: Duration) -> bool {
        self.tried.is_none_or(|tried| now.saturating_sub(tried) >= self.pause(tried))
    }

    /// How long it is not called after it was, when it did not answer.
    fn pause(&self, tried: Duration) -> Duration {
        if self.configured {
            return DIAL_EVERY;
        }
        (tried.saturating_sub(self.seen) / DIAL_PART).clamp(DIAL_EVERY, DIAL_RARELY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    fn at(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    fn second(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    /// In which of these seconds there is a call, while nobody answers.
    fn calls(members: &mut Members, seconds: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut calls = Vec::new();
        for now in seconds {
            for address in members.due(&BTreeSet::new(), second(now)) {
                members.failed(address);
                calls.push(now);
            }
        }
        calls
    }

    /// Goal: a server that comes back after any time is called soon, and one that never does costs
    /// next to nothing. Method: nobody answers for a day; then there is a sign of it.
    #[test]
    fn who_is_gone_is_called_ever_less_often_and_never_forgotten() {
        let mut members = Members::new([]);
        members.learn("n1", at(1), Duration::ZERO);
        let first_day = calls(&mut members, 1..=DAY);
        for pair in first_day.windows(2) {
            // Up to a second later, as it is looked once a second.
            let most = (pair[0] / 10 + 1).min(300);
            assert!(pair[1] - pair[0] <= most, "{pair:?}");
        }
        assert!(DAY - first_day[first_day.len() - 1] <= 300, "{first_day:?}");
        assert!(first_day.len() < 400, "{} calls in a day", first_day.len());
        members.appeared("n1", at(1), second(DAY));
        assert_eq!(calls(&mut members, DAY + 1..DAY + 5), [DAY + 1, DAY + 2, DAY + 3, DAY + 4]);
    }

    #[test]
    fn who_was_configured_is_called_every_second_for_ever() {
        let mut members = Members::new([at(1)]);
        assert_eq!(calls(&mut members, DAY..DAY + 3), [DAY, DAY + 1, DAY + 2]);
    }

    /// Goal: memory and calls are bounded whatever is said, and what was heard of last is kept.
    #[test]
    fn so_many_addresses_are_kept_and_no_more() {
        let mut members = Members::new([]);
        for port in 1..=3000 {
            members.learn("n1", at(port), second(port.into()));
        }
        let due = members.due(&BTreeSet::new(), second(3000));
        let last: Vec<_> = (1..=3000).map(at).skip(3000 - IDLE_MOST).collect();
        assert_eq!(due, last);
    }

    /// Goal: a node that is reached at one address is not called at another one, which is at hand for a
    /// while; where nodes take a new port at each start, old ones are not kept for ever.
    #[test]
    fn spare_addresses_of_who_is_reached_are_kept_for_a_while() {
        let reached = BTreeSet::from(["n1"]);
        let mut members = Members::new([]);
        members.learn("n1", at(1), Duration::ZERO);
        members.learn("n1", at(2), Duration::ZERO);
        assert_eq!(members.due(&BTreeSet::new(), second(1)), [at(1), at(2)]);
        members.connected(at(1), second(1));
        members.failed(at(2));
        assert!(members.due(&reached, second(299)).is_empty());
        members.lost(at(1), second(299));
        assert_eq!(members.due(&BTreeSet::new(), second(299)), [at(1), at(2)]);
        members.failed(at(2));
        assert!(members.due(&reached, second(300)).is_empty());
        // One is being called, the other is forgotten.
        assert!(members.due(&BTreeSet::new(), second(1000)).is_empty());
    }

    /// Goal: hearsay does not keep this server from calling whoever it has found at an address.
    #[test]
    fn what_was_found_out_here_stands() {
        let mut members = Members::new([]);
        members.appeared("n1", at(1), Duration::ZERO);
        members.learn("n2", at(1), Duration::ZERO);
        assert_eq!(members.due(&BTreeSet::from(["n2"]), second(1)), [at(1)]);
    }
}
