//! The network device of a node: whether it is there, what is wrong with it, and what has come in its place.

use crate::config::Config;
use crate::enforcer::BoxedError;
use keeptime_linux::flows::Flows;
use keeptime_linux::link::interfaces;
use keeptime_linux::machine;
use keeptime_linux::netlink::{NetlinkError, Socket};
use keeptime_model::errors::chain;
use std::time::Duration;

/// How often a device is looked for that is not there yet.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Together a minute: the slowest drivers have loaded their firmware by then.
const LOOKS_MAX: usize = 600;
/// Devices that are named where another was meant: a host of containers has hundreds.
const DEVICES_NAMED_MAX: usize = 16;

/// Waits for the device that `config` names, for a minute at most: after a boot it may come later than its agent, which
/// would enforce nothing until it starts anew. Nobody waits where nothing is to be enforced.
pub fn await_device(config: &Config) {
    let name = &config.device;
    if config.cgroup.is_none() || is_device(name) {
        return;
    }
    tracing::warn!("there is no network device {name} yet: waiting for it");
    let rest = || std::thread::sleep(LOOK_EVERY);
    if !comes(|| is_device(name), rest, LOOKS_MAX) {
        tracing::error!("there is no network device {name}: start this agent anew when there is");
    }
}

/// Whether a device has this name. Where that cannot be asked there is nothing to wait for: whoever uses it says why.
fn is_device(name: &str) -> bool {
    !matches!(Socket::open().and_then(|mut socket| device(&mut socket, name)), Ok(None))
}

/// Looks so many times, with a rest between two. Whether it is there at one of them.
pub(super) fn comes(mut is_there: impl FnMut() -> bool, rest: impl Fn(), looks: usize) -> bool {
    (0..looks).any(|look| {
        if look > 0 {
            rest();
        }
        is_there()
    })
}

/// Checks that the device that `config` names is of a kind whose flows can be told apart, where it is there and anything is
/// to be enforced.
///
/// # Errors
/// If it is not.
pub fn check_device(config: &Config) -> Result<(), BoxedError> {
    if config.cgroup.is_none() {
        return Ok(());
    }
    // Whoever uses what cannot be asked now says why, and waits for what is not there yet.
    let Ok(mut socket) = Socket::open() else { return Ok(()) };
    let Ok(Some(ifindex)) = device(&mut socket, &config.device) else { return Ok(()) };
    let checked = Flows::check_device(&mut socket, ifindex);
    checked.map_err(|error| format!("device {}: {}", config.device, chain(&error)).into())
}

/// What is to be said where the device that `config` names is not there and anything is to be enforced, with those that are. Of a
/// node that is a part of this machine it is elsewhere.
pub fn missing_device(config: &Config) -> Option<String> {
    if config.cgroup.is_none() || config.part_of_machine {
        return None;
    }
    // Where that cannot be asked, whoever uses the device says why.
    let there = Socket::open().and_then(|mut socket| interfaces(&mut socket)).ok()?;
    missing_among(&config.device, there.into_iter().map(|(name, _)| name).collect())
}

/// The same, where these devices are there.
fn missing_among(device: &str, mut there: Vec<String>) -> Option<String> {
    if there.iter().any(|name| name == device) {
        return None;
    }
    // Nothing goes to other nodes by this one.
    there.retain(|name| name != "lo");
    there.sort_unstable();
    let more = there.len().saturating_sub(DEVICES_NAMED_MAX);
    there.truncate(DEVICES_NAMED_MAX);
    let others = if more > 0 { format!(", and {more} more") } else { String::new() };
    let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    Some(format!(
        "there is no network device {device}, without which an agent enforces nothing; those that are there: {there}{others}"
    ))
}

/// What is to be said where the device sends less than `config` says: what is reserved beyond that cannot be kept. Of a node that
/// is a part of this machine the device is not among those of the machine.
pub fn slower_device(config: &Config) -> Option<String> {
    if config.cgroup.is_none() || config.part_of_machine {
        return None;
    }
    let (device, said) = (&config.device, config.rate);
    let sends = machine::device_rate(device).filter(|sends| *sends < said)?;
    Some(format!(
        "{device} sends {sends}, and the configuration says {said}: not all that is reserved there can be kept"
    ))
}

/// The device of this name, if it is there.
pub(super) fn device(socket: &mut Socket, name: &str) -> Result<Option<u32>, NetlinkError> {
    let named = |(found, index): (String, u32)| (found == name).then_some(index);
    Ok(interfaces(socket)?.into_iter().find_map(named))
}

pub(super) fn no_device(config: &Config) -> String {
    format!("no network device {}", config.device)
}

/// The device that has taken the place of one that is gone, as when its driver was loaded anew: it has its name, and
/// another number. One that was only renamed is still the one that jobs use.
pub(super) fn successor(name: &str, ifindex: u32, there: &[(String, u32)]) -> Option<u32> {
    if there.iter().any(|(_, index)| *index == ifindex) {
        return None;
    }
    there.iter().find(|(found, _)| found == name).map(|(_, index)| *index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_comes_late_is_waited_for_and_what_never_comes_is_not_for_ever() {
        let (looks, rests) = (Cell::new(0), Cell::new(0));
        let rest = || rests.set(rests.get() + 1);
        let at_look = |number: u32| {
            looks.set(looks.get() + 1);
            looks.get() == number
        };
        assert!(comes(|| at_look(3), rest, 5));
        assert_eq!((looks.take(), rests.take()), (3, 2));
        assert!(!comes(|| at_look(6), rest, 5));
        assert_eq!((looks.take(), rests.take()), (5, 4));
    }

    #[test]
    fn devices_are_found_by_their_names() {
        assert!(is_device("lo"));
        assert!(!is_device("nowhere0"));
    }

    // Goal: a device that is typed wrongly is told before an agent waits for it, with what could have been meant, however many
    // there are.
    #[test]
    fn a_device_that_is_not_there_is_told_with_those_that_are() {
        let told = |device: &str, there: &[&str]| {
            missing_among(device, there.iter().map(|name| (*name).to_owned()).collect())
        };
        assert_eq!(told("eth0", &["lo", "eth0"]), None);
        let told_of = |there: &[&str]| told("eht0", there).unwrap();
        assert!(told_of(&["lo"]).starts_with("there is no network device eht0, "));
        assert!(told_of(&["lo"]).ends_with("those that are there: none"));
        assert!(told_of(&["lo", "ib0", "eth0"]).ends_with(": eth0, ib0"));
        let many: Vec<_> = (10..30).map(|number| format!("veth{number}")).collect();
        let many = told_of(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(many.ends_with(", veth24, veth25, and 4 more"), "{many}");
    }

    #[test]
    fn a_device_that_comes_again_is_followed_and_one_that_is_renamed_is_kept() {
        let there = |devices: &[(&str, u32)]| -> Vec<(String, u32)> {
            devices.iter().map(|(name, index)| ((*name).to_owned(), *index)).collect()
        };
        assert_eq!(successor("eth0", 3, &there(&[("lo", 1), ("eth0", 3)])), None);
        assert_eq!(successor("eth0", 3, &there(&[("lo", 1)])), None);
        assert_eq!(successor("eth0", 3, &there(&[("lo", 1), ("eth0", 7)])), Some(7));
        assert_eq!(successor("eth0", 3, &there(&[("lan0", 3), ("eth0", 7)])), None);
    }
}
