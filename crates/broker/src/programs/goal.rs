//! The goal of an MPI program: what the profile of its job's application says of the time that it takes.

use keeptime_model::name::Name;
use keeptime_model::reservation::{Grant, Promise};
use keeptime_model::units::{BitsPerSecond, Nanos};
use keeptime_mpiqos::desk::{Profiled, Translated};
use keeptime_planner::curve::FittedCurve;
use keeptime_planner::fitted::FittedProfile;

/// How long a job's program takes with how much; or why nobody knows, in the user's words.
#[derive(Debug)]
pub struct JobProfile(Result<Measured, String>);

/// What was promised of the job when it was reserved, by which curve.
#[derive(Debug)]
struct Measured {
    promise: Promise,
    curve: FittedCurve,
    /// Reserved for each flow.
    held: BitsPerSecond,
}

impl JobProfile {
    /// That of the application, with the parameters and on as many nodes as the job was promised for.
    pub fn of<'a>(
        grant: Option<&Grant>,
        profile: impl Fn(&Name) -> Option<&'a FittedProfile>,
    ) -> Self {
        let promised = grant.and_then(|grant| Some((grant, grant.promise.as_ref()?)));
        let Some((grant, promise)) = promised else {
            return Self(Err("this job was reserved as resources, not for a goal".into()));
        };
        let nodes = u32::try_from(grant.nodes.len()).unwrap_or(u32::MAX);
        let curve = profile(&promise.application)
            .and_then(|profile| profile.curve(&promise.parameters, nodes));
        let measured = curve.map(|curve| {
            let (promise, curve) = (promise.clone(), curve.clone());
            Measured { promise, curve, held: grant.bits_per_second }
        });
        let lost = || format!("the profile of {} has no such runs", promise.application);
        Self(measured.ok_or_else(lost))
    }
}

impl Profiled for JobProfile {
    fn translate(&self, within: Nanos) -> Result<Translated, String> {
        let Measured { promise, curve, held } = self.0.as_ref().map_err(String::clone)?;
        let Promise { application, quantile, .. } = promise;
        let found = curve.least_for(within, *quantile, *held);
        let (bits_per_second, promised) = found.map_err(|least| {
            format!("{within} cannot be promised: {application} takes {least} at any bandwidth")
        })?;
        Ok(Translated { bits_per_second, promised })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::application::Application;
    use keeptime_model::profile::{Conditions, Profile};
    use keeptime_model::units::{CpuPpm, Share};

    /// 1 s with 10 Mbit/s for each flow, 500 ms with 20, on two nodes.
    fn fitted() -> FittedProfile {
        let application = Application::from_toml(
            "name = \"ray\"\ncommand = [\"ray\"]\npattern = \"pairs\"\nnodes = [2]\n\
             cpu = \"20 %\"\ntimeout = \"60 s\"\ntime = \"wall\"\n",
        )
        .unwrap();
        let conditions = Conditions {
            link_bits_per_second: BitsPerSecond::from_mbit(100),
            process_cpu_ppm: CpuPpm::from_percent(20),
            processor: "any".into(),
            mpi: "any".into(),
            command: vec!["ray".into()],
            program: None,
        };
        let mut profile = Profile::empty(application.name().clone(), conditions, vec![]);
        for (mbit, millis) in [(10, 1_000), (20, 500)] {
            let (rate, time) = (BitsPerSecond::from_mbit(mbit), Nanos::from_millis(millis));
            profile.record(&Default::default(), 2, rate, time);
        }
        FittedProfile::new(application, &profile).unwrap()
    }

    fn promised(application: &str, nodes: &[&str], mbit: u64) -> Grant {
        let mut grant: Grant = serde_json::from_value(serde_json::json!({
            "nodes": nodes, "cpu_ppm": 200_000, "bits_per_second": mbit * 1_000_000,
        }))
        .unwrap();
        grant.promise = Some(Promise {
            application: application.parse().unwrap(),
            parameters: Default::default(),
            time_nanos: Nanos::from_millis(1_000),
            quantile: Share::from_percent(90).unwrap(),
            median_nanos: Nanos::from_millis(1_000),
        });
        grant
    }

    /// Mbit/s, and the promised milliseconds.
    fn translated(grant: &Grant, millis: u64) -> Result<(u64, u64), String> {
        let fitted = fitted();
        let known = |name: &Name| (name.as_str() == "ray").then_some(&fitted);
        let profile = JobProfile::of(Some(grant), known);
        let found = profile.translate(Nanos::from_millis(millis))?;
        Ok((found.bits_per_second.get() / 1_000_000, found.promised.get() / 1_000_000))
    }

    #[test]
    fn a_goal_is_the_least_rate_that_promises_it_and_no_less_than_is_held() {
        let held = |mbit| promised("ray", &["n1", "n2"], mbit);
        assert_eq!(translated(&held(10), 500), Ok((20, 500)));
        assert_eq!(translated(&held(10), 1_200), Ok((10, 1_000)));
        assert_eq!(translated(&held(20), 1_200), Ok((20, 500)));
    }

    #[test]
    fn what_no_rate_promises_and_what_nobody_measured_is_told() {
        let why = |grant: &Grant, millis| translated(grant, millis).unwrap_err();
        let known = promised("ray", &["n1", "n2"], 10);
        let fast = why(&known, 400);
        assert_eq!(fast, "400 ms cannot be promised: ray takes 500 ms at any bandwidth");
        let none = "the profile of ray has no such runs";
        assert_eq!(why(&promised("ray", &["n1"], 10), 500), none);
        assert!(why(&promised("other", &["n1", "n2"], 10), 500).contains("other has no such runs"));
        let resources = Grant { promise: None, ..known };
        assert!(why(&resources, 500).contains("not for a goal"));
    }
}
