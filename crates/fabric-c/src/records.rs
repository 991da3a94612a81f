//! `ktf_records_*`: resources that were found, and what they are.

use crate::arguments::{attributes, borrowed, output, text};
use crate::outcome::{Failure, Outcome, drop_handle, outcome_of};
use crate::types::{Attribute, Id};
use fabric::{Context, Record};
use std::ffi::{CStr, CString, c_char};
use std::ptr::null;

/// `ktf_records`.
pub struct Records(Vec<Found>);

/// A resource that was found, and its texts as C has them.
pub struct Found {
    pub record: Record,
    node: CString,
    /// In the order of the record's own.
    attributes: Vec<(CString, CString)>,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_records_find(
    context: *const Context,
    list: *const Attribute,
    count: usize,
    records: *mut *mut Records,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (context, list, records) = unsafe {
            (borrowed(context, "context")?, attributes(list, count)?, output(records, "records")?)
        };
        records.write(Records::new(context.find(list).all()?).into_handle());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_records_count(records: *const Records) -> usize {
    // SAFETY: as the header says.
    let records = unsafe { records.as_ref() };
    records.map_or(0, |records| records.0.len())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_records_id(
    records: *const Records,
    index: usize,
    id: *mut Id,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (found, id) = unsafe { (at(records, index)?, output(id, "id")?) };
        id.write(found.record.id.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_records_attribute(
    records: *const Records,
    index: usize,
    name: *const c_char,
) -> *const c_char {
    // SAFETY: as the header says.
    let (found, name) = unsafe { (at(records, index), text(name, "name")) };
    let (Ok(found), Ok(name)) = (found, name) else { return null() };
    found.value(name).map_or(null(), CStr::as_ptr)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_records_attributes(
    records: *const Records,
    index: usize,
    list: *mut Attribute,
    capacity: usize,
    count: *mut usize,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (found, count) = unsafe { (at(records, index)?, output(count, "count")?) };
        if capacity > 0 && list.is_null() {
            return Err(Failure::invalid("attributes is null"));
        }
        for (position, (name, value)) in found.attributes.iter().take(capacity).enumerate() {
            let attribute = Attribute { name: name.as_ptr(), value: value.as_ptr() };
            // SAFETY: the caller says that there are `capacity`.
            unsafe { list.add(position).write(attribute) };
        }
        count.write(found.attributes.len());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_records_node(records: *const Records, index: usize) -> *const c_char {
    // SAFETY: as the header says.
    unsafe { at(records, index) }.map_or(null(), |found| found.node.as_ptr())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_records_owner(
    records: *const Records,
    index: usize,
    user: *mut u32,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (found, user) = unsafe { (at(records, index)?, output(user, "user")?) };
        user.write(found.record.home.owner);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_records_drop(records: *mut Records) {
    // SAFETY: as the header says.
    unsafe { drop_handle(records) };
}

/// One of those that were found.
pub unsafe fn at<'a>(records: *const Records, index: usize) -> Result<&'a Found, Failure> {
    // SAFETY: as for `borrowed`.
    let Records(all) = unsafe { borrowed(records, "records")? };
    all.get(index).ok_or_else(|| {
        Failure::invalid(format!("index is {index}: {} were found, counted from 0", all.len()))
    })
}

impl Records {
    /// Those.
    pub fn new(records: Vec<Record>) -> Self {
        Self(records.into_iter().map(Found::new).collect())
    }

    /// What the caller has until it is dropped.
    pub fn into_handle(self) -> *mut Self {
        Box::into_raw(Box::new(self))
    }
}

impl Found {
    fn new(record: Record) -> Self {
        let node = c_text(&record.home.node);
        let own = record.attributes.iter();
        let attributes = own.map(|(name, value)| (c_text(name), c_text(value))).collect();
        Self { record, node, attributes }
    }

    /// The value of an attribute. The name is compared as it was registered.
    fn value(&self, name: &str) -> Option<&CStr> {
        let position = self.record.attributes.iter().position(|(own, _)| own == name)?;
        let (_, value) = self.attributes.get(position)?;
        Some(value.as_c_str())
    }
}

/// A text for C. It ends at the first zero byte, which programs in Rust may have put in.
fn c_text(text: &str) -> CString {
    let until_zero = text.split('\0').next().unwrap_or_default();
    CString::new(until_zero).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::id::Place;
    use fabric::{Attributes, Callers, Carriers, ContextId, ContextInfo, ResourceId, attrs};

    fn record(attributes: Attributes) -> Record {
        let context = ContextId::new(7);
        let id = ResourceId { context, place: Place { slot: 1, generation: 2 } };
        let home = ContextInfo {
            id: context,
            node: "n1".into(),
            owner: 1000,
            callers: Callers::SameUser,
            addresses: vec![],
            carriers: Carriers::default(),
            speaks: fabric::frame::VERSION,
        };
        Record { id, attributes, home: home.into() }
    }

    /// What a program in Rust has registered may have zero bytes anywhere.
    #[test]
    fn a_text_ends_at_its_first_zero_byte_and_names_are_not_taken_for_others() {
        let found = Found::new(record(attrs! { "a\0b" => "other", "c" => "one\0two", "d" => "" }));
        assert_eq!(found.value("a"), None);
        assert_eq!(found.value("c"), Some(c"one"));
        assert_eq!(found.value("d"), Some(c""));
        assert_eq!(found.attributes[0], (c"a".to_owned(), c"other".to_owned()));
    }

    #[test]
    fn what_is_not_in_the_list_is_refused() {
        let records = Records::new(vec![record(attrs! { "a" => "1" })]);
        // SAFETY: the list is there; nothing else is looked at.
        unsafe {
            assert!(at(&raw const records, 0).is_ok() && at(&raw const records, 1).is_err());
            assert!(at(null(), 0).is_err());
            assert!(ktf_records_attribute(&raw const records, 0, null()).is_null());
            assert!(ktf_records_attribute(&raw const records, 1, c"a".as_ptr()).is_null());
            assert!(ktf_records_node(&raw const records, 1).is_null());
            let value = ktf_records_attribute(&raw const records, 0, c"a".as_ptr());
            assert_eq!(CStr::from_ptr(value), c"1");
        }
    }
}
