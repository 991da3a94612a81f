//! Whether an agent could do on this node what its configuration says, before it is started: all that is wrong, and what
//! was found right.

use crate::config::Config;
use crate::dial::{self, BrokerTls};
use crate::enforce;
use keeptime_credentials::certificate::Facts;
use keeptime_credentials::dates;
use keeptime_model::disk::DiskId;
use keeptime_model::errors::chain;
use keeptime_model::units::{CpuPpm, WallTime};
use std::fs::File;
use std::path::Path;

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    /// A sentence on each thing that is as it has to be.
    pub right: Vec<String>,
    /// A sentence on each that is not.
    pub wrong: Vec<String>,
}

impl Checked {
    fn add(&mut self, found: Result<String, String>) {
        match found {
            Ok(right) => self.right.push(right),
            Err(wrong) => self.wrong.push(wrong),
        }
    }
}

/// Looks at the machine and at files; changes nothing. Of a node that is a part of this machine, device, processors and
/// disks are not compared with the machine's.
pub fn check(config: &Config) -> Checked {
    let mut checked = Checked::default();
    if !config.part_of_machine {
        if config.cgroup.is_some() {
            checked.add(device(config));
        }
        checked.add(processors(config.cpu, std::thread::available_parallelism().ok()));
        for disk in &config.disks {
            checked.add(disk_at(Path::new("/sys/dev/block"), disk.device));
        }
    }
    if let Some(place) = &config.broker_tls {
        certificates(config, place, &mut checked);
    }
    checked
}

fn device(config: &Config) -> Result<String, String> {
    let name = &config.device;
    if let Some(missing) = enforce::missing_device(config) {
        return Err(missing);
    }
    enforce::check_device(config).map_err(|error| error.to_string())?;
    Ok(format!("device {name}: there, of a kind whose flows can be told apart"))
}

/// What jobs may have, compared with what there is; where that is not known, nothing is.
fn processors(cpu: CpuPpm, count: Option<std::num::NonZero<usize>>) -> Result<String, String> {
    let Some(count) = count else { return Ok(format!("cpu: {cpu} for jobs")) };
    let all = CpuPpm::new(
        u32::try_from(count.get()).map_or(u32::MAX, |count| count.saturating_mul(ONE_PROCESSOR)),
    );
    if cpu > all {
        return Err(format!("cpu = \"{cpu}\" is more than the {all} that {count} processors have"));
    }
    Ok(format!("cpu: {cpu} of {all} for jobs"))
}

fn disk_at(devices: &Path, disk: DiskId) -> Result<String, String> {
    if devices.join(disk.to_string()).exists() {
        return Ok(format!("disk {disk}: there"));
    }
    Err(format!("there is no disk {disk}; lsblk tells those that are there"))
}

/// Each file that cannot be read, and otherwise whether they are what the broker wants to see.
fn certificates(config: &Config, place: &BrokerTls, checked: &mut Checked) {
    let files = [("certificate", &place.certificate), ("key", &place.key), ("ca", &place.ca)];
    let unread = files.into_iter().filter_map(|(key, path)| {
        let error = File::open(path).err()?;
        Some(format!("[broker_tls] {key}: cannot read {}: {error}", path.display()))
    });
    let before = checked.wrong.len();
    checked.wrong.extend(unread);
    if checked.wrong.len() > before {
        return;
    }
    let found = match dial::read_own(place, &config.node) {
        Ok(facts) => in_time(facts.as_ref(), place, dates::now()),
        Err(error) => Err(format!("[broker_tls]: {}", chain(&error))),
    };
    checked.add(found);
}

/// Of the node's own certificate: whether it holds now.
fn in_time(facts: Option<&Facts>, place: &BrokerTls, now: WallTime) -> Result<String, String> {
    let path = place.certificate.display();
    let Some(facts) = facts else { return Err(format!("{path} has no certificate")) };
    if let Some(problem) = facts.validity.problem(now) {
        return Err(format!("the certificate {path} {problem}"));
    }
    let until = dates::show(facts.validity.until);
    Ok(format!("certificate {path}: {}, until {until}", facts.subject))
}

/// In parts per million.
const ONE_PROCESSOR: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZero;

    #[test]
    fn more_cpu_than_there_are_processors_is_wrong() {
        let two = NonZero::new(2);
        let most = CpuPpm::from_percent(200);
        assert_eq!(processors(most, two), Ok("cpu: 200 % of 200 % for jobs".into()));
        let more = CpuPpm::new(most.get() + 1);
        let wrong = processors(more, two).unwrap_err();
        assert!(wrong.contains("more than the 200 % that 2 processors have"), "{wrong}");
        assert!(processors(more, None).is_ok());
        // Of as many as no machine has, none is too few.
        assert!(processors(CpuPpm::new(u32::MAX), NonZero::new(usize::MAX)).is_ok());
    }

    #[test]
    fn a_disk_is_there_or_not() {
        let devices = tempfile::tempdir().unwrap();
        std::fs::create_dir(devices.path().join("259:0")).unwrap();
        let at = |disk: &str| disk_at(devices.path(), disk.parse().unwrap());
        assert!(at("259:0").is_ok());
        assert_eq!(
            at("259:1"),
            Err("there is no disk 259:1; lsblk tells those that are there".into())
        );
    }

    // Goal: one look tells all that is wrong. Method: nothing of what is named is there.
    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let text = r#"
            node = "n1"
            socket = "/run/keeptime/agent.sock"
            assignments = "/run/keeptime/assignments.json"
            device = "nowhere0"
            rate = "1 Gbit/s"
            cpu = "400000 %"
            cgroup = "keeptime/t-check"
            [[disks]]
            device = "4095:7"
            read = "1 MB/s"
            write = "1 MB/s"
            [broker_tls]
            address = "head:7412"
            certificate = "/nowhere/n1.pem"
            key = "/nowhere/n1-key.pem"
            ca = "/nowhere/ca.pem"
        "#;
        let wrong = check(&Config::from_toml(text).unwrap()).wrong;
        let told = ["nowhere0", "400000 %", "4095:7", "certificate: c", "key: c", "ca: c"];
        assert_eq!(wrong.len(), told.len(), "{wrong:#?}");
        for (sentence, word) in wrong.iter().zip(told) {
            assert!(sentence.contains(word), "{sentence} should contain {word}");
        }
        // Device, processors and disks of a part of a machine are not the machine's.
        let part = text.replace("cgroup", "part_of_machine = true\ncgroup");
        assert_eq!(check(&Config::from_toml(&part).unwrap()).wrong.len(), 3);
    }
}
