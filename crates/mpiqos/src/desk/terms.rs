//! What the terms of an attribute come to: a rate on the wire, a depth, a pace (pure).

use super::{Profiled, Translated};
use crate::overhead;
use crate::wire::Terms;
use keeptime_model::assignment::TrafficClass;
use keeptime_model::units::{BitsPerSecond, Bytes, Nanos};

/// Named for low-latency flows that state no rate: they share the node's control class, so the number
/// only has to be positive.
const LOW_LATENCY_RATE: BitsPerSecond = BitsPerSecond::from_mbit(1);

/// Why there is no extension for what is asked.
pub(super) enum Obstacle {
    /// Nobody said where this rank runs.
    Unplaced,
    /// It cannot be.
    Impossible(String),
}

impl Terms {
    pub(super) fn is_premium(&self) -> bool {
        self.class == TrafficClass::Premium
    }

    /// What its goal comes to; nothing if it has none.
    pub(super) fn goal(&self, profile: &dyn Profiled) -> Result<Option<Translated>, Obstacle> {
        let within = Some(self.within_nanos).filter(|within| *within > Nanos::default());
        let goal = within.map(|within| profile.translate(within)).transpose();
        goal.map_err(|why| Obstacle::Impossible(format!("within: {why}")))
    }

    /// Rate and depth of each pair on the wire; nothing for best-effort.
    pub(super) fn reserved(&self) -> Result<Option<(BitsPerSecond, Bytes)>, Obstacle> {
        if self.class == TrafficClass::BestEffort {
            return Ok(None);
        }
        let rate = overhead::wire_rate(self.bits_per_second, self.message_bytes_max);
        let rate = rate.ok_or_else(|| {
            let asked = self.bits_per_second;
            Obstacle::Impossible(format!("bits_per_second: {asked} is more than any link has"))
        })?;
        if !self.is_premium() && rate == BitsPerSecond::ZERO {
            return Ok(Some((LOW_LATENCY_RATE, Bytes::default())));
        }
        Ok(Some((rate, overhead::depth(rate, self.message_bytes_max, self.paced))))
    }

    /// Nothing if it is not to be paced.
    pub(super) fn pace(&self) -> Option<BitsPerSecond> {
        let pace = overhead::pace(self.bits_per_second, self.message_bytes_max);
        pace.filter(|_| self.paced)
    }
}
