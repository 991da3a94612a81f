//! What a node's kernel can enforce, as its agent found out, and what an assignment needs of it:
//! so that nobody promises what a node cannot keep.

use crate::assignment::{Assignment, CpuMechanism, TrafficClass};
use crate::units::CpuPpm;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One mechanism of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Feature {
    /// CPU bandwidth of control groups, version 1.
    CpuBandwidthV1,
    /// CPU bandwidth of control groups, version 2.
    CpuBandwidthV2,
    /// `SCHED_DEADLINE`.
    CpuDeadline,
    /// CPU schedules kept from user space: processes bound, put first, made to wait and held.
    CpuUserLevel,
    /// `blkio.throttle` of control groups, version 1.
    DiskThrottleV1,
    /// `io.max` of control groups, version 2.
    DiskThrottleV2,
    /// Classes of traffic with guarantees (HTB).
    TrafficClasses,
    /// One rate for a whole interface (TBF).
    TrafficShaper,
    /// Packets told apart by control group and destination (eBPF at egress).
    FlowClassifier,
    /// Packets told apart by DiffServ code point, as switch ports do.
    CodePoints,
    /// Packets paced by departure time (the `fq` queueing discipline).
    PacedQueue,
    /// Sockets that pace themselves (`SO_MAX_PACING_RATE`).
    PacedSockets,
    /// A hierarchy of control groups of version 2.
    CgroupV2,
}

/// Whether it works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It was tried, and it did.
    Yes,
    /// It was tried or is not there: why.
    No(String),
    /// It could not be tried: why.
    Unknown(String),
}

/// One mechanism, whether it works, and how that was found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// The mechanism.
    pub feature: Feature,
    /// Whether it works.
    pub answer: Answer,
    /// What was tried.
    pub tried: String,
}

/// Everything that was found out about one node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Capabilities(pub Vec<Capability>);

/// Something that can be asked of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Guarantee {
    /// A share of the CPU.
    CpuShare,
    /// The share by a limit of the job's control group, and not otherwise.
    CpuBandwidth,
    /// The share by deadlines, and not otherwise.
    CpuSchedule,
    /// The share by schedules from user space, and not otherwise.
    CpuUserLevel,
    /// A rate of a disk.
    DiskRate,
    /// Reserved bandwidth.
    Bandwidth,
}

/// Something that an assignment asks for and the node cannot enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmet {
    /// What is asked for.
    pub asked: Guarantee,
    /// Why it cannot be.
    pub why: String,
}

impl Feature {
    /// All, in the order in which they are told.
    pub const ALL: [Self; 13] = [
        Self::CgroupV2,
        Self::CpuBandwidthV1,
        Self::CpuBandwidthV2,
        Self::CpuDeadline,
        Self::CpuUserLevel,
        Self::DiskThrottleV1,
        Self::DiskThrottleV2,
        Self::TrafficClasses,
        Self::TrafficShaper,
        Self::FlowClassifier,
        Self::CodePoints,
        Self::PacedQueue,
        Self::PacedSockets,
    ];
}

impl Capabilities {
    /// The answer about one mechanism; nothing if nobody looked.
    pub fn answer(&self, feature: Feature) -> Option<&Answer> {
        self.0.iter().find(|found| found.feature == feature).map(|found| &found.answer)
    }

    /// True if it was tried and works.
    pub fn has(&self, feature: Feature) -> bool {
        self.answer(feature) == Some(&Answer::Yes)
    }

    /// The first thing that `assignment` asks for and this node cannot enforce; where that is a mechanism, with those
    /// that serve instead.
    pub fn unmet(&self, assignment: &Assignment) -> Option<Unmet> {
        let unmet = Guarantee::of(assignment).into_iter().find_map(|asked| self.lacks(asked))?;
        if Guarantee::of_mechanism(assignment.cpu_mechanism) != Some(unmet.asked) {
            return Some(unmet);
        }
        let serve = CpuMechanism::EACH.into_iter().filter(|mechanism| self.keeps_by(*mechanism));
        let serve: Vec<_> = serve.map(|mechanism| mechanism.to_string()).collect();
        let why = format!("{}; shares are kept here by {}", unmet.why, serve.join(", "));
        Some(Unmet { why, ..unmet })
    }

    /// Whether `mechanism` serves here; [`CpuMechanism::Auto`] asks for none of them.
    pub fn keeps_by(&self, mechanism: CpuMechanism) -> bool {
        Guarantee::of_mechanism(mechanism).is_none_or(|asked| self.lacks(asked).is_none())
    }

    /// Everything that assignments can ask for and this node cannot enforce.
    pub fn missing(&self) -> Vec<Unmet> {
        Guarantee::ALL.into_iter().filter_map(|asked| self.lacks(asked)).collect()
    }

