//! Traffic control of one network interface as plain values: a [`Tree`] of HTB classes, and a
//! [`Shaper`] that makes an interface as slow as a real link.
//!
//! [`observe`] reads what the kernel has, [`diff`] says what to change (pure, minimal), [`apply`]
//! changes it in few system calls. What is ours carries our handle
//! ([`TREE_MAJOR`]); nothing else on the interface is ever changed.
//!
//! ```
//! use keeptime_linux::tc::{Attach, Observed, Place, TREE_MAJOR, Tree, diff};
//! use std::collections::BTreeMap;
//!
//! let place = Place { ifindex: 2, attach: Attach::Root, major: TREE_MAJOR };
//! let tree = Tree { place, default_minor: 0xffff, classes: BTreeMap::new(), filters: BTreeMap::new() };
//! let ops = diff(&tree, &Observed::empty(2)).unwrap();
//! assert_eq!(ops.len(), 1); // nothing there yet: the hierarchy itself is added
//! ```

mod decode;
mod diff;
mod encode;
mod executor;
mod shaper;
mod ticks;

pub use decode::{Observed, ObservedClass, ObservedFilter, Qdisc, QdiscKind};
pub use diff::{Foreign, diff, removal};
pub use executor::{
    Hook, HookProgram, TcError, apply, attach_program, detach_programs, observe, programs,
};
pub use shaper::Shaper;

pub(crate) use decode::{attributes, u32_of, u64_of};
pub(crate) use executor::{add_plain, dump};

use keeptime_model::units::{BitsPerSecond, Bytes};
use std::collections::BTreeMap;
use std::fmt;

/// An HTB hierarchy at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Where it stands.
    pub place: Place,
    /// The class of whatever nothing else claims.
    pub default_minor: u16,
    /// The classes by their minor number.
    pub classes: BTreeMap<u16, Class>,
    /// Which packets go where, by priority: the lowest is asked first.
    pub filters: BTreeMap<u16, Filter>,
}

/// Where a queueing discipline of ours stands, and the handle that marks it as ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// The interface.
    pub ifindex: u32,
    /// At its root, or inside of another queueing discipline.
    pub attach: Attach,
    /// The major number of its handle.
    pub major: u16,
}

/// The place of a queueing discipline on an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attach {
    /// At the root.
    Root,
    /// Below a class of another queueing discipline, such as that of a [`Shaper`].
    Under(Handle),
}

/// A `major:minor` of traffic control; minor 0 is the queueing discipline itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Handle {
    /// The queueing discipline.
    pub major: u16,
    /// The class in it.
    pub minor: u16,
}

/// One class: what it is guaranteed and what it can borrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// The class that lends to it, or 0 at the top.
    pub parent: u16,
    /// Guaranteed. At least 8 bit/s.
    pub rate: BitsPerSecond,
    /// The limit, with what is borrowed.
    pub ceil: BitsPerSecond,
    /// How much can pass at once on the guarantee.
    pub burst: Bytes,
    /// How much can pass at once at the limit.
    pub cburst: Bytes,
    /// Present in a class without children: only those hold packets.
    pub leaf: Option<Leaf>,
}

/// What only a class that holds packets has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// Who borrows first: 0 to 7, lowest first.
    pub prio: u8,
    /// Bytes a turn among classes of one priority; more than an MTU.
    pub quantum: u32,
    /// How much waits; nothing = the kernel's default (the device's queue length, in packets).
    pub queue: Option<Queue>,
}

/// A queue that drops what does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// At most so many bytes (`bfifo`).
    Bytes(u32),
    /// At most so many packets (`pfifo`).
    Packets(u32),
}

/// Packets that go to a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    /// Which packets.
    pub matches: Match,
    /// Into which class of the same tree.
    pub minor: u16,
}

/// How packets are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Match {
    /// IPv4 with this DiffServ code point, 0 to 63.
    Dscp(u8),
    /// Address resolution, which must pass before anything else can.
    Arp,
}

/// One step of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Adds the hierarchy without classes.
    AddTree {
        /// The class of whatever nothing else claims.
        default_minor: u16,
    },
    /// Adds a class below one that exists.
    AddClass(u16, Class),
    /// Changes rates, bursts, priority and quantum of a class; its packets stay queued.
    ChangeClass(u16, Class),
    /// Removes a class that has neither children nor filters.
    RemoveClass(u16),
    /// Gives a leaf its queue, or changes the length of the one it has.
    SetQueue(u16, Queue),
    /// Gives a leaf the kernel's default queue.
    RemoveQueue(u16),
    /// Adds a filter of this priority.
    AddFilter(u16, Filter),
    /// Removes the filter of this priority.
    RemoveFilter(u16, Match),
    /// Adds a shaper, or changes the one that is there.
    SetShaper(Shaper),
    /// Removes what stands at the place, with all that is in it.
    RemovePlace,
    /// The same at a place inside of another queueing discipline: so many bytes wait there instead.
    ReplaceByQueue(u32),
}

impl Tree {
    /// `major:minor` of one of its classes: what the kernel calls a class id.
    pub fn handle(&self, minor: u16) -> Handle {
        Handle { major: self.place.major, minor }
    }
}

impl Handle {
    /// The root of an interface.
    pub const ROOT: Self = Self { major: u16::MAX, minor: u16::MAX };

    /// As the kernel has it in one word (`skb->priority`, class ids).
    pub const fn to_u32(self) -> u32 {
        (self.major as u32) << 16 | self.minor as u32
    }

    /// From the kernel's word.
    pub const fn from_u32(word: u32) -> Self {
        Self { major: (word >> 16) as u16, minor: word as u16 }
    }
}

impl Attach {
    /// What the kernel calls the parent of a queueing discipline at this place.
    pub const fn parent(self) -> Handle {
        match self {
            Self::Root => Handle::ROOT,
            Self::Under(handle) => handle,
        }
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.minor) {
            (Self::ROOT, _) => f.pad("root"),
            (_, 0) => f.pad(&format!("{:x}:", self.major)),
            _ => f.pad(&format!("{:x}:{:x}", self.major, self.minor)),
        }
    }
}

/// Marks a tree as Keeptime's ("KT"). Also the major number of `skb->priority` of reserved flows.
pub const TREE_MAJOR: u16 = 0x4b54;
/// Marks the plain queue that stands in for a tree that was removed from inside of another queueing
/// discipline ("KQ"): the kernel would put one there that drops everything.
pub const QUEUE_MAJOR: u16 = 0x4b51;
