//! `ktf_resource_*`.

use crate::arguments::{self, Time, attributes, borrowed, id, output};
use crate::outcome::{Failure, Outcome, copy_text, drop_handle, outcome_of};
use crate::types::{Attribute, Id};
use fabric::{Attributes, BitsPerSecond, Context, FindError, Resource, ResourceId};
use std::ffi::c_char;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_resource_register(
    context: *const Context,
    list: *const Attribute,
    count: usize,
    resource: *mut *mut Resource,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (context, list, resource) = unsafe {
            (borrowed(context, "context")?, attributes(list, count)?, output(resource, "resource")?)
        };
        resource.write(Box::into_raw(Box::new(context.register(list)?)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_resource_id(resource: *const Resource, id: *mut Id) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (resource, id) = unsafe { (borrowed(resource, "resource")?, output(id, "id")?) };
        id.write(resource.id().into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_resource_drop(resource: *mut Resource) {
    // SAFETY: as the header says.
    unsafe { drop_handle(resource) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_resource_find_only(
    context: *const Context,
    list: *const Attribute,
    count: usize,
    timeout: i64,
    id: *mut Id,
) -> Outcome {
    // SAFETY: as the header says.
    unsafe { find(context, list, count, timeout, id, only) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_resource_find_any(
    context: *const Context,
    list: *const Attribute,
    count: usize,
    timeout: i64,
    id: *mut Id,
) -> Outcome {
    // SAFETY: as the header says.
    unsafe { find(context, list, count, timeout, id, any) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_resource_find_all(
    context: *const Context,
    list: *const Attribute,
    count: usize,
    ids: *mut Id,
    capacity: usize,
    found: *mut usize,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (context, list, found) = unsafe {
            (borrowed(context, "context")?, attributes(list, count)?, output(found, "found")?)
        };
        if capacity > 0 && ids.is_null() {
            return Err(Failure::invalid("ids is null"));
        }
        let records = context.find(list).all()?;
        for (index, record) in records.iter().take(capacity).enumerate() {
            // SAFETY: the caller says that there are `capacity`.
            unsafe { ids.add(index).write(record.id.into()) };
        }
        found.write(records.len());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_resource_reserve(
    resource: *const Resource,
    to: *const Id,
    bits_per_second: u64,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (resource, to) = unsafe { (borrowed(resource, "resource")?, id(to, "to")?) };
        Ok(resource.reserve(to, BitsPerSecond::new(bits_per_second))?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_resource_release(resource: *const Resource, to: *const Id) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (resource, to) = unsafe { (borrowed(resource, "resource")?, id(to, "to")?) };
        resource.release(to);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_id_text(id: *const Id, buffer: *mut c_char, length: usize) -> usize {
    // SAFETY: as the header says.
    let id = unsafe { id.as_ref() }.map(|id| ResourceId::from(*id).to_string());
    // SAFETY: the caller says that there are `length` bytes.
    id.map_or(0, |text| unsafe { copy_text(&text, buffer, length) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_id_parse(text: *const c_char, id: *mut Id) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (text, id) = unsafe { (arguments::text(text, "text")?, output(id, "id")?) };
        let parsed = text.parse::<ResourceId>();
        id.write(parsed.map_err(|error| Failure::invalid(error.to_string()))?.into());
        Ok(())
    })
}

type Find = fn(&Context, &Attributes, Time) -> Result<ResourceId, FindError>;

unsafe fn find(
    context: *const Context,
    list: *const Attribute,
    count: usize,
    timeout: i64,
    id: *mut Id,
    find: Find,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (context, list, id) =
            unsafe { (borrowed(context, "context")?, attributes(list, count)?, output(id, "id")?) };
        id.write(find(context, &list, Time::new(timeout))?.into());
        Ok(())
    })
}

fn any(context: &Context, query: &Attributes, time: Time) -> Result<ResourceId, FindError> {
    context.find(query.clone()).one_of_any_within(time.span())
}

fn only(context: &Context, query: &Attributes, time: Time) -> Result<ResourceId, FindError> {
    context.find(query.clone()).only_within(time.span())
}
