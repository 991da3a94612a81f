//! The book, the record of it and the kernel agree, whatever fails in between, whatever clocks do, and whenever the agent
//! is killed.

use super::Agent;
use crate::book::Book;
use crate::enforcer::{BoxedError, Enforcer, Failures, Scope};
use keeptime_model::assignment::Assignment;
use keeptime_model::name::Name;
use keeptime_model::units::WallTime;
use std::collections::BTreeMap;

impl<E: Enforcer> Agent<E> {
    /// Begins what is due at `now`, ends what is over and repairs what somebody else changed in the
    /// kernel.
    ///
    /// # Errors
    /// If the kernel or the record refuses; the next tick tries again.
    pub fn tick(&mut self, now: WallTime) -> Result<(), BoxedError> {
        self.now = now;
        for job in self.book.expired(now) {
            self.drop_from_book(&job);
        }
        self.forget_the_ended();
        // The kernel waits for no disk.
        let recorded = self.record();
        self.reconcile().map_err(BoxedError::from).and(recorded)
    }

    /// What the kernel is to enforce, without what is restrained.
    pub(super) fn wanted(&self) -> BTreeMap<Name, Assignment> {
        self.book.wanted(&self.come, &self.capacity, self.now)
    }

    /// Makes the kernel agree with the book where that has changed, and where it is about `job`: what others may have changed
    /// of another job is looked at by the next tick. An error is what counts for `job`: what others do not have is in nobody's
    /// way, and told by the next tick.
    pub(super) fn reconcile_for(&mut self, job: &Name) -> Result<(), BoxedError> {
        let failures = self.agree(Some(job)).err();
        failures.and_then(|failures| failures.into_failure_of(job)).map_or(Ok(()), Err)
    }

    /// Makes the kernel agree with the book, whatever it has.
    fn reconcile(&mut self) -> Result<(), Failures> {
        self.agree(None)
    }

    fn agree(&mut self, about: Option<&Name>) -> Result<(), Failures> {
        let mut wanted = self.wanted();
        self.come = self.book.come(&wanted);
        for (job, assignment) in &mut wanted {
            if let Some(most) = self.restraints.of(job) {
                assignment.cpu_ppm = assignment.cpu_ppm.min(most);
            }
        }
        let scope = about.map_or(Scope::All, |about| {
            let changes = wanted
                .iter()
                .filter(|(job, new)| *job == about || self.agreed.get(*job) != Some(*new));
            Scope::Jobs(changes.map(|(job, _)| job.clone()).collect())
        });
        let agreed = self.enforcer.reconcile(&wanted, &scope);
        if let Err(failures) = &agreed {
            wanted.retain(|job, _| !failures.concern(job));
        }
        self.agreed = wanted;
        agreed
    }

    /// Has the record say what the book does.
    fn record(&mut self) -> Result<(), BoxedError> {
        if !self.is_recorded {
            self.store.save(&self.book)?;
            self.is_recorded = true;
        }
        Ok(())
    }

    /// Records `book`, which a restarted agent would start from, and turns to it.
    pub(super) fn remember(&mut self, book: Book) -> Result<(), BoxedError> {
        self.store.save(&book)?;
        (self.book, self.is_recorded) = (book, true);
        Ok(())
    }

    /// A job is no longer there, whether that can be recorded or not: a tick records it when it can.
    fn drop_from_book(&mut self, job: &Name) {
        if self.book.remove(job) {
            self.is_recorded = false;
            // The next job may have its name.
            self.forget_the_ended();
        }
    }

    /// Forgets all but the record of jobs that are not in the book.
    fn forget_the_ended(&mut self) {
        self.programs.retain(|job| self.book.assignments().contains_key(job));
        self.restraints.retain(|job| self.book.assignments().contains_key(job));
    }