    fn lacks(&self, asked: Guarantee) -> Option<Unmet> {
        let is_there = |any_of: &&&[Feature]| any_of.iter().any(|feature| self.has(*feature));
        let lacking = asked.mechanisms().iter().find(|any_of| !is_there(any_of))?;
        let why = lacking.iter().map(|feature| match self.answer(*feature) {
            None => format!("{feature} was not tried"),
            Some(answer) => format!("{feature}: {answer}"),
        });
        Some(Unmet { asked, why: why.collect::<Vec<_>>().join("; ") })
    }
}

impl Guarantee {
    /// All, in the order in which they are told.
    pub const ALL: [Self; 6] = [
        Self::CpuShare,
        Self::CpuBandwidth,
        Self::CpuSchedule,
        Self::CpuUserLevel,
        Self::DiskRate,
        Self::Bandwidth,
    ];

    /// That a share of the CPU is kept by `mechanism`; nothing if the agent chooses.
    pub fn of_mechanism(mechanism: CpuMechanism) -> Option<Self> {
        match mechanism {
            CpuMechanism::Auto => None,
            CpuMechanism::Bandwidth => Some(Self::CpuBandwidth),
            CpuMechanism::Deadline => Some(Self::CpuSchedule),
            CpuMechanism::UserLevel => Some(Self::CpuUserLevel),
        }
    }

    /// What `assignment` asks for.
    fn of(assignment: &Assignment) -> Vec<Self> {
        let has_cpu = assignment.cpu_ppm != CpuPpm::default() || assignment.later.is_some();
        let mut asked: Vec<_> = has_cpu.then_some(Self::CpuShare).into_iter().collect();
        asked.extend(Self::of_mechanism(assignment.cpu_mechanism));
        if assignment.flows.iter().any(|flow| flow.class > TrafficClass::BestEffort) {
            asked.push(Self::Bandwidth);
        }
        if !assignment.disks.is_empty() {
            asked.push(Self::DiskRate);
        }
        asked
    }

