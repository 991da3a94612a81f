//! What waits until records are durable: it leaves in the order in which it was put in, and not
//! before everything that was handed over before it is safe. Pure.

use std::collections::VecDeque;

/// Things that wait for what is on its way to the disk.
#[derive(Debug)]
pub struct Outbox<T> {
    /// Each with how much of what was handed over has to be durable before.
    waiting: VecDeque<(u64, T)>,
    handed_over: u64,
    durable: u64,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), handed_over: 0, durable: 0 }
    }
}

impl<T> Outbox<T> {
    /// The batches of one more step are on their way: what is put in from now on waits for it.
    pub fn hand_over(&mut self) {
        self.handed_over += 1;
    }

    /// Puts `item` in; gives it back if there is nothing to wait for.
    #[must_use]
    pub fn put(&mut self, item: T) -> Option<T> {
        if self.handed_over == self.durable {
            return Some(item);
        }
        self.waiting.push_back((self.handed_over, item));
        None
    }

    /// The oldest of what was on its way is durable. What may leave now, in order.
    pub fn settle(&mut self) -> Vec<T> {
        self.durable += 1;
        let ready = self.waiting.iter().take_while(|(after, _)| *after <= self.durable).count();
        self.waiting.drain(..ready).map(|(_, item)| item).collect()
    }

    /// Nothing that is on its way will be durable. Everything that waited, in order.
    pub fn fail(&mut self) -> Vec<T> {
        self.durable = self.handed_over;
        self.waiting.drain(..).map(|(_, item)| item).collect()
    }

    /// How many steps are on their way.
    pub fn on_their_way(&self) -> u64 {
        self.handed_over - self.durable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_needs_no_record_still_waits_for_those_before_it() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.put("at once"), Some("at once"));
        outbox.hand_over();
        assert_eq!(outbox.put("granted"), None);
        assert_eq!(outbox.put("read"), None);
        outbox.hand_over();
        assert_eq!(outbox.put("next"), None);
        assert_eq!(outbox.settle(), ["granted", "read"]);
        assert_eq!(outbox.on_their_way(), 1);
        assert_eq!(outbox.fail(), ["next"]);
        assert_eq!(outbox.put("again"), Some("again"));
    }

    proptest! {
        /// Against a list of everything: order is kept, and nothing overtakes its batch.
        #[test]
        fn nothing_leaves_early_or_out_of_order(ops in prop::collection::vec(0u8..3, 0..200)) {
            let mut outbox = Outbox::default();
            let (mut batches, mut settled, mut number) = (0u32, 0u32, 0u32);
            let mut left = Vec::new();
            for op in ops {
                match op {
                    0 => {
                        batches += 1;
                        outbox.hand_over();
                    }
                    1 => {
                        left.extend(outbox.put((number, batches)));
                        number += 1;
                    }
                    _ if settled < batches => {
                        settled += 1;
                        left.extend(outbox.settle());
                    }
                    _ => {}
                }
                prop_assert!(left.iter().all(|(_, after)| *after <= settled));
            }
            left.extend(outbox.fail());
            let numbers: Vec<_> = left.into_iter().map(|(number, _)| number).collect();
            prop_assert_eq!(numbers, (0..number).collect::<Vec<_>>());
        }
    }
}
