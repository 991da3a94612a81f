//! One module for each noun of the command line.

pub mod agent;
pub mod lab;
pub mod load;
pub mod plan;
pub mod profile;
pub mod run;
pub mod traffic;

use crate::arguments::ApplicationArguments;
use crate::cluster::Cluster;
use crate::files;
use anyhow::Result;
use keeptime_launch::mpi::Mpi;
use keeptime_model::application::Application;
use keeptime_model::profile::Profile;
use keeptime_planner::fitted::FittedProfile;
use std::path::PathBuf;

/// How a command ended, where that is no error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Done: exit code 0.
    Done,
    /// The goal cannot be kept: exit code 1.
    Refused,
    /// A command that was run for the user ended like this.
    Exit(u8),
}

/// An application, where it runs and what was measured of it.
pub struct Session {
    /// The cluster.
    pub cluster: Cluster,
    /// The MPI.
    pub mpi: Mpi,
    /// The application.
    pub application: Application,
    /// Its profile's file.
    pub profile_path: PathBuf,
}

impl Session {
    /// Finds everything that `arguments` name.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub fn open(arguments: &ApplicationArguments) -> Result<Self> {
        let application = files::load_application(&arguments.application, arguments.mpi)?;
        let cluster = Cluster::open(&arguments.lab)?;
        let mpi = Mpi::find(arguments.mpi)?;
        let default = || files::default_profile_path(application.name());
        let profile_path = arguments.profile.clone().unwrap_or_else(default);
        Ok(Self { cluster, mpi, application, profile_path })
    }

    /// The profile, which must hold here.
    ///
    /// # Errors
    /// If there is none, or it was measured on another cluster.
    pub fn profile(&self) -> Result<Profile> {
        let profile = files::load_profile(&self.profile_path)?;
        let here = self.cluster.conditions(&self.application, &self.mpi.to_string());
        files::check_conditions(&profile, &here)?;
        Ok(profile)
    }

    /// The profile, ready to be planned with.
    ///
    /// # Errors
    /// As [`Self::profile`].
    pub fn fitted(&self) -> Result<FittedProfile> {
        Ok(FittedProfile::new(self.application.clone(), &self.profile()?)?)
    }
}

/// Prints `value` as JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}
