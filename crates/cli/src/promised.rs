//! What is to run, where, and what was promised of it: as it was planned just now, or as it stands in a
//! reservation that was made before.

use anyhow::Result;
use keeptime_engine::book::Reservation;
use keeptime_model::Invalid;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::{BitsPerSecond, Nanos};
use keeptime_planner::translate::Plan;

/// One run of an application, and its promise.
#[derive(Debug, Clone, PartialEq)]
pub struct Promised {
    /// What it is run with.
    pub parameters: Parameters,
    /// Where, in order of rank.
    pub nodes: Vec<NodeIndex>,
    /// The rate of each flow, also where nothing flows.
    pub bandwidth: BitsPerSecond,
    /// The promised execution time.
    pub time: Nanos,
}

impl From<&Plan> for Promised {
    fn from(plan: &Plan) -> Self {
        Self {
            parameters: plan.parameters.clone(),
            nodes: plan.placement.nodes.clone(),
            bandwidth: plan.bandwidth_bits_per_second,
            time: plan.time_nanos,
        }
    }
}

impl Promised {
    /// What `reservation` was made for.
    ///
    /// # Errors
    /// If it was not made for a goal of `application`, or is of nodes that are not here.
    pub fn of_reservation(
        reservation: &Reservation,
        application: &Application,
        topology: &Topology,
    ) -> Result<Self> {
        let name = application.name();
        let expected =
            || format!("a reservation of a goal of {name} (keeptime reserve --app {name})");
        let invalid = || Invalid::new("in", reservation.handle, expected());
        let grant = reservation.grant.as_ref().ok_or_else(invalid)?;
        let promise = grant.promise.as_ref().filter(|promise| promise.application == *name);
        let promise = promise.ok_or_else(invalid)?;
        let index = |node| topology.find_node(node).ok_or_else(invalid);
        Ok(Self {
            parameters: promise.parameters.clone(),
            nodes: grant.nodes.iter().map(index).collect::<Result<_, _>>()?,
            bandwidth: grant.bits_per_second,
            time: promise.time_nanos,
        })
    }
}
