//! What this kernel can enforce, found out by trying each mechanism where it hurts nobody: in a
//! network namespace and a control group made for it, on a thread made for it.
//!
//! Nothing is concluded from version numbers. What lacks privilege is unknown, not missing.

use crate::cgroup::{CgroupError, Group, Hierarchies};
use crate::deadline::{self, DeadlineSpec, Sleeper};
use crate::disk::{DiskLimits, Version, disks};
use crate::egress::{self, Link, switch_port};
use crate::flows::{FlowTable, Flows, FlowsError};
use crate::netlink::{NetlinkError, Socket};
use crate::syscall::SyscallError;
use crate::tc::{self, Attach, Observed, Op, Place, Shaper, TREE_MAJOR, apply};
use crate::user_level;
use keeptime_model::capability::{Answer, Capabilities, Capability, Feature};
use keeptime_model::disk::{DiskDirection, DiskRates};
use keeptime_model::errors::chain;
use keeptime_model::units::{BitsPerSecond, Bytes, BytesPerSecond, CpuPpm, Nanos};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use std::error::Error;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Tries everything; takes some ten milliseconds. `scratch` is a control group (`keeptime/…`) that
/// is made for this and removed.
pub fn capabilities(scratch: &Path) -> Capabilities {
    let network = std::thread::spawn(in_own_network).join();
    let network = network.unwrap_or_else(|_| {
        NETWORK.map(|feature| (feature, Answer::Unknown("the attempt panicked".into()))).to_vec()
    });
    let mut answers = in_own_group(scratch);
    answers.push((Feature::CpuDeadline, deadline_answer()));
    answers.push((Feature::CpuUserLevel, user_level_answer()));
    answers.extend(network);
    let capability =
        |(feature, answer)| Capability { feature, answer, tried: tried(feature).into() };
    let mut found: Vec<_> = answers.into_iter().map(capability).collect();
    found.sort_by_key(|found| Feature::ALL.iter().position(|feature| *feature == found.feature));
    Capabilities(found)
}

/// Why something does not work.
pub(crate) struct Trouble {
    /// In words, causes and all.
    pub(crate) text: String,
    errno: Option<Errno>,
}

type Tried = Result<(), Trouble>;

/// What was done to find out about a feature.
fn tried(feature: Feature) -> &'static str {
    match feature {
        Feature::CgroupV2 => "a group was made and its number read",
        Feature::CpuBandwidthV1 => "cpu.cfs_quota_us of a new group was set",
        Feature::CpuBandwidthV2 => "cpu.max of a new group was set",
        Feature::CpuDeadline => "a thread entered the class and left it",
        Feature::CpuUserLevel => "a thread was bound to a processor, made to wait and put first",
        Feature::DiskThrottleV1 => "a rate was set for the greatest disk and read back (blkio)",
        Feature::DiskThrottleV2 => "a rate was set for the greatest disk and read back (io.max)",
        Feature::TrafficClasses => "a tree was put on a new namespace's loopback device",
        Feature::TrafficShaper => "a shaper was put on a new namespace's loopback device",
        Feature::FlowClassifier => "the flow program was loaded and put on a new loopback device",
        Feature::CodePoints => {
            "a switch port's tree with its filters was put on a new loopback device"
        }
        Feature::PacedQueue => "fq was put on a new namespace's loopback device",
        Feature::PacedSockets => "SO_MAX_PACING_RATE of a new socket was set and read back",
        _ => "nothing",
    }
}

// ---- the network ------------------------------------------------------------------------------

const NETWORK: [Feature; 6] = [
    Feature::TrafficClasses,
    Feature::TrafficShaper,
    Feature::FlowClassifier,
    Feature::CodePoints,
    Feature::PacedQueue,
    Feature::PacedSockets,
];

/// On a thread of its own, which the namespace ends with.
fn in_own_network() -> Vec<(Feature, Answer)> {
    let entered = unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| Trouble {
        text: format!("no new network namespace to try it in: {}", errno.desc()),
        // Whatever the reason, nothing about the feature was learnt.
        errno: Some(Errno::EPERM),
    });
    let answer = |feature| match &entered {
        Err(trouble) => Answer::Unknown(trouble.text.clone()),
        Ok(()) => try_on_loopback(feature).into_answer(),
    };
    NETWORK.map(|feature| (feature, answer(feature))).to_vec()
}

