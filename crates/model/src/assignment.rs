//! What one node is told to enforce for one job.

use crate::Invalid;
use crate::disk::{DiskDirection, DiskId, DiskRates};
use crate::name::Name;
use crate::reservation::UserName;
use crate::service::{ServiceName, check_services};
use crate::shares::Shares;
use crate::units::{BitsPerSecond, Bytes, BytesPerSecond, CpuPpm, Nanos, WallTime};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Most flows of one job that leave one node: all-to-all on 4,096 nodes.
pub const FLOWS_MAX: usize = 4_096;

/// Most disks of one job on one node.
pub const DISKS_MAX: usize = 64;

/// The shortest and the longest period of a CPU schedule: what the kernel's mechanisms can keep. From user space
/// short ones are kept as longer ones.
pub const CPU_PERIODS: [Nanos; 2] = [Nanos::from_millis(1), Nanos::from_secs(1)];

/// One node's part of a job: everything that its agent enforces there, from when and until when.
/// What older agents recorded reads as well: fields that came later have defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    /// The job.
    pub job: Name,
    /// CPU for the job's processes on this node, all together: a limit. Nothing: they share what is promised to nobody.
    pub cpu_ppm: CpuPpm,
    /// From a time on it is more; nothing = the same until the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub later: Option<LaterCpu>,
    /// In every so long the job has its share, `cpu_ppm.time_in_floor(period)`; nothing = the
    /// agent chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_period_nanos: Option<Nanos>,
    /// What keeps the share.
    #[serde(default)]
    pub cpu_mechanism: CpuMechanism,
    /// What leaves this node. A job without flows is best-effort.
    #[serde(default)]
    pub flows: Vec<AssignedFlow>,
    /// How fast the job may use disks, by disk; a disk that is not there shares what is left.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub disks: BTreeMap<DiskId, DiskRates>,
    /// What runs on the node already and counts to the job as long as that lasts; each of them is there when
    /// the node takes the job on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceName>,
    /// The user who may bind processes and connections to the job, besides root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<UserName>,
    /// Enforced from then on; 0 = at once.
    #[serde(default)]
    pub from_unix_nanos: WallTime,
    /// The agent keeps the assignment until then and no longer; whoever gave it may prolong it.
    pub until_unix_nanos: WallTime,
}

/// A greater share of the CPU, from a time on: what makes way for others until then has promised to be done in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaterCpu {
    /// When.
    pub from_unix_nanos: WallTime,
    /// How much.
    pub cpu_ppm: CpuPpm,
}

/// What gives a job its share of the CPU.
// By its name, so that one that is unknown is refused with those that are known, wherever it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum CpuMechanism {
    /// `Deadline` where a period is stated and the node has it, else `Bandwidth`, and `UserLevel` where neither
    /// serves: a share without a period has no deadlines.
    #[default]
    Auto,
    /// A limit of the job's control group: for processes of any kind.
    Bandwidth,
    /// `SCHED_DEADLINE`: the slice is had in every period whatever else runs. Processes that cannot
    /// carry it have `Bandwidth` instead, and the agent's status says why.
    Deadline,
    /// Earliest deadline first from user space: the agent lets each process run for its slice and holds it until
    /// its next period. For processes with several threads, too; as long as the agent runs.
    UserLevel,
}

/// A rate kept for one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssignedFlow {
    /// The receiving node's address.
    pub destination: Ipv4Addr,
    /// Reserved: a guarantee, and a limit unless there is another.
    pub bits_per_second: BitsPerSecond,
    /// It may use so much as long as others leave it: not less than what is reserved. Nothing = no more than
    /// that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_bits_per_second: Option<BitsPerSecond>,
    /// Token bucket depth; nothing = chosen from the rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<Bytes>,
    /// How the packets are treated on their way.
    pub class: TrafficClass,
}

impl AssignedFlow {
    /// The limit: what is reserved, or what it may use beside.
    pub fn limit(&self) -> BitsPerSecond {
        self.up_to_bits_per_second.unwrap_or(self.bits_per_second)
    }
}

impl Assignment {
    /// A share of the CPU for `job` from now until `until`, and nothing else.
    pub fn new(job: Name, cpu_ppm: CpuPpm, until: WallTime) -> Self {
        Self {
            job,
            cpu_ppm,
            later: None,
            cpu_period_nanos: None,
            cpu_mechanism: CpuMechanism::Auto,
            flows: Vec::new(),
            disks: BTreeMap::new(),
            services: Vec::new(),
            owner: None,
            from_unix_nanos: WallTime::default(),
            until_unix_nanos: until,
        }
    }

