//! One measurement of enforcement: a reserved flow and greedy ones between the same two nodes.

use super::rig::{Rig, Traffic, measure};
use crate::egress::{Flow, Link};
use keeptime_model::assignment::TrafficClass;
use keeptime_model::units::{BitsPerSecond, Share};
use std::time::Duration;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scenario {
    /// Of every link.
    pub link: BitsPerSecond,
    /// Of the one flow that is reserved; nothing = it takes part unprotected.
    pub reserved: Option<BitsPerSecond>,
    /// Whether that flow is there at all: without it the greedy ones can have all.
    pub is_sending: bool,
    /// How many others send as fast as they can, half of them from a third node.
    pub greedy: usize,
    /// How long is measured, after a second to settle.
    pub span: Duration,
}

/// What came of it: payload in Mbit/s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The flow in question.
    pub flow_mbit: f64,
    /// All greedy flows together.
    pub greedy_mbit: f64,
}

/// Measures once; takes `span` and two seconds more. Needs root.
///
/// # Errors
/// What could not be set up, in words.
pub fn run(scenario: &Scenario) -> Result<Outcome, String> {
    let control_share = Share::from_percent(2).ok_or("2 % is a share")?;
    let link = Link { name: "bench".into(), rate: scenario.link, control_share };
    let rig = Rig::new(3, &link)?;
    let (directory, cgroup_id) = rig.job("job")?;
    let reserve = |rate| Flow {
        cgroup_id,
        destination: Some(rig.address(1)),
        rate,
        up_to: rate,
        burst: None,
        class: TrafficClass::Premium,
    };
    if let Some(rate) = scenario.reserved {
        rig.protect_ports()?;
        rig.enforce(1, &[])?;
        rig.enforce(2, &[])?;
        rig.enforce(0, &[reserve(rate)])?;
    }
    let flow = scenario.is_sending.then(|| rig.send(0, 1, Some(&directory), 0)).transpose()?;
    let from = |at| if at % 2 == 0 { 0 } else { 2 };
    let greedy = (0..scenario.greedy)
        .map(|at| rig.send(from(at), 1, None, 0))
        .collect::<Result<Vec<Traffic>, _>>()?;
    std::thread::sleep(SETTLE);
    let rates = measure(&flow.iter().chain(&greedy).collect::<Vec<_>>(), scenario.span);
    let split = usize::from(scenario.is_sending);
    Ok(Outcome { flow_mbit: rates[..split].iter().sum(), greedy_mbit: rates[split..].iter().sum() })
}

/// The part of a class's rate that is TCP payload in full packets: 1,448 of 1,514 bytes.
pub const PAYLOAD_PART: f64 = 1448.0 / 1514.0;

const SETTLE: Duration = Duration::from_secs(1);
