//! `ktf_region_*` and `ktf_reader_*`.

use crate::arguments::{attributes, borrowed, bytes, is_so, output, write_if_wanted};
use crate::outcome::{Failure, Outcome, drop_handle, outcome_of};
use crate::records::{Records, at};
use crate::types::{Attribute, Id, LayoutFields, ReadingFields};
use fabric::region::{AnsweredBy, CELL, Layout, Reader, Region};
use fabric::{Context, FindError};
use std::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_region_publish(
    context: *const Context,
    list: *const Attribute,
    count: usize,
    layout: *const LayoutFields,
    region: *mut *mut Region,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (context, list, fields, region) = unsafe {
            (
                borrowed(context, "context")?,
                attributes(list, count)?,
                borrowed(layout, "layout")?,
                output(region, "region")?,
            )
        };
        let layout = layout_of(fields)?;
        region.write(Box::into_raw(Box::new(context.publish(list, layout)?)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_region_id(region: *const Region, id: *mut Id) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (region, id) = unsafe { (borrowed(region, "region")?, output(id, "id")?) };
        id.write(region.id().into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_region_is_served(region: *const Region) -> c_int {
    let mut is_served = false;
    let outcome = outcome_of(|| {
        // SAFETY: as the header says.
        is_served = unsafe { borrowed(region, "region")? }.is_served();
        Ok(())
    });
    c_int::from(outcome == Outcome::Ok && is_served)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_region_write(
    region: *const Region,
    record: u32,
    data: *const c_void,
    length: usize,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (region, data) = unsafe { (borrowed(region, "region")?, bytes(data, length)?) };
        Ok(region.write(record, data)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_region_add(
    region: *const Region,
    record: u32,
    amount: u64,
    was: *mut u64,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        unsafe {
            let region = borrowed(region, "region")?;
            write_if_wanted(was, region.fetch_add(record, amount)?);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_region_drop(region: *mut Region) {
    // SAFETY: as the header says.
    unsafe { drop_handle(region) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_reader_open(
    context: *const Context,
    list: *const Attribute,
    count: usize,
    reader: *mut *mut Reader,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (context, query, reader) = unsafe {
            (borrowed(context, "context")?, attributes(list, count)?, output(reader, "reader")?)
        };
        let text = query.wanted();
        let records = context.find(query).all()?;
        let record = match records.as_slice() {
            [record] => record,
            [] => return Err(FindError::None(text).into()),
            all => return Err(FindError::Several { query: text, count: all.len() }.into()),
        };
        reader.write(Box::into_raw(Box::new(context.open_region(record)?)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_reader_open_record(
    context: *const Context,
    records: *const Records,
    index: usize,
    reader: *mut *mut Reader,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (context, found, reader) = unsafe {
            (borrowed(context, "context")?, at(records, index)?, output(reader, "reader")?)
        };
        reader.write(Box::into_raw(Box::new(context.open_region(&found.record)?)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_reader_layout(
    reader: *const Reader,
    layout: *mut LayoutFields,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (reader, fields) = unsafe { (borrowed(reader, "reader")?, output(layout, "layout")?) };
        let layout = reader.layout();
        let (records, bytes, adds) = (layout.records(), layout.bytes(), u32::from(layout.adds()));
        fields.write(LayoutFields { records, bytes, adds, reserved: 0 });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_reader_read(
    reader: *const Reader,
    record: u32,
    data: *mut c_void,
    length: usize,
    reading: *mut ReadingFields,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let reader = unsafe { borrowed(reader, "reader")? };
        if data.is_null() {
            return Err(Failure::invalid("data is null"));
        }
        // What is read goes there when it is whole: until then the caller's bytes, which may be
        // anything, are not looked at.
        let (mut cell, mut longer) = ([0; CELL], Vec::new());
        let bytes = match reader.layout().bytes() as usize {
            short @ ..=CELL => &mut cell[..short],
            long => {
                longer.resize(long, 0);
                &mut longer[..]
            }
        };
        if length != bytes.len() {
            let text = format!("length is {length}: records of this region have {}", bytes.len());
            return Err(Failure::invalid(text));
        }
        let read = reader.read(record, bytes)?;
        let by = code(read.by);
        let (sequence, counter) = (read.sequence, read.counter);
        // SAFETY: as the header says; the length was compared.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), data.cast(), bytes.len());
            write_if_wanted(reading, ReadingFields { sequence, counter, by, reserved: 0 });
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_reader_add(
    reader: *const Reader,
    record: u32,
    amount: u64,
    was: *mut u64,
    by: *mut u32,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        unsafe {
            let reader = borrowed(reader, "reader")?;
            let (before, answered_by) = reader.fetch_add(record, amount)?;
            write_if_wanted(was, before);
            write_if_wanted(by, code(answered_by));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_reader_close(reader: *mut Reader) {
    // SAFETY: as the header says.
    unsafe { drop_handle(reader) };
}

fn layout_of(fields: &LayoutFields) -> Result<Layout, Failure> {
    if fields.reserved != 0 {
        let text = format!("layout.reserved is {}: only 0 is accepted", fields.reserved);
        return Err(Failure::invalid(text));
    }
    let layout = Layout::new(fields.records, fields.bytes)?;
    Ok(if is_so(fields.adds, "layout.adds")? { layout.with_adds() } else { layout })
}

fn code(by: AnsweredBy) -> u32 {
    match by {
        AnsweredBy::NetworkProgram => 1,
        AnsweredBy::Responder => 2,
        _ => 0,
    }
}
