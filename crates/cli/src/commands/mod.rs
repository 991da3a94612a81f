//! One module for each noun of the command line.

pub mod agent;
pub mod bind;
pub mod broker;
pub mod by;
pub mod certificates;
pub mod fabric;
pub mod lab;
pub mod launch;
pub mod load;
pub mod manual;
pub mod mpi;
pub mod node;
pub mod overview;
pub mod plan;
pub mod profile;
pub mod rate;
pub mod reservations;
pub mod run;
pub mod sim;
pub mod site;
pub mod tokens;
pub mod traffic;
pub mod whoami;

use crate::arguments::{ApplicationArguments, Chosen, Command, GoalArguments, NodeNames};
use crate::cluster::Cluster;
use crate::{brokers, files};
use anyhow::Result;
use keeptime_broker::remote::Address;
use keeptime_broker::wire::Known;
use keeptime_launch::mpi::{Flavour, Mpi};
use keeptime_launch::remote::quoted;
use keeptime_model::Invalid;
use keeptime_model::application::Application;
use keeptime_model::name::Name;
use keeptime_model::profile::Profile;
use keeptime_model::reservation::Ask;
use keeptime_model::units::Share;
use keeptime_planner::fitted::FittedProfile;
use keeptime_planner::promise::Deviations;
use std::ops::ControlFlow;
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
    /// The command that measures it here anew.
    pub measure: String,
}

impl Session {
    /// Finds everything that `arguments` name.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub fn open(arguments: &ApplicationArguments) -> Result<Self> {
        let application = application(arguments)?;
        let launcher = arguments.launcher.clone();
        let among = NodeNames::all(&arguments.among).cloned().collect();
        let cluster = Cluster::at(&arguments.place, launcher, among)?;
        let mpi = Mpi::find(arguments.mpi.unwrap_or_else(Flavour::usual))?;
        if arguments.mpi.is_none() && mpi.flavour == Flavour::Mpich {
            eprintln!(
                "keeptime: the MPI is {mpi}, as of the first mpirun in PATH; for another: --mpi"
            );
        }
        let default = || files::default_profile_path(application.name());
        let profile_path = arguments.profile.clone().unwrap_or_else(default);
        let measure = quoted(&measuring(arguments, &application));
        Ok(Self { cluster, mpi, application, profile_path, measure })
    }

    /// The profile, which must hold here.
    ///
    /// # Errors
    /// If there is none, or it was measured on another cluster.
    pub fn profile(&self) -> Result<Profile> {
        let profile = files::load_profile(&self.profile_path)?;
        let here = self.cluster.conditions(&self.application, &self.mpi.to_string());
        files::check_conditions(&profile, &here, &self.measure)?;
        Ok(profile)
    }

    /// The profile as it was measured, ready to be planned with.
    ///
    /// # Errors
    /// As [`Self::profile`].
    pub fn fitted(&self) -> Result<FittedProfile> {
        Ok(FittedProfile::new(self.application.clone(), &self.profile()?)?)
    }

    /// The profile as its last runs say that things are now, where the broker knows of any, ready to be planned with.
    ///
    /// # Errors
    /// As [`Self::profile`]; if there is no broker.
    pub fn fitted_now(&self) -> Result<FittedProfile> {
        let profile = self.profile()?;
        let fitted = FittedProfile::new(self.application.clone(), &profile)?;
        if self.registered(&profile)? != Registered::Same {
            return Ok(fitted);
        }
        let known = self.cluster.broker()?.runs(self.application.name());
        Ok(fitted.following(&known.map_err(brokers::failure)?.runs))
    }

    /// What the broker is asked for. It plans with the profile, which is made known to it unless it
    /// knows the same already; what runs took since then counts as well.
    ///
    /// # Errors
    /// A goal that does not fit the application, or that says how often its promise is to be kept and asks for more than the
    /// measured runs support; as [`Self::profile`]; or if the broker does not answer.
    pub fn ask(&self, arguments: &GoalArguments) -> Result<Ask> {
        let goal = arguments.goal()?;
        goal.check(&self.application)?;
        if let Some(quantile) = arguments.quantile {
            check_quantile(quantile, self.fitted()?.deviations())?;
        }
        self.register()?;
        Ok(Ask::Goal { application: self.application.name().clone(), goal })
    }

    fn register(&self) -> Result<()> {
        let profile = self.profile()?;
        let found = self.registered(&profile)?;
        if found == Registered::Same {
            return Ok(());
        }
        let application = self.application.clone().as_written();
        let known = Known { application, profile };
        self.cluster.broker()?.register(&known).map_err(brokers::failure)?;
        if found == Registered::Other {
            eprintln!("{}", replaced(self.application.name()));
        }
        Ok(())
    }

    /// What the broker knows by the name of this application, which has `profile`.
    fn registered(&self, profile: &Profile) -> Result<Registered> {
        // Where it does not answer, whatever is asked next says so.
        let found = self.cluster.broker()?.application(self.application.name());
        // Where things are on this machine makes no other application.
        let is_same = |there: &Known| {
            self.application.is_written_as(&there.application) && there.profile == *profile
        };
        Ok(match found {
            Ok(there) if is_same(&there) => Registered::Same,
            Ok(_) => Registered::Other,
            Err(_) => Registered::Nothing,
        })
    }
}

/// What a broker knows by the name of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Registered {
    /// This application and its profile.
    Same,
    /// Another one, or another profile.
    Other,
    /// None, as far as it says.
    Nothing,
}

