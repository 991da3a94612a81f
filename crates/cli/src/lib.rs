//! placeholder
pub mod chart;
pub mod traffic;
