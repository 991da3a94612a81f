//! Which packets of a node belong to which reserved flow: an eBPF program on the egress of the
//! node's interface, and its table by (cgroup of the sending socket, destination address). Premium and
//! control code points of all other packets are removed, of IPv4 and IPv6, by an empty table as well.
//!
//! A socket belongs to the cgroup in which its process was when it made (or accepts on) the
//! socket; a process moved later keeps its old sockets where they were. Such a socket is bound to a
//! job by its cookie ([`Flows::bind`]). The program and its tables
//! live as long as the filter that holds them: an agent that starts again finds them there
//! ([`Flows::adopt`]) and changes entries without a gap.
//!
//! Needs a v2 cgroup hierarchy, CAP_BPF and CAP_NET_ADMIN. Each entry is one system call.

use crate::netlink::{NetlinkError, Socket};
use crate::tc::{Handle, Hook, attach_program, detach_programs, programs};
use aya::maps::{Array, HashMap, Map, MapData, MapError};
use aya::programs::{ProgramError, SchedClassifier, loaded_programs};
use aya::{Ebpf, EbpfError, Pod};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkLayerType, LinkMessage};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use thiserror::Error;

/// Which packets: those of sockets of one cgroup, to one address or to any that has no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// The kernel's number of the job's cgroup: the inode of its directory in the v2 hierarchy (64-bit kernels).
    pub cgroup_id: u64,
    /// Nothing stands for every address without an entry of its own, all of IPv6 among them.
    pub destination: Option<Ipv4Addr>,
}

/// What becomes of these packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowMark {
    /// The class that they go to.
    pub class: Handle,
    /// The DiffServ code point that they carry from here on, 0 to 63.
    pub dscp: u8,
}

/// All entries of one interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowTable {
    /// By key.
    pub entries: BTreeMap<FlowKey, FlowMark>,
}

impl FlowTable {
    /// Whether packets of a group to this address have an entry.
    pub fn has(&self, cgroup_id: u64, destination: Ipv4Addr) -> bool {
        let mut entries = [Some(destination), None].into_iter();
        entries.any(|destination| self.entries.contains_key(&FlowKey { cgroup_id, destination }))
    }
}

/// What the program must know besides its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How deep below the root of the v2 hierarchy the jobs' cgroups are; processes in cgroups
    /// below them count as the job's.
    pub job_level: u32,
    /// Where address resolution goes; nothing = where it goes without us.
    pub resolution: Option<Handle>,
    /// The major number of the tree: only we put packets into its classes.
    pub major: u16,
}

/// One step of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowOp {
    /// Adds an entry, or changes it in one go.
    Set(FlowKey, FlowMark),
    /// Removes an entry.
    Remove(FlowKey),
}

/// The program on the egress of one interface, with its table.
pub struct Flows {
    table: HashMap<MapData, RawKey, RawValue>,
    bound: HashMap<MapData, u64, u64>,
    settings: Array<MapData, RawSettings>,
    is_current: bool,
}

