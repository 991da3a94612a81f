//! What a rank of an MPI program asks its node's agent, and is answered. Every report says all that
//! the rank asks for, not what has changed: it can be repeated, and a connection that was lost is
//! taken up by the next report.

use keeptime_model::Invalid;
use keeptime_model::assignment::TrafficClass;
use keeptime_model::name::Name;
use keeptime_model::pattern::{Pattern, RANKS_MAX};
use keeptime_model::units::{BitsPerSecond, Bytes, BytesPerSecond, CpuPpm, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// What both ends speak.
pub const VERSION: u32 = 1;
/// Most communicators with attributes of one rank.
pub const ASKS_MAX: usize = 64;
/// Most pairs of ranks that talk, each direction counted: all-to-all on 256 ranks.
pub const PAIRS_MAX: u64 = 65_536;
/// Greatest message: 1 TiB, so that no product overflows.
pub const MESSAGE_BYTES_MAX: Bytes = Bytes::new(1 << 40);

/// All that one rank asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The job; nothing = that of the process that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Name>,
    /// What it asks for.
    pub rank: RankState,
}

/// One rank and what it asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankState {
    /// Its number in `MPI_COMM_WORLD`,
    pub number: u32,
    /// which has so many.
    pub size: u32,
    /// One for each communicator with an attribute.
    pub asks: Vec<Ask>,
}

/// The attribute of a communicator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// Of which.
    pub communicator: Communicator,
    /// Counts the values that it had: the greatest is the one that holds.
    pub change: u32,
    /// What is asked.
    pub terms: Terms,
    /// To where this rank has sent so far, if only that is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<BTreeSet<Ipv4Addr>>,
}

/// A communicator as all its ranks know it without asking each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Communicator {
    /// Its ranks by their numbers in `MPI_COMM_WORLD`; of an intercommunicator those of both
    /// groups, the group with the lowest number first.
    pub members: Vec<u32>,
    /// Tells communicators with the same members apart. It follows from which one each is of its parent's; of those of which
    /// that is not known, it is less than 2^31 and counts them as they were given attributes.
    pub index: u32,
    /// Who talks to whom, by position among the members.
    pub talk: Pattern,
}

/// What the application says of its communication.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// How it is treated.
    pub class: TrafficClass,
    /// Payload from each rank to each other that it talks to, at its peak.
    pub bits_per_second: BitsPerSecond,
    /// Greatest message; 0 = unknown.
    pub message_bytes_max: Bytes,
    /// CPU on each node; 0 = as reserved.
    #[serde(default)]
    pub cpu_ppm: CpuPpm,
    /// Read from each node's disk; 0 = as reserved.
    #[serde(default)]
    pub disk_read_bytes_per_second: BytesPerSecond,
    /// Written to each node's disk; 0 = as reserved.
    #[serde(default)]
    pub disk_write_bytes_per_second: BytesPerSecond,
    /// The goal: what the job's application is profiled for takes so long at most; 0 = none.
    #[serde(default)]
    pub within_nanos: Nanos,
    /// Whether senders pace their bursts.
    pub paced: bool,
}

/// The answer to a report.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RankAnswer {
    /// For each ask, in their order.
    pub answers: Vec<Answer>,
    /// How fast the rank may hand out, by destination: what is not named is not paced.
    pub pace: Vec<Pace>,
}

/// What came of an ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// How it stands.
    pub state: AskState,
    /// Why, if it is not granted.
    pub reason: String,
    /// Reserved on the wire for each pair, headers included.
    pub wire_bits_per_second: BitsPerSecond,
    /// Token bucket depth of each pair.
    pub burst_bytes: Bytes,
    /// The time that is promised for a goal; 0 = none was asked for.
    #[serde(default)]
    pub promised_nanos: Nanos,
}

/// How an ask stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AskState {
    /// Nobody who could grant it has answered yet.
    Waiting,
    /// Every node enforces it.
    Granted,
    /// It does not hold, and what held before does.
    Refused,
}

/// A rate of the TCP stream towards one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// The receiving node.
    pub address: Ipv4Addr,
    /// All connections of the rank to it together.
    pub bits_per_second: BitsPerSecond,
}

/// How far a program is, as its rank tells or its library infers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The rank.
    pub rank: u32,
    /// Collective operations that it has begun.
    pub operations: u64,
    /// So many of them make an iteration; 0 = they do not repeat.
    pub period: u32,
    /// What the program itself told; 0 = nothing.
    pub told: u64,
}

impl Progress {
    /// Iterations so far, as the program told or else as inferred; nothing if neither is there.
    pub fn iterations(&self) -> Option<u64> {
        let inferred = self.operations.checked_div(self.period.into());
        if self.told > 0 { Some(self.told) } else { inferred }
    }

    /// Checks that there can be such a rank.
    ///
    /// # Errors
    /// If there cannot.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.rank >= RANKS_MAX {
            return Err(Invalid::new("rank", self.rank, format!("less than {RANKS_MAX}")));
        }
        Ok(())
    }
}

