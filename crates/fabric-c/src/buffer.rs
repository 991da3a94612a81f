//! `ktf_buffer`: memory that a program gives away, and what frees it.

use crate::arguments::{can_be, is_null, known};
use crate::outcome::Failure;
use crate::types::{BufferFields, Release};
use fabric::Buffer;
use std::ffi::c_void;
use std::ptr::{addr_of, null_mut};

const DATA: u64 = 1;
const RELEASE: u64 = 2;

/// Memory that was given, and what has it back when this is dropped.
struct Given {
    data: *mut c_void,
    length: usize,
    release: Option<Release>,
    closure: *mut c_void,
}

// SAFETY: the header says that any thread may have it released, and that nobody writes to the memory before.
unsafe impl Send for Given {}

// SAFETY: it is only read.
unsafe impl Sync for Given {}

impl AsRef<[u8]> for Given {
    fn as_ref(&self) -> &[u8] {
        if self.data.is_null() {
            return &[];
        }
        // SAFETY: the caller has said that there are so many bytes until they are released, which is when this is
        // dropped.
        unsafe { std::slice::from_raw_parts(self.data.cast_const().cast(), self.length) }
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: as the header says; nobody has the bytes any more.
            unsafe { release(self.data, self.closure) };
        }
    }
}

/// The buffer that a caller gives away. From here on it is released whatever becomes of the call, also if it is refused
/// here.
pub unsafe fn given(fields: *const BufferFields) -> Result<Buffer, Failure> {
    if fields.is_null() {
        return Err(is_null("buffer"));
    }
    let mut given = Given { data: null_mut(), length: 0, release: None, closure: null_mut() };
    // SAFETY: the caller says that the struct has every field up to the last that its mask names;
    // the mask itself is always there.
    let mask = unsafe {
        let mask = addr_of!((*fields).field_mask).read();
        if mask & DATA != 0 {
            given.data = addr_of!((*fields).data).read();
            given.length = addr_of!((*fields).length).read();
        }
        if mask & RELEASE != 0 {
            given.release = addr_of!((*fields).release).read();
            given.closure = addr_of!((*fields).closure).read();
        }
        mask
    };
    known(mask, DATA | RELEASE)?;
    if mask & RELEASE != 0 && given.release.is_none() {
        return Err(is_null("buffer.release"));
    }
    if given.data.is_null() && given.length > 0 {
        return Err(is_null("buffer.data"));
    }
    can_be(given.length, "buffer.length")?;
    Ok(Buffer::from_owner(given))
}