/// Why flows could not be told apart.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FlowsError {
    /// The program did not pass or could not be loaded.
    #[error("loading the flow program")]
    Load(#[from] EbpfError),
    /// The program did not pass the kernel's check, or cannot be found.
    #[error("the flow program")]
    Program(#[from] ProgramError),
    /// The table refused an entry, or is not of our layout.
    #[error("the flow table of {object}")]
    Map {
        /// Which one.
        object: String,
        /// The cause.
        #[source]
        source: MapError,
    },
    /// Traffic control refused.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The interface's frames are not those that the program reads.
    #[error("its frames are of kind {kind}: flows are told apart in Ethernet frames alone")]
    NotEthernet {
        /// As the kernel calls it (`ARPHRD_…`).
        kind: LinkLayerType,
    },
    /// The object file lacks a part: a bug of the build.
    #[error("the flow program has no part named {0}")]
    Missing(&'static str),
}

/// The steps from `observed` to `wanted`; additions first, so that no flow that stays is ever
/// without an entry. Where the table has no room for both, what is gone makes room first.
pub fn diff(wanted: &FlowTable, observed: &FlowTable) -> Vec<FlowOp> {
    let differs = |(key, mark): &(&FlowKey, &FlowMark)| observed.entries.get(key) != Some(mark);
    let set = wanted.entries.iter().filter(differs).map(|(key, mark)| FlowOp::Set(*key, *mark));
    let gone = observed.entries.keys().filter(|key| !wanted.entries.contains_key(key));
    let gone = gone.map(|key| FlowOp::Remove(*key));
    let is_new = |key: &&FlowKey| !observed.entries.contains_key(*key);
    let both = observed.entries.len() + wanted.entries.keys().filter(is_new).count();
    match both <= FLOW_ENTRIES_MAX {
        true => set.chain(gone).collect(),
        false => gone.chain(set).collect(),
    }
}

impl Flows {
    /// Checks that the program can read what leaves the interface: the header of IP is where it is in an Ethernet frame.
    ///
    /// # Errors
    /// [`FlowsError::NotEthernet`], as of InfiniBand or a tunnel; or the interface cannot be looked at.
    pub fn check_device(socket: &mut Socket, ifindex: u32) -> Result<(), FlowsError> {
        let mut wanted = LinkMessage::default();
        wanted.header.index = ifindex;
        for reply in socket.request(RouteNetlinkMessage::GetLink(wanted), 0)? {
            let RouteNetlinkMessage::NewLink(link) = reply else { continue };
            match link.header.link_layer_type {
                LinkLayerType::Ether | LinkLayerType::Loopback => {}
                kind => return Err(FlowsError::NotEthernet { kind }),
            }
        }
        Ok(())
    }

    /// Loads the program, fills its table and puts it on the interface, in place of an older one
    /// of ours. Takes some milliseconds; from one packet to the next the new table holds.
    ///
    /// # Errors
    /// See [`FlowsError`]. The interface is then as it was.
    pub fn install(
        socket: &mut Socket,
        ifindex: u32,
        settings: &Settings,
        table: &FlowTable,
    ) -> Result<Self, FlowsError> {
        let mut object = Ebpf::load(OBJECT)?;
        let mut map = |name| object.take_map(name).ok_or(FlowsError::Missing(name));
        let maps = [map(TABLE)?, map(BOUND)?, map(SETTINGS)?];
        let mut flows = Self::from_maps(maps, true).map_err(map_error(TABLE))?;
        flows.set_settings(settings)?;
        flows.apply(&diff(table, &FlowTable::default()))?;
        let program: &mut SchedClassifier =
            object.program_mut(PROGRAM).ok_or(FlowsError::Missing(PROGRAM))?.try_into()?;
        program.load()?;
        attach_program(socket, ifindex, Hook::Egress, program.fd()?.as_fd())?;
        Ok(flows)
    }

    /// Finds the program that an earlier agent left on the interface; nothing if there is none,
    /// or one of another layout (then [`Self::install`] replaces it).
    ///
    /// # Errors
    /// See [`FlowsError`].
    pub fn adopt(socket: &mut Socket, ifindex: u32) -> Result<Option<Self>, FlowsError> {
        let Some(filter) = programs(socket, ifindex, Hook::Egress)?.first().copied() else {
            return Ok(None);
        };
        let is_it = |info: &aya::programs::ProgramInfo| info.id() == filter.program_id;
        let Some(info) = loaded_programs().filter_map(Result::ok).find(is_it) else {
            return Ok(None);
        };
        let is_current = is_current(info.name_as_str());
        let mut found = BTreeMap::new();
        for id in info.map_ids()?.unwrap_or_default() {
            let data = MapData::from_id(id).map_err(map_error(format!("map {id}")))?;
            let info = data.info().map_err(map_error(format!("map {id}")))?;
            let name = info.name_as_str().unwrap_or_default().to_owned();
            found.insert(name, Map::from_map_data(data).map_err(map_error(format!("map {id}")))?);
        }
        let [table, bound, settings] = [TABLE, BOUND, SETTINGS].map(|name| found.remove(name));
        let (Some(table), Some(bound), Some(settings)) = (table, bound, settings) else {
            return Ok(None);
        };
        Ok(Self::from_maps([table, bound, settings], is_current).ok())
    }

    /// False for one that an agent of an older version left: its tables are as good as ever, and what it does to
    /// packets is not what [`Self::install`] would have them be.
    pub fn is_current(&self) -> bool {
        self.is_current
    }

    /// Takes the program off the interface, and with it the table. Not there: nothing to do.
    ///
    /// # Errors
    /// See [`NetlinkError`].
    pub fn remove(socket: &mut Socket, ifindex: u32) -> Result<(), FlowsError> {
        Ok(detach_programs(socket, ifindex, Hook::Egress)?)
    }

    /// The entries that are there.
    ///
    /// # Errors
    /// [`FlowsError::Map`].
    pub fn read(&self) -> Result<FlowTable, FlowsError> {
        let entry = |raw: Result<(RawKey, RawValue), MapError>| {
            raw.map(|(key, value)| (key.into(), value.into()))
        };
        let entries = self.table.iter().map(entry).collect::<Result<_, _>>();
        Ok(FlowTable { entries: entries.map_err(map_error(TABLE))? })
    }

    /// Carries out the steps of a diff, in order.
    ///
    /// # Errors
    /// [`FlowsError::Map`]; the steps before are done.
    pub fn apply(&mut self, ops: &[FlowOp]) -> Result<(), FlowsError> {
        for op in ops {
            let (key, result) = match *op {
                FlowOp::Set(key, mark) => {
                    let value = RawValue::from(mark);
                    (key, self.table.insert(RawKey::from(key), value, 0))
                }
                FlowOp::Remove(key) => (key, self.table.remove(&RawKey::from(key))),
            };
            result
                .map_err(map_error(format!("cgroup {} to {:?}", key.cgroup_id, key.destination)))?;
        }
        Ok(())
    }

    /// Counts the packets of one socket to a job from now on, whatever group the socket was made in.
    /// Where the job has no flow to their destination, they are as before.
    ///
    /// # Errors
    /// [`FlowsError::Map`]: there are [`BOUND_SOCKETS_MAX`] already.
    pub fn bind(&mut self, cookie: u64, cgroup_id: u64) -> Result<(), FlowsError> {
        self.bound.insert(cookie, cgroup_id, 0).map_err(map_error(format!("socket {cookie}")))
    }

    /// The bound sockets: the cgroup of the job by the socket's cookie.
    ///
    /// # Errors
    /// [`FlowsError::Map`].
    pub fn bound(&self) -> Result<BTreeMap<u64, u64>, FlowsError> {
        self.bound.iter().collect::<Result<_, _>>().map_err(map_error(BOUND))
    }

    /// Has the bound sockets be those that [`Self::bound`] has told of before.
    ///
    /// # Errors
    /// [`FlowsError::Map`].
    pub fn restore_bound(&mut self, before: &BTreeMap<u64, u64>) -> Result<(), FlowsError> {
        self.retain_bound(|cookie, _| before.contains_key(&cookie))?;
        before.iter().try_for_each(|(cookie, group)| self.bind(*cookie, *group))
    }

    /// Forgets the bound sockets for which `is_kept(cookie, cgroup)` is false.
    ///
    /// # Errors
    /// [`FlowsError::Map`].
    pub fn retain_bound(&mut self, is_kept: impl Fn(u64, u64) -> bool) -> Result<(), FlowsError> {
        for (cookie, _) in self.bound()?.into_iter().filter(|(c, group)| !is_kept(*c, *group)) {
            self.bound.remove(&cookie).map_err(map_error(format!("socket {cookie}")))?;
        }
        Ok(())
    }

    /// The settings that hold.
    ///
    /// # Errors
    /// [`FlowsError::Map`].
    pub fn settings(&self) -> Result<Settings, FlowsError> {
        self.settings.get(&0, 0).map(Settings::from).map_err(map_error(SETTINGS))
    }

    /// Changes the settings, from one packet to the next.
    ///
    /// # Errors
    /// [`FlowsError::Map`].
    pub fn set_settings(&mut self, settings: &Settings) -> Result<(), FlowsError> {
        let raw = RawSettings::from(*settings);
        self.settings.set(0, raw, 0).map_err(map_error(SETTINGS))
    }

    /// Has these settings hold: the program may be that of an agent with another control group.
    ///
    /// # Errors
    /// [`FlowsError::Map`].
    pub fn keep_settings(&mut self, wanted: &Settings) -> Result<(), FlowsError> {
        match self.settings()? == *wanted {
            true => Ok(()),
            false => self.set_settings(wanted),
        }
    }

    fn from_maps([table, bound, settings]: [Map; 3], is_current: bool) -> Result<Self, MapError> {
        Ok(Self {
            table: HashMap::try_from(table)?,
            bound: HashMap::try_from(bound)?,
            settings: Array::try_from(settings)?,
            is_current,
        })
    }
}

/// Whether a loaded program of this name is ours as it is now. Where the kernel tells no names, it has to be taken for that.
fn is_current(name: Option<&str>) -> bool {
    name.is_none_or(|name| name == PROGRAM)
}

fn map_error(object: impl Into<String>) -> impl FnOnce(MapError) -> FlowsError {
    let object = object.into();
    move |source| FlowsError::Map { object, source }
}

// ---- layouts of bpf/flows.h -------------------------------------------------------------------

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct RawKey {
    cgroup_id: u64,
    destination: [u8; 4],
    reserved: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct RawValue {
    class_id: u32,
    dscp: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct RawSettings {
    reserved: [u32; 3],
    job_level: u32,
    resolution_class_id: u32,
    class_major: u32,
}

// SAFETY: plain integers without padding: any bytes are a value (checked by `mod tests`).
unsafe impl Pod for RawKey {}
// SAFETY: as above.
unsafe impl Pod for RawValue {}
// SAFETY: as above.
unsafe impl Pod for RawSettings {}

impl From<FlowKey> for RawKey {
    fn from(key: FlowKey) -> Self {
        let destination = key.destination.unwrap_or(Ipv4Addr::UNSPECIFIED).octets();
        Self { cgroup_id: key.cgroup_id, destination, reserved: 0 }
    }
}

impl From<RawKey> for FlowKey {
    fn from(raw: RawKey) -> Self {
        let address = Ipv4Addr::from(raw.destination);
        let destination = Some(address).filter(|address| !address.is_unspecified());
        Self { cgroup_id: raw.cgroup_id, destination }
    }
}

impl From<FlowMark> for RawValue {
    fn from(mark: FlowMark) -> Self {
        Self { class_id: mark.class.to_u32(), dscp: u32::from(mark.dscp) }
    }
}

impl From<RawValue> for FlowMark {
    fn from(raw: RawValue) -> Self {
        Self { class: Handle::from_u32(raw.class_id), dscp: raw.dscp as u8 }
    }
}

impl From<Settings> for RawSettings {
    fn from(settings: Settings) -> Self {
        Self {
            reserved: [0; 3],
            job_level: settings.job_level,
            resolution_class_id: settings.resolution.map_or(0, Handle::to_u32),
            class_major: u32::from(settings.major),
        }
    }
}

impl From<RawSettings> for Settings {
    fn from(raw: RawSettings) -> Self {
        let class = Some(raw.resolution_class_id).filter(|class| *class != 0);
        Self {
            job_level: raw.job_level,
            resolution: class.map(Handle::from_u32),
            major: raw.class_major as u16,
        }
    }
}

/// Most entries of one interface (`FLOWS_MAX` in bpf/flows.h): four jobs of all-to-all on 4,096
/// nodes. Takes about 1.5 MiB of kernel memory.
pub const FLOW_ENTRIES_MAX: usize = 16_384;

/// Most sockets of one interface that are bound to jobs (`BOUND_MAX` in bpf/flows.h).
pub const BOUND_SOCKETS_MAX: usize = 4_096;

const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/flows.bpf.o"));
/// Kernels keep 15 bytes of it.
const PROGRAM: &str = "keeptime_flows2";
const TABLE: &str = "flows";
const BOUND: &str = "bound";
const SETTINGS: &str = "settings";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::mem::{offset_of, size_of};

    // The C compiler's opinion of bpf/flows.h is in the object file: aya refuses maps of another
    // size when they are opened; the offsets are ours to check.
    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(
            (size_of::<RawKey>(), size_of::<RawValue>(), size_of::<RawSettings>()),
            (16, 8, 24)
        );
        assert_eq!(offset_of!(RawKey, destination), 8);
        assert_eq!(offset_of!(RawValue, dscp), 4);
        assert_eq!(offset_of!(RawSettings, job_level), 12);
        assert_eq!(offset_of!(RawSettings, resolution_class_id), 16);
        assert_eq!(offset_of!(RawSettings, class_major), 20);
        let header = include_str!("../bpf/flows.h");
        assert!(header.contains(&format!("#define FLOWS_MAX {FLOW_ENTRIES_MAX}")));
        assert!(header.contains(&format!("#define BOUND_MAX {BOUND_SOCKETS_MAX}")));
    }

    #[test]
    fn a_program_of_an_older_version_is_told_by_its_name() {
        assert!(!is_current(Some("keeptime_flows")));
        assert!(is_current(Some(PROGRAM)) && is_current(None));
        assert_eq!(PROGRAM.len(), 15, "what a kernel cuts off would never be found again");
    }

    fn any_table() -> impl Strategy<Value = FlowTable> {
        let key = (1u64..4, prop::option::of((1u32..4).prop_map(Ipv4Addr::from)));
        let mark = (0u16..3, 0u8..3);
        prop::collection::btree_map(key, mark, 0..8).prop_map(|raw| FlowTable {
            entries: raw
                .into_iter()
                .map(|((cgroup_id, destination), (minor, dscp))| {
                    let class = Handle { major: 1, minor };
                    (FlowKey { cgroup_id, destination }, FlowMark { class, dscp })
                })
                .collect(),
        })
    }

    #[test]
    fn what_is_gone_makes_room_in_a_full_table() {
        let table = |first: u64| FlowTable {
            entries: (first..first + FLOW_ENTRIES_MAX as u64)
                .map(|cgroup_id| {
                    let class = Handle { major: 1, minor: 1 };
                    (FlowKey { cgroup_id, destination: None }, FlowMark { class, dscp: 0 })
                })
                .collect(),
        };
        let mut there = FLOW_ENTRIES_MAX;
        let steps = diff(&table(10), &table(0));
        assert_eq!(steps.len(), 20);
        for step in steps {
            match step {
                FlowOp::Set(..) => there += 1,
                FlowOp::Remove(_) => there -= 1,
            }
            assert!(there <= FLOW_ENTRIES_MAX);
        }
    }

    proptest! {
        #[test]
        fn the_steps_lead_to_what_is_wanted(before in any_table(), after in any_table()) {
            let mut table = before.entries.clone();
            for op in diff(&after, &before) {
                match op {
                    FlowOp::Set(key, mark) => { table.insert(key, mark); }
                    FlowOp::Remove(key) => { table.remove(&key).unwrap(); }
                }
            }
            prop_assert_eq!(table, after.entries.clone());
            prop_assert_eq!(diff(&after, &after), Vec::new());
        }

        #[test]
        fn entries_survive_the_way_through_the_kernel_layout(table in any_table()) {
            for (key, mark) in table.entries {
                prop_assert_eq!(FlowKey::from(RawKey::from(key)), key);
                prop_assert_eq!(FlowMark::from(RawValue::from(mark)), mark);
            }
        }
    }
}