impl Answer {
    /// Not granted yet, and why.
    pub fn waiting(reason: impl Into<String>) -> Self {
        Self::not_granted(AskState::Waiting, reason.into())
    }

    /// Not granted, and why.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self::not_granted(AskState::Refused, reason.into())
    }

    fn not_granted(state: AskState, reason: String) -> Self {
        let (wire_bits_per_second, burst_bytes, promised_nanos) = Default::default();
        Self { state, reason, wire_bits_per_second, burst_bytes, promised_nanos }
    }
}

impl RankAnswer {
    /// The same for each of `count` asks.
    pub fn all(count: usize, answer: &Answer) -> Self {
        Self { answers: vec![answer.clone(); count], pace: Vec::new() }
    }

    /// With what was refused before the others were answered, in its places: see
    /// [`RankState::take_out_refused`].
    #[must_use]
    pub fn with_refused(mut self, refused: BTreeMap<usize, Answer>) -> Self {
        // From the first place on, so that each is there when its turn comes.
        for (at, answer) in refused {
            self.answers.insert(at, answer);
        }
        self
    }
}

impl Report {
    /// Checks what concerns all of it; each ask is looked at for itself by [`RankState::take_out_refused`].
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.version != VERSION {
            return Err(Invalid::new("version", self.version, VERSION.to_string()));
        }
        let RankState { number, size, .. } = self.rank;
        if number >= size {
            return Err(Invalid::new("number", number, format!("less than size, {size}")));
        }
        Ok(())
    }
}

impl RankState {
    /// Takes out the asks that make no sense whatever the reservation is, and those that are too many. What each
    /// of them is answered, by its place.
    pub fn take_out_refused(&mut self) -> BTreeMap<usize, Answer> {
        let mut refused = BTreeMap::new();
        for (at, ask) in std::mem::take(&mut self.asks).into_iter().enumerate() {
            match self.check_next(&ask) {
                Ok(()) => self.asks.push(ask),
                Err(invalid) => {
                    refused.insert(at, Answer::refused(invalid.to_string()));
                }
            }
        }
        refused
    }

    /// Checks all of one more ask that does not depend on a reservation.
    fn check_next(&self, ask: &Ask) -> Result<(), Invalid> {
        if self.asks.len() >= ASKS_MAX {
            let expected = format!("attributes of at most {ASKS_MAX} communicators");
            return Err(Invalid::new("asks", self.asks.len() + 1, expected));
        }
        ask.check(self)
    }
}

impl Ask {
    fn check(&self, of: &RankState) -> Result<(), Invalid> {
        let Communicator { members, talk, .. } = &self.communicator;
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        if !(1..=RANKS_MAX).contains(&count) {
            return Err(Invalid::new("members", count, format!("1 to {RANKS_MAX} ranks")));
        }
        let mut seen = BTreeSet::new();
        if let Some(odd) = members.iter().find(|m| **m >= of.size || !seen.insert(**m)) {
            let expected = format!("ranks below {}, each once", of.size);
            return Err(Invalid::new("members", odd, expected));
        }
        if !seen.contains(&of.number) {
            return Err(Invalid::new("members", "others", format!("rank {} too", of.number)));
        }
        // Of these, which grow with the square, none is listed to be counted.
        let pairs = match talk {
            Pattern::AllToAll => u64::from(count) * u64::from(count - 1),
            _ => talk.flows(count).map_err(|invalid| invalid.within("talk"))?.len() as u64,
        };
        check_pairs(pairs)?;
        self.terms.check()
    }
}

/// Checks that so many pairs of ranks may talk.
///
/// # Errors
/// If they are too many.
pub(crate) fn check_pairs(pairs: u64) -> Result<(), Invalid> {
    if pairs <= PAIRS_MAX {
        return Ok(());
    }
    let expected = format!("at most {PAIRS_MAX} pairs that talk; a topology has fewer");
    Err(Invalid::new("talk", format!("{pairs} pairs"), expected))
}

