//! Pointers of the caller as values. Errors name the argument.

use crate::outcome::Failure;
use crate::types::{Attribute, Id};
use fabric::attributes::{ATTRIBUTES_MOST, InvalidAttributes};
use fabric::{Attributes, ResourceId};
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::time::Duration;

/// How long a call may take.
#[derive(Clone, Copy)]
pub enum Time {
    /// Not at all.
    Now,
    /// So long.
    Within(Duration),
    /// For ever.
    Forever,
}

/// Longer than any program runs, and still a time that clocks can be asked for.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

impl Time {
    /// What `nanos` means: none is for ever.
    pub fn new(nanos: i64) -> Self {
        match u64::try_from(nanos) {
            Err(_) => Self::Forever,
            Ok(0) => Self::Now,
            Ok(nanos) => Self::Within(Duration::from_nanos(nanos)),
        }
    }

    /// As a span.
    pub fn span(self) -> Duration {
        match self {
            Self::Now => Duration::ZERO,
            Self::Within(span) => span.min(FOREVER),
            Self::Forever => FOREVER,
        }
    }
}

/// What a handle or a struct says.
pub unsafe fn borrowed<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller says that it is null or points to one.
    unsafe { pointer.as_ref() }.ok_or_else(|| is_null(name))
}

/// What a handle holds, which is the caller's no more.
pub unsafe fn owned<T>(handle: *mut T, name: &str) -> Result<Box<T>, Failure> {
    if handle.is_null() {
        return Err(is_null(name));
    }
    // SAFETY: the caller says that it is a handle that was given out, and its last use.
    Ok(unsafe { Box::from_raw(handle) })
}

/// Where an output goes.
pub unsafe fn output<'a, T>(
    pointer: *mut T,
    name: &str,
) -> Result<&'a mut MaybeUninit<T>, Failure> {
    // SAFETY: as above; nothing has to be there yet.
    unsafe { pointer.cast::<MaybeUninit<T>>().as_mut() }.ok_or_else(|| is_null(name))
}

/// Writes an output that the caller may not want.
pub unsafe fn write_if_wanted<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: as above.
        unsafe { pointer.write(value) };
    }
}

/// Bytes; null if there are none.
pub unsafe fn bytes<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(is_null("data"));
    }
    can_be(length, "length")?;
    // SAFETY: the caller says that there are so many bytes.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) })
}

/// A text that ends with a zero byte.
pub unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(is_null(name));
    }
    // SAFETY: the caller says that it ends with a zero byte.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str();
    text.map_err(|error| Failure::invalid(format!("{name} is not UTF-8: {error}")))
}

/// Names and values.
pub unsafe fn attributes(pointer: *const Attribute, count: usize) -> Result<Attributes, Failure> {
    if count > 0 && pointer.is_null() {
        return Err(is_null("attributes"));
    }
    // Before any is looked at: so many may have been a number below zero.
    if count > ATTRIBUTES_MOST {
        return Err(InvalidAttributes::TooMany { count }.into());
    }
    let mut attributes = Attributes::new();
    for index in 0..count {
        // SAFETY: the caller says that there are `count`.
        let attribute = unsafe { &*pointer.add(index) };
        // SAFETY: as for `text`.
        let (name, value) = unsafe {
            (
                text(attribute.name, &format!("attributes[{index}].name"))?,
                text(attribute.value, &format!("attributes[{index}].value"))?,
            )
        };
        // One of both would be lost.
        if attributes.value(name).is_some() {
            let text = format!("attributes[{index}].name was there before: a name has one value");
            return Err(Failure::invalid(text));
        }
        attributes = attributes.with(name, value);
    }
    attributes.check()?;
    Ok(attributes)
}

/// The name of a resource.
pub unsafe fn id(pointer: *const Id, name: &str) -> Result<ResourceId, Failure> {
    // SAFETY: as for `borrowed`.
    unsafe { borrowed(pointer, name) }.map(|id| (*id).into())
}

/// A mask of fields of which all are known.
pub fn known(mask: u64, known: u64) -> Result<u64, Failure> {
    match mask & !known {
        0 => Ok(mask),
        unknown => Err(Failure::invalid(format!(
            "field_mask has {unknown:#x}: this version knows {known:#x}"
        ))),
    }
}

/// What 0 and 1 say. Other numbers may come to mean something.
pub fn is_so(number: u32, name: &str) -> Result<bool, Failure> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Failure::invalid(format!("{name} is {other}: 0 and 1 are accepted"))),
    }
}

/// Makes sure that memory can be so long: what is longer was a number below zero.
pub fn can_be(length: usize, name: &str) -> Result<(), Failure> {
    if isize::try_from(length).is_ok() {
        return Ok(());
    }
    Err(Failure::invalid(format!("{name} is {length}: at most {} are accepted", isize::MAX)))
}

/// A pointer that may not be null is.
pub fn is_null(name: &str) -> Failure {
    Failure::invalid(format!("{name} is null"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::attributes::TEXT_MOST;

    #[test]
    fn what_no_memory_has_is_refused() {
        let data = [7_u8; 2];
        let pointer = data.as_ptr().cast();
        // SAFETY: there are two; the other length is of no memory at all, and nothing is read.
        let (two, many) = unsafe { (bytes(pointer, 2), bytes(pointer, usize::MAX)) };
        assert!(two.is_ok_and(|two| two == data) && many.is_err());
    }

    #[test]
    fn of_more_attributes_than_a_resource_has_none_is_looked_at() {
        let one = Attribute { name: c"name".as_ptr(), value: c"value".as_ptr() };
        let list = &raw const one;
        // SAFETY: there is one, and nothing is read of so many.
        let (read, refused) = unsafe { (attributes(list, 1), attributes(list, usize::MAX)) };
        assert!(read.is_ok_and(|read| read.value("name") == Some("value")));
        assert!(refused.is_err());
    }

    /// Neither of two values is taken for the other.
    #[test]
    fn a_name_has_one_value() {
        let attribute = |name: &'static CStr, value: &'static CStr| Attribute {
            name: name.as_ptr(),
            value: value.as_ptr(),
        };
        let two = [attribute(c"a", c"1"), attribute(c"b", c"1")];
        let twice = [attribute(c"a", c"1"), attribute(c"a", c"1")];
        // SAFETY: there are two in each.
        let (two, twice) = unsafe { (attributes(two.as_ptr(), 2), attributes(twice.as_ptr(), 2)) };
        assert!(two.is_ok() && twice.is_err());
    }

    /// Programs have room for what they ask for.
    #[test]
    fn the_header_has_the_limits_of_attributes() {
        let header = include_str!("../include/keeptime_fabric.h");
        for (name, most) in [("ATTRIBUTES", ATTRIBUTES_MOST), ("TEXT", TEXT_MOST)] {
            let line = format!("#define KTF_{name}_MOST {most}\n");
            assert!(header.contains(&line), "{line}");
        }
    }
}
