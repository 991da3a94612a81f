//! A lab of a benchmark: made for it, removed with it.

use anyhow::Result;
use keeptime::arguments::{ApplicationArguments, BrokerPlace};
use keeptime::brokers;
use keeptime::cluster::Cluster;
use keeptime::commands::{Session, lab::start_daemons};
use keeptime::web::Web;
use keeptime_lab::{Lab, Labs, Spec};
use keeptime_launch::mpi::Flavour;
use keeptime_model::name::Name;
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use keeptime_planner::refine::Grid;
use std::path::Path;

/// A lab that is removed when this is dropped.
pub struct BenchLab {
    name: Name,
    cluster: Cluster,
}

impl BenchLab {
    /// A star of `nodes` nodes with links of `rate`, with a broker and agents.
    pub fn star(name: &str, nodes: u32, rate: BitsPerSecond, cpu: CpuPpm) -> Result<Self> {
        Self::up(&Spec::star(name.parse()?, nodes, rate, cpu)?)
    }

    /// A lab as `spec` says, with a broker and agents.
    pub fn up(spec: &Spec) -> Result<Self> {
        Self::with_web(spec, &[])
    }

    /// The same with web servers and balancers for these sites, if there are any.
    pub fn with_web(spec: &Spec, sites: &[Name]) -> Result<Self> {
        let name = spec.name().clone();
        let labs = Labs::of_this_user();
        // What an earlier benchmark left when it was killed.
        let _ = down(&labs, &name);
        let lab = labs.up(spec)?;
        let web = Some(Web::of(&lab, sites)).filter(|web| !web.sites.is_empty());
        let started = start_daemons(&lab, false, web.as_ref());
        let started = started.and_then(|()| Cluster::open(&name));
        match started {
            Ok(cluster) => Ok(Self { name, cluster }),
            Err(error) => {
                let _ = down(&labs, &name);
                Err(error)
            }
        }
    }

    /// The lab, to be planned with and run on.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The lab itself.
    pub fn lab(&self) -> Result<Lab> {
        Ok(Labs::of_this_user().open(&self.name)?)
    }

    /// An application of this checkout on the lab, with its profile in `profile`.
    pub fn session(&self, application: &str, profile: &Path) -> Result<Session> {
        Session::open(&ApplicationArguments {
            application: application.into(),
            place: BrokerPlace::of_lab(self.name.clone()),
            launcher: None,
            among: Vec::new(),
            mpi: Some(Flavour::OpenMpi),
            profile: Some(profile.into()),
        })
    }
}

/// Ends a lab, in any state.
pub fn down(labs: &Labs, name: &Name) -> Result<()> {
    brokers::end(&labs.runtime().join("labs").join(name.as_str()))?;
    labs.down(name)?;
    Ok(())
}

/// `count` bandwidths from `least` to `most` (in Mbit/s) by equal factors: curves bend where bandwidth
/// is scarce.
pub fn bandwidth_grid(least: f64, most: f64, count: u32) -> Result<Grid> {
    let factor = |i: u32| (most / least).powf(f64::from(i) / f64::from(count - 1));
    // Whole 100 kbit/s read better.
    let rate = |i| BitsPerSecond::new((least * factor(i) * 10.0).round() as u64 * 100_000);
    Ok(Grid::new((0..count).map(rate).collect())?)
}

impl Drop for BenchLab {
    fn drop(&mut self) {
        if let Err(error) = down(&Labs::of_this_user(), &self.name) {
            eprintln!("lab {} is left: {error:#}", self.name);
        }
    }
}
