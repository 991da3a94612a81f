//! What transports are told of a class whose packets no kernel sees (a pure table).
//!
//! On Ethernet over TCP the sending node's kernel marks packets. A network card that is driven from the
//! program marks them itself, as it was told when its connections were made: for a whole process, at
//! its start, and for good. So it is the class of a job that is told, not that of a communicator.
//!
//! | carries it | as | said by |
//! |---|---|---|
//! | RoCE v2 | the IPv4 or IPv6 header's traffic class: the code point and two bits for ECN | UCX |
//! | InfiniBand | a service level, to which the subnet manager gives a virtual lane | UCX, Open MPI's openib |
//! | whatever a provider of libfabric has | `tx_attr->tclass`, which a program gives with its endpoints | the program |

use keeptime_model::Invalid;
use keeptime_model::assignment::TrafficClass;
use serde::Serialize;
use std::str::FromStr;

/// A code point is the upper six bits of the octet; the lower two are ECN's (RFC 3168).
const ECN_BITS: u32 = 2;
/// `FI_TC_DSCP` of libfabric's `fabric.h`: the lower eight bits are a code point.
const LIBFABRIC_DSCP: u32 = 0x100;

/// An InfiniBand service level, 0 to 15. Which of them goes first is for the subnet manager to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ServiceLevel(u8);

/// What each transport is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TransportClass {
    /// The code point that kernels and switches of the cluster know the class by.
    pub dscp: u8,
    /// The octet of the IP header with it, for RoCE v2.
    pub traffic_class: u8,
    /// For InfiniBand, if the site has one for this class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_level: Option<ServiceLevel>,
    /// What a program that uses libfabric puts into `tx_attr->tclass`.
    pub libfabric_tclass: u32,
}

impl TransportClass {
    /// Of a class; `service_level` is what the site's subnet manager treats so.
    pub fn of(class: TrafficClass, service_level: Option<ServiceLevel>) -> Self {
        let dscp = class.dscp();
        let libfabric_tclass = LIBFABRIC_DSCP | u32::from(dscp);
        Self { dscp, traffic_class: dscp << ECN_BITS, service_level, libfabric_tclass }
    }

    /// Environment variables that the transports' libraries read when a program starts, by name.
    ///
    /// UCX: `UCX_IB_…` is taken by each of its transports on InfiniBand and RoCE (`ucx_info -c`).
    /// Open MPI: the openib component's parameter (`ompi_info --param btl openib --level 9`).
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![("UCX_IB_TRAFFIC_CLASS", self.traffic_class.to_string())];
        if let Some(ServiceLevel(level)) = self.service_level {
            variables.push(("UCX_IB_SL", level.to_string()));
            variables.push(("OMPI_MCA_btl_openib_ib_service_level", level.to_string()));
        }
        variables
    }
}

impl FromStr for ServiceLevel {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text.parse() {
            Ok(level @ 0..=15) => Ok(Self(level)),
            _ => Err(Invalid::new("service level", text, "a whole number from 0 to 15")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transport_hears_of_the_same_code_point() {
        let told = TransportClass::of(TrafficClass::Premium, None);
        // Expedited forwarding, 46, as RoCE's documents write it: 184; FI_TC_DSCP | 46.
        assert_eq!((told.dscp, told.traffic_class, told.libfabric_tclass), (46, 184, 0x12e));
        assert_eq!(told.environment(), [("UCX_IB_TRAFFIC_CLASS", "184".to_owned())]);
        let told = TransportClass::of(TrafficClass::BestEffort, None);
        assert_eq!((told.traffic_class, told.libfabric_tclass), (0, 0x100));
    }

    #[test]
    fn a_service_level_is_the_sites_own_and_bounded() {
        for bad in ["16", "-1", "", "x", "3.0"] {
            let error = bad.parse::<ServiceLevel>().unwrap_err();
            assert!(error.to_string().contains("0 to 15"), "{error}");
        }
        let told = TransportClass::of(TrafficClass::Premium, "15".parse().ok());
        let names: Vec<_> = told.environment().into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            ["UCX_IB_TRAFFIC_CLASS", "UCX_IB_SL", "OMPI_MCA_btl_openib_ib_service_level"]
        );
    }
}
