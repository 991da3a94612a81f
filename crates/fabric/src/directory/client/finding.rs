//! A look at what there is, after all that the server has pushed until then.

use super::Client;
use super::asking::{ANSWER_LEAST, DirectoryError, answer_by};
use crate::attributes::Attributes;
use crate::directory::protocol::{Record, Request};
use crate::id::ResourceId;
use std::collections::BTreeMap;
use std::time::Instant;

impl Client {
    /// What `look` makes of all resources that include `query`, kept from last time or asked for.
    /// It is asked again after each change, until it gives something or `deadline` has passed.
    ///
    /// # Errors
    /// If the server refuses the question or does not answer: by the deadline, or soon where that is too near, or for as
    /// long as any answer may take.
    pub fn find<T>(
        &self,
        query: &Attributes,
        deadline: Option<Instant>,
        mut look: impl FnMut(&BTreeMap<ResourceId, Record>) -> Option<T>,
    ) -> Result<Option<T>, DirectoryError> {
        // A server would disconnect who says something so long, and not say why.
        query.check().map_err(|invalid| DirectoryError::Refused(invalid.to_string()))?;
        // Until when an answer is waited for: from when it is asked for, which it is anew when the
        // server has ended.
        let until = answer_by(deadline);
        self.catch_up(until)?;
        let mut unanswered = Some(until.max(Instant::now() + ANSWER_LEAST));
        let mut state = self.shared.lock();
        let mut number = state.subscription(query);
        loop {
            if let Some(Err(why)) = state.asked.take_answer(number) {
                state.subscriptions.forget(number);
                return Err(DirectoryError::Refused(why));
            }
            let Some(subscription) = state.subscriptions.of(number) else {
                // Another thread was refused the same question, or there were too many others: it
                // is asked anew.
                number = state.subscription(query);
                continue;
            };
            let now = Instant::now();
            let until = if let Some(records) = subscription.known() {
                if let Some(found) = look(records) {
                    return Ok(Some(found));
                }
                if deadline.is_none_or(|deadline| now >= deadline) {
                    return Ok(None);
                }
                unanswered = None;
                deadline.unwrap_or(now)
            } else {
                let until = *unanswered.get_or_insert_with(|| answer_by(deadline));
                if now >= until || state.is_closed {
                    return Err(state.standing.silence());
                }
                until
            };
            state = self.shared.wait_for_change(state, until.saturating_duration_since(now));
        }
    }

