//! For tests that need privilege: a fresh network namespace on a thread of its own, and a skip
//! that tells its reason.
//!
//! `LAB_REQUIRE=htb,clsact` (or `all`) in the environment turns a skip for one of these into a
//! failure, so that a machine that should run the tests cannot quietly stop doing so.

pub mod rig;
pub mod scenario;

use crate::netlink::Socket;
use crate::tc::{Attach, Op, Place, Shaper, TREE_MAJOR, apply};
use keeptime_model::units::{BitsPerSecond, Bytes};
use nix::sched::{CloneFlags, unshare};

/// Runs `test` in a network namespace that only its thread has, once everything in `needs` was
/// found there (`netns` goes without saying; `htb`, `tbf`). Otherwise prints `skipped: reason`.
///
/// # Panics
/// If the test does, or if something is missing that `LAB_REQUIRE` names.
pub fn in_network_namespace(needs: &[&str], test: impl FnOnce() + Send + 'static) {
    let needs: Vec<String> = needs.iter().map(|need| (*need).to_owned()).collect();
    let thread = std::thread::spawn(move || {
        match needs_met(&needs) {
            Ok(()) => test(),
            Err((need, reason)) => skip(&need, &reason),
        };
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Says that a test did not run and why, or fails where `LAB_REQUIRE` names `need`.
///
/// # Panics
/// In the latter case.
pub fn skip(need: &str, reason: &str) {
    let required = std::env::var("LAB_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').map(str::trim).any(|name| name == need || name == "all");
    assert!(!is_required, "LAB_REQUIRE names {need}, but {reason}");
    println!("skipped: {need}: {reason}");
}

fn needs_met(needs: &[String]) -> Result<(), (String, String)> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|errno| ("netns".to_owned(), format!("no new network namespace: {errno}")))?;
    for need in needs {
        probe(need).map_err(|reason| (need.clone(), reason))?;
    }
    Ok(())
}

/// Tries the mechanism on the loopback interface of the new namespace and takes it off again.
fn probe(need: &str) -> Result<(), String> {
    let place = Place { ifindex: LOOPBACK, attach: Attach::Root, major: TREE_MAJOR };
    let shaper = Shaper {
        ifindex: LOOPBACK,
        major: TREE_MAJOR,
        rate: BitsPerSecond::from_mbit(100),
        burst: Bytes::new(100_000),
        limit: 100_000,
    };
    let op = match need {
        "htb" => Op::AddTree { default_minor: 1 },
        "tbf" => Op::SetShaper(shaper),
        _ => return Ok(()),
    };
    let mut socket = Socket::open().map_err(|error| error.to_string())?;
    apply(&mut socket, &place, &[op, Op::RemovePlace]).map_err(|error| error.to_string())
}

const LOOPBACK: u32 = 1;
