//! The nodes that a command may use where it is part of a job of Slurm's: those of the job.

use crate::place::{NodesConfig, Where};
use keeptime_launch::slurm::Allocation;
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use std::collections::BTreeSet;

/// The job that this process is part of; nothing where there is none, or what is asked is a lab, whose nodes Slurm does not
/// have.
///
/// # Errors
/// If what its environment says makes no sense.
pub fn around(broker: &Where) -> Result<Option<Allocation>, Invalid> {
    match broker {
        Where::Lab(_) => Ok(None),
        Where::Socket(_) | Where::Remote(..) => {
            Allocation::of(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        }
    }
}

/// Sees to it that a command which reserves is not run once for each task of a step.
///
/// # Errors
/// If `srun` has started several of this command.
pub fn check_once() -> Result<(), Invalid> {
    let tasks = std::env::var(TASKS).unwrap_or_default();
    // A shell on a terminal runs in the first task alone.
    let has_terminal = std::env::var_os(TERMINAL).is_some();
    if !has_terminal && tasks.parse().is_ok_and(|tasks: u32| tasks > 1) {
        let expected = "1: Keeptime reserves for all of a job, and starts a rank on each node itself, so it \
                        is called by the job's script, without srun";
        return Err(Invalid::new(TASKS, tasks, expected));
    }
    Ok(())
}

/// Those of `nodes` that are its own, by their names or by what launchers call them.
///
/// # Errors
/// If there is none.
pub fn own<'a>(
    allocation: &Allocation,
    config: &NodesConfig,
    nodes: impl Iterator<Item = &'a Name> + Clone,
) -> Result<BTreeSet<Name>, Invalid> {
    let has = |host: &str| allocation.hosts.iter().any(|own| own == host);
    let is_own =
        |name: &&Name| has(name.as_str()) || config.hosts.get(*name).is_some_and(|host| has(host));
    let own: BTreeSet<_> = nodes.clone().filter(is_own).cloned().collect();
    if own.is_empty() {
        let known = nodes.map(Name::as_str).take(NAMED_MAX).collect::<Vec<_>>().join(", ");
        let expected = format!("some nodes that Keeptime has, as {known}; or say --among");
        return Err(Invalid::new("nodes of Slurm's job", allocation.hosts.join(","), expected));
    }
    Ok(own)
}

/// Says so where the job has nodes that Keeptime does not: a request for all of them is refused.
pub fn tell_others(allocation: &Allocation, own: usize) {
    let all = allocation.hosts.len();
    if own < all {
        let job = allocation.job;
        eprintln!("of the {all} nodes of Slurm's job {job} Keeptime has {own}, which are used");
    }
}

/// How many tasks the step of Slurm's has that a process is one of.
const TASKS: &str = "SLURM_STEP_NUM_TASKS";
/// There where `srun --pty` has given the first task a terminal.
const TERMINAL: &str = "SLURM_PTY_PORT";
/// Of the nodes of a cluster an error names so many.
const NAMED_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a job gets its own nodes, whatever they are called where. Method: one by its name, one by what launchers call it,
    // one that Keeptime does not have; and none at all.
    #[test]
    fn nodes_are_known_by_either_name() {
        let names = ["n1", "n2", "n3"].map(|name| name.parse::<Name>().unwrap());
        let hosts = [(names[1].clone(), "second".to_owned())].into();
        let config = NodesConfig { hosts, ..NodesConfig::default() };
        let of = |hosts: &[&str]| {
            let hosts = hosts.iter().map(ToString::to_string).collect();
            own(&Allocation { job: 1, hosts }, &config, names.iter())
        };
        assert_eq!(of(&["n1", "second", "gpu1"]).unwrap(), names[..2].iter().cloned().collect());
        let error = of(&["gpu1"]).unwrap_err().to_string();
        assert!(error.contains("gpu1") && error.contains("n1, n2, n3; or say --among"), "{error}");
    }
}
