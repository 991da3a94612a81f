//! `ktf_context_*`.

use crate::arguments::{Time, borrowed, is_so, known, output, owned, text};
use crate::outcome::{Failure, Outcome, drop_handle, outcome_of};
use crate::types::ConfigFields;
use fabric::{
    Callers, Config, Context, DAEMON_VARIABLE, NETWORKS_VARIABLE, Protocol, WAIT_VARIABLE, Wait,
    parse_networks,
};
use std::net::SocketAddr;
use std::ptr::addr_of;
use std::time::Duration;

const DIRECTORY: u64 = 1;
const WAIT: u64 = 2;
const MESSAGE_MOST: u64 = 4;
const CLOSE: u64 = 8;
const SHARED_MEMORY: u64 = 16;
const PROGRESS_THREAD: u64 = 32;
const BETWEEN_NODES: u64 = 64;
const CALLERS: u64 = 128;
const LISTEN: u64 = 256;
const NETWORKS: u64 = 512;
const ALL: u64 = 1023;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_context_open(
    fields: *const ConfigFields,
    context: *mut *mut Context,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (context, config) = unsafe { (output(context, "context")?, config_of(fields)?) };
        context.write(Box::into_raw(Box::new(Context::open(config)?)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_context_flush(context: *const Context, timeout: i64) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let context = unsafe { borrowed(context, "context")? };
        Ok(context.flush(Time::new(timeout).span())?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_context_close(context: *mut Context) {
    // SAFETY: as the header says.
    unsafe { drop_handle(context) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_context_close_within(context: *mut Context, timeout: i64) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let context = unsafe { owned(context, "context")? };
        Ok(context.close(Time::new(timeout).span())?)
    })
}

/// A field is only looked at if the mask has it: a program that was compiled with an older header
/// has none of those that came later.
unsafe fn config_of(fields: *const ConfigFields) -> Result<Config, Failure> {
    if fields.is_null() {
        return Ok(Config::from_environment()?);
    }
    // SAFETY: the caller says that the struct has every field up to the last that its mask names;
    // the mask itself is always there.
    let mask = known(unsafe { addr_of!((*fields).field_mask).read() }, ALL)?;
    let variables =
        [(DIRECTORY, DAEMON_VARIABLE), (WAIT, WAIT_VARIABLE), (NETWORKS, NETWORKS_VARIABLE)];
    let set = variables.map(|(bit, variable)| (mask & bit != 0).then_some(variable));
    let mut config = Config::from_environment_but(&set.into_iter().flatten().collect::<Vec<_>>())?;
    // SAFETY: as above.
    unsafe {
        if mask & DIRECTORY != 0 {
            config.directory = text(addr_of!((*fields).directory).read(), "directory")?.into();
        }
        if mask & WAIT != 0 {
            config.wait = match addr_of!((*fields).wait_nanos).read() {
                i64::MAX => Wait::Spin,
                0 => Wait::Block,
                nanos => Wait::SpinFor(span(nanos, "wait_nanos")?),
            };
        }
        if mask & MESSAGE_MOST != 0 {
            config.message_most = addr_of!((*fields).message_most).read();
        }
        if mask & CLOSE != 0 {
            config.close_time = span(addr_of!((*fields).close_nanos).read(), "close_nanos")?;
        }
        if mask & SHARED_MEMORY != 0 {
            let said = addr_of!((*fields).shared_memory).read();
            config.shared_memory = is_so(said.into(), "shared_memory")?;
        }
        if mask & PROGRESS_THREAD != 0 {
            let said = addr_of!((*fields).progress_thread).read();
            config.progress_thread = is_so(said.into(), "progress_thread")?;
        }
        if mask & BETWEEN_NODES != 0 {
            let number = addr_of!((*fields).between_nodes).read();
            let unknown = || format!("between_nodes is {number}: 0 to 3 are accepted");
            let found = protocol(number).ok_or_else(|| Failure::invalid(unknown()))?;
            config.between_nodes = found;
        }
        if mask & CALLERS != 0 {
            let are_any = is_so(addr_of!((*fields).callers).read().into(), "callers")?;
            config.callers = if are_any { Callers::AnyUser } else { Callers::SameUser };
        }
        if mask & LISTEN != 0 {
            config.listen = address(text(addr_of!((*fields).listen).read(), "listen")?)?;
        }
        if mask & NETWORKS != 0 {
            let said = text(addr_of!((*fields).networks).read(), "networks")?;
            let failed = |error| Failure::invalid(format!("networks is {said:?}: {error}"));
            config.networks = parse_networks(said).map_err(failed)?;
        }
    }
    Ok(config)
}

/// By its number, as of `KTF_BETWEEN_TCP` and its like.
pub fn protocol(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Libfabric, Protocol::Ucx]
        .get(usize::from(number))
        .copied()
}

fn address(text: &str) -> Result<SocketAddr, Failure> {
    text.parse().map_err(|_| {
        let expected = "ADDRESS:PORT is accepted, such as 10.0.0.1:0 or [::]:0";
        Failure::invalid(format!("listen is {text:?}: {expected}"))
    })
}

fn span(nanos: i64, name: &str) -> Result<Duration, Failure> {
    let nanos = u64::try_from(nanos);
    nanos
        .map(Duration::from_nanos)
        .map_err(|_| Failure::invalid(format!("{name} is negative: 0 and more are accepted")))
}