    /// Records `book`, in which `job` is new or other, then makes the kernel agree; goes back to the former one if it
    /// does not.
    pub(super) fn turn_to(&mut self, book: Book, job: &Name) -> Result<(), BoxedError> {
        let former = (self.book.clone(), self.come.clone());
        self.remember(book)?;
        let Err(error) = self.reconcile_for(job) else { return Ok(()) };
        (self.book, self.come) = former;
        self.is_recorded = false;
        // What is answered is why the kernel does not; a tick records it when this does not.
        let _ = self.record();
        self.reconcile_for(job)?;
        Err(error)
    }

    /// `job` is given back: that is recorded, and the kernel made to agree. Where either fails, the next
    /// tick tries again: whoever gave it back counts on it, and takes no notice of the answer.
    pub(super) fn give_back(&mut self, job: &Name) -> Result<(), BoxedError> {
        self.drop_from_book(job);
        let recorded = self.record();
        self.reconcile_for(job).and(recorded)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FakeKernel, ROOT, assignment, at, start};
    use super::*;
    use crate::store::Store;
    use crate::wire::{Request, Response};
    use keeptime_model::assignment::LaterCpu;
    use keeptime_model::units::CpuPpm;
    use std::path::Path;

    #[test]
    fn what_the_kernel_refuses_leaves_everything_as_before() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        assert_eq!(agent.answer(Request::Enforce(assignment("a", 9)), ROOT, at(1)), Response::Done);
        let answer = agent.answer(Request::Enforce(assignment("bad", 9)), ROOT, at(1));
        assert_eq!(answer, Response::Failed { error: "no room for bad".into() });
        let names: Vec<_> = agent.enforcer.0.keys().map(Name::to_string).collect();
        assert_eq!(names, ["a"]);
        assert_eq!(agent.store.load().unwrap(), agent.book);
    }

    // Goal: a job that the kernel does not take is in no other job's way: others begin, change, are bound to and end beside
    // it. Method: one that an earlier agent has left in the record.
    #[test]
    fn a_job_that_fails_is_in_no_other_jobs_way() {
        let directory = tempfile::tempdir().unwrap();
        let agent = start(&directory, FakeKernel::default(), 1);
        let odd = Book::default().with(assignment("odd", 9), &agent.capacity, at(1)).unwrap();
        agent.store.save(&odd).unwrap();
        let mut agent = start(&directory, agent.enforcer, 1);
        let job: Name = "a".parse().unwrap();
        let requests = [
            Request::Enforce(assignment("a", 9)),
            Request::Bind { job: job.clone(), processes: vec![9] },
        ];
        for request in requests {
            assert_eq!(agent.answer(request, ROOT, at(1)), Response::Done);
        }
        let visit = agent.programs().visit();
        let restrained = agent.restrain(&job, CpuPpm::from_percent(5), &visit, ROOT, at(1));
        assert_eq!(restrained, Response::Done);
        assert!(agent.start_command(&job, 9, ROOT, at(1)).is_ok());
        assert_eq!(agent.enforcer.0.keys().collect::<Vec<_>>(), [&job]);
        // Of which one it is said is what the broker hears of its own.
        let answer = agent.answer(Request::Enforce(assignment("odder", 9)), ROOT, at(1));
        assert_eq!(answer, Response::Failed { error: "no group for odder".into() });
        assert_eq!(agent.tick(at(2)).unwrap_err().to_string(), "odd: no group for odd");
        assert_eq!(agent.answer(Request::Withdraw { job }, ROOT, at(2)), Response::Done);
    }

    // Goal: with many jobs on the node, who asks for one waits for a look at that one. Method: looks are counted; a job that ends
    // and one that is due when another is asked for are not left to the next tick.
    #[test]
    fn a_request_looks_at_its_job_and_at_what_has_changed() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        fn looks(agent: &mut Agent<FakeKernel>, act: impl FnOnce(&mut Agent<FakeKernel>)) -> usize {
            let before = agent.enforcer.3;
            act(agent);
            agent.enforcer.3 - before
        }
        let done = |request, second| {
            move |agent: &mut Agent<FakeKernel>| {
                assert_eq!(agent.answer(request, ROOT, at(second)), Response::Done);
            }
        };
        let small = |job: &str, from, until| {
            let cpu_ppm = CpuPpm::from_percent(1);
            Assignment { from_unix_nanos: at(from), cpu_ppm, ..assignment(job, until) }
        };
        for number in 0..20 {
            let enforce = Request::Enforce(small(&format!("r{number}"), 1, 9));
            assert_eq!(looks(&mut agent, done(enforce, 1)), 1);
        }
        assert_eq!(looks(&mut agent, |agent| agent.tick(at(1)).unwrap()), 20);
        let job: Name = "r3".parse().unwrap();
        let bind = Request::Bind { job: job.clone(), processes: vec![9] };
        // Before somebody is moved, and after.
        assert_eq!(looks(&mut agent, done(bind, 1)), 2);
        let visit = agent.programs().visit();
        let restrain = |agent: &mut Agent<FakeKernel>| {
            let cpu = CpuPpm::new(100);
            assert_eq!(agent.restrain(&job, cpu, &visit, ROOT, at(1)), Response::Done);
        };
        assert_eq!(looks(&mut agent, restrain), 1);
        assert_eq!(looks(&mut agent, |agent| agent.lift(&visit)), 1);
        assert_eq!(looks(&mut agent, |agent| agent.lift(&visit)), 0);
        assert_eq!(looks(&mut agent, done(Request::Withdraw { job }, 1)), 0);
        for later in [small("ends", 1, 5), small("begins", 5, 9)] {
            assert_eq!(agent.answer(Request::Enforce(later), ROOT, at(1)), Response::Done);
        }
        assert_eq!(looks(&mut agent, done(Request::Enforce(small("new", 5, 9)), 5)), 2);
        let there = |job: &str| agent.enforcer.0.contains_key(&job.parse::<Name>().unwrap());
        assert_eq!(["r3", "ends", "begins", "new"].map(there), [false, false, true, true]);
    }

    // What the kernel did not take is not taken for enforced: it is looked at with every request, until it is.
    #[test]
    fn what_has_failed_is_tried_again_with_the_next_request() {
        let directory = tempfile::tempdir().unwrap();
        let agent = start(&directory, FakeKernel::default(), 1);
        let odd = Book::default().with(assignment("odd", 9), &agent.capacity, at(1)).unwrap();
        agent.store.save(&odd).unwrap();
        let mut agent = start(&directory, agent.enforcer, 1);
        let before = agent.enforcer.3;
        assert_eq!(agent.answer(Request::Enforce(assignment("a", 9)), ROOT, at(1)), Response::Done);
        assert_eq!(agent.enforcer.3 - before, 2);
    }

    #[test]
    fn a_restarted_agent_adopts_what_lasts_and_removes_what_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        for (job, until) in [("lasts", 9), ("over", 4)] {
            assert_eq!(
                agent.answer(Request::Enforce(assignment(job, until)), ROOT, at(1)),
                Response::Done
            );
        }
        // The process is gone; the kernel still holds both jobs and one that nobody asked for.
        let mut kernel = agent.enforcer;
        kernel.0.insert("stray".parse().unwrap(), assignment("stray", 99));
        let agent = start(&directory, kernel, 5);
        let names: Vec<_> = agent.enforcer.0.keys().map(Name::to_string).collect();
        assert_eq!(names, ["lasts"]);
    }

    #[test]
    fn time_ends_jobs_and_a_clock_set_back_ends_none() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 100);
        assert_eq!(
            agent.answer(Request::Enforce(assignment("a", 110)), ROOT, at(100)),
            Response::Done
        );
        agent.tick(at(10)).unwrap();
        assert_eq!(agent.enforcer.0.len(), 1);
        let renew = Request::Renew { job: "a".parse().unwrap(), until_unix_nanos: at(120) };
        assert_eq!(agent.answer(renew, ROOT, at(105)), Response::Done);
        agent.tick(at(119)).unwrap();
        assert_eq!(agent.enforcer.0.len(), 1);
        agent.tick(at(120)).unwrap();
        assert!(agent.enforcer.0.is_empty());
    }

    /// Found by simulation: the broker takes what was withdrawn to be free, whatever it is answered.
    #[test]
    fn what_was_given_back_is_not_taken_up_again_when_the_kernel_fails() {
        let directory = tempfile::tempdir().unwrap();
        let agent = start(&directory, FakeKernel::default(), 1);
        let both = ["a", "bad"].into_iter().fold(Book::default(), |book, job| {
            book.with(assignment(job, 9), &agent.capacity, at(1)).unwrap()
        });
        agent.store.save(&both).unwrap();
        let mut agent = start(&directory, agent.enforcer, 1);
        let answer = agent.answer(Request::Withdraw { job: "a".parse().unwrap() }, ROOT, at(1));
        assert!(matches!(answer, Response::Failed { .. }), "{answer:?}");
        let left: Vec<_> = agent.assignments().map(|left| left.job.to_string()).collect();
        assert_eq!(left, ["bad"]);
        assert_eq!(agent.store.load().unwrap(), agent.book);
    }

    #[test]
    fn withdrawing_twice_is_no_error_and_renewing_the_unknown_is() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let job: Name = "a".parse().unwrap();
        assert_eq!(
            agent.answer(Request::Withdraw { job: job.clone() }, ROOT, at(1)),
            Response::Done
        );
        let renew = Request::Renew { job, until_unix_nanos: at(9) };
        let Response::Refused { reason } = agent.answer(renew, ROOT, at(1)) else { panic!() };
        assert_eq!(reason, "no job a is assigned here");
    }

    #[test]
    fn what_begins_later_is_enforced_from_then_on_and_a_clock_set_back_stops_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let later = Assignment { from_unix_nanos: at(5), ..assignment("later", 9) };
        assert_eq!(agent.answer(Request::Enforce(later), ROOT, at(1)), Response::Done);
        assert!(agent.enforcer.0.is_empty());
        let bind = || Request::Bind { job: "later".parse().unwrap(), processes: vec![9] };
        let Response::Refused { reason } = agent.answer(bind(), ROOT, at(2)) else { panic!() };
        assert!(reason.contains("has not begun"), "{reason}");
        agent.tick(at(5)).unwrap();
        assert_eq!(agent.enforcer.0.len(), 1);
        agent.tick(at(3)).unwrap();
        assert_eq!(agent.enforcer.0.len(), 1);
        // Nor does an agent that starts while the clock is wrong.
        let mut agent = start(&directory, agent.enforcer, 3);
        agent.tick(at(4)).unwrap();
        assert_eq!(agent.enforcer.0.len(), 1);
        assert_eq!(agent.answer(bind(), ROOT, at(3)), Response::Done);
        agent.tick(at(9)).unwrap();
        assert!(agent.enforcer.0.is_empty());
    }

    // Goal: what was promised for later is had then, whether the broker is there or not. Method: an agent that hears of it
    // once, and one that starts anew after it.
    #[test]
    fn what_has_more_later_has_it_when_its_time_has_come() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        let (job, more) = ("a".parse::<Name>().unwrap(), CpuPpm::from_percent(30));
        let later = Some(LaterCpu { from_unix_nanos: at(5), cpu_ppm: more });
        let rising = Assignment { later, ..assignment("a", 9) };
        let little = rising.cpu_ppm;
        assert_eq!(agent.answer(Request::Enforce(rising), ROOT, at(1)), Response::Done);
        agent.tick(at(4)).unwrap();
        assert_eq!(agent.enforcer.0[&job].cpu_ppm, little);
        agent.tick(at(5)).unwrap();
        assert_eq!(agent.enforcer.0[&job].cpu_ppm, more);
        // A clock that is set back takes nothing away. What it was told stays as it was told.
        agent.tick(at(3)).unwrap();
        assert_eq!(agent.enforcer.0[&job].cpu_ppm, more);
        assert!(agent.assignments().all(|a| (a.cpu_ppm, a.later) == (little, later)));
        let Response::Job(status) = agent.answer(Request::Job { job: job.clone() }, ROOT, at(6))
        else {
            panic!()
        };
        assert_eq!((status.assignment.cpu_ppm, status.assignment.later), (more, None));
        let mut agent = start(&directory, agent.enforcer, 6);
        agent.tick(at(7)).unwrap();
        assert_eq!(agent.enforcer.0[&job].cpu_ppm, more);
        agent.tick(at(9)).unwrap();
        assert!(agent.enforcer.0.is_empty());
    }

    // What is accepted while a clock is set back is enforced by that clock, beside what has begun; what was ahead of
    // its time makes room for it, and is there again when that has come.
    #[test]
    fn what_is_accepted_after_a_clock_was_set_back_is_enforced_when_it_is_due() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 100);
        let enforced = |agent: &Agent<FakeKernel>| {
            agent.enforcer.0.keys().map(Name::to_string).collect::<Vec<_>>().join(" ")
        };
        let ahead = Assignment {
            from_unix_nanos: at(90),
            cpu_ppm: CpuPpm::from_percent(30),
            ..assignment("ahead", 200)
        };
        assert_eq!(agent.answer(Request::Enforce(ahead.clone()), ROOT, at(100)), Response::Done);
        agent.tick(at(10)).unwrap();
        assert_eq!(enforced(&agent), "ahead");
        // Both fit.
        let short = Request::Enforce(assignment("short", 20));
        assert_eq!(agent.answer(short, ROOT, at(10)), Response::Done);
        assert_eq!(enforced(&agent), "ahead short");
        let bind = Request::Bind { job: "short".parse().unwrap(), processes: vec![9] };
        assert_eq!(agent.answer(bind, ROOT, at(11)), Response::Done);
        agent.tick(at(20)).unwrap();
        assert_eq!(enforced(&agent), "ahead");
        // Both do not fit.
        let large = Assignment { cpu_ppm: ahead.cpu_ppm, ..assignment("large", 40) };
        assert_eq!(agent.answer(Request::Enforce(large), ROOT, at(21)), Response::Done);
        assert_eq!(enforced(&agent), "large");
        agent.tick(at(40)).unwrap();
        assert_eq!(enforced(&agent), "");
        agent.tick(at(90)).unwrap();
        assert_eq!(enforced(&agent), "ahead");
    }

    // With a record that cannot be written nothing is begun, and all else goes on; what is not recorded of it is as
    // soon as there is room.
    #[test]
    fn a_full_disk_keeps_nothing_from_ending_and_is_caught_up_with() {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = start(&directory, FakeKernel::default(), 1);
        for (job, until) in [("given", 9), ("lasts", 9), ("over", 4)] {
            let enforce = Request::Enforce(assignment(job, until));
            assert_eq!(agent.answer(enforce, ROOT, at(1)), Response::Done);
        }
        let later = Assignment { from_unix_nanos: at(4), ..assignment("later", 9) };
        assert_eq!(agent.answer(Request::Enforce(later), ROOT, at(1)), Response::Done);
        let full = Store::at(Path::new("/dev/full/assignments.json"));
        let store = std::mem::replace(&mut agent.store, full);
        let is_full = |answer: &Response| matches!(answer, Response::Failed { error } if error.contains("cannot write"));
        let withdraw = || Request::Withdraw { job: "given".parse().unwrap() };
        let answer = agent.answer(withdraw(), ROOT, at(2));
        assert!(is_full(&answer), "{answer:?}");
        let answer = agent.answer(Request::Enforce(assignment("new", 9)), ROOT, at(2));
        assert!(is_full(&answer), "{answer:?}");
        assert!(agent.tick(at(4)).is_err());
        let enforced: Vec<_> = agent.enforcer.0.keys().map(Name::to_string).collect();
        assert_eq!(enforced, ["lasts", "later"]);
        agent.store = store;
        assert_ne!(agent.store.load().unwrap(), agent.book);
        agent.tick(at(5)).unwrap();
        assert_eq!(agent.store.load().unwrap(), agent.book);
        assert_eq!(agent.answer(withdraw(), ROOT, at(5)), Response::Done);
    }
}
