//! How much of a node's room for regions each user's programs may have, and who makes way when there is none (pure).

use std::collections::BTreeMap;

/// Most regions of a node; `crates/linux/bpf/regions.h` has the same number.
pub const REGIONS_MOST: u32 = 1024;
/// Connections at a time. Each publisher has one; readers only while they open a region.
const CONNECTIONS_MOST: usize = 2 * REGIONS_MOST as usize;
/// The programs of one user have one of so many of both: others' need the rest.
const USERS_PART: usize = 4;
/// Most regions of one user's programs on a node.
pub const REGIONS_OF_A_USER: usize = REGIONS_MOST as usize / USERS_PART;
/// Bytes of all regions of one user's programs on a node. They are the daemon's, and where the kernel answers they are the
/// kernel's own, which no limit of the user's counts.
pub const MEMORY_MOST: usize = 1 << 30;

/// A connection, as it counts here.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    /// Whose it is.
    pub user: u32,
    /// Whether it has a region: if not, whoever is asked to make way loses nothing, and can connect again.
    pub publishes: bool,
}

/// The connection that makes way for one more of `user`, if one has to; `all` are in the order in which they came. It is the
/// oldest without a region: of this user's if these are as many as may be, or of those of the user who has most. There is always
/// one, since regions are fewer than connections.
pub fn makes_way<T: Copy>(all: &[(T, Counted)], user: u32) -> Option<T> {
    let its = all.iter().filter(|(_, one)| one.user == user).count();
    let crowd = if its >= CONNECTIONS_MOST / USERS_PART {
        user
    } else if all.len() >= CONNECTIONS_MOST {
        let mut idle: BTreeMap<u32, usize> = BTreeMap::new();
        for (_, one) in all.iter().filter(|(_, one)| !one.publishes) {
            *idle.entry(one.user).or_default() += 1;
        }
        idle.into_iter().max_by_key(|(_, count)| *count)?.0
    } else {
        return None;
    };
    let is_in_the_way = |one: &Counted| one.user == crowd && !one.publishes;
    all.iter().find(|(_, one)| is_in_the_way(one)).map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_A_USER: usize = CONNECTIONS_MOST / USERS_PART;

    fn add(all: &mut Vec<(usize, Counted)>, user: u32, count: usize, publishes: bool) {
        let first = all.len();
        all.extend((first..first + count).map(|id| (id, Counted { user, publishes })));
    }

    #[test]
    fn a_user_has_a_quarter_of_the_connections_and_its_oldest_idle_one_makes_way() {
        let mut all = Vec::new();
        add(&mut all, 7, REGIONS_OF_A_USER, true);
        add(&mut all, 7, OF_A_USER - REGIONS_OF_A_USER - 1, false);
        assert_eq!(makes_way(&all, 7), None);
        add(&mut all, 7, 1, false);
        assert_eq!(makes_way(&all, 7), Some(REGIONS_OF_A_USER), "the first that publishes nothing");
        assert_eq!(makes_way(&all, 8), None, "another user has room");
    }

    #[test]
    fn where_all_are_taken_who_has_most_idle_ones_makes_way() {
        let mut all = Vec::new();
        add(&mut all, 1, OF_A_USER / 2, true);
        add(&mut all, 1, OF_A_USER / 2, false);
        [2, 3, 4].into_iter().for_each(|user| add(&mut all, user, OF_A_USER - 1, false));
        add(&mut all, 5, 3, false);
        let first_of_4 = OF_A_USER + 2 * (OF_A_USER - 1);
        assert_eq!((all.len(), makes_way(&all, 6)), (CONNECTIONS_MOST, Some(first_of_4)));
        all.truncate(CONNECTIONS_MOST - 1);
        assert_eq!(makes_way(&all, 6), None);
    }
}