    /// Reads what the server has said until now. Its answer is waited for until then.
    fn catch_up(&self, until: Instant) -> Result<(), DirectoryError> {
        let mut state = self.shared.lock();
        if state.hear_all() > 0 {
            self.shared.notify_all();
        }
        let Some(behind) = state.connection.behind() else { return Ok(()) };
        drop(state);
        // It answers in order: what it had to say before is read when this is.
        let context = self.shared.context.id;
        self.ask_until(until, |number| Request::Resolve { number, context })?;
        self.shared.lock().connection.caught_up(behind);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::asking::ANSWER_TIME;
    use super::super::subscriptions::KEPT_MOST;
    use super::super::testing::{LONG, accept, listen, record, serve, welcome};
    use super::*;
    use crate::attrs;
    use crate::directory::protocol::{Answer, ContextInfo};
    use crate::id::Place;
    use std::os::unix::net::UnixStream;
    use std::thread;

    const MANY: u32 = 200;

    /// A server whose socket was full: it has one more to tell, and tells it before it answers
    /// anything else.
    fn is_behind(stream: UnixStream, home: &ContextInfo) {
        let appeared = |number, slot| {
            let id = ResourceId { context: home.id, place: Place { slot, generation: 1 } };
            let record =
                Record { id, attributes: attrs! { "a" => "b" }, home: home.clone().into() };
            Answer::Appeared { number, record }
        };
        let mut subscription = 0;
        serve(stream, |request| {
            Some(match request {
                Request::Hello { .. } => vec![welcome()],
                Request::Subscribe { number, .. } => {
                    subscription = number;
                    let found = Answer::Found { number, records: vec![] };
                    [found].into_iter().chain((0..MANY).map(|n| appeared(number, n))).collect()
                }
                Request::Resolve { number, .. } => {
                    vec![appeared(subscription, MANY), Answer::Resolved { number, found: None }]
                }
                _ => vec![],
            })
        });
    }

    #[test]
    fn what_a_server_could_not_say_yet_is_waited_for() {
        let (name, listener, home) = listen("behind");
        thread::scope(|scope| {
            scope.spawn(|| is_behind(accept(&listener), &home));
            let client = Client::connect(&name, home.clone()).unwrap();
            let count = || client.find(&attrs! {}, None, |records| Some(records.len()));
            count().unwrap();
            assert_eq!(count(), Ok(Some(MANY as usize + 1)));
        });
    }

    /// Goal: who has no time is not held up by a server that is stopped, and is answered by one that is there. Method: one that
    /// says nothing to a question, and answers another.
    #[test]
    fn who_has_no_time_waits_for_no_server_that_is_silent() {
        let (name, listener, home) = listen("silent");
        let silent = attrs! { "silent" => "yes" };
        thread::scope(|scope| {
            scope.spawn(|| {
                serve(accept(&listener), |request| {
                    Some(match request {
                        Request::Hello { .. } => vec![welcome()],
                        Request::Subscribe { number, query } if query != silent => {
                            vec![Answer::Found { number, records: vec![record("n0", query)] }]
                        }
                        _ => vec![],
                    })
                });
            });
            let client = Client::connect(&name, home.clone()).unwrap();
            let start = Instant::now();
            let find = |query: &Attributes| {
                client.find(query, Some(start), |all| all.keys().next().copied())
            };
            assert_eq!(find(&silent), Err(DirectoryError::Silent));
            assert!(start.elapsed() < ANSWER_TIME / 2, "{:?}", start.elapsed());
            // A busy machine may hold an answer up. Each question is another one: what is answered late is known the next time.
            let is_found = |n: u32| {
                let there = attrs! { "there" => n.to_string() };
                find(&there).is_ok_and(|id| id.is_some())
            };
            assert!((0..100).any(is_found));
        });
    }

    /// Goal: who waits for a resource gets it, however many other questions are asked meanwhile.
    /// Method: so many that the one that is waited for is given up; it is answered when it is asked
    /// for the second time.
    #[test]
    fn who_waits_is_answered_whatever_others_ask() {
        let (name, listener, home) = listen("many");
        let wanted = attrs! { "wanted" => "yes" };
        let (told, asked) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut times = 0;
                serve(accept(&listener), |request| {
                    Some(match request {
                        Request::Hello { .. } => vec![welcome()],
                        Request::Subscribe { number, query } => {
                            let is_wanted = query == wanted;
                            times += i32::from(is_wanted);
                            let is_there = is_wanted && times > 1;
                            let records = is_there.then(|| record("n0", query)).into_iter();
                            let _ = is_wanted.then(|| told.send(()));
                            vec![Answer::Found { number, records: records.collect() }]
                        }
                        Request::Resolve { number, .. } => {
                            vec![Answer::Resolved { number, found: None }]
                        }
                        _ => vec![],
                    })
                });
            });
            let client = Client::connect(&name, home.clone()).unwrap();
            let deadline = Some(Instant::now() + LONG);
            let found = thread::scope(|inner| {
                let waits = inner
                    .spawn(|| client.find(&wanted, deadline, |all| all.keys().next().copied()));
                asked.recv_timeout(LONG).unwrap();
                for other in 0..KEPT_MOST {
                    let other = attrs! { "other" => other.to_string() };
                    assert_eq!(client.find(&other, None, |all| Some(all.len())), Ok(Some(0)));
                }
                waits.join().unwrap()
            });
            assert_eq!(found, Ok(Some(record("n0", wanted.clone()).id)));
        });
    }
}
