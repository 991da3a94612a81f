//! How many streams of events there are: so many in all, and so many of one user.

use super::Rejection;
use crate::wire::Problem;
use keeptime_agent::seats::{Full, Seat, Seats};
use keeptime_model::reservation::UserName;

/// Streams of events at a time: each reads what it sends by itself, and some MB of that may wait for who is slow.
const WATCHERS_MAX: usize = 256;
/// Of one user, so that nobody takes all.
const WATCHERS_OF_USER_MAX: usize = 32;

/// All who watch.
#[derive(Debug)]
pub struct Watchers(Seats<UserName>);

/// The place of one stream, until its connection has nothing of it any more: given back when dropped.
pub(super) type Place = Seat<UserName>;

impl Default for Watchers {
    fn default() -> Self {
        Self(Seats::new(WATCHERS_OF_USER_MAX).at_most(WATCHERS_MAX))
    }
}

impl Watchers {
    /// A place for one more stream of `user`.
    pub(super) fn enter(&self, user: &UserName) -> Result<Place, Rejection> {
        self.0.try_take(user.clone()).map_err(|full| {
            let detail = match full {
                Full::All => "too many watch already; try again later".to_owned(),
                Full::One => format!(
                    "{user} has {WATCHERS_OF_USER_MAX} streams of events already; try again when \
                     one has ended"
                ),
            };
            Problem::new(503, "not now", detail).into()
        })
    }

    /// Whether nobody watches.
    #[cfg(test)]
    pub(super) fn are_empty(&self) -> bool {
        self.0.are_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all_places_and_they_are_given_back() {
        // One user has some, all users together have some more.
        let watchers = Watchers::default();
        let enter = |name: &str| watchers.enter(&name.parse().unwrap()).ok();
        let mut places: Vec<_> = (0..WATCHERS_OF_USER_MAX).map(|_| enter("eve")).collect();
        assert!(places.iter().all(Option::is_some) && enter("eve").is_none());
        assert!(enter("ada").is_some(), "others are not concerned");
        places.pop();
        places.push(enter("eve"));
        places.extend((places.len()..WATCHERS_MAX).map(|number| enter(&format!("u{number}"))));
        assert!(places.iter().all(Option::is_some) && enter("ada").is_none());
        drop(places);
        assert!(watchers.are_empty());
    }
}
