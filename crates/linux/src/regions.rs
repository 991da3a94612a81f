//! Memory that processes map and the network reads: regions of the fabric as eBPF maps, and the
//! program that answers for them where questions arrive (XDP in the kernel's generic mode, which
//! every interface has).
//!
//! The program is on an interface as long as this process has it; a region's memory as long as it
//! is installed or somebody has it open. Needs CAP_BPF and CAP_NET_ADMIN, and CAP_SYS_ADMIN for
//! descriptors that can only be read.

use crate::syscall::SyscallError;
use aya::maps::{Array, ArrayOfMaps, HashMap, Map, MapData, MapError};
use aya::programs::{ProgramError, Xdp, XdpMode};
use aya::{Ebpf, EbpfError, Pod};
use nix::ifaddrs::getifaddrs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use thiserror::Error;

/// Most regions of a node (`REGIONS_MAX` in bpf/regions.h).
pub const REGIONS_MAX: u32 = 1024;

/// Most addresses that are answered for (`ADDRESSES_MAX` in bpf/regions.bpf.c): more than a node has
/// that is not a load balancer.
const ADDRESSES_MAX: usize = 4096;

/// Bytes of a slot.
const SLOT: u32 = 64;

/// The program, and the regions that it answers for.
pub struct RegionProgram {
    object: Ebpf,
    regions: ArrayOfMaps<MapData>,
    /// In place of those that are gone.
    nothing: MapData,
}

/// Why regions cannot be answered for in the kernel.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegionsError {
    /// The object could not be loaded.
    #[error("loading the region program")]
    Load(#[from] EbpfError),
    /// The program did not pass the kernel's check, or does not go onto the interface.
    #[error("the region program")]
    Program(#[from] ProgramError),
    /// A table refused an entry.
    #[error("a table of the region program")]
    Map(#[from] MapError),
    /// The kernel does not say which addresses the node has.
    #[error(transparent)]
    Addresses(#[from] SyscallError),
    /// The kernel has no memory for it.
    #[error("memory of a region")]
    Memory(#[from] io::Error),
    /// This process may not hand out what can only be read.
    #[error("memory of a region for reading, which takes CAP_SYS_ADMIN")]
    Reading(#[source] io::Error),
    /// The object file lacks a part: a bug of the build.
    #[error("the region program has no part named {0}")]
    Missing(&'static str),
}

impl RegionProgram {
    /// Loads it; it answers on UDP port `port` of the interfaces that it is attached to, at the IPv4
    /// addresses that this thread's network namespace has now. What is asked at one that is added later goes
    /// up to whoever has the port; one that is taken away is answered for as long as the program is there.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn load(port: u16) -> Result<Self, RegionsError> {
        let mut object = Ebpf::load(OBJECT)?;
        let mut map = |name| object.take_map(name).ok_or(RegionsError::Missing(name));
        let regions = ArrayOfMaps::try_from(map(REGIONS)?)?;
        let Map::Array(nothing) = map(NOTHING)? else { return Err(RegionsError::Missing(NOTHING)) };
        let mut settings: Array<MapData, u32> = Array::try_from(map(SETTINGS)?)?;
        settings.set(0, u32::from(port), 0)?;
        let mut addresses: HashMap<MapData, u32, u8> = HashMap::try_from(map(ADDRESSES)?)?;
        for address in own_addresses()?.take(ADDRESSES_MAX) {
            // As it is in a packet.
            addresses.insert(u32::from_ne_bytes(address.octets()), 0_u8, 0)?;
        }
        let program: &mut Xdp =
            object.program_mut(PROGRAM).ok_or(RegionsError::Missing(PROGRAM))?.try_into()?;
        program.load()?;
        let loaded = Self { object, regions, nothing };
        // Whoever may not hand out memory is told now, and not when somebody wants to read.
        loaded.for_reading(loaded.nothing.fd().as_fd())?;
        Ok(loaded)
    }

    /// Has it answer what arrives on an interface of this thread's network namespace.
    ///
    /// # Errors
    /// If there is no such interface, or another program is on it.
    pub fn attach(&mut self, interface: &str) -> Result<(), RegionsError> {
        let program = self.object.program_mut(PROGRAM).ok_or(RegionsError::Missing(PROGRAM))?;
        let program: &mut Xdp = program.try_into()?;
        program.attach(interface, XdpMode::Skb)?;
        Ok(())
    }

    /// New memory of so many slots of 64 bytes, filled with zeros, to be mapped.
    ///
    /// # Errors
    /// If the kernel has none.
    pub fn create(&self, slots: u32) -> Result<OwnedFd, RegionsError> {
        Ok(create_memory(slots)?)
    }

    /// Answers for the region in place `slot` with this memory.
    ///
    /// # Errors
    /// If it is not memory of [`Self::create`], or there is no such place.
    pub fn install(&mut self, slot: u32, memory: BorrowedFd<'_>) -> Result<(), RegionsError> {
        let memory = MapData::from_fd(memory.try_clone_to_owned()?)?;
        Ok(self.regions.set(slot, &memory, 0)?)
    }

    /// Answers for it no longer.
    ///
    /// # Errors
    /// If there is no such place.
    pub fn remove(&mut self, slot: u32) -> Result<(), RegionsError> {
        Ok(self.regions.set(slot, &self.nothing, 0)?)
    }

    /// A descriptor of the same memory through which it cannot be changed.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn for_reading(&self, memory: BorrowedFd<'_>) -> Result<OwnedFd, RegionsError> {
        let info = MapData::from_fd(memory.try_clone_to_owned()?)?.info()?;
        let attributes = GetById { id: info.id(), next: 0, flags: BPF_F_RDONLY };
        bpf(BPF_MAP_GET_FD_BY_ID, &attributes).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => RegionsError::Reading(error),
            _ => error.into(),
        })
    }
}

/// Those at which others reach this thread's network namespace, whichever interface they are on: that
/// of a bridge has the addresses for those in it.
fn own_addresses() -> Result<impl Iterator<Item = Ipv4Addr>, SyscallError> {
    let found = getifaddrs().map_err(SyscallError::of("getifaddrs", "this network namespace"))?;
    let addresses = found.filter_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip()));
    Ok(addresses.filter(|address| !address.is_loopback()))
}

