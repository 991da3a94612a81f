//! What Slurm has given to the job that a process is part of, as its environment tells (pure).

use crate::hostlist::expanded;
use crate::remote::{HOST, Launcher};
use keeptime_model::Invalid;
use std::iter;

/// An allocation: nodes that a job of Slurm's has until it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// The job's number; of a job array that of the task.
    pub job: u64,
    /// The names that Slurm knows its nodes by, in its order.
    pub hosts: Vec<String>,
}

impl Allocation {
    /// That of the job whose variables these are; nothing where there is none.
    ///
    /// # Errors
    /// If what they say makes no sense.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Invalid> {
        let Some(job) = variable(JOB) else { return Ok(None) };
        let number = job.parse().map_err(|_| Invalid::new(JOB, &job, "a job's number"))?;
        let hosts = variable(HOSTS).unwrap_or_default();
        Ok(Some(Self { job: number, hosts: expanded(HOSTS, &hosts)? }))
    }

    /// What starts a command on one of its nodes, as a step of the job beside all others: Slurm counts it to the job, and ends
    /// it with that. What of the node it may use is Keeptime's business, or that of whoever asked for the allocation.
    pub fn launcher(&self) -> Launcher {
        let text = format!(
            "srun --quiet --jobid={} --overlap --nodes=1 --ntasks=1 --mem=0 --cpu-bind=none --mpi=none \
             --export=ALL --nodelist={HOST} /bin/sh -c",
            self.job
        );
        Launcher::of_words(text.split_whitespace())
    }
}

/// A command line for launchers of MPI that keeps Slurm from them: of variables called `names`, they would take those of Slurm
/// for a wish to start everything by its own means. As it is where there are none.
pub fn unseen(names: impl Iterator<Item = String>, command: Vec<String>) -> Vec<String> {
    let hidden = names.filter(|name| tells_of_job(name));
    let hidden: Vec<_> = hidden.flat_map(|name| ["-u".to_owned(), name]).collect();
    if hidden.is_empty() {
        return command;
    }
    iter::once("env".to_owned()).chain(hidden).chain(command).collect()
}

/// Whether the variable `name` is by which Slurm has launchers of MPI, or its own commands, do otherwise than they are told. What
/// programs have use of stays: which task of an array they are, and what the job is called.
pub fn tells_of_job(name: &str) -> bool {
    let begins = |with: &[&str]| with.iter().any(|start| name.starts_with(start));
    begins(&OF_SLURM) && !begins(&OF_USERS)
}

const JOB: &str = "SLURM_JOB_ID";
const HOSTS: &str = "SLURM_JOB_NODELIST";
/// With what names of variables begin by which Slurm tells a program about itself,
const OF_SLURM: [&str; 6] = ["SLURM_", "SLURMD_", "_SLURM_", "SRUN_", "PMI_", "PMIX_"];
/// and those that are of use to programs, of its configuration (`SLURM_CONF`), or its users' own.
const OF_USERS: [&str; 5] =
    ["SLURM_ARRAY_", "SLURM_SUBMIT_", "SLURM_JOB_NAME", "SLURM_CONF", "PMIX_MCA_"];

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(job: &str, hosts: &str) -> Result<Option<Allocation>, Invalid> {
        Allocation::of(|name| match name {
            JOB => Some(job.into()),
            HOSTS => Some(hosts.into()),
            _ => None,
        })
    }

    #[test]
    fn an_allocation_is_a_number_and_a_list_of_names() {
        let found = allocation("12", "n[08-10],gpu1").unwrap().unwrap();
        assert_eq!((found.job, found.hosts.join(" ").as_str()), (12, "n08 n09 n10 gpu1"));
        assert_eq!(Allocation::of(|_| None), Ok(None));
        for (job, hosts, field) in [("12", "n[1", HOSTS), ("twelve", "n1", JOB)] {
            let error = allocation(job, hosts).unwrap_err();
            assert_eq!(error.field, field, "{error}");
        }
    }

    #[test]
    fn steps_run_beside_each_other_on_the_node_that_is_named() {
        let launcher = allocation("12", "n[1-2]").unwrap().unwrap().launcher();
        let line = launcher.line("n2", &["echo".into(), "a b".into()]);
        assert_eq!((line[0].as_str(), line.last().unwrap().as_str()), ("srun", "echo 'a b'"));
        let line = line.join(" ");
        assert!(
            line.contains("--jobid=12 --overlap ") && line.contains("--nodelist=n2 /bin/sh -c"),
            "{line}"
        );
        assert_eq!(launcher.to_string().parse(), Ok(launcher));
    }

    #[test]
    fn launchers_of_mpi_do_not_see_slurm() {
        let names =
            ["HOME", "SLURM_JOB_ID", "SLURM_CONF", "PMI_RANK", "SLURMD_NODENAME", "MY_SLURM_X"];
        let line = unseen(names.map(String::from).into_iter(), vec!["mpiexec".into()]);
        assert_eq!(line.join(" "), "env -u SLURM_JOB_ID -u PMI_RANK -u SLURMD_NODENAME mpiexec");
        let elsewhere = unseen(["HOME".to_owned()].into_iter(), vec!["mpiexec".into()]);
        assert_eq!(elsewhere, ["mpiexec"]);
        let told = ["SLURM_ARRAY_TASK_ID", "SLURM_JOB_NAME", "PMIX_MCA_gds"].map(tells_of_job);
        assert_eq!(told, [false; 3], "programs use them");
    }
}
