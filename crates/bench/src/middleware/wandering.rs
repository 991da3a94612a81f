//! How fast the machine is when an experiment begins, against when its renderer's curves were measured. A machine that
//! others use as well is some percent faster or slower for hours, and runs with it; what simulates an experiment by curves
//! that were measured at another time is off by that.

use super::NODES;
use super::tasks::Setting;
use crate::figures::quantile;
use crate::profiles::parameters;
use anyhow::{Context, Result};
use keeptime_model::profile::Profile;

/// How long a frame takes now, in parts of what it took when `alone` was measured: the median of `settings`, of which
/// `now` has the seconds of a frame with the most bandwidth. Nothing if it has none.
///
/// # Errors
/// If a setting has no curve.
pub fn slowness(alone: &Profile, settings: &[Setting], now: &[f64]) -> Result<Option<f64>> {
    let part = |(set, now): (&Setting, &f64)| Ok(*now / measured_seconds(alone, set)?);
    let parts = settings.iter().zip(now).map(part).collect::<Result<Vec<_>>>()?;
    Ok((!parts.is_empty()).then(|| quantile(&parts, 0.5)))
}

/// What a frame took with the most bandwidth: half of the runs.
pub fn measured_seconds(alone: &Profile, set: Setting) -> Result<f64> {
    // Points are in the order of their bandwidths.
    let point = alone.curve(&parameters(set)?, NODES).and_then(|curve| curve.points.last());
    let point = point.with_context(|| format!("no curve of {} alone", set.join(", ")))?;
    let seconds: Vec<_> = point.samples_nanos.iter().map(|nanos| nanos.as_secs_f64()).collect();
    Ok(quantile(&seconds, 0.5))
}

#[cfg(test)]
mod tests {
    use super::super::tasks::Renderer;
    use super::*;
    use keeptime_model::profile::Conditions;
    use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};

    /// Frames of 2, 1 and 4 s with 800 Mbit/s (half of the runs), and slower ones with 400.
    fn alone() -> Profile {
        let conditions = Conditions {
            link_bits_per_second: BitsPerSecond::from_mbit(1_680),
            process_cpu_ppm: CpuPpm::from_percent(10),
            processor: "any".into(),
            mpi: "any".into(),
            command: vec!["render".into()],
            program: None,
        };
        let mut alone = Profile::empty("render".parse().unwrap(), conditions, vec![]);
        for (set, seconds) in Renderer::Render.settings().iter().zip([2, 1, 4]) {
            let set = parameters(set).unwrap();
            for (mbit, seconds) in [(400, 9), (800, seconds), (800, seconds), (800, 8)] {
                let (rate, time) = (BitsPerSecond::from_mbit(mbit), Nanos::from_secs(seconds));
                alone.record(&set, NODES, rate, time);
            }
        }
        alone
    }

    #[test]
    fn a_machine_is_as_slow_as_the_median_of_settings_says() {
        let settings = Renderer::Render.settings();
        let of = |now: &[f64]| slowness(&alone(), settings, now).unwrap();
        assert_eq!(of(&[2.5, 1.5, 4.0]), Some(1.25));
        assert_eq!(of(&[1.0, 0.5, 2.0]), Some(0.5));
        assert_eq!(of(&[]), None, "nothing was measured");
        let empty = Profile { curves: vec![], ..alone() };
        let error = slowness(&empty, settings, &[1.0]).unwrap_err().to_string();
        assert_eq!(error, "no curve of size=256 alone");
    }
}
