//! For tests that need privilege: a fresh network namespace on a thread of its own, and a skip
//! that tells its reason.
//!
//! `LAB_REQUIRE=htb,bpf` (or `all`) in the environment turns a skip for one of these into a
//! failure, so that a machine that should run the tests cannot quietly stop doing so.

pub mod marks;
pub mod rig;
pub mod scenario;
mod speed;

use crate::probe::try_on_loopback;
use aya::programs::ProgramType;
use keeptime_model::capability::Feature;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::io::Write;
use std::path::Path;

/// Runs `test` in a network namespace that only its thread has, if everything in `needs` is there
/// (see [`can`]).
///
/// # Panics
/// If the test does, or if something is missing that `LAB_REQUIRE` names.
pub fn in_network_namespace(needs: &[&str], test: impl FnOnce() + Send + 'static) {
    let needs: Vec<String> = needs.iter().map(|need| (*need).to_owned()).collect();
    let thread = std::thread::spawn(move || match needs_met(&needs) {
        Ok(()) => test(),
        Err((missing, reason)) => skip(&missing, &reason),
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// True if everything in `needs` is there: `htb`, `tbf`, `bpf`, `cgroup2`, and `speed` for what a
/// machine cannot show whose memory is far slower than memory is, or which stands still now and then; network namespaces go without
/// saying. Otherwise says what is missing. What is tried is the mechanism, not our use of it, so that
/// a fault of ours never looks like a poor kernel.
///
/// # Panics
/// If something is missing that `LAB_REQUIRE` names.
pub fn can(needs: &[&str]) -> bool {
    let needs: Vec<String> = needs.iter().map(|need| (*need).to_owned()).collect();
    let probed = std::thread::spawn(move || needs_met(&needs)).join();
    match probed {
        Ok(Ok(())) => true,
        Ok(Err((missing, reason))) => {
            skip(&missing, &reason);
            false
        }
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A file system of 4 MiB at `mount_point`, seen by this thread and what it starts, and gone with them.
///
/// # Errors
/// Without privilege.
pub fn mount_tiny(mount_point: &Path) -> nix::Result<()> {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("tmpfs"), mount_point, Some("tmpfs"), MsFlags::empty(), Some("size=4m"))
}

/// Says that a test did not run and why, or fails where `LAB_REQUIRE` names one of `missing`.
///
/// # Panics
/// In the latter case.
pub fn skip(missing: &[String], reason: &str) {
    let required = std::env::var("LAB_REQUIRE").unwrap_or_default();
    let is_required =
        |name: &str| name == "all" || missing.iter().any(|missing| missing == name.trim());
    let missing = missing.join(", ");
    assert!(!required.split(',').any(is_required), "LAB_REQUIRE={required}, but {reason}");
    // Past what captures the output of tests that pass: whoever counts them is to see it.
    let _ = writeln!(std::io::stdout(), "skipped: {missing}: {reason}");
}

/// Enters a new network namespace for good and looks for `needs` there. The error: what is
/// missing (all of it, without a namespace), and why.
fn needs_met(needs: &[String]) -> Result<(), (Vec<String>, String)> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| {
        let everything = std::iter::once("netns".to_owned()).chain(needs.iter().cloned());
        (everything.collect(), format!("no new network namespace: {errno}"))
    })?;
    for need in needs {
        probe(need).map_err(|reason| (vec![need.clone()], reason))?;
    }
    Ok(())
}

fn probe(need: &str) -> Result<(), String> {
    match need {
        "htb" => try_on_loopback(Feature::TrafficClasses).map_err(|trouble| trouble.text),
        "tbf" => try_on_loopback(Feature::TrafficShaper).map_err(|trouble| trouble.text),
        "bpf" => match aya::sys::is_program_supported(ProgramType::SchedClassifier) {
            Ok(true) => Ok(()),
            Ok(false) => Err("no eBPF classifiers in this kernel, or no right to use them".into()),
            Err(error) => Err(error.to_string()),
        },
        "cgroup2" => {
            let root = rig::cgroup_v2_root().ok_or("no cgroup v2 hierarchy is mounted")?;
            let writable = nix::unistd::access(&root, nix::unistd::AccessFlags::W_OK);
            writable.map_err(|errno| format!("{}: {errno}", root.display()))
        }
        "speed" => speed::probe(),
        other => panic!("a test needs {other:?}, which nobody knows how to look for"),
    }
}
