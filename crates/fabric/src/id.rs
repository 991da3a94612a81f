//! Names of contexts and resources. A name is never used twice: a context draws its number at
//! random, and a slot that is used again has a new generation.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// One open [`Context`](crate::Context): 64 random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContextId(u64);

/// Where in its context a resource is. A slot of a dropped resource is used again with the next
/// generation, so that the old place leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Index in the context's table.
    pub slot: u32,
    /// How often the slot was used before.
    pub generation: u32,
}

/// The name of a resource in the whole cluster. After the resource is dropped, or its process has
/// ended, it names nothing ever again.
///
/// ```
/// use keeptime_fabric::ResourceId;
///
/// let id: ResourceId = "00c0ffee00c0ffee:12.3".parse()?;
/// assert_eq!(id.to_string(), "00c0ffee00c0ffee:12.3");
/// assert!("12.3".parse::<ResourceId>().is_err());
/// # Ok::<(), keeptime_fabric::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ResourceId {
    /// The context it lives in.
    pub context: ContextId,
    /// Where in there.
    pub place: Place,
}

/// What is written is no identifier.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{text:?} is not the identifier of a resource: expected CONTEXT:SLOT.GENERATION, such as 00c0ffee00c0ffee:12.3"
)]
pub struct InvalidId {
    text: String,
}

impl ContextId {
    /// A context with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ContextId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.context, self.place)
    }
}

impl FromStr for ResourceId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let parse = || {
            let (context, place) = text.split_once(':')?;
            let (slot, generation) = place.split_once('.')?;
            let context = ContextId(u64::from_str_radix(context, 16).ok()?);
            let place = Place { slot: slot.parse().ok()?, generation: generation.parse().ok()? };
            Some(Self { context, place })
        };
        parse().ok_or_else(|| InvalidId { text: text.into() })
    }
}
