//! How busy a node is, as its daemon publishes it: how it is found, and what its cell says (pure).
//!
//! ```text
//!  0       4          8    16         24    28         48
//!  | magic | runnable | at | CPU used | CPU | zero     |
//! ```
//! All numbers are little-endian. A cell that was never written is all zero, and says nothing.

use crate::attributes::Attributes;
use crate::region::CELL;
use keeptime_model::node_load::NodeCounters;
use keeptime_model::units::{CpuPpm, Nanos};

/// The attribute that names the node.
pub const NODE: &str = "node";

const MAGIC: [u8; 4] = *b"ktl\x01";

/// What finds the cells of all nodes.
pub fn query() -> Attributes {
    crate::attrs! { "service" => "node-load" }
}

/// The cell that says `counters`.
pub fn encode(counters: &NodeCounters) -> [u8; CELL] {
    let mut cell = [0; CELL];
    cell[0..4].copy_from_slice(&MAGIC);
    cell[4..8].copy_from_slice(&counters.runnable.to_le_bytes());
    cell[8..16].copy_from_slice(&counters.at.get().to_le_bytes());
    cell[16..24].copy_from_slice(&counters.cpu_used.get().to_le_bytes());
    cell[24..28].copy_from_slice(&counters.cpu.get().to_le_bytes());
    cell
}

/// What a cell says; nothing if it says something else.
pub fn decode(cell: &[u8; CELL]) -> Option<NodeCounters> {
    let (magic, rest) = cell.split_first_chunk::<4>()?;
    let (runnable, rest) = rest.split_first_chunk()?;
    let (at, rest) = rest.split_first_chunk()?;
    let (cpu_used, rest) = rest.split_first_chunk()?;
    let (cpu, _) = rest.split_first_chunk()?;
    (*magic == MAGIC).then(|| NodeCounters {
        at: Nanos::new(u64::from_le_bytes(*at)),
        cpu_used: Nanos::new(u64::from_le_bytes(*cpu_used)),
        cpu: CpuPpm::new(u32::from_le_bytes(*cpu)),
        runnable: u32::from_le_bytes(*runnable),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let counters = NodeCounters {
            at: Nanos::new(0x0102_0304_0506_0708),
            cpu_used: Nanos::new(9),
            cpu: CpuPpm::from_percent(200),
            runnable: 3,
        };
        let cell = encode(&counters);
        let expected =
            b"ktl\x01\x03\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0\0\0\0\0\x80\x84\x1e\0";
        assert_eq!((&cell[..28], &cell[28..]), (&expected[..], &[0; 20][..]));
        assert_eq!(decode(&[0; CELL]), None, "never written");
        let mut later = cell;
        later[3] = 2;
        assert_eq!(decode(&later), None, "another version");
    }

    proptest! {
        #[test]
        fn what_is_said_is_understood(at: u64, cpu_used: u64, cpu: u32, runnable: u32) {
            let counters = NodeCounters {
                at: Nanos::new(at),
                cpu_used: Nanos::new(cpu_used),
                cpu: CpuPpm::new(cpu),
                runnable,
            };
            prop_assert_eq!(decode(&encode(&counters)), Some(counters));
        }

        #[test]
        fn any_cell_is_read_or_refused(cell in proptest::array::uniform32(0u8..), more in proptest::array::uniform16(0u8..)) {
            let cell: Vec<u8> = cell.into_iter().chain(more).collect();
            let _ = decode(&cell.try_into().unwrap());
        }
    }
}
