//! What a node's kernel can enforce, as its agent found out, and what an assignment needs of it:
//! so that nobody promises what a node cannot keep.

use crate::assignment::{Assignment, CpuMechanism, TrafficClass};
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

/// Something that an assignment asks for and the node cannot enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmet {
    /// What is asked for.
    pub asked: &'static str,
    /// Why it cannot be.
    pub why: String,
}

/// Something that an assignment asks for: one of the mechanisms will do.
struct Need {
    asked: &'static str,
    any_of: &'static [Feature],
}

impl Feature {
    /// All, in the order in which they are told.
    pub const ALL: [Self; 12] = [
        Self::CgroupV2,
        Self::CpuBandwidthV1,
        Self::CpuBandwidthV2,
        Self::CpuDeadline,
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

    /// The first thing that `assignment` asks for and this node cannot enforce.
    pub fn unmet(&self, assignment: &Assignment) -> Option<Unmet> {
        needs(assignment).into_iter().find_map(|need| self.lacks(&need))
    }

    /// Everything that assignments can ask for and this node cannot enforce.
    pub fn missing(&self) -> Vec<Unmet> {
        ALL_NEEDS.iter().filter_map(|need| self.lacks(need)).collect()
    }

    fn lacks(&self, need: &Need) -> Option<Unmet> {
        if need.any_of.iter().any(|feature| self.has(*feature)) {
            return None;
        }
        let why = need.any_of.iter().map(|feature| match self.answer(*feature) {
            None => format!("{feature} was not tried"),
            Some(answer) => format!("{feature}: {answer}"),
        });
        Some(Unmet { asked: need.asked, why: why.collect::<Vec<_>>().join("; ") })
    }
}

const CPU: Need = Need {
    asked: "a share of the CPU",
    any_of: &[Feature::CpuBandwidthV1, Feature::CpuBandwidthV2],
};
const DEADLINE: Need =
    Need { asked: "a CPU schedule by SCHED_DEADLINE", any_of: &[Feature::CpuDeadline] };
const DISK: Need =
    Need { asked: "a rate of a disk", any_of: &[Feature::DiskThrottleV1, Feature::DiskThrottleV2] };
const CLASSES: Need = Need { asked: "reserved bandwidth", any_of: &[Feature::TrafficClasses] };
const CLASSIFIER: Need = Need { asked: "flows told apart", any_of: &[Feature::FlowClassifier] };
const ALL_NEEDS: [Need; 5] = [CPU, DEADLINE, DISK, CLASSES, CLASSIFIER];

fn needs(assignment: &Assignment) -> Vec<Need> {
    let mut needs = vec![CPU];
    if assignment.cpu_mechanism == CpuMechanism::Deadline {
        needs.push(DEADLINE);
    }
    if assignment.flows.iter().any(|flow| flow.class > TrafficClass::BestEffort) {
        needs.extend([CLASSES, CLASSIFIER]);
    }
    if !assignment.disks.is_empty() {
        needs.push(DISK);
    }
    needs
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::CpuBandwidthV1 => "CPU bandwidth (cgroup v1)",
            Self::CpuBandwidthV2 => "CPU bandwidth (cgroup v2)",
            Self::CpuDeadline => "SCHED_DEADLINE",
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
    fn one_of_two_versions_is_enough_and_none_is_named_with_both_reasons() {
        use Feature::{CpuBandwidthV1, CpuBandwidthV2};
        assert_eq!(all_but(&[CpuBandwidthV2]).unmet(&assignment()), None);
        let unmet = all_but(&[CpuBandwidthV1, CpuBandwidthV2]).unmet(&assignment()).unwrap();
        let text = unmet.to_string();
        assert!(text.starts_with("a share of the CPU (CPU bandwidth (cgroup v1): no, "), "{text}");
        assert!(text.contains("cgroup v2): no, it is not there"), "{text}");
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
        asked.cpu_mechanism = CpuMechanism::Deadline;
        assert_eq!(poor.unmet(&asked).unwrap().asked, DEADLINE.asked);
        asked.cpu_mechanism = CpuMechanism::Auto;
        let rates = DiskRates {
            read_bytes_per_second: Some(BytesPerSecond::new(1)),
            ..DiskRates::default()
        };
        asked.disks = [("8:0".parse().unwrap(), rates)].into();
        assert_eq!(poor.unmet(&asked).unwrap().asked, DISK.asked);
        let missing: Vec<_> = poor.missing().iter().map(|unmet| unmet.asked).collect();
        assert_eq!(missing, [DEADLINE.asked, DISK.asked, CLASSIFIER.asked]);
    }

    #[test]
    fn what_nobody_tried_is_not_there() {
        let text = Capabilities::default().unmet(&assignment()).unwrap().to_string();
        assert!(text.contains("was not tried"), "{text}");
    }
}
