//! What goes wrong. Each kind has chances of its own, so that a run without one kind has the same
//! faults of all others at the beginning.

use crate::agenda::span;
use keeptime_model::units::Nanos;
use keeptime_random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal)*) => {
        /// A kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind { $($(#[$doc])* $kind,)* }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// As it is written.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }
        }
    };
}

kinds! {
    /// The broker is killed: between inputs, after a decision, while that is written (which may be
    /// torn), when it is durable, among the answers.
    BrokerKills "broker-kills"
    /// The ledger's disk is full for a moment.
    FullDisks "full-disks"
    /// An agent is killed: between orders, or in the middle of making the kernel agree.
    AgentKills "agent-kills"
    /// A node starts anew: its kernel enforces nothing, its agent remembers nothing.
    Reboots "reboots"
    /// A node's kernel refuses changes for some seconds.
    Kernels "kernels"
    /// A connection breaks: what is on its way is lost, and each end learns of it some time later.
    Breaks "breaks"
    /// A node is cut off for a while.
    Partitions "partitions"
    /// Messages are late, some later than a lease lasts.
    Delays "delays"
    /// Orders and requests come twice.
    Repeats "repeats"
    /// Requests of users and answers to them are lost: they ask again.
    Losses "losses"
    /// Wall clocks are set back and forward by up to an hour.
    Clocks "clocks"
}

/// Kinds of faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kinds(BTreeSet<Kind>);

/// How often faults took effect: a kernel that is to refuse changes, and is asked for none, has refused nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effects(BTreeMap<Kind, u64>);

/// So many kinds are on together always; of more, each is on half of the time.
const TOGETHER: usize = 2;

impl Kinds {
    /// Everything goes wrong.
    pub fn all() -> Self {
        Self(Kind::ALL.iter().copied().collect())
    }

    /// These.
    pub fn of(kinds: &[Kind]) -> Self {
        Self(kinds.iter().copied().collect())
    }

    /// Whether nothing goes wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `kind` goes wrong.
    pub fn has(&self, kind: Kind) -> bool {
        self.0.contains(&kind)
    }

    /// All but `kind`.
    #[must_use]
    pub fn without(&self, kind: Kind) -> Self {
        Self(self.0.iter().copied().filter(|other| *other != kind).collect())
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = Kind> {
        self.0.iter().copied()
    }

    /// Some of them: runs differ more where not everything goes wrong at once.
    #[must_use]
    pub fn some(&self, random: &mut Random) -> Self {
        let all = self.0.len() <= TOGETHER;
        // Drawn for every kind, so that a run without one draws the same for all others.
        let chosen = Kind::ALL.iter().map(|kind| (*kind, random.is_one_in(2)));
        Self(
            chosen
                .filter(|(kind, on)| (all || *on) && self.has(*kind))
                .map(|(kind, _)| kind)
                .collect(),
        )
    }

    /// Whether nothing goes wrong with agents, the way to them, and clocks: then no agent has a reason
    /// to refuse anything or to go away.
    pub fn spare_agents(&self) -> bool {
        let broker = [Kind::BrokerKills, Kind::FullDisks, Kind::Repeats, Kind::Losses];
        self.iter().all(|kind| broker.contains(&kind))
    }
}

impl Effects {
    /// One of `kind` more.
    pub fn count(&mut self, kind: Kind) {
        self.add(kind, 1);
    }

    /// So many of `kind` more.
    pub fn add(&mut self, kind: Kind, times: u64) {
        if times > 0 {
            *self.0.entry(kind).or_default() += times;
        }
    }

    /// These, too.
    pub fn extend(&mut self, others: &Self) {
        others.0.iter().for_each(|(kind, times)| self.add(*kind, *times));
    }

    /// Of which kinds there were any.
    pub fn kinds(&self) -> Kinds {
        Kinds(self.0.keys().copied().collect())
    }
}

/// How long until something of `kind` goes wrong again; nothing for those that are drawn for each
/// message.
pub fn pause(kind: Kind, random: &mut Random) -> Option<Nanos> {
    let secs = Nanos::from_secs;
    Some(span(
        random,
        match kind {
            Kind::BrokerKills => secs(4)..secs(120),
            Kind::FullDisks => secs(20)..secs(200),
            Kind::AgentKills | Kind::Breaks => secs(3)..secs(60),
            Kind::Reboots => secs(30)..secs(200),
            Kind::Kernels | Kind::Partitions => secs(10)..secs(100),
            Kind::Clocks => secs(20)..secs(300),
            Kind::Delays | Kind::Repeats | Kind::Losses => return None,
        },
    ))
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Kind::name).collect();
        f.write_str(&names.join(","))
    }
}

impl fmt::Display for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> =
            self.0.iter().map(|(kind, times)| format!("{times} {}", kind.name())).collect();
        f.write_str(&counts.join(" "))
    }
}

impl FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|kind| kind.name() == text);
        found.copied().ok_or_else(|| format!("{text:?} is not one of {}", Kinds::all()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_read_back_and_are_left_out() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse(), Ok(*kind));
            assert!(!Kinds::all().without(*kind).has(*kind));
        }
        assert!("fire".parse::<Kind>().unwrap_err().contains("broker-kills"));
        assert!(Kinds::of(&[Kind::BrokerKills]).spare_agents());
        assert!(!Kinds::all().spare_agents());
        let some = Kinds::all().some(&mut Random::of(3, 0));
        assert!(some != Kinds::all() && some.iter().count() > 0);
    }
}
