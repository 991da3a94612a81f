//! How fast the processes of a control group may use a disk: `blkio.throttle` of version 1 or
//! `io.max` of version 2.
//!
//! Version 1 limits each group by itself, whatever limit the one above has, and what a process does
//! itself: reading, and writing that does not wait in the page cache (`O_DIRECT`, `O_SYNC`). What the
//! kernel writes back later counts to nobody. Version 2 limits groups in groups, and counts writeback
//! where the memory controller and the file system support it.

use crate::cgroup::{CgroupError, parse_number, read, write};
use keeptime_model::disk::{DiskDirection, DiskId, DiskRates};
use keeptime_model::units::{Bytes, BytesPerSecond};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The limits of one group, by disk.
pub type DiskLimits = BTreeMap<DiskId, DiskRates>;

/// A hierarchy of control groups that can throttle disks. Groups are given relative to its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Throttle {
    root: PathBuf,
    version: Version,
}

/// Which files it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `blkio.throttle.*`.
    V1,
    /// `io.max` and `io.stat`.
    V2,
}

/// One change; nothing = no limit any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskOp {
    /// The disk.
    pub disk: DiskId,
    /// Which limit of it.
    pub direction: DiskDirection,
    /// What it is to be.
    pub rate: Option<BytesPerSecond>,
}

/// What the processes of a group read and wrote since counting began: in version 1 when the first
/// limit was set on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskCounters {
    /// From the disk.
    pub read: Bytes,
    /// To the disk.
    pub written: Bytes,
}

/// The steps from `observed` to `wanted`.
pub fn diff(wanted: &DiskLimits, observed: &DiskLimits) -> Vec<DiskOp> {
    let disks: BTreeSet<_> = wanted.keys().chain(observed.keys()).copied().collect();
    let rates = |limits: &DiskLimits, disk| limits.get(&disk).copied().unwrap_or_default();
    let op = |disk, direction| {
        let rate = rates(wanted, disk).of(direction);
        (rate != rates(observed, disk).of(direction)).then_some(DiskOp { disk, direction, rate })
    };
    let both = |disk| DiskDirection::ALL.into_iter().filter_map(move |way| op(disk, way));
    disks.into_iter().flat_map(both).collect()
}

impl Throttle {
    /// A hierarchy of version 1 with the `blkio` controller, mounted at `root`.
    pub fn v1(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), version: Version::V1 }
    }

    /// A hierarchy of version 2 with the `io` controller, mounted at `root`.
    pub fn v2(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), version: Version::V2 }
    }

    /// Which one it is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The limits that hold for a group.
    ///
    /// # Errors
    /// If the group is away.
    pub fn observe(&self, group: &Path) -> Result<DiskLimits, CgroupError> {
        let directory = self.root.join(group);
        match self.version {
            Version::V1 => {
                let mut limits = DiskLimits::new();
                for direction in DiskDirection::ALL {
                    let text = read(&directory.join(v1_file(direction)))?;
                    for (disk, rate) in text.lines().filter_map(parse_v1) {
                        let rates: &mut DiskRates = limits.entry(disk).or_default();
                        *rates = rates.with(direction, Some(rate));
                    }
                }
                Ok(limits)
            }
            Version::V2 => {
                let text = read(&directory.join(V2_FILE))?;
                let limits = text.lines().filter_map(parse_v2);
                Ok(limits.filter(|(_, rates)| *rates != DiskRates::default()).collect())
            }
        }
    }

    /// Carries out the steps of a diff: one write each.
    ///
    /// # Errors
    /// If the kernel refuses: no such disk, a partition, no privilege. The steps before are done.
    pub fn apply(&self, group: &Path, ops: &[DiskOp]) -> Result<(), CgroupError> {
        let directory = self.root.join(group);
        for DiskOp { disk, direction, rate } in ops {
            let number = rate.map(BytesPerSecond::get);
            match self.version {
                // 0 takes a limit away.
                Version::V1 => {
                    let line = format!("{disk} {}", number.unwrap_or(0));
                    write(&directory.join(v1_file(*direction)), line)?;
                }
                Version::V2 => {
                    let number = number.map_or("max".into(), |number| number.to_string());
                    let line = format!("{disk} {}={number}", v2_key(*direction));
                    write(&directory.join(V2_FILE), line)?;
                }
            }
        }
        Ok(())
    }

    /// What a group read and wrote, by disk.
    ///
    /// # Errors
    /// If the group is away.
    pub fn counters(&self, group: &Path) -> Result<BTreeMap<DiskId, DiskCounters>, CgroupError> {
        let directory = self.root.join(group);
        let mut counters: BTreeMap<DiskId, DiskCounters> = BTreeMap::new();
        match self.version {
            Version::V1 => {
                let path = directory.join("blkio.throttle.io_service_bytes");
                // `254:0 Read 4096`, one line a kind, and a total without a disk.
                for line in read(&path)?.lines() {
                    let mut words = line.split_ascii_whitespace();
                    let disk = words.next().and_then(|word| word.parse().ok());
                    let (Some(disk), Some(kind), Some(number)) = (disk, words.next(), words.next())
                    else {
                        continue;
                    };
                    let bytes = Bytes::new(parse_number(&path, number)?);
                    let counted = counters.entry(disk).or_default();
                    match kind {
                        "Read" => counted.read = bytes,
                        "Write" => counted.written = bytes,
                        _ => {}
                    }
                }
            }
            Version::V2 => {
                let path = directory.join("io.stat");
                for line in read(&path)?.lines() {
                    let Some((disk, values)) = parse_keyed(line) else { continue };
                    let number = |key| match values.get(key) {
                        Some(text) => parse_number(&path, text).map(Bytes::new),
                        None => Ok(Bytes::default()),
                    };
                    let (read, written) = (number("rbytes")?, number("wbytes")?);
                    counters.insert(disk, DiskCounters { read, written });
                }
            }
        }
        Ok(counters)
    }
}