    /// What it is at `now`: more CPU counts when its time has come.
    pub fn at(&self, now: WallTime) -> Cow<'_, Self> {
        let shares = Shares { cpu: self.cpu_ppm, later: self.later };
        match shares.turned(now) {
            Some(cpu_ppm) => Cow::Owned(Self { cpu_ppm, later: None, ..self.clone() }),
            None => Cow::Borrowed(self),
        }
    }

    /// Spans, one after the other, in each of which it asks for the same all the time.
    pub fn parts(&self) -> impl Iterator<Item = Cow<'_, Self>> {
        let until = self.later.map_or(self.until_unix_nanos, |later| later.from_unix_nanos);
        let first = match self.later {
            None => Cow::Borrowed(self),
            Some(_) => Cow::Owned(Self { until_unix_nanos: until, later: None, ..self.clone() }),
        };
        let second = self.later.map(|later| {
            let from_unix_nanos = later.from_unix_nanos;
            Cow::Owned(Self { from_unix_nanos, ..self.at(from_unix_nanos).into_owned() })
        });
        std::iter::once(first).chain(second)
    }

    /// True if it is to be enforced at `now`.
    pub fn is_due(&self, now: WallTime) -> bool {
        self.from_unix_nanos <= now && now < self.until_unix_nanos
    }

    /// Checks bounds that hold on every node.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.until_unix_nanos <= self.from_unix_nanos {
            let until = self.until_unix_nanos.unix_nanos();
            let expected =
                format!("more than from_unix_nanos ({})", self.from_unix_nanos.unix_nanos());
            return Err(Invalid::new("until_unix_nanos", until, expected));
        }
        check_cpu(self.cpu_ppm, self.cpu_period_nanos)?;
        self.check_later()?;
        self.check_flows()?;
        check_services(&self.services)?;
        self.check_disks()
    }

    fn check_later(&self) -> Result<(), Invalid> {
        let Some(later) = self.later else { return Ok(()) };
        let (from, until) = (self.from_unix_nanos, self.until_unix_nanos);
        if later.from_unix_nanos <= from || until <= later.from_unix_nanos {
            let [from, until] = [from, until].map(WallTime::unix_nanos);
            let given = later.from_unix_nanos.unix_nanos();
            let expected =
                format!("between from_unix_nanos ({from}) and until_unix_nanos ({until})");
            return Err(Invalid::new("later.from_unix_nanos", given, expected));
        }
        if later.cpu_ppm <= self.cpu_ppm {
            let expected = format!("more than cpu_ppm ({})", self.cpu_ppm);
            return Err(Invalid::new("later.cpu_ppm", later.cpu_ppm, expected));
        }
        check_cpu(later.cpu_ppm, self.cpu_period_nanos)
    }

    fn check_flows(&self) -> Result<(), Invalid> {
        if self.flows.len() > FLOWS_MAX {
            return Err(Invalid::new("flows", self.flows.len(), format!("at most {FLOWS_MAX}")));
        }
        self.flows.iter().enumerate().try_for_each(|(at, flow)| {
            let reserved = flow.bits_per_second;
            if reserved == BitsPerSecond::ZERO {
                let field = format!("flows[{at}].bits_per_second");
                return Err(Invalid::new(field, reserved, "more than 0 bit/s"));
            }
            match flow.up_to_bits_per_second.filter(|up_to| *up_to < reserved) {
                None => Ok(()),
                Some(up_to) => {
                    let field = format!("flows[{at}].up_to_bits_per_second");
                    let expected = format!("at least what is reserved: {reserved}");
                    Err(Invalid::new(field, up_to, expected))
                }
            }
        })
    }

    fn check_disks(&self) -> Result<(), Invalid> {
        if self.disks.len() > DISKS_MAX {
            return Err(Invalid::new("disks", self.disks.len(), format!("at most {DISKS_MAX}")));
        }
        for (disk, rates) in &self.disks {
            if *rates == DiskRates::default() {
                let expected = "a rate to read or to write with, or no such entry";
                return Err(Invalid::new(format!("disks.{disk}"), "{}", expected));
            }
            for direction in DiskDirection::ALL {
                if rates.of(direction) == Some(BytesPerSecond::new(0)) {
                    let field = format!("disks.{disk}.{direction}_bytes_per_second");
                    return Err(Invalid::new(field, 0, "more than 0 B/s"));
                }
            }
        }
        Ok(())
    }
}