    /// What it takes: one of each of these.
    fn mechanisms(self) -> &'static [&'static [Feature]] {
        match self {
            Self::CpuShare => {
                &[&[Feature::CpuBandwidthV1, Feature::CpuBandwidthV2, Feature::CpuUserLevel]]
            }
            Self::CpuBandwidth => &[&[Feature::CpuBandwidthV1, Feature::CpuBandwidthV2]],
            Self::CpuSchedule => &[&[Feature::CpuDeadline]],
            Self::CpuUserLevel => &[&[Feature::CpuUserLevel]],
            Self::DiskRate => &[&[Feature::DiskThrottleV1, Feature::DiskThrottleV2]],
            Self::Bandwidth => &[&[Feature::TrafficClasses], &[Feature::FlowClassifier]],
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::CpuBandwidthV1 => "CPU bandwidth (cgroup v1)",
            Self::CpuBandwidthV2 => "CPU bandwidth (cgroup v2)",
            Self::CpuDeadline => "SCHED_DEADLINE",
            Self::CpuUserLevel => "user-level EDF",
            Self::DiskThrottleV1 => "disk throttle (v1 blkio)",
            Self::DiskThrottleV2 => "disk throttle (v2 io.max)",
            Self::TrafficClasses => "traffic classes (HTB)",
            Self::TrafficShaper => "traffic shaper (TBF)",
            Self::FlowClassifier => "flow classifier (eBPF)",
            Self::CodePoints => "DSCP classes (u32)",
            Self::PacedQueue => "pacing by queue (fq)",
            Self::PacedSockets => "pacing by socket",
            Self::CgroupV2 => "control groups v2",
        })
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.pad("yes"),
            Self::No(why) => write!(f, "no, {why}"),
            Self::Unknown(why) => write!(f, "unknown, {why}"),
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::CpuShare => "a share of the CPU",
            Self::CpuBandwidth => "a CPU share by control group bandwidth",
            Self::CpuSchedule => "a CPU schedule by SCHED_DEADLINE",
            Self::CpuUserLevel => "a CPU schedule by user-level EDF",
            Self::DiskRate => "a rate of a disk",
            Self::Bandwidth => "reserved bandwidth",
        })
    }
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.asked, self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskRates;
    use crate::units::{BytesPerSecond, CpuPpm, WallTime};

    fn all_but(missing: &[Feature]) -> Capabilities {
        let answer = |feature: Feature| match missing.contains(&feature) {
            true => Answer::No("it is not there".into()),
            false => Answer::Yes,
        };
        let tried = String::new();
        let found = Feature::ALL.map(|f| Capability {
            feature: f,
            answer: answer(f),
            tried: tried.clone(),
        });
        Capabilities(found.to_vec())
    }

    fn assignment() -> Assignment {
        let until = WallTime::from_unix_nanos(9);
        Assignment::new("a".parse().unwrap(), CpuPpm::from_percent(10), until)
    }

    #[test]
    fn one_way_to_keep_a_share_is_enough_and_none_is_named_with_all_reasons() {
        use Feature::{CpuBandwidthV1, CpuBandwidthV2, CpuUserLevel};
        let all = [CpuBandwidthV1, CpuBandwidthV2, CpuUserLevel];
        for one in all {
            let others: Vec<_> = all.into_iter().filter(|feature| *feature != one).collect();
            assert_eq!(all_but(&others).unmet(&assignment()), None, "{one}");
        }
        let text = all_but(&all).unmet(&assignment()).unwrap().to_string();
        assert!(text.starts_with("a share of the CPU (CPU bandwidth (cgroup v1): no, "), "{text}");
        assert!(text.contains("cgroup v2): no, it is not there"), "{text}");
        assert!(text.contains("user-level EDF: no, it is not there"), "{text}");
    }

    #[test]
    fn only_what_is_asked_for_is_needed() {
        let poor = all_but(&[
            Feature::CpuDeadline,
            Feature::DiskThrottleV1,
            Feature::DiskThrottleV2,
            Feature::FlowClassifier,
        ]);
        let mut asked = assignment();
        assert_eq!(poor.unmet(&asked), None);
        let keeps_none =
            all_but(&[Feature::CpuBandwidthV1, Feature::CpuBandwidthV2, Feature::CpuUserLevel]);
        assert_eq!(keeps_none.unmet(&asked).unwrap().asked, Guarantee::CpuShare);
        let without_cpu = Assignment { cpu_ppm: CpuPpm::default(), ..assignment() };
        assert_eq!(keeps_none.unmet(&without_cpu), None);
        asked.cpu_mechanism = CpuMechanism::Deadline;
        assert_eq!(poor.unmet(&asked).unwrap().asked, Guarantee::CpuSchedule);
        asked.cpu_mechanism = CpuMechanism::UserLevel;
        assert_eq!(poor.unmet(&asked), None);
        let unmet = all_but(&[Feature::CpuUserLevel]).unmet(&asked).unwrap();
        assert_eq!(unmet.asked, Guarantee::CpuUserLevel);
        asked.cpu_mechanism = CpuMechanism::Auto;
        let rates = DiskRates {
            read_bytes_per_second: Some(BytesPerSecond::new(1)),
            ..DiskRates::default()
        };
        asked.disks = [("8:0".parse().unwrap(), rates)].into();
        assert_eq!(poor.unmet(&asked).unwrap().asked, Guarantee::DiskRate);
        let missing: Vec<_> = poor.missing().iter().map(|unmet| unmet.asked).collect();
        use Guarantee::{Bandwidth, CpuSchedule, DiskRate};
        assert_eq!(missing, [CpuSchedule, DiskRate, Bandwidth]);
    }

    // Goal: who says a mechanism that is not there is told which are. Method: each of them is away, and what is left
    // serves; the agent's choice is never in the way.
    #[test]
    fn a_mechanism_that_does_not_serve_is_refused_with_those_that_do() {
        use CpuMechanism::{Auto, Bandwidth, Deadline, UserLevel};
        use Feature::{CpuBandwidthV1, CpuBandwidthV2, CpuDeadline, CpuUserLevel};
        let cases: [(CpuMechanism, &[Feature], &str); 3] = [
            (Bandwidth, &[CpuBandwidthV1, CpuBandwidthV2], "by deadline, user-level"),
            (Deadline, &[CpuDeadline], "by bandwidth, user-level"),
            (UserLevel, &[CpuUserLevel], "by deadline, bandwidth"),
        ];
        for (cpu_mechanism, missing, serve) in cases {
            let (found, all) = (all_but(missing), all_but(&[]));
            let asked = Assignment { cpu_mechanism, ..assignment() };
            assert_eq!(all.unmet(&asked), None, "{cpu_mechanism}");
            assert!(!found.keeps_by(cpu_mechanism) && all.keeps_by(cpu_mechanism));
            assert!(found.keeps_by(Auto) && found.unmet(&assignment()).is_none());
            let unmet = found.unmet(&asked).unwrap();
            assert_eq!(Some(unmet.asked), Guarantee::of_mechanism(cpu_mechanism));
            let text = unmet.to_string();
            assert!(text.ends_with(&format!("; shares are kept here {serve})")), "{text}");
        }
    }

    #[test]
    fn what_nobody_tried_is_not_there() {
        let text = Capabilities::default().unmet(&assignment()).unwrap().to_string();
        assert!(text.contains("was not tried"), "{text}");
    }
}