/// That an application took the place of another: what others ask for by its name is planned by it from now on.
fn replaced(application: &Name) -> String {
    format!(
        "keeptime: the broker plans with this {application} from now on, for everybody who asks for it; before, another \
         file or profile was registered by that name"
    )
}

/// Who says how often a promise is to be kept is promised that or nothing. Who does not is told what the runs support.
fn check_quantile(asked: Share, measured: &Deviations) -> Result<(), Invalid> {
    let most = measured.supported(asked);
    if most == asked {
        return Ok(());
    }
    let expected = format!("at most {most}, from {} measured deviations", measured.count());
    Err(Invalid::new("quantile", asked, expected))
}

/// The command that measures `application` anew where these arguments say.
fn measuring(arguments: &ApplicationArguments, application: &Application) -> Vec<String> {
    let typed = arguments.application.application.as_deref();
    let typed = typed.unwrap_or(application.name().as_str());
    let mut words = files::measuring(typed, arguments.profile.as_deref());
    let place = match (&arguments.place.broker, &arguments.place.lab) {
        (Some(Address::Socket(path)), _) => Some(("--broker", path.display().to_string())),
        (Some(Address::Remote(endpoint)), _) => Some(("--broker", endpoint.to_string())),
        (None, Some(lab)) => Some(("--lab", lab.to_string())),
        (None, None) => None,
    };
    words.extend(place.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
    words
}

/// The application that is meant.
fn application(arguments: &ApplicationArguments) -> Result<Application> {
    let Chosen { application, made } = &arguments.application;
    if let Some(made) = made {
        return Ok(made.clone());
    }
    let expected = "a name in apps/, or a file ending in .toml";
    let nothing = || Invalid::missing("application", expected);
    let application = application.as_ref().ok_or_else(nothing)?;
    files::load_application(application, arguments.mpi.unwrap_or_else(Flavour::usual))
}

/// Prints `value` as JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Carries out a command that asks the broker or the fabric and holds nothing itself, so that it may end at any
/// moment; gives any other back.
pub fn ask_broker(command: Command) -> ControlFlow<Result<Ending>, Command> {
    ControlFlow::Break(match command {
        Command::Reserve(arguments) => reservations::reserve(&arguments),
        Command::List(arguments) => reservations::list(&arguments),
        Command::Show(arguments) => reservations::show(&arguments),
        Command::Modify(arguments) => reservations::modify(&arguments),
        Command::Cancel(arguments) => reservations::cancel(&arguments),
        Command::Move(arguments) => reservations::move_lost(&arguments),
        Command::Mpi(command) => mpi::run(&command),
        Command::Watch(arguments) => reservations::watch(&arguments),
        Command::Why(arguments) => reservations::why(&arguments),
        Command::Register(arguments) => reservations::register(&arguments),
        Command::Whoami(arguments) => whoami::run(&arguments),
        Command::Nodes(arguments) => overview::nodes(&arguments),
        Command::Node(command) => node::run(&command),
        Command::Links(arguments) => overview::links(&arguments),
        Command::Timeline(arguments) => overview::timeline(&arguments),
        Command::Rate(command) => rate::set(&command),
        Command::Top(arguments) => rate::top(&arguments),
        Command::Site(command) => site::run(&command),
        Command::Fabric(command) => fabric::run(&command),
        other => return ControlFlow::Continue(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::Parser;

    // Goal: who insists on a share of runs that nothing measured supports is told which would be accepted, and that is.
    #[test]
    fn a_share_of_runs_that_was_said_is_refused_beyond_what_runs_support() {
        let check = |percent, count: u32| {
            let measured = Deviations::new((0..count).map(|deviation| f64::from(deviation) / 1e3));
            check_quantile(Share::from_percent(percent).unwrap(), &measured)
        };
        assert_eq!((check(92, 12), check(90, 9), check(50, 0)), (Ok(()), Ok(()), Ok(())));
        let error = check(99, 12).unwrap_err().to_string();
        let expected = "expected at most 92.3 %, from 12 measured deviations";
        assert_eq!(error, format!("quantile: \"99 %\" is not accepted; {expected}"));
        assert!(check(90, 0).unwrap_err().expected.starts_with("at most 50 %"));
    }

    // Goal: what is told to be typed names the broker that was typed.
    #[test]
    fn what_measures_anew_asks_the_same_broker() {
        let told = |words: &[&str]| {
            let words = ["keeptime", "plan", "a.toml"].into_iter().chain(words.iter().copied());
            let Command::Plan(plan) = Arguments::try_parse_from(words).unwrap().command else {
                panic!("it is another command")
            };
            let application = "name = \"a\"\ncommand = [\"a\"]\npattern = \"ring\"\nnodes = [2]\n\
                               cpu = \"20 %\"\ntimeout = \"9 s\"\ntime = \"wall\"\n";
            let application = Application::from_toml(application).unwrap();
            quoted(&measuring(&plan.application, &application))
        };
        assert_eq!(told(&[]), "keeptime profile a.toml --fresh");
        let told_lab = told(&["--lab", "two", "--profile", "p.json"]);
        assert_eq!(told_lab, "keeptime profile a.toml --fresh --profile p.json --lab two");
        let told_broker = told(&["--broker", "/run/b.sock"]);
        assert_eq!(told_broker, "keeptime profile a.toml --fresh --broker /run/b.sock");
    }
}
