//! Whether enough nodes can have room, were others slower, counted before anything is tried (pure).

use keeptime_model::topology::NodeIndex;

/// What nodes lack of what is asked of each, at the least. What is said of others is always the most that can be hoped for,
/// so that nothing is given up for which there is room. By default nothing is asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Room {
    /// By the nodes' positions; nothing = it is not asked for.
    lacks: Vec<Option<i64>>,
    needed: usize,
    /// So many lack nothing.
    suffice: usize,
}

impl Room {
    /// `asked` of each of `needed` nodes, whichever of `free`, which says how much these have. O(nodes).
    pub fn new(
        nodes: usize,
        needed: usize,
        asked: u64,
        free: impl IntoIterator<Item = (NodeIndex, u64)>,
    ) -> Self {
        let mut lacks = vec![None; nodes];
        for (node, free) in free {
            lacks[node.0 as usize] = Some(signed(asked).saturating_sub(signed(free)));
        }
        let suffice = lacks.iter().flatten().filter(|lack| **lack <= 0).count();
        Self { lacks, needed, suffice }
    }

    /// Each of `nodes` may have so much more. O(nodes).
    pub fn gains(&mut self, nodes: impl IntoIterator<Item = NodeIndex>, more: u64) {
        self.change(nodes, signed(more));
    }

    /// What was hoped for is less by so much. O(nodes).
    pub fn loses(&mut self, nodes: impl IntoIterator<Item = NodeIndex>, less: u64) {
        self.change(nodes, -signed(less));
    }

    /// Whether there may be as many nodes as are needed.
    pub fn may_suffice(&self) -> bool {
        self.needed <= self.suffice
    }

    /// Whether nothing has to be tried. A build that checks itself tries all the same, and finds nothing.
    pub fn is_given_up(&self) -> bool {
        !self.may_suffice() && !cfg!(debug_assertions)
    }

    fn change(&mut self, nodes: impl IntoIterator<Item = NodeIndex>, more: i64) {
        for node in nodes {
            let Some(Some(lacks)) = self.lacks.get_mut(node.0 as usize) else { continue };
            self.suffice -= usize::from(*lacks <= 0);
            *lacks = lacks.saturating_sub(more);
            self.suffice += usize::from(*lacks <= 0);
        }
    }
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    // 40 is asked of each of two nodes out of three; a fourth is none of these.
    #[test]
    fn who_gives_way_counts_until_it_is_known_how_much() {
        let free = [(0, 40), (1, 10), (3, 0)].map(|(node, free)| (NodeIndex(node), free));
        let mut room = Room::new(4, 2, 40, free);
        assert!(!room.may_suffice());
        room.gains([NodeIndex(1), NodeIndex(2)], 29);
        assert!(!room.may_suffice());
        room.gains([NodeIndex(1), NodeIndex(2)], 1);
        assert!(room.may_suffice());
        room.loses([NodeIndex(0), NodeIndex(2)], 1);
        assert!(!room.may_suffice());
        room.gains([NodeIndex(3)], 40);
        assert!(room.may_suffice());
        assert!(Room::new(4, 0, 40, free).may_suffice());
    }
}