impl Terms {
    fn check(&self) -> Result<(), Invalid> {
        if self.message_bytes_max > MESSAGE_BYTES_MAX {
            let (value, most) = (self.message_bytes_max, MESSAGE_BYTES_MAX);
            return Err(Invalid::new("message_bytes_max", value, format!("at most {most}")));
        }
        if self.class == TrafficClass::Premium && self.bits_per_second == BitsPerSecond::ZERO {
            let expected = "more than 0 bit/s for class premium";
            return Err(Invalid::new("bits_per_second", self.bits_per_second, expected));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::pattern::RankFlow;
    use proptest::prelude::*;

    const REPORT: &str = r#"{"version":1,"job":"r17","rank":{"number":0,"size":4,"asks":[
        {"communicator":{"members":[0,1,2,3],"index":0,"talk":"all-to-all"},"change":1,
         "terms":{"class":"premium","bits_per_second":40000000,"message_bytes_max":1048576,
                  "paced":true}}]}}"#;

    /// What is wrong in all of a report, or in its one ask.
    fn check(from: &str, to: &str) -> Result<(), String> {
        let mut report: Report = serde_json::from_str(&REPORT.replacen(from, to, 1)).unwrap();
        report.check().map_err(|invalid| invalid.to_string())?;
        let refused = report.rank.take_out_refused().remove(&0);
        refused.map_or(Ok(()), |answer| Err(answer.reason))
    }

    #[test]
    fn bad_reports_name_the_field() {
        assert_eq!(check("", ""), Ok(()));
        for (from, to, expected) in [
            ("\"version\":1", "\"version\":2", "version: \"2\""),
            ("\"number\":0", "\"number\":4", "less than size, 4"),
            ("[0,1,2,3]", "[0,1,2,4]", "members: \"4\""),
            ("[0,1,2,3]", "[0,1,1,3]", "members: \"1\""),
            ("[0,1,2,3]", "[1,2,3]", "rank 0 too"),
            ("[0,1,2,3]", "[]", "1 to 4096 ranks"),
            ("all-to-all", "0>7", "talk.nodes"),
            ("40000000", "0", "more than 0 bit/s for class premium"),
            ("1048576", "1099511627777", "message_bytes_max"),
        ] {
            let error = check(from, to).unwrap_err();
            assert!(error.contains(expected), "{error} should contain {expected}");
        }
    }

    // What cannot be asked for is refused for itself and in its place, and so is what is too much; the others are
    // answered as if it had not been there.
    #[test]
    fn an_ask_that_is_refused_leaves_the_others() {
        let report: Report = serde_json::from_str(REPORT).unwrap();
        let good = report.rank.asks[0].clone();
        let mut odd = good.clone();
        odd.communicator.members = vec![1, 2];
        let mut rank = RankState { asks: vec![good.clone(); ASKS_MAX + 1], ..report.rank };
        rank.asks.insert(1, odd);
        let refused = rank.take_out_refused();
        assert_eq!(rank.asks, vec![good; ASKS_MAX]);
        assert!(refused[&1].reason.contains("rank 0 too"), "{refused:?}");
        assert!(refused[&(ASKS_MAX + 1)].reason.contains("at most 64"), "{refused:?}");
        let granted = Answer { state: AskState::Granted, ..Answer::refused("") };
        let RankAnswer { answers, .. } = RankAnswer::all(ASKS_MAX, &granted).with_refused(refused);
        assert_eq!(answers.len(), ASKS_MAX + 2);
        let is_refused = |at: &usize| answers[*at].state == AskState::Refused;
        let places: Vec<_> = (0..answers.len()).filter(is_refused).collect();
        assert_eq!(places, [1, ASKS_MAX + 1]);
    }

    // Pairs that are listed are bounded as those that are meant by a name.
    #[test]
    fn too_many_pairs_are_refused_however_they_are_told() {
        const RANKS: u32 = 257;
        let report: Report = serde_json::from_str(REPORT).unwrap();
        let others = |from| (0..RANKS).filter(move |to| *to != from);
        let flows = (0..RANKS).flat_map(|from| others(from).map(move |to| RankFlow { from, to }));
        for talk in [Pattern::AllToAll, Pattern::Matrix(flows.collect())] {
            let mut rank = RankState { size: RANKS, ..report.rank.clone() };
            rank.asks[0].communicator.members = (0..RANKS).collect();
            rank.asks[0].communicator.talk = talk;
            let reason = rank.take_out_refused().remove(&0).unwrap().reason;
            assert!(reason.contains("65792 pairs") && reason.contains("65536"), "{reason}");
        }
    }

    // As many ranks as there can be, and no more, tell how far they are.
    #[test]
    fn the_last_rank_that_can_be_has_progress_and_the_next_has_none() {
        let last = Progress { rank: RANKS_MAX - 1, operations: 30, period: 3, told: 0 };
        assert_eq!(last.check(), Ok(()));
        let error = Progress { rank: RANKS_MAX, ..last }.check().unwrap_err().to_string();
        assert!(error.contains("rank: \"4096\""), "{error}");
    }

    #[test]
    fn iterations_are_told_or_inferred() {
        let progress = Progress { rank: 0, operations: 30, period: 3, told: 0 };
        assert_eq!(progress.iterations(), Some(10));
        assert_eq!(Progress { told: 4, ..progress }.iterations(), Some(4));
        assert_eq!(Progress { period: 0, ..progress }.iterations(), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,80}", at in 0usize..300, byte: u8) {
            let _ = serde_json::from_str::<Report>(&text);
            let mut bytes = REPORT.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(mut report) = serde_json::from_slice::<Report>(&bytes) {
                let _ = (report.check(), report.rank.take_out_refused());
            }
        }
    }
}