/// Tries it in the network namespace of this thread, and takes it off again.
pub(crate) fn try_on_loopback(feature: Feature) -> Tried {
    let mut socket = Socket::open().map_err(trouble)?;
    let place = Place { ifindex: LOOPBACK, attach: Attach::Root, major: TREE_MAJOR };
    let mut and_off = |op| apply(&mut socket, &place, &[op, Op::RemovePlace]).map_err(trouble);
    match feature {
        Feature::TrafficClasses => and_off(Op::AddTree { default_minor: 1 }),
        Feature::TrafficShaper => and_off(Op::SetShaper(Shaper {
            ifindex: LOOPBACK,
            major: TREE_MAJOR,
            rate: RATE,
            burst: Bytes::new(100_000),
            limit: 100_000,
        })),
        Feature::CodePoints => {
            let tree = switch_port(&Link::new("lo", RATE), place);
            let mut ops = tc::diff(&tree, &Observed::empty(LOOPBACK))
                .map_err(|foreign| Trouble { text: foreign.to_string(), errno: None })?;
            ops.push(Op::RemovePlace);
            apply(&mut socket, &place, &ops).map_err(trouble)
        }
        Feature::FlowClassifier => {
            let table = FlowTable::default();
            Flows::install(&mut socket, LOOPBACK, &egress::settings(place, 1, &table), &table)
                .and_then(|_| Flows::remove(&mut socket, LOOPBACK))
                .map_err(trouble)
        }
        Feature::PacedQueue => tc::add_plain(&mut socket, LOOPBACK, "fq").map_err(trouble),
        _ => try_paced_socket(),
    }
}

fn try_paced_socket() -> Tried {
    let socket = TcpListener::bind("0.0.0.0:0")
        .map_err(|e| trouble(SyscallError::of_io("bind", "a socket")(e)))?;
    let rate: libc::c_uint = 1_000_000;
    let mut found: libc::c_uint = 0;
    let mut length = size_of_val(&found) as libc::socklen_t;
    let (fd, name) = (socket.as_raw_fd(), libc::SO_MAX_PACING_RATE);
    // SAFETY: `rate` lives through the call, and `length` is its size.
    let set =
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const rate).cast(), length) };
    // SAFETY: `found` and `length` live through the call, and `length` is the size of `found`.
    let got = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut found).cast(), &raw mut length)
    };
    for (call, result) in [("setsockopt", set), ("getsockopt", got)] {
        Errno::result(result)
            .map_err(|e| trouble(SyscallError::of(call, "SO_MAX_PACING_RATE")(e)))?;
    }
    match found == rate {
        true => Ok(()),
        false => Err(Trouble { text: format!("{rate} B/s were set, {found} hold"), errno: None }),
    }
}

// ---- the processor and the disks --------------------------------------------------------------

fn in_own_group(scratch: &Path) -> Vec<(Feature, Answer)> {
    let made = Hierarchies::discover_any().and_then(|hierarchies| {
        let group = hierarchies.group(scratch)?;
        group.create()?;
        Ok((hierarchies, group))
    });
    let answers = match &made {
        Err(error) => GROUPS.map(|feature| (feature, trouble_of_group(error).into_answer())),
        Ok((hierarchies, group)) => {
            GROUPS.map(|feature| (feature, try_on_group(feature, hierarchies, group)))
        }
    };
    if let Ok((_, group)) = made {
        // What is left is empty, and the next attempt finds it.
        let _ = group.remove();
    }
    answers.to_vec()
}

const GROUPS: [Feature; 5] = [
    Feature::CgroupV2,
    Feature::CpuBandwidthV1,
    Feature::CpuBandwidthV2,
    Feature::DiskThrottleV1,
    Feature::DiskThrottleV2,
];

fn try_on_group(feature: Feature, hierarchies: &Hierarchies, group: &Group) -> Answer {
    let elsewhere = |controller: &str| {
        Answer::No(format!("the {controller} controller is not in a hierarchy of this version"))
    };
    let cpu_in_v2 =
        group.hierarchies().iter().find(|h| h.limits_cpu()).map(|h| h.controller().is_none());
    match feature {
        Feature::CgroupV2 => of_group(group.id().map(drop)),
        Feature::CpuBandwidthV1 if cpu_in_v2 != Some(false) => elsewhere("cpu"),
        Feature::CpuBandwidthV2 if cpu_in_v2 != Some(true) => elsewhere("cpu"),
        Feature::CpuBandwidthV1 | Feature::CpuBandwidthV2 => {
            of_group(group.set_cpu(CpuPpm::from_percent(1)))
        }
        _ => {
            let version =
                if feature == Feature::DiskThrottleV1 { Version::V1 } else { Version::V2 };
            match hierarchies.throttle().filter(|throttle| throttle.version() == version) {
                None => elsewhere(if version == Version::V1 { "blkio" } else { "io" }),
                Some(throttle) => {
                    let observe = || throttle.observe(group.path());
                    disk_answer(&|limits| group.set_disks(limits).and_then(|()| observe()))
                }
            }
        }
    }
}

