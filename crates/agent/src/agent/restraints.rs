//! The CPU that jobs use at most, where that is less than they were assigned.

use keeptime_model::name::Name;
use keeptime_model::units::CpuPpm;
use std::collections::BTreeMap;

/// What each connection has said of a job, by their numbers, the last one last. Not recorded: jobs have all of theirs when in
/// doubt.
#[derive(Debug, Default)]
pub(super) struct Restraints(BTreeMap<Name, Said>);

/// What was said of one job.
type Said = Vec<(u64, CpuPpm)>;

impl Restraints {
    /// What a job is restrained to: what was said last among those that are still connected.
    pub fn of(&self, job: &Name) -> Option<CpuPpm> {
        self.0.get(job)?.last().map(|(_, cpu)| *cpu)
    }

    /// Whether a connection restrains any job.
    pub fn are_held_by(&self, connection: u64) -> bool {
        self.0.values().flatten().any(|(other, _)| *other == connection)
    }

    /// A connection restrains a job, whatever it or others have said; what that was.
    pub fn add(&mut self, job: &Name, connection: u64, cpu: CpuPpm) -> Said {
        let said = self.0.entry(job.clone()).or_default();
        let former = said.clone();
        said.retain(|(other, _)| *other != connection);
        said.push((connection, cpu));
        former
    }

    /// Nobody restrains a job any more; what was said of it.
    pub fn clear(&mut self, job: &Name) -> Said {
        self.0.remove(job).unwrap_or_default()
    }

    /// It is as it was said before.
    pub fn restore(&mut self, job: &Name, former: Said) {
        self.0.insert(job.clone(), former);
    }

    /// A connection has ended; which jobs it restrained.
    pub fn leave(&mut self, connection: u64) -> Vec<Name> {
        let mut held = Vec::new();
        for (job, said) in &mut self.0 {
            let before = said.len();
            said.retain(|(other, _)| *other != connection);
            if said.len() < before {
                held.push(job.clone());
            }
        }
        held
    }

    /// Forgets jobs that are no longer there.
    pub fn retain(&mut self, is_there: impl Fn(&Name) -> bool) {
        self.0.retain(|job, said| is_there(job) && !said.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a job is held as whoever said so last wants it, as long as anybody is there who holds it. Method: two who say the
    // same, and one who then says less.
    #[test]
    fn a_job_is_held_as_long_as_anybody_holds_it() {
        let job: Name = "r1".parse().unwrap();
        let [half, quarter] = [50, 25].map(CpuPpm::from_percent);
        let mut restraints = Restraints::default();
        restraints.add(&job, 1, half);
        restraints.add(&job, 2, half);
        assert_eq!(restraints.leave(1), std::slice::from_ref(&job));
        assert_eq!(restraints.of(&job), Some(half));
        restraints.add(&job, 3, quarter);
        restraints.add(&job, 3, quarter);
        assert_eq!(restraints.of(&job), Some(quarter));
        assert_eq!([1, 2, 3].map(|other| restraints.are_held_by(other)), [false, true, true]);
        assert_eq!(restraints.leave(3), std::slice::from_ref(&job));
        assert_eq!(restraints.of(&job), Some(half), "the other is still there");
        assert_eq!(restraints.leave(2), std::slice::from_ref(&job));
        assert!(restraints.leave(2).is_empty());
        assert_eq!(restraints.of(&job), None);
        restraints.add(&job, 4, half);
        restraints.clear(&job);
        assert_eq!(restraints.of(&job), None);
    }

    #[test]
    fn a_job_that_has_ended_is_forgotten() {
        let job: Name = "r1".parse().unwrap();
        let mut restraints = Restraints::default();
        restraints.add(&job, 1, CpuPpm::from_percent(5));
        restraints.retain(|there| *there == job);
        assert!(restraints.of(&job).is_some());
        restraints.retain(|_| false);
        assert_eq!(restraints.of(&job), None);
    }
}
