//! Over what a context can be called, as the directory tells it, and which of that its callers take (pure).

use crate::config::Protocol;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a context speaks besides TCP, which all do. What a later version may add is kept, and not taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Carriers(u32);

impl Carriers {
    /// Those that are told of: TCP needs no telling.
    const TOLD: [Protocol; 3] = [Protocol::Udp, Protocol::Libfabric, Protocol::Ucx];

    /// Those for which `is_spoken` holds.
    pub(crate) fn of(is_spoken: impl Fn(Protocol) -> bool) -> Self {
        let spoken = Self::TOLD.into_iter().filter(|protocol| is_spoken(*protocol));
        spoken.fold(Self::default(), Self::with)
    }

    /// These, and `protocol`.
    pub fn with(self, protocol: Protocol) -> Self {
        Self(self.0 | bit(protocol))
    }

    /// Whether `protocol` is one of them.
    pub fn has(self, protocol: Protocol) -> bool {
        self.0 & bit(protocol) == bit(protocol)
    }

    /// What a caller takes that wants to call over `wanted`: that if it is spoken here too, and else TCP.
    pub fn taken(self, wanted: Protocol) -> Protocol {
        if self.has(wanted) { wanted } else { Protocol::Tcp }
    }
}

impl fmt::Debug for Carriers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = Self::TOLD.into_iter().filter(|protocol| self.has(*protocol));
        f.debug_set().entry(&Protocol::Tcp).entries(told).finish()
    }
}

/// Where it is said; nothing for what is not said.
fn bit(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::Tcp => 0,
        Protocol::Udp => 1,
        Protocol::Libfabric => 1 << 1,
        Protocol::Ucx => 1 << 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Protocol; 4] = [Protocol::Tcp, Protocol::Udp, Protocol::Libfabric, Protocol::Ucx];

    proptest! {
        /// Whatever the other end speaks, and though it is of a later version: what is wanted if it speaks that, else
        /// TCP, and nothing that it has not told.
        #[test]
        fn a_caller_takes_what_both_speak(told in any::<u32>(), wanted in 0..ALL.len()) {
            let (carriers, wanted) = (Carriers(told), ALL[wanted]);
            let taken = carriers.taken(wanted);
            prop_assert!(carriers.has(taken));
            prop_assert_eq!(taken == wanted, carriers.has(wanted));
            prop_assert!(taken == wanted || taken == Protocol::Tcp);
            let bytes = postcard::to_stdvec(&carriers).unwrap();
            prop_assert_eq!(postcard::from_bytes::<Carriers>(&bytes), Ok(carriers));
        }
    }

    #[test]
    fn each_is_told_by_itself() {
        for protocol in ALL {
            let one = Carriers::default().with(protocol);
            let had = ALL.map(|other| one.has(other));
            assert_eq!(had, ALL.map(|other| other == protocol || other == Protocol::Tcp));
            assert_eq!(Carriers::of(|other| other == protocol), one);
        }
        let text = format!("{:?}", Carriers::default().with(Protocol::Ucx));
        assert_eq!(text, "{Tcp, Ucx}");
    }
}