/// `set` sets limits and says which hold then.
fn disk_answer(set: &dyn Fn(&DiskLimits) -> Result<DiskLimits, CgroupError>) -> Answer {
    let Some(disk) = disks().first().copied() else {
        return Answer::Unknown("no disk to try it on".into());
    };
    let rate = BytesPerSecond::from_mega_bytes(1);
    let rates = DiskDirection::ALL
        .iter()
        .fold(DiskRates::default(), |rates, direction| rates.with(*direction, Some(rate)));
    let wanted = DiskLimits::from([(disk, rates)]);
    match set(&wanted) {
        Err(error) => trouble_of_group(&error).into_answer(),
        Ok(found) if found == wanted => of_group(set(&DiskLimits::new()).map(drop)),
        Ok(found) => Answer::No(format!("{wanted:?} were set, {found:?} hold")),
    }
}

fn deadline_answer() -> Answer {
    let attempt = || {
        // So little that it fits whatever the kernel has promised already.
        let spec = DeadlineSpec::of(CpuPpm::new(1), Nanos::from_secs(4));
        let spec = spec.map_err(|error| Trouble { text: error.to_string(), errno: None })?;
        let sleeper = sleeper()?;
        deadline::set(sleeper.tid, spec)
            .and_then(|()| deadline::leave(sleeper.tid))
            .map_err(trouble)
    };
    attempt().into_answer()
}

fn user_level_answer() -> Answer {
    let attempt = || user_level::try_on(sleeper()?.tid).map_err(trouble);
    attempt().into_answer()
}

/// A thread to try a schedule on.
fn sleeper() -> Result<Sleeper, Trouble> {
    let text = "no thread to try it on".to_owned();
    Sleeper::start().ok_or(Trouble { text, errno: Some(Errno::EPERM) })
}

// ---- answers ----------------------------------------------------------------------------------

trait IntoAnswer {
    fn into_answer(self) -> Answer;
}

impl IntoAnswer for Tried {
    fn into_answer(self) -> Answer {
        self.map_or_else(Trouble::into_answer, |()| Answer::Yes)
    }
}

impl Trouble {
    /// Who may not try has learnt nothing.
    fn into_answer(self) -> Answer {
        match self.errno {
            Some(Errno::EPERM | Errno::EACCES | Errno::EROFS) => Answer::Unknown(self.text),
            _ => Answer::No(self.text),
        }
    }
}

/// An error that may tell the kernel's number.
trait Numbered: Error {
    fn number(&self) -> Option<Errno>;
}

impl Numbered for NetlinkError {
    fn number(&self) -> Option<Errno> {
        self.errno()
    }
}

impl Numbered for SyscallError {
    fn number(&self) -> Option<Errno> {
        Some(self.errno)
    }
}

impl Numbered for FlowsError {
    /// The loader's errors hide it in their causes.
    fn number(&self) -> Option<Errno> {
        let causes = std::iter::successors(Some(self as &dyn Error), |error| (*error).source());
        let numbers = causes.filter_map(|error| error.downcast_ref::<std::io::Error>());
        numbers.filter_map(|error| error.raw_os_error()).map(Errno::from_raw).next()
    }
}

fn trouble<E: Numbered + 'static>(error: E) -> Trouble {
    Trouble { errno: error.number(), text: chain(&error) }
}

fn trouble_of_group(error: &CgroupError) -> Trouble {
    Trouble { errno: error.is_denied().then_some(Errno::EPERM), text: chain(error) }
}

fn of_group(result: Result<(), CgroupError>) -> Answer {
    result.map_err(|error| trouble_of_group(&error)).into_answer()
}

const LOOPBACK: u32 = 1;
const RATE: BitsPerSecond = BitsPerSecond::from_mbit(100);

#[cfg(test)]
mod tests {
    use super::*;

    // Whoever runs it, everything is answered once, and nothing is left behind.
    #[test]
    fn every_feature_has_one_answer_and_says_what_was_tried() {
        let name = format!("_probe-test-{}", std::process::id());
        let found = capabilities(&Path::new(crate::cgroup::MARK).join(&name));
        let features: Vec<_> = found.0.iter().map(|found| found.feature).collect();
        assert_eq!(features, Feature::ALL);
        for Capability { feature, answer, tried } in &found.0 {
            println!("{feature:?}: {answer} ({tried})");
            assert_ne!(tried, "nothing");
        }
        let groups =
            Hierarchies::discover().and_then(|h| h.group(Path::new("keeptime").join(name)));
        assert!(groups.is_ok_and(|group| !group.exists()) || !nix::unistd::geteuid().is_root());
    }

    #[test]
    fn no_privilege_is_unknown_and_no_mechanism_is_no() {
        let of = |errno| {
            let object = "x".into();
            trouble(SyscallError { call: "setsockopt", object, errno }).into_answer()
        };
        assert!(matches!(of(Errno::EPERM), Answer::Unknown(_)));
        assert!(matches!(of(Errno::ENOENT), Answer::No(_)));
    }
}