/// Checks a share of the CPU and its period: of no share none is had in any period.
///
/// # Errors
/// The field that is wrong.
pub fn check_cpu(share: CpuPpm, period: Option<Nanos>) -> Result<(), Invalid> {
    if share == CpuPpm::default() && period.is_some() {
        return Err(Invalid::new("cpu_ppm", share, "more than 0 %, to be had in every period"));
    }
    let [least, most] = CPU_PERIODS;
    match period.filter(|period| !(least..=most).contains(period)) {
        None => Ok(()),
        Some(period) => Err(Invalid::new("cpu_period_nanos", period, format!("{least} to {most}"))),
    }
}

impl CpuMechanism {
    /// Each that can serve; [`Self::Auto`] is whichever does.
    pub const EACH: [Self; 3] = [Self::Deadline, Self::Bandwidth, Self::UserLevel];
}

crate::named!(
    CpuMechanism, "cpu_mechanism", either:
    Auto "auto",
    Bandwidth "bandwidth",
    Deadline "deadline",
    UserLevel "user-level",
);

crate::as_text!(CpuMechanism);

/// How the packets of a flow are treated on their way, best last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TrafficClass {
    /// Shares what the others leave.
    BestEffort,
    /// Few bytes that must not wait: control messages of jobs and of Keeptime. DSCP CS6.
    LowLatency,
    /// A reserved rate, kept apart at switches. DSCP EF.
    Premium,
}

impl TrafficClass {
    /// The DiffServ code point of the class (RFC 2474, RFC 3246): 0, CS6 = 48, EF = 46.
    pub const fn dscp(self) -> u8 {
        match self {
            Self::BestEffort => 0,
            Self::LowLatency => 48,
            Self::Premium => 46,
        }
    }
}

