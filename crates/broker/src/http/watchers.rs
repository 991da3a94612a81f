//! How many streams of events there are: so many in all, and so many of one user.

use super::Rejection;
use crate::wire::Problem;
use keeptime_model::reservation::UserName;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Streams of events at a time: each reads what it sends by itself.
const WATCHERS_MAX: usize = 256;
/// Of one user, so that nobody takes all.
const WATCHERS_OF_USER_MAX: usize = 32;

/// All who watch.
#[derive(Debug, Default)]
pub struct Watchers(Mutex<HashMap<UserName, usize>>);

/// The place of one stream: given back when dropped.
pub(super) struct Place {
    watchers: Arc<Watchers>,
    user: UserName,
}

impl Watchers {
    /// A place for one more stream of `user`.
    pub(super) fn enter(self: &Arc<Self>, user: &UserName) -> Result<Place, Rejection> {
        let mut open = self.lock();
        if open.values().sum::<usize>() >= WATCHERS_MAX {
            let detail = "too many watch already; try again later";
            return Err(Problem::new(503, "not now", detail).into());
        }
        let count = open.entry(user.clone()).or_default();
        if *count >= WATCHERS_OF_USER_MAX {
            let detail = format!(
                "{user} has {WATCHERS_OF_USER_MAX} streams of events already; try again when one \
                 has ended"
            );
            return Err(Problem::new(503, "not now", detail).into());
        }
        *count += 1;
        Ok(Place { watchers: Arc::clone(self), user: user.clone() })
    }

    /// Counts are whole whenever this is unlocked.
    fn lock(&self) -> MutexGuard<'_, HashMap<UserName, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.watchers.lock();
        if let Some(count) = open.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all_places_and_they_are_given_back() {
        // One user has some, all users together have some more.
        let watchers = Arc::new(Watchers::default());
        let enter = |name: &str| watchers.enter(&name.parse().unwrap()).ok();
        let mut places: Vec<_> = (0..WATCHERS_OF_USER_MAX).map(|_| enter("eve")).collect();
        assert!(places.iter().all(Option::is_some) && enter("eve").is_none());
        assert!(enter("ada").is_some(), "others are not concerned");
        places.pop();
        places.push(enter("eve"));
        places.extend((places.len()..WATCHERS_MAX).map(|number| enter(&format!("u{number}"))));
        assert!(places.iter().all(Option::is_some) && enter("ada").is_none());
        drop(places);
        assert!(watchers.lock().is_empty());
    }
}
