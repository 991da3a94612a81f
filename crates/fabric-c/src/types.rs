//! What crosses the boundary, laid out as in `include/keeptime_fabric.h`. `tests/c/layouts.c` asks the C
//! compiler for the same numbers.

use fabric::id::Place;
use fabric::{ContextId, ResourceId};
use std::ffi::{c_char, c_void};

/// `ktf_id`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Id {
    context: u64,
    slot: u32,
    generation: u32,
}

/// `ktf_attribute`.
#[repr(C)]
pub struct Attribute {
    pub name: *const c_char,
    pub value: *const c_char,
}

/// `ktf_config`.
#[repr(C)]
pub struct ConfigFields {
    pub field_mask: u64,
    pub directory: *const c_char,
    pub wait_nanos: i64,
    pub message_most: u64,
    pub close_nanos: i64,
    pub shared_memory: u8,
    pub progress_thread: u8,
    pub between_nodes: u8,
    pub callers: u8,
    pub listen: *const c_char,
    pub networks: *const c_char,
}

/// Has a buffer back that was given away: its data, and its closure.
pub type Release = unsafe extern "C" fn(data: *mut c_void, closure: *mut c_void);

/// `ktf_buffer`.
#[repr(C)]
pub struct BufferFields {
    pub field_mask: u64,
    pub data: *mut c_void,
    pub length: usize,
    pub release: Option<Release>,
    pub closure: *mut c_void,
}

/// Hears what the library says: how important it is, what it is, and its closure.
pub type Tell = unsafe extern "C" fn(level: u32, text: *const c_char, closure: *mut c_void);

/// `ktf_log`.
#[repr(C)]
pub struct LogFields {
    pub field_mask: u64,
    pub tell: Option<Tell>,
    pub closure: *mut c_void,
    pub level: u32,
}

/// `ktf_match`.
#[repr(C)]
pub struct MatchFields {
    pub field_mask: u64,
    pub tag: u64,
    pub from: Id,
    pub tag_bits: u64,
}

/// `ktf_undelivered`.
#[repr(C)]
pub struct UndeliveredFields {
    pub to: Id,
    pub tag: u64,
    pub reason: u32,
    pub reserved: u32,
}

/// `ktf_event`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct EventFields {
    pub kind: u32,
    pub reserved: u32,
    pub id: Id,
}

/// `ktf_reading`.
#[repr(C)]
pub struct ReadingFields {
    pub sequence: u64,
    pub counter: u64,
    pub by: u32,
    pub reserved: u32,
}

/// `ktf_layout`.
#[repr(C)]
pub struct LayoutFields {
    pub records: u32,
    pub bytes: u32,
    pub adds: u32,
    pub reserved: u32,
}

impl Id {
    /// Of what has none.
    pub const NOBODY: Self = Self { context: 0, slot: 0, generation: 0 };
}

impl From<ResourceId> for Id {
    fn from(id: ResourceId) -> Self {
        let Place { slot, generation } = id.place;
        Self { context: id.context.number(), slot, generation }
    }
}

impl From<Id> for ResourceId {
    fn from(id: Id) -> Self {
        let place = Place { slot: id.slot, generation: id.generation };
        Self { context: ContextId::new(id.context), place }
    }
}

// `tests/c/layouts.c` has the same numbers.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Id>() == 16 && size_of::<Attribute>() == 16);
    assert!(size_of::<ConfigFields>() == 64 && offset_of!(ConfigFields, callers) == 43);
    assert!(offset_of!(ConfigFields, listen) == 48);
    assert!(offset_of!(ConfigFields, networks) == 56);
    assert!(size_of::<BufferFields>() == 40 && offset_of!(BufferFields, closure) == 32);
    assert!(size_of::<LogFields>() == 32 && offset_of!(LogFields, level) == 24);
    assert!(size_of::<MatchFields>() == 40 && offset_of!(MatchFields, from) == 16);
    assert!(size_of::<UndeliveredFields>() == 32 && offset_of!(UndeliveredFields, reason) == 24);
    assert!(size_of::<EventFields>() == 24 && offset_of!(EventFields, id) == 8);
    assert!(size_of::<ReadingFields>() == 24 && offset_of!(ReadingFields, by) == 16);
    assert!(size_of::<LayoutFields>() == 16 && offset_of!(LayoutFields, adds) == 8);
};