/// Whole disks of this machine, the greatest first: what a limit can be tried on.
pub fn disks() -> Vec<DiskId> {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let file = |entry: &std::fs::DirEntry, name: &str| {
        std::fs::read_to_string(entry.path().join(name)).unwrap_or_default()
    };
    let mut found: Vec<(u64, DiskId)> = entries
        .filter_map(|entry| {
            let sectors = file(&entry, "size").trim().parse().ok().filter(|size| *size > 0)?;
            Some((sectors, file(&entry, "dev").trim().parse().ok()?))
        })
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, disk)| disk).collect()
}

/// `254:0 1048576`.
fn parse_v1(line: &str) -> Option<(DiskId, BytesPerSecond)> {
    let (disk, rate) = line.split_once(' ')?;
    Some((disk.parse().ok()?, BytesPerSecond::new(rate.trim().parse().ok()?)))
}

/// `254:0 rbps=1048576 wbps=max riops=max wiops=max`.
fn parse_v2(line: &str) -> Option<(DiskId, DiskRates)> {
    let (disk, values) = parse_keyed(line)?;
    let rate = |direction| {
        values.get(v2_key(direction)).and_then(|text| text.parse().ok()).map(BytesPerSecond::new)
    };
    let rates = DiskRates {
        read_bytes_per_second: rate(DiskDirection::Read),
        write_bytes_per_second: rate(DiskDirection::Write),
    };
    Some((disk, rates))
}

/// A disk, and `key=value` words. Some kernels (Linux 5.15 among them) begin the line with disks of which they have nothing
/// to say ("blk-cgroup: always terminate io.stat lines"): it is about the last one.
fn parse_keyed(line: &str) -> Option<(DiskId, BTreeMap<&str, &str>)> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let named = words.iter().take_while(|word| !word.contains('=')).count();
    let disk = words.get(named.checked_sub(1)?)?.parse().ok()?;
    Some((disk, words[named..].iter().filter_map(|word| word.split_once('=')).collect()))
}

fn v1_file(direction: DiskDirection) -> &'static str {
    match direction {
        DiskDirection::Read => "blkio.throttle.read_bps_device",
        DiskDirection::Write => "blkio.throttle.write_bps_device",
    }
}

fn v2_key(direction: DiskDirection) -> &'static str {
    match direction {
        DiskDirection::Read => "rbps",
        DiskDirection::Write => "wbps",
    }
}

