//! A hello in as many lines as what the node holds needs: it may hold more than one line has room for.

use super::{FromAgent, LINE_BYTES_MAX};
use keeptime_model::assignment::Assignment;
use std::mem;

/// Of the assignments in a line: the rest has room for all else that a hello says.
const HOLDING_BYTES_MAX: usize = LINE_BYTES_MAX as usize - (64 << 10);

/// What is said for `hello`, in this order. Where one line is enough it is as it was before there could be more, so that older
/// brokers read it.
pub(super) fn in_lines(hello: FromAgent) -> Vec<FromAgent> {
    in_lines_of(hello, HOLDING_BYTES_MAX)
}

fn in_lines_of(mut hello: FromAgent, most: usize) -> Vec<FromAgent> {
    let mut others = Vec::new();
    if let FromAgent::Hello { holding, more, .. } = &mut hello {
        let mut parts = parts(mem::take(holding), most).into_iter();
        *holding = parts.next().unwrap_or_default();
        *more = parts.len() > 0;
        while let Some(assignments) = parts.next() {
            others.push(FromAgent::Holding { assignments, more: parts.len() > 0 });
        }
    }
    others.insert(0, hello);
    others
}

/// All of them, in parts of so many bytes at the most, or of one assignment.
fn parts(holding: Vec<Assignment>, most: usize) -> Vec<Vec<Assignment>> {
    let (mut parts, mut bytes) = (Vec::<Vec<_>>::new(), 0);
    for assignment in holding {
        let length = length(&assignment);
        match parts.last_mut().filter(|_| bytes + length <= most) {
            Some(part) => {
                part.push(assignment);
                bytes += length;
            }
            None => {
                parts.push(vec![assignment]);
                bytes = length;
            }
        }
    }
    parts
}

/// How long it is in a line, with what parts it from the next.
fn length(assignment: &Assignment) -> usize {
    // What cannot be written is not said.
    serde_json::to_vec(assignment).map_or(0, |text| text.len() + 1)
}

#[cfg(test)]
mod tests {
    use super::super::VERSION;
    use super::*;
    use keeptime_model::assignment::{AssignedFlow, FLOWS_MAX, TrafficClass};
    use keeptime_model::units::{BitsPerSecond, Bytes, CpuPpm, WallTime};
    use std::collections::BTreeSet;

    fn hello(holding: Vec<Assignment>) -> FromAgent {
        FromAgent::Hello {
            version: VERSION,
            node: "n1".parse().unwrap(),
            not_enforced: Vec::new(),
            refused: BTreeSet::new(),
            processor: None,
            counts: false,
            holding,
            more: false,
        }
    }

    fn jobs(count: usize, flows: usize) -> Vec<Assignment> {
        let most = BitsPerSecond::new(u64::MAX);
        let flow = AssignedFlow {
            destination: [10, 0, 0, 2].into(),
            bits_per_second: most,
            up_to_bits_per_second: Some(most),
            burst_bytes: Some(Bytes::new(most.get())),
            class: TrafficClass::LowLatency,
        };
        let until = WallTime::from_unix_nanos(9);
        let job = |number| {
            let name = format!("r{number}").parse().unwrap();
            let flows = vec![flow; flows];
            Assignment { flows, ..Assignment::new(name, CpuPpm::from_percent(1), until) }
        };
        (1..=count).map(job).collect()
    }

    /// What is held by all lines, and which of them say that more follows.
    fn told(lines: &[FromAgent]) -> (Vec<Assignment>, Vec<bool>) {
        let (mut all, mut each) = (Vec::new(), Vec::new());
        for (at, line) in lines.iter().enumerate() {
            let (FromAgent::Hello { holding, more, .. }
            | FromAgent::Holding { assignments: holding, more }) = line
            else {
                panic!("{line:?}")
            };
            assert_eq!(matches!(line, FromAgent::Hello { .. }), at == 0);
            let bytes = serde_json::to_vec(line).unwrap().len() as u64;
            assert!(bytes < LINE_BYTES_MAX, "{bytes}");
            all.extend(holding.clone());
            each.push(*more);
        }
        (all, each)
    }

    // Goal: a node is connected whatever it holds. Method: more jobs, with as many flows as they may have, than a line has room
    // for.
    #[test]
    fn what_a_line_has_no_room_for_is_told_by_the_next() {
        let most = jobs(45, FLOWS_MAX);
        let (all, more) = told(&in_lines(hello(most.clone())));
        assert!(all == most);
        assert_eq!(more, [true, false]);
        let three = jobs(3, 0);
        assert_eq!(told(&in_lines_of(hello(three.clone()), 1)), (three, vec![true, true, false]));
    }

    // Many small ones, too, are one line as long as there is room: an older broker reads that.
    #[test]
    fn what_has_room_is_told_in_one_line_as_ever() {
        for holding in [Vec::new(), jobs(4_097, 0)] {
            let lines = in_lines(hello(holding.clone()));
            assert_eq!(told(&lines), (holding, vec![false]));
            let text = serde_json::to_string(&lines[0]).unwrap();
            assert!(!text.contains("more"), "{text}");
        }
    }

    #[test]
    fn parts_are_as_long_as_they_may_be() {
        let three = jobs(3, 0);
        let one = length(&three[0]);
        let counts = |most| parts(three.clone(), most).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(counts(3 * one), [3]);
        assert_eq!(counts(3 * one - 1), [2, 1]);
        assert_eq!(counts(1), [1, 1, 1]);
    }
}
