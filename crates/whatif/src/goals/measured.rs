//! How long a unit takes by what was measured: with any rate of its flows, in company and alone.

use super::{Curves, World};
use keeptime_model::Invalid;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::name::Name;
use keeptime_model::profile::Profile;
use keeptime_model::units::BitsPerSecond;
use keeptime_planner::curve::FittedCurve;
use keeptime_planner::fitted::FittedProfile;

impl Curves {
    fn fitted(&self, slowness: f64) -> Result<Fitted<'_>, Invalid> {
        let Self { application, profile, launching, .. } = self;
        if !(0.0..=1.0).contains(launching) {
            return Err(Invalid::new("launching", launching, "a part of the time, from 0 to 1"));
        }
        let of = |profile: &Profile| FittedProfile::new(application.clone(), profile);
        let alone = self.alone.as_ref().map(of).transpose()?;
        Ok(Fitted { application, curves: of(profile)?, alone, launching: *launching, slowness })
    }
}

/// An application with its curves, which are fitted once.
pub(super) struct Fitted<'a> {
    pub(super) application: &'a Application,
    pub(super) curves: FittedProfile,
    pub(super) alone: Option<FittedProfile>,
    pub(super) launching: f64,
    /// Of the world that it is in.
    slowness: f64,
}

impl Fitted<'_> {
    /// Of one setting on so many nodes; nothing if that was not measured.
    pub(super) fn course(&self, parameters: &Parameters, nodes: u32) -> Option<Course> {
        let of = |fitted: &FittedProfile| fitted.curve(parameters, nodes).cloned();
        let (curve, alone) = (of(&self.curves)?, self.alone.as_ref().and_then(of));
        Some(Course { curve, alone, slowness: self.slowness })
    }
}

pub(super) fn named<'a>(known: &'a [Fitted<'a>], name: &Name) -> Result<&'a Fitted<'a>, Invalid> {
    let found = known.iter().find(|known| known.application.name() == name);
    found.ok_or_else(|| Invalid::new("application", name, "one that was measured"))
}

/// How long a unit takes with any rate of each flow, in company and alone.
pub(super) struct Course {
    curve: FittedCurve,
    pub(super) alone: Option<FittedCurve>,
    /// Of the world that it is in.
    slowness: f64,
}

impl Course {
    /// Of a unit when each flow has `rate`.
    pub(super) fn seconds_at(&self, rate: BitsPerSecond, is_alone: bool) -> f64 {
        self.measured_at(rate, is_alone) * self.slowness
    }

    /// Of a unit when each flow has `rate`, on a machine that is as fast as when it was measured. Company costs the same
    /// part of it at every rate, and what more bandwidth brings beyond the curve is the same part in company.
    fn measured_at(&self, rate: BitsPerSecond, is_alone: bool) -> f64 {
        let Some(alone) = &self.alone else { return seconds_at(&self.curve, rate) };
        let [least, most] = ends(alone);
        let of_alone = |rate| seconds_at(alone, rate);
        let brought = of_alone(rate.clamp(least, most)) / of_alone(least);
        let cost = if is_alone { of_alone(least) / seconds_at(&self.curve, least) } else { 1.0 };
        seconds_at(&self.curve, rate.min(least)) * brought * cost
    }
}

/// Of a unit when each flow has `rate`: as measured; above what was measured, as it went on last.
pub(super) fn seconds_at(curve: &FittedCurve, rate: BitsPerSecond) -> f64 {
    match curve.expected_at(rate) {
        Some(time) => time.as_secs_f64(),
        None if rate < ends(curve)[0] => curve.points()[0].time_nanos.as_secs_f64(),
        None => curve.beyond().seconds_at(rate),
    }
}

/// The least and the greatest bandwidth of a curve; every curve has a point.
pub(super) fn ends(curve: &FittedCurve) -> [BitsPerSecond; 2] {
    let points = curve.points();
    [&points[0], &points[points.len() - 1]].map(|point| point.bandwidth_bits_per_second)
}

impl World {
    pub(super) fn fitted(&self) -> Result<Vec<Fitted<'_>>, Invalid> {
        let slowness = self.slowness;
        // Of anything else no run would ever end.
        if !slowness.is_finite() || slowness <= 0.0 {
            return Err(Invalid::new("slowness", slowness, "a number above 0"));
        }
        self.known.iter().map(|known| known.fitted(slowness)).collect()
    }
}
