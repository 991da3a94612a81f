//! What a job's program asked for while it runs, beside what was reserved for it.

use crate::Invalid;
use crate::assignment::TrafficClass;
use crate::units::{BitsPerSecond, Bytes, BytesPerSecond, CpuPpm};
use serde::{Deserialize, Serialize};

/// More for a reservation that is there: its nodes, its time and all that it holds stay.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extension {
    /// Beside the flows of the pattern.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<ExtensionFlow>,
    /// CPU on each node, where that is more than was reserved.
    #[serde(default)]
    pub cpu_ppm: CpuPpm,
    /// Read from the disk of each node, where that is more than was reserved.
    #[serde(default)]
    pub disk_read_bytes_per_second: BytesPerSecond,
    /// Written to the disk of each node, where that is more than was reserved.
    #[serde(default)]
    pub disk_write_bytes_per_second: BytesPerSecond,
}

/// What one node of a reservation sends to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtensionFlow {
    /// The sender's position among the nodes of the grant.
    pub from: u32,
    /// The receiver's.
    pub to: u32,
    /// On the wire, headers included. Only premium flows take it from the links.
    pub bits_per_second: BitsPerSecond,
    /// Token bucket depth; nothing = chosen from the rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<Bytes>,
    /// How it is treated.
    pub class: TrafficClass,
}

impl Extension {
    /// Whether it asks for nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks it for a reservation on `nodes` nodes.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self, nodes: usize) -> Result<(), Invalid> {
        for (at, flow) in self.flows.iter().enumerate() {
            let field = |name: &str| format!("flows[{at}].{name}");
            for (name, node) in [("from", flow.from), ("to", flow.to)] {
                if node as usize >= nodes {
                    let expected = format!("a position among {nodes} nodes, from 0");
                    return Err(Invalid::new(field(name), node, expected));
                }
            }
            if flow.from == flow.to {
                return Err(Invalid::new(field("to"), flow.to, "another node than from"));
            }
            if flow.bits_per_second == BitsPerSecond::ZERO {
                let expected = "more than 0 bit/s";
                return Err(Invalid::new(field("bits_per_second"), BitsPerSecond::ZERO, expected));
            }
        }
        Ok(())
    }

    /// The flows that take their rate from the links.
    pub fn premium(&self) -> impl Iterator<Item = &ExtensionFlow> {
        self.flows.iter().filter(|flow| flow.class == TrafficClass::Premium)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(from: u32, to: u32, bits: u64) -> ExtensionFlow {
        ExtensionFlow {
            from,
            to,
            bits_per_second: BitsPerSecond::new(bits),
            burst_bytes: None,
            class: TrafficClass::Premium,
        }
    }

    #[test]
    fn bad_flows_name_the_field() {
        let check = |flow| Extension { flows: vec![flow], ..Extension::default() }.check(2);
        assert_eq!(check(flow(0, 1, 1)), Ok(()));
        for (bad, field) in [
            (flow(2, 1, 1), "flows[0].from"),
            (flow(0, 2, 1), "flows[0].to"),
            (flow(1, 1, 1), "flows[0].to"),
            (flow(0, 1, 0), "flows[0].bits_per_second"),
        ] {
            assert_eq!(check(bad).unwrap_err().field, field);
        }
    }

    #[test]
    fn nothing_is_empty_and_reads_back_from_nothing() {
        let nothing: Extension = serde_json::from_str("{}").unwrap();
        assert!(nothing.is_empty());
        let some = Extension { flows: vec![flow(0, 1, 7)], ..Extension::default() };
        let text = serde_json::to_string(&some).unwrap();
        assert_eq!(serde_json::from_str::<Extension>(&text).unwrap(), some);
    }
}
