//! The real broker decides beside runs that really were there.

use super::desk::Desk;
use super::{Asked, Fate, Speed, World};
use keeptime_model::Invalid;
use keeptime_model::reservation::Handle;
use keeptime_model::units::Nanos;
use std::collections::BTreeSet;

/// The real broker decides about each request on the cluster as it really was: beside the runs that were there then.
/// `held_until` has for each request when what was reserved for it was given back, whenever it was granted; nothing for
/// one that was refused. Each decision is judged by itself: who is admitted here and was refused there leaves at once,
/// and so does who waits here until its run had ended there. Only who is refused here and was admitted there, or still
/// waits, is missing when others ask.
///
/// # Errors
/// If the cluster, an application or a request makes no sense, or `held_until` is of another number of requests.
pub fn decided(
    world: &World,
    asked: &[Asked],
    held_until: &[Option<Nanos>],
) -> Result<Vec<Fate>, Invalid> {
    if held_until.len() != asked.len() {
        let expected = format!("{}, as many as requests", asked.len());
        return Err(Invalid::new("held_until", held_until.len(), expected));
    }
    let known = world.fitted()?;
    let desk = Desk::open(world, &known, asked, Speed::Spare)?;
    let fates = vec![Fate::default(); asked.len()];
    let mut replay = Replay { desk, held_until, held: BTreeSet::new(), fates };
    for (number, request) in asked.iter().enumerate() {
        replay.pass_until(request.at)?;
        replay.desk.ask(number)?;
        replay.take_granted(request.at)?;
    }
    while let Some(due) = replay.due().filter(|_| !replay.desk.waiting.is_empty()) {
        replay.pass_until(due)?;
    }
    Ok(replay.fates)
}

/// Requests that are decided beside runs that were there.
struct Replay<'a> {
    desk: Desk<'a>,
    /// Of each request.
    held_until: &'a [Option<Nanos>],
    /// Who holds something, by until when.
    held: BTreeSet<(Nanos, Handle)>,
    fates: Vec<Fate>,
}

impl Replay<'_> {
    /// When something happens next, if nobody asks.
    fn due(&self) -> Option<Nanos> {
        let end = self.held.first().map(|(end, _)| *end);
        end.into_iter().chain(self.desk.broker.next()).min()
    }

    /// Time passes until `then`: what is due is done, and who has ended gives back what it had.
    fn pass_until(&mut self, then: Nanos) -> Result<(), Invalid> {
        loop {
            let now = self.due().map_or(then, |due| due.min(then));
            self.desk.pass(now);
            self.take_granted(now)?;
            while self.held.first().is_some_and(|(end, _)| *end <= now)
                && let Some((_, handle)) = self.held.pop_first()
            {
                self.desk.give_back(handle)?;
                // Whoever waited for that has it now.
                self.take_granted(now)?;
            }
            if now >= then {
                return Ok(());
            }
        }
    }

    /// Who was granted something by `now` holds it until its run there had ended.
    fn take_granted(&mut self, now: Nanos) -> Result<(), Invalid> {
        for (number, granted) in self.desk.granted()? {
            let ended = self.held_until[number];
            self.fates[number] = Fate { ended, ..granted.fate(&self.desk.asked[number], now) };
            self.held.insert((ended.unwrap_or_default().max(now), granted.handle));
        }
        Ok(())
    }
}