crate::named!(
    TrafficClass, "class", either:
    BestEffort "best-effort",
    LowLatency "low-latency",
    Premium "premium",
);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_rates() -> impl Strategy<Value = DiskRates> {
        let rate = || prop::option::of((1u64..1 << 40).prop_map(BytesPerSecond::new));
        (rate(), rate()).prop_map(|(read_bytes_per_second, write_bytes_per_second)| DiskRates {
            read_bytes_per_second,
            write_bytes_per_second,
        })
    }

    fn any_assignment() -> impl Strategy<Value = Assignment> {
        let mechanism = prop_oneof![
            Just(CpuMechanism::Auto),
            Just(CpuMechanism::Bandwidth),
            Just(CpuMechanism::Deadline),
            Just(CpuMechanism::UserLevel)
        ];
        let disk = (0u32..300, 0u32..300).prop_map(|(major, minor)| DiskId { major, minor });
        let disks = prop::collection::btree_map(disk, any_rates(), 0..4);
        let period = prop::option::of((0u64..2_000_000_000).prop_map(Nanos::new));
        let times = (0u64..100, 0u64..100);
        let later = prop::option::of((0u64..100, 0u32..3_000_000).prop_map(|(from, ppm)| {
            LaterCpu { from_unix_nanos: WallTime::from_unix_nanos(from), cpu_ppm: CpuPpm::new(ppm) }
        }));
        let share = (0u32..3_000_000, later);
        (share, period, mechanism, disks, prop::option::of("[a-z]{1,9}"), times).prop_map(
            |((ppm, later), period, mechanism, disks, owner, (from, until))| Assignment {
                later,
                cpu_period_nanos: period,
                cpu_mechanism: mechanism,
                disks,
                owner: owner.map(|name| name.parse().unwrap()),
                from_unix_nanos: WallTime::from_unix_nanos(from),
                ..Assignment::new(
                    "job".parse().unwrap(),
                    CpuPpm::new(ppm),
                    WallTime::from_unix_nanos(until),
                )
            },
        )
    }

    proptest! {
        // Part after part is what the whole is at every instant.
        #[test]
        fn parts_are_what_the_whole_is(assignment in any_assignment()) {
            if assignment.check_later().is_err() {
                return Ok(());
            }
            for nanos in 0..100 {
                let now = WallTime::from_unix_nanos(nanos);
                let due: Vec<_> = assignment.parts().filter(|part| part.is_due(now)).collect();
                let cpu: Vec<_> = due.iter().map(|part| part.cpu_ppm).collect();
                let whole = assignment.is_due(now).then(|| assignment.at(now).cpu_ppm);
                prop_assert_eq!(cpu, whole.into_iter().collect::<Vec<_>>());
            }
        }

        #[test]
        fn what_is_written_reads_back(assignment in any_assignment()) {
            let text = serde_json::to_string(&assignment).unwrap();
            prop_assert_eq!(serde_json::from_str::<Assignment>(&text).unwrap(), assignment);
        }

        // What passes has a window, a share, a period that can be kept, and a rate for
        // every disk; what does not names one of these.
        #[test]
        fn a_checked_assignment_can_be_enforced_somewhere(assignment in any_assignment()) {
            let (from, until) = (assignment.from_unix_nanos, assignment.until_unix_nanos);
            let is_good = from < until
                && assignment.later.is_none_or(|later| {
                    let is_while = from < later.from_unix_nanos && later.from_unix_nanos < until;
                    is_while && assignment.cpu_ppm < later.cpu_ppm
                })
                && (assignment.cpu_ppm.get() > 0 || assignment.cpu_period_nanos.is_none())
                && assignment.cpu_period_nanos.is_none_or(|p| (1_000_000..=1_000_000_000).contains(&p.get()))
                && assignment.disks.values().all(|rates| *rates != DiskRates::default());
            match assignment.check() {
                Ok(()) => prop_assert!(is_good),
                Err(error) => {
                    prop_assert!(!is_good);
                    let fields = ["until_unix_nanos", "cpu_ppm", "cpu_period_nanos", "later.", "disks."];
                    prop_assert!(fields.iter().any(|f| error.field.starts_with(f)), "{}", error);
                }
            }
        }
    }

    #[test]
    fn a_mechanism_has_one_name_for_people_and_in_records() {
        use CpuMechanism::{Auto, Bandwidth, Deadline, UserLevel};
        for mechanism in [Auto, Bandwidth, Deadline, UserLevel] {
            let name = mechanism.to_string();
            assert_eq!(name.parse::<CpuMechanism>(), Ok(mechanism));
            assert_eq!(serde_json::to_string(&mechanism).unwrap(), format!("\"{name}\""));
        }
        assert!("fast".parse::<CpuMechanism>().unwrap_err().to_string().contains("user-level"));
        let unknown = serde_json::from_str::<CpuMechanism>("\"edf\"").unwrap_err().to_string();
        assert!(unknown.starts_with("cpu_mechanism: \"edf\" is not accepted"), "{unknown}");
        assert!(unknown.contains("auto, bandwidth, deadline or user-level"), "{unknown}");
    }

    #[test]
    fn what_older_agents_recorded_still_reads() {
        let old = r#"{"job":"a","cpu_ppm":100000,"flows":[{"destination":"10.0.0.2",
            "bits_per_second":1000,"class":"premium"}],"until_unix_nanos":7}"#;
        let read: Assignment = serde_json::from_str(old).unwrap();
        assert_eq!(read.cpu_mechanism, CpuMechanism::Auto);
        assert!(read.is_due(WallTime::from_unix_nanos(1)) && read.disks.is_empty());
        let unknown = old.replacen("\"job\"", "\"colour\":1,\"job\"", 1);
        let error = serde_json::from_str::<Assignment>(&unknown).unwrap_err().to_string();
        assert!(error.contains("unknown field `colour`"), "{error}");
    }

    #[test]
    fn a_disk_is_named_by_its_numbers() {
        let text = r#"{"job":"a","cpu_ppm":1,"until_unix_nanos":7,
            "disks":{"254:0":{"write_bytes_per_second":1000}}}"#;
        let read: Assignment = serde_json::from_str(text).unwrap();
        let rates = read.disks[&"254:0".parse().unwrap()];
        assert_eq!(rates.of(DiskDirection::Write), Some(BytesPerSecond::new(1_000)));
        assert_eq!(rates.of(DiskDirection::Read), None);
        let error = serde_json::from_str::<Assignment>(&text.replace("254:0", "vda")).unwrap_err();
        assert!(error.to_string().contains("MAJOR:MINOR"), "{error}");
        let mut zero = read;
        zero.disks.insert(
            "8:0".parse().unwrap(),
            DiskRates::default().with(DiskDirection::Read, Some(BytesPerSecond::new(0))),
        );
        let error = zero.check().unwrap_err().to_string();
        assert!(error.starts_with("disks.8:0.read_bytes_per_second: \"0\""), "{error}");
    }
}
