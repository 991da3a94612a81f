//! A policer: what comes into an interface with one DiffServ code point passes as far as a token
//! bucket allows, the rest is dropped. What stands at the edge of a DiffServ network, before anybody
//! else's packets can be harmed.
//!
//! An eBPF program, because kernels need not have `act_police`. Whole packets pass or are dropped: an
//! interface that hands over packets of several segments is policed by these (see
//! [`set_segments_max`](crate::link::set_segments_max)). Needs CAP_BPF and CAP_NET_ADMIN.

use crate::netlink::{NetlinkError, Socket};
use crate::tc::{Hook, attach_program, detach_programs, programs};
use aya::maps::{Array, Map, MapData, MapError};
use aya::programs::{ProgramError, SchedClassifier, loaded_programs};
use aya::{Ebpf, EbpfError, Pod};
use keeptime_model::Invalid;
use keeptime_model::units::{BitsPerSecond, Bytes};
use std::os::fd::AsFd;
use thiserror::Error;

/// Deepest bucket: 16 GiB.
pub const DEPTH_MAX: Bytes = Bytes::new(1 << 34);

/// What passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policer {
    /// On the wire, headers included.
    pub rate: BitsPerSecond,
    /// What may come at once.
    pub depth: Bytes,
    /// The DiffServ code point that it is about, 0 to 63. Other packets always pass.
    pub dscp: u8,
}

/// What a policer did so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policed {
    /// Packets that passed.
    pub passed_packets: u64,
    /// Their bytes on the wire.
    pub passed: Bytes,
    /// Packets that were dropped.
    pub dropped_packets: u64,
    /// Their bytes on the wire.
    pub dropped: Bytes,
}

