//! A lab's nodes: `keeptime lab exec` enters them.

use super::{Ranks, RemoteLauncher, mpi_alone};
use crate::cluster::{own_path, socket_in};
use anyhow::Result;
use keeptime_lab::{FRONT_END, Lab};
use keeptime_launch::mpi::{Bond, Launch, Mpi, Network};
use keeptime_model::name::Name;
use std::path::PathBuf;

pub(super) fn agent_socket(lab: &Lab, node: &Name) -> PathBuf {
    socket_in(&lab.node_directory(node))
}

pub(super) fn mpi_line(
    lab: &Lab,
    mpi: &Mpi,
    ranks: &Ranks<'_>,
    command: &[String],
) -> Result<(Vec<String>, RemoteLauncher)> {
    let hosts: Vec<_> = ranks.addresses()?.iter().map(ToString::to_string).collect();
    let remote = remote_launcher(lab, ranks.job)?;
    // Daemons go on by themselves, inside of the job's group.
    let bond = Bond::Loose;
    let (remote_path, network) = (remote.path(), network(lab));
    let launch = Launch { hosts: &hosts, remote: remote_path, bond, network, passed: &[] };
    Ok((exec_line(lab, FRONT_END, None, &mpi_alone(mpi, &launch, command)?)?, remote))
}

/// The network as MPI's launchers must be told.
pub fn network(lab: &Lab) -> Network {
    let (subnet, front_end_device) = lab.network_names();
    let (launchers, node_device) = (Some(subnet.clone()), Some(lab.device().into()));
    Network { ranks: subnet, launchers, front_end_device, node_device }
}

/// The command line that runs `command` on a node or the front end, as part of `job` if one is named. For this process: it
/// ends with that.
///
/// # Errors
/// If this program cannot find itself.
pub fn exec_line(
    lab: &Lab,
    place: &str,
    job: Option<&Name>,
    command: &[String],
) -> Result<Vec<String>> {
    let mut line = vec![own_path()?.display().to_string(), "lab".into(), "exec".into()];
    line.extend(["--die-with-parent".to_string(), "--parent".into()]);
    line.push(std::process::id().to_string());
    if let Some(job) = job {
        line.extend(["--job".into(), job.to_string()]);
    }
    line.extend([lab.name().to_string(), place.to_string()]);
    line.extend(["--".to_string()]);
    line.extend(command.iter().cloned());
    Ok(line)
}

/// The script with which MPI starts its daemons on other nodes for `job`, or for nobody.
fn remote_launcher(lab: &Lab, job: Option<&Name>) -> Result<RemoteLauncher> {
    let (whose, option) = match job {
        Some(job) => (job.as_str(), format!("--job {job} ")),
        None => ("of-nobody", String::new()),
    };
    // Options of ssh come first and mean nothing here; the rest is one shell command.
    let script = format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n\
         exec '{}' lab exec --die-with-parent --parent \"$PPID\" {option}{} \"$host\" -- /bin/sh -c \"$*\"\n",
        own_path()?.display(),
        lab.name(),
    );
    RemoteLauncher::new(lab.directory(), whose, &script)
}
