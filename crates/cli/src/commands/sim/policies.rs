//! Which policies are compared.

use keeptime_whatif::policy::Choice;
use keeptime_whatif::trace::Submission;

/// Those that were asked for, or else what Keeptime has for jobs with deadlines, and what there is without it: by deadlines
/// alone where that does not take too long, which is told on standard error.
pub(super) fn compared(asked: &[Choice], jobs: &[Submission], nodes: u32) -> Vec<Choice> {
    let all = [Choice::Keeptime, Choice::KeeptimeBy, Choice::FcfsBackfill, Choice::None];
    match (asked, why_it_takes_long(jobs, nodes)) {
        ([], None) => all.into(),
        ([], Some(why)) => {
            let by = Choice::KeeptimeBy;
            eprintln!("{by} is left out, since it takes long {why}: --policy {by} has it");
            all.into_iter().filter(|policy| *policy != by).collect()
        }
        (asked, _) => each_once(asked),
    }
}

/// In the order in which they were named first: a second time would come to the same.
pub(super) fn each_once<P: Copy + PartialEq>(asked: &[P]) -> Vec<P> {
    let is_first = |(at, policy): &(usize, &P)| !asked[..*at].contains(policy);
    asked.iter().enumerate().filter(is_first).map(|(_, policy)| *policy).collect()
}

/// Why it takes long to have these jobs ask by themselves, if it does: each asks beside all that is reserved of every node,
/// and all who wait ask again whenever a job has ended, whose number grows without end where there is more to do than can
/// be done.
fn why_it_takes_long(jobs: &[Submission], nodes: u32) -> Option<String> {
    if nodes > BY_NODES_MAX {
        return Some(format!("on more than {BY_NODES_MAX} nodes"));
    }
    let load = offered_load(jobs, nodes);
    let is_soon = load <= 1.0 || jobs.len() <= BY_JOBS_MAX;
    (!is_soon).then(|| format!("where jobs ask for more than all nodes, {load:.2} times as much"))
}

/// What is asked for while jobs are submitted, of all that so many nodes have then. Jobs are in that order; who is too large
/// is refused and does not count.
fn offered_load(jobs: &[Submission], nodes: u32) -> f64 {
    let [Some(first), Some(last)] = [jobs.first(), jobs.last()] else { return 0.0 };
    let fitting = jobs.iter().filter(|job| job.nodes <= nodes);
    let work: f64 = fitting.map(|job| job.run as f64 * f64::from(job.nodes)).sum();
    let seconds = (last.submitted - first.submitted).max(1);
    work / (seconds as f64 * f64::from(nodes))
}

/// On so many nodes ten thousand jobs take a minute or two.
const BY_NODES_MAX: u32 = 512;
/// So few take a second or two, however much they ask for.
const BY_JOBS_MAX: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_whatif::trace::Class;

    /// Jobs of 10 s on one node, one every so many seconds.
    fn every(seconds: u64, jobs: u64) -> Vec<Submission> {
        let job = |at| Submission {
            submitted: at * seconds,
            run: 10,
            requested: 10,
            nodes: 1,
            deadline: at * seconds + 20,
            class: Class::Normal,
        };
        (0..jobs).map(job).collect()
    }

    #[test]
    fn load_is_what_is_asked_for_of_what_there_is() {
        assert_eq!(offered_load(&every(5, 101), 2), 1.01);
        assert_eq!(offered_load(&every(5, 101), 4), 0.505);
        let mut jobs = every(5, 101);
        jobs[50].nodes = 3;
        assert_eq!(offered_load(&jobs, 2), 1.0, "it is too large");
        assert_eq!(offered_load(&every(5, 1), 2), 5.0, "at once is within a second");
        assert_eq!(offered_load(&[], 2), 0.0);
    }

    // Goal: what takes hours is run for who asks for it, and for nobody else.
    #[test]
    fn many_jobs_that_wait_for_ever_ask_by_themselves_only_if_it_is_said() {
        let by = Choice::KeeptimeBy;
        let has_by = |asked: &[Choice], jobs: &[Submission], nodes| {
            compared(asked, jobs, nodes).contains(&by)
        };
        let (many, few) = (every(4, 501), every(4, 500));
        assert!(has_by(&[], &few, 2) && has_by(&[], &many, 4));
        assert!(!has_by(&[], &many, 2) && !has_by(&[], &few, 513));
        assert!(has_by(&[by], &many, 2) && has_by(&[by], &many, 513));
    }

    #[test]
    fn who_is_named_twice_is_there_once() {
        assert_eq!(each_once(&[3, 1, 3, 2, 1]), [3, 1, 2]);
    }
}