fn create_memory(slots: u32) -> io::Result<OwnedFd> {
    let attributes = CreateMap {
        kind: BPF_MAP_TYPE_ARRAY,
        key: size_of::<u32>() as u32,
        value: SLOT,
        entries: slots,
        flags: BPF_F_MMAPABLE | BPF_F_INNER_MAP,
    };
    bpf(BPF_MAP_CREATE, &attributes)
}

/// Asks the kernel for a descriptor.
fn bpf<A: Pod>(command: libc::c_long, attributes: &A) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads as many bytes as there are; what it reads beyond them is zero.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<A>())
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both commands return a new descriptor of this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

// ---- the beginnings of `union bpf_attr`, linux/bpf.h -------------------------------------------

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct CreateMap {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct GetById {
    id: u32,
    next: u32,
    flags: u32,
}

// SAFETY: plain integers without padding: any bytes are a value.
unsafe impl Pod for CreateMap {}
// SAFETY: as above.
unsafe impl Pod for GetById {}

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_GET_FD_BY_ID: libc::c_long = 14;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_F_RDONLY: u32 = 1 << 3;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_F_INNER_MAP: u32 = 1 << 12;

const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/regions.bpf.o"));
const PROGRAM: &str = "keeptime_regions";
const REGIONS: &str = "regions";
const NOTHING: &str = "nothing";
const SETTINGS: &str = "settings";
const ADDRESSES: &str = "addresses";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_program() {
        let header = include_str!("../bpf/regions.h");
        let program = include_str!("../bpf/regions.bpf.c");
        assert!(header.contains(&format!("#define REGIONS_MAX {REGIONS_MAX}\n")));
        assert!(header.contains(&format!("#define SLOT_BYTES {SLOT}\n")));
        assert!(program.contains(&format!("#define ADDRESSES_MAX {ADDRESSES_MAX}\n")));
    }
}
