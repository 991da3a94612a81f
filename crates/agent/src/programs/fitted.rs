//! How much of what a rank asks for has room in the line that tells the broker what all ranks of its job ask for here. One that
//! is longer ends the connection to the broker, again and again, and the node's orders wait.

use crate::link::LINE_BYTES_MAX;
use keeptime_model::Invalid;
use keeptime_mpiqos::wire::{Answer, Ask, RankState};
use std::collections::BTreeMap;

/// Of all that ranks of one job ask for: what is left of the line has room for the numbers of 1,200 ranks, and there are fewer,
/// since each has a connection.
const ASKS_BYTES_MAX: usize = LINE_BYTES_MAX as usize - (64 << 10);

/// As much as has room.
#[derive(Debug)]
pub(super) struct Fitted {
    /// What is asked for now, as far as it was taken; behind that, what was asked for before and cannot be changed to what was
    /// refused.
    pub rank: RankState,
    /// How long that is in the line.
    pub bytes: usize,
    /// How many asks were taken.
    pub taken: usize,
    /// What others are answered, by their places.
    pub refused: BTreeMap<usize, Answer>,
}

impl Fitted {
    /// Beside so many bytes of the job's other ranks. What was there before of a communicator that is still asked for stays.
    pub fn beside(others: usize, former: &[Ask], rank: RankState) -> Self {
        let RankState { number, size, asks } = rank;
        let mut former: Vec<_> = former.iter().collect();
        let mut with_former = |ask: Ask| {
            let at = former.iter().position(|former| is_of_the_same(former, &ask));
            (at.map(|at| former.swap_remove(at)), ask)
        };
        let asks: Vec<_> = asks.into_iter().map(&mut with_former).collect();
        let there = asks.iter().filter_map(|(former, _)| former.map(length));
        let mut whole = others + there.sum::<usize>();
        let (mut taken, mut kept, mut refused) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (at, (former, ask)) in asks.into_iter().enumerate() {
            let (rest, length) = (whole - former.map_or(0, length), length(&ask));
            if former == Some(&ask) || rest + length <= ASKS_BYTES_MAX {
                whole = rest + length;
                taken.push(ask);
            } else {
                kept.extend(former.cloned());
                refused.insert(at, too_long(length, ASKS_BYTES_MAX.saturating_sub(rest)));
            }
        }
        let count = taken.len();
        taken.append(&mut kept);
        let rank = RankState { number, size, asks: taken };
        Self { rank, bytes: whole - others, taken: count, refused }
    }
}

/// Whether both are about one communicator.
fn is_of_the_same(one: &Ask, other: &Ask) -> bool {
    let (one, other) = (&one.communicator, &other.communicator);
    one.index == other.index && one.members == other.members
}

/// Bytes in the line, with what stands between two.
fn length(ask: &Ask) -> usize {
    // What cannot be written is not said.
    serde_json::to_vec(ask).map_or(0, |text| text.len() + 1)
}

fn too_long(bytes: usize, left: usize) -> Answer {
    let expected = format!(
        "at most {left} bytes: what all ranks of a job ask for on one node, with their members and whom each has talked to, takes \
         {ASKS_BYTES_MAX} bytes at most"
    );
    Answer::refused(Invalid::new("asks", format!("{bytes} bytes"), expected).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// What is asked for a communicator, with so many destinations.
    fn ask(index: u32, destinations: u32) -> Ask {
        let text = format!(
            "{{\"communicator\":{{\"members\":[0,1],\"index\":{index},\"talk\":\"all-to-all\"}},\"change\":1,\
             \"terms\":{{\"class\":\"premium\",\"bits_per_second\":1000000,\"message_bytes_max\":0,\"paced\":true}}}}"
        );
        let seen = (0..destinations).map(|at| Ipv4Addr::from_bits(u32::MAX - at)).collect();
        Ask { seen: Some(seen), ..serde_json::from_str(&text).unwrap() }
    }

    fn rank(asks: Vec<Ask>) -> RankState {
        RankState { number: 0, size: 2, asks }
    }

    #[test]
    fn what_has_room_is_taken_to_the_last_byte_and_the_rest_is_refused_alone() {
        let (small, large) = (ask(0, 1), ask(1, 1_000));
        let asks = vec![small.clone(), large.clone(), ask(2, 1)];
        let room = length(&small) + length(&large) + length(&asks[2]);
        let fitted = Fitted::beside(ASKS_BYTES_MAX - room, &[], rank(asks.clone()));
        assert_eq!((fitted.bytes, fitted.taken, fitted.refused.len()), (room, 3, 0));
        let fitted = Fitted::beside(ASKS_BYTES_MAX - room + 1, &[], rank(asks.clone()));
        assert_eq!(fitted.rank.asks, asks[..2]);
        let fitted = Fitted::beside(ASKS_BYTES_MAX - length(&large), &[], rank(asks.clone()));
        assert_eq!(fitted.rank.asks, [asks[0].clone(), asks[2].clone()]);
        let (large, left) = (length(&large), length(&large) - length(&small));
        let reason = &fitted.refused[&1].reason;
        assert!(reason.contains(&format!("\"{large} bytes\" is not accepted")), "{reason}");
        assert!(reason.contains(&format!("at most {left} bytes: ")), "{reason}");
    }

    // Goal: nothing that was granted is given back because something else is too long. Method: what is there has all of the room,
    // and is asked for behind what is new, or changed, or both twice.
    #[test]
    fn what_is_there_already_stays() {
        let (first, second) = (ask(0, 500), ask(1, 500));
        let former = [first.clone(), second.clone()];
        let others = ASKS_BYTES_MAX - length(&first) - length(&second);
        let fit = |asks| Fitted::beside(others, &former, rank(asks));
        let Fitted { rank: found, taken, refused, .. } =
            fit(vec![ask(2, 9), second.clone(), first.clone()]);
        assert_eq!((found.asks, taken), (vec![second.clone(), first.clone()], 2));
        assert!(refused.keys().eq(&[0]));
        let changed = ask(0, 501);
        let Fitted { rank: found, bytes, taken, refused } =
            fit(vec![changed.clone(), second.clone(), changed]);
        assert_eq!((found.asks, taken), (vec![second, first], 1));
        assert!(refused.keys().eq(&[0, 2]) && others + bytes == ASKS_BYTES_MAX);
        // What is asked for no more makes room.
        let more = vec![ask(0, 900)];
        assert_eq!(fit(more.clone()).rank.asks, more);
    }
}