const V2_FILE: &str = "io.max";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rates(read: Option<u64>, write: Option<u64>) -> DiskRates {
        DiskRates {
            read_bytes_per_second: read.map(BytesPerSecond::new),
            write_bytes_per_second: write.map(BytesPerSecond::new),
        }
    }

    fn disk(text: &str) -> DiskId {
        text.parse().unwrap()
    }

    fn fixture(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("job")).unwrap();
        for (name, content) in files {
            std::fs::write(directory.path().join("job").join(name), content).unwrap();
        }
        directory
    }

    #[test]
    fn version_1_is_read_and_written_as_the_kernel_does() {
        let directory = fixture(&[
            ("blkio.throttle.read_bps_device", "254:0 1048576\n8:16 5\n"),
            ("blkio.throttle.write_bps_device", "254:0 2000000\n"),
            (
                "blkio.throttle.io_service_bytes",
                "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 1\n254:0 Total 12288\nTotal 12288\n",
            ),
        ]);
        let (throttle, group) = (Throttle::v1(directory.path()), Path::new("job"));
        let found = throttle.observe(group).unwrap();
        let expected = [
            (disk("8:16"), rates(Some(5), None)),
            (disk("254:0"), rates(Some(1 << 20), Some(2_000_000))),
        ];
        assert_eq!(found, expected.into());
        let counters = throttle.counters(group).unwrap()[&disk("254:0")];
        assert_eq!((counters.read, counters.written), (Bytes::new(4_096), Bytes::new(8_192)));
        let wanted = [(disk("254:0"), rates(Some(1 << 20), Some(3_000_000)))].into();
        throttle.apply(group, &diff(&wanted, &found)).unwrap();
        let content = |name| std::fs::read_to_string(directory.path().join("job").join(name));
        assert_eq!(content("blkio.throttle.write_bps_device").unwrap(), "254:0 3000000");
        assert_eq!(content("blkio.throttle.read_bps_device").unwrap(), "8:16 0");
    }

    #[test]
    fn version_2_is_read_and_written_as_the_kernel_does() {
        let directory = fixture(&[
            ("io.max", "8:16 rbps=2097152 wbps=max riops=max wiops=120\n8:0 rbps=max wbps=max\n"),
            ("io.stat", "8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0\n"),
        ]);
        let (throttle, group) = (Throttle::v2(directory.path()), Path::new("job"));
        let found = throttle.observe(group).unwrap();
        assert_eq!(found, [(disk("8:16"), rates(Some(2 << 20), None))].into());
        let counters = throttle.counters(group).unwrap()[&disk("8:16")];
        assert_eq!(counters.written, Bytes::new(314_773_504));
        let content = || std::fs::read_to_string(directory.path().join("job/io.max")).unwrap();
        throttle.apply(group, &diff(&DiskLimits::new(), &found)).unwrap();
        assert_eq!(content(), "8:16 rbps=max");
        let wanted = [(disk("8:16"), rates(Some(2 << 20), Some(7)))].into();
        throttle.apply(group, &diff(&wanted, &found)).unwrap();
        assert_eq!(content(), "8:16 wbps=7");
    }

    #[test]
    fn a_disk_of_which_nothing_is_said_has_not_the_counters_of_another() {
        let stat = "8:0 8:16 254:0 rbytes=4096 wbytes=512 rios=1 wios=1 dbytes=0 dios=0\n7:0 \n";
        let directory = fixture(&[("io.stat", stat)]);
        let counted = Throttle::v2(directory.path()).counters(Path::new("job")).unwrap();
        assert_eq!(counted[&disk("254:0")].read, Bytes::new(4_096));
        let elsewhere = counted.iter().filter(|(other, _)| **other != disk("254:0"));
        assert!(elsewhere.map(|(_, counters)| counters).all(|c| *c == DiskCounters::default()));
    }

    #[test]
    fn a_group_that_is_away_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let error = Throttle::v1(directory.path()).observe(Path::new("job")).unwrap_err();
        assert!(error.is_away() && error.to_string().contains("job/blkio"), "{error}");
    }

    fn any_limits() -> impl Strategy<Value = DiskLimits> {
        let rate = || prop::option::of(1u64..4);
        let one = ((0u32..3).prop_map(|minor| DiskId { major: 8, minor }), (rate(), rate()));
        prop::collection::vec(one, 0..4).prop_map(|raw| {
            let limits = raw.into_iter().map(|(disk, (read, write))| (disk, rates(read, write)));
            limits.filter(|(_, rates)| *rates != DiskRates::default()).collect()
        })
    }

    proptest! {
        #[test]
        fn the_steps_lead_to_what_is_wanted(before in any_limits(), after in any_limits()) {
            let mut limits = before.clone();
            for op in diff(&after, &before) {
                let rates = limits.entry(op.disk).or_default();
                *rates = rates.with(op.direction, op.rate);
            }
            limits.retain(|_, rates| *rates != DiskRates::default());
            prop_assert_eq!(&limits, &after);
            prop_assert_eq!(diff(&after, &limits), Vec::new());
        }

        #[test]
        fn any_line_is_read_or_passed_over(line in "\\PC{0,40}") {
            let _ = (parse_v1(&line), parse_v2(&line));
        }
    }
}