/// Why there is no policer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoliceError {
    /// A value that is not accepted.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The program could not be loaded.
    #[error("loading the policer")]
    Load(#[from] EbpfError),
    /// The program did not pass the kernel's check, or cannot be found.
    #[error("the policer's program")]
    Program(#[from] ProgramError),
    /// Its tables cannot be read or written.
    #[error("the policer's tables")]
    Map(#[from] MapError),
    /// Traffic control refused.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The object file lacks a part: a bug of the build.
    #[error("the policer has no part named {0}")]
    Missing(&'static str),
}

/// Polices what comes into an interface, in place of what policed it before. The bucket is full, the
/// counters are at 0.
///
/// # Errors
/// See [`PoliceError`]. The interface is then as it was.
pub fn install(socket: &mut Socket, ifindex: u32, policer: &Policer) -> Result<(), PoliceError> {
    let raw = RawSettings::try_from(*policer)?;
    let mut object = Ebpf::load(OBJECT)?;
    let settings = object.map_mut(SETTINGS).ok_or(PoliceError::Missing(SETTINGS))?;
    Array::<_, RawSettings>::try_from(settings)?.set(0, raw, 0)?;
    let program: &mut SchedClassifier =
        object.program_mut(PROGRAM).ok_or(PoliceError::Missing(PROGRAM))?.try_into()?;
    program.load()?;
    Ok(attach_program(socket, ifindex, Hook::Ingress, program.fd()?.as_fd())?)
}

/// What the policer of an interface did; nothing if there is none.
///
/// # Errors
/// See [`PoliceError`].
pub fn counters(socket: &mut Socket, ifindex: u32) -> Result<Option<Policed>, PoliceError> {
    let Some(filter) = programs(socket, ifindex, Hook::Ingress)?.first().copied() else {
        return Ok(None);
    };
    let is_it = |info: &aya::programs::ProgramInfo| info.id() == filter.program_id;
    let Some(info) = loaded_programs().filter_map(Result::ok).find(is_it) else { return Ok(None) };
    for id in info.map_ids()?.unwrap_or_default() {
        let data = MapData::from_id(id)?;
        if data.info()?.name_as_str() == Some(STATE) {
            let state = Array::<_, RawState>::try_from(Map::from_map_data(data)?)?;
            return Ok(Some(state.get(&0, 0)?.into()));
        }
    }
    Err(PoliceError::Missing(STATE))
}

/// Lets everything pass again. Without a policer there is nothing to do.
///
/// # Errors
/// See [`NetlinkError`].
pub fn remove(socket: &mut Socket, ifindex: u32) -> Result<(), NetlinkError> {
    detach_programs(socket, ifindex, Hook::Ingress)
}

// ---- layouts of bpf/police.h ------------------------------------------------------------------

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct RawSettings {
    bytes_per_second: u64,
    depth_bytes: u64,
    dscp: u32,
    reserved: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct RawState {
    full_at: u64,
    passed_packets: u64,
    passed_bytes: u64,
    dropped_packets: u64,
    dropped_bytes: u64,
}

// SAFETY: plain integers without padding: any bytes are a value (checked by `mod tests`).
unsafe impl Pod for RawSettings {}
// SAFETY: as above.
unsafe impl Pod for RawState {}

impl TryFrom<Policer> for RawSettings {
    type Error = Invalid;

    fn try_from(policer: Policer) -> Result<Self, Invalid> {
        let Policer { rate, depth, dscp } = policer;
        let bytes_per_second = rate.get() / 8;
        if bytes_per_second == 0 {
            return Err(Invalid::new("rate", rate, "at least 8 bit/s"));
        }
        if depth == Bytes::default() || depth > DEPTH_MAX {
            return Err(Invalid::new("depth", depth, format!("more than 0, at most {DEPTH_MAX}")));
        }
        if dscp > 63 {
            return Err(Invalid::new("dscp", dscp, "0 to 63"));
        }
        Ok(Self { bytes_per_second, depth_bytes: depth.get(), dscp: dscp.into(), reserved: 0 })
    }
}

impl From<RawState> for Policed {
    fn from(raw: RawState) -> Self {
        Self {
            passed_packets: raw.passed_packets,
            passed: Bytes::new(raw.passed_bytes),
            dropped_packets: raw.dropped_packets,
            dropped: Bytes::new(raw.dropped_bytes),
        }
    }
}

const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/police.bpf.o"));
const PROGRAM: &str = "keeptime_police";
const SETTINGS: &str = "police_settings";
const STATE: &str = "police_state";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_network_namespace;
    use std::mem::{offset_of, size_of};

    const POLICER: Policer =
        Policer { rate: BitsPerSecond::from_mbit(40), depth: Bytes::new(10_000), dscp: 46 };

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!((size_of::<RawSettings>(), offset_of!(RawSettings, dscp)), (24, 16));
        assert_eq!((size_of::<RawState>(), offset_of!(RawState, dropped_bytes)), (40, 32));
    }

    #[test]
    fn bad_values_name_the_field() {
        for (policer, field) in [
            (Policer { rate: BitsPerSecond::new(7), ..POLICER }, "rate"),
            (Policer { depth: Bytes::default(), ..POLICER }, "depth"),
            (Policer { depth: Bytes::new(1 << 35), ..POLICER }, "depth"),
            (Policer { dscp: 64, ..POLICER }, "dscp"),
        ] {
            assert_eq!(RawSettings::try_from(policer).unwrap_err().field, field);
        }
    }

    #[test]
    fn it_comes_is_replaced_and_goes() {
        in_network_namespace(&["bpf"], || {
            let mut socket = Socket::open().unwrap();
            let loopback = crate::link::LOOPBACK;
            assert_eq!(counters(&mut socket, loopback).unwrap(), None);
            for _ in 0..2 {
                install(&mut socket, loopback, &POLICER).unwrap();
                assert_eq!(counters(&mut socket, loopback).unwrap(), Some(Policed::default()));
            }
            assert_eq!(programs(&mut socket, loopback, Hook::Ingress).unwrap().len(), 1);
            // The other hook is somebody else's.
            assert!(programs(&mut socket, loopback, Hook::Egress).unwrap().is_empty());
            remove(&mut socket, loopback).unwrap();
            remove(&mut socket, loopback).unwrap();
            assert_eq!(counters(&mut socket, loopback).unwrap(), None);
        });
    }
}
