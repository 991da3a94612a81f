//! What Slurm has given to the job that a process is part of, as its environment tells (pure).

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
        Ok(Some(Self { job: number, hosts: expanded(&hosts)? }))
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

/// The names that a list of Slurm's stands for, as in `n[1-3,07],gpu1`: numbers keep their leading zeros.
///
/// # Errors
/// If it is no such list, or stands for more than 65,536.
pub fn expanded(list: &str) -> Result<Vec<String>, Invalid> {
    let invalid = || Invalid::new(HOSTS, list, "names of nodes, as in n[1-3,07],gpu1");
    let mut names = Vec::new();
    for pattern in split_outside(list).ok_or_else(invalid)? {
        let more = expanded_one(pattern).filter(|more| names.len() + more.len() <= HOSTS_MAX);
        names.extend(more.ok_or_else(invalid)?);
    }
    Ok(names)
}

/// Parts between commas that are in no brackets.
fn split_outside(list: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (at, letter) in list.char_indices() {
        match letter {
            '[' | ']' if is_inside == (letter == '[') => return None,
            '[' | ']' => is_inside = letter == '[',
            ',' if !is_inside => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    (!is_inside && parts.iter().all(|part| !part.is_empty())).then_some(parts)
}

/// A name with any number of lists of numbers in brackets, each of which stands for all its numbers.
fn expanded_one(pattern: &str) -> Option<Vec<String>> {
    let Some((before, rest)) = pattern.split_once('[') else { return Some(vec![pattern.into()]) };
    let (inside, after) = rest.split_once(']')?;
    let numbers: Vec<_> = inside.split(',').map(numbers).collect::<Option<_>>()?;
    let endings = expanded_one(after)?;
    let count = numbers.iter().map(Vec::len).sum::<usize>().checked_mul(endings.len())?;
    if count > HOSTS_MAX {
        return None;
    }
    let numbers = numbers.iter().flatten();
    let all = numbers.flat_map(|number| endings.iter().map(move |end| (number, end)));
    Some(all.map(|(number, end)| format!("{before}{number}{end}")).collect())
}

/// `7`, or `07-12`: as wide as the first is written.
fn numbers(range: &str) -> Option<Vec<String>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| is_number)
    };
    let (from, to, width) = (number(first)?, number(last)?, first.len());
    let is_bounded = from <= to && to - from < HOSTS_MAX as u64;
    is_bounded.then(|| (from..=to).map(|number| format!("{number:0width$}")).collect())
}

const JOB: &str = "SLURM_JOB_ID";
const HOSTS: &str = "SLURM_JOB_NODELIST";
/// With what names of variables begin by which Slurm tells a program about itself,
const OF_SLURM: [&str; 6] = ["SLURM_", "SLURMD_", "_SLURM_", "SRUN_", "PMI_", "PMIX_"];
/// and those that are of use to programs, of its configuration (`SLURM_CONF`), or its users' own.
const OF_USERS: [&str; 5] =
    ["SLURM_ARRAY_", "SLURM_SUBMIT_", "SLURM_JOB_NAME", "SLURM_CONF", "PMIX_MCA_"];
/// No cluster has more: a list of a few letters can stand for as many as it likes.
const HOSTS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn allocation(job: &str, hosts: &str) -> Result<Option<Allocation>, Invalid> {
        Allocation::of(|name| match name {
            JOB => Some(job.into()),
            HOSTS => Some(hosts.into()),
            _ => None,
        })
    }

    #[test]
    fn nodes_are_told_by_lists_of_names() {
        for (list, expected) in [
            ("n1", "n1"),
            ("n1,n3", "n1 n3"),
            ("n[1-3,07]", "n1 n2 n3 n07"),
            ("n[08-11],gpu1", "n08 n09 n10 n11 gpu1"),
            ("rack[0-1]n[1,3]-ib", "rack0n1-ib rack0n3-ib rack1n1-ib rack1n3-ib"),
        ] {
            let found = allocation("12", list).unwrap().unwrap();
            assert_eq!(found.hosts.join(" "), expected, "{list}");
            assert_eq!(found.job, 12);
        }
    }

    #[test]
    fn what_is_no_list_is_refused_and_none_is_too_long() {
        for list in [
            "",
            "n[1",
            "n1]",
            "n[[1]]",
            "n[3-1]",
            "n[a]",
            "n[-1]",
            "n[+1]",
            "n1,,n2",
            "n[1-99999999]",
        ] {
            let error = allocation("12", list).unwrap_err().to_string();
            assert!(error.contains(HOSTS) && error.contains("n[1-3,07]"), "{list}: {error}");
        }
        assert!(expanded("n[1-50000],m[1-50000]").is_err());
        assert!(expanded("n[0-999][0-999]").is_err());
        assert!(allocation("twelve", "n1").unwrap_err().to_string().contains(JOB));
        assert_eq!(Allocation::of(|_| None), Ok(None));
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

    proptest! {
        #[test]
        fn any_list_ends_and_is_bounded(list in "[a-c0-3,\\[\\]-]{0,24}") {
            if let Ok(names) = expanded(&list) {
                prop_assert!(names.len() <= HOSTS_MAX);
                prop_assert!(names.iter().all(|name| !name.contains(['[', ']', ','])));
            }
        }
    }
}
