//! A lab of a benchmark: made for it, removed with it.

use anyhow::Result;
use keeptime::agents;
use keeptime::cluster::Cluster;
use keeptime_lab::{Labs, Spec};
use keeptime_model::name::Name;
use keeptime_model::units::{BitsPerSecond, CpuPpm};

/// A lab that is removed when this is dropped.
pub struct BenchLab {
    name: Name,
    cluster: Cluster,
}

impl BenchLab {
    /// A star of `nodes` nodes with links of `rate`, and agents.
    pub fn star(name: &str, nodes: u32, rate: BitsPerSecond, cpu: CpuPpm) -> Result<Self> {
        let name: Name = name.parse()?;
        let labs = Labs::of_this_user();
        // What an earlier benchmark left when it was killed.
        let _ = labs.down(&name);
        let lab = labs.up(&Spec::star(name.clone(), nodes, rate, cpu)?)?;
        let started = agents::start(&lab).and_then(|()| Cluster::open(&name));
        match started {
            Ok(cluster) => Ok(Self { name, cluster }),
            Err(error) => {
                let _ = labs.down(&name);
                Err(error)
            }
        }
    }

    /// The lab, to be planned with and run on.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

impl Drop for BenchLab {
    fn drop(&mut self) {
        if let Err(error) = Labs::of_this_user().down(&self.name) {
            eprintln!("lab {} is left: {error}", self.name);
        }
    }
}
