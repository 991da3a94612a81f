//! The files that the commands read and write: applications, profiles, JSON results.

use anyhow::{Context, Result, bail, ensure};
use keeptime_files::Mode;
use keeptime_launch::mpi::Flavour;
use keeptime_model::Invalid;
use keeptime_model::application::Application;
use keeptime_model::name::Name;
use keeptime_model::profile::{Conditions, Profile, Program};
use nix::unistd::geteuid;
use serde::Serialize;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where application files are looked for by name.
pub const APPLICATIONS: &str = "apps";
/// Where profiles are kept unless a file is named.
pub const PROFILES: &str = "profiles";

/// The application called `name` in `apps/`, or the one in the file of that path, with the
/// constants `{root}`, `{workloads}`, `{data}` and `{out}` of this checkout filled in.
pub fn load_application(name: &str, flavour: Flavour) -> Result<Application> {
    let by_name = Path::new(APPLICATIONS).join(format!("{name}.toml"));
    let path = if name.ends_with(".toml") { PathBuf::from(name) } else { by_name };
    let text = fs::read_to_string(&path).with_context(|| absent(name, &path))?;
    let application = Application::from_toml(&text)
        .with_context(|| format!("in the application file {}", path.display()))?;
    let root = std::env::current_dir().context("the current directory is gone")?;
    let build = match flavour {
        Flavour::Mpich => "workloads/build/mpich",
        _ => "workloads/build/open-mpi",
    };
    let places = [("root", ""), ("workloads", build), ("data", "data"), ("out", "out")];
    places.into_iter().try_fold(application, |application, (name, place)| {
        Ok(application.with_constant(name.parse()?, root.join(place).display().to_string()))
    })
}

/// What is wrong in a file, with its path.
pub fn placed(invalid: Invalid, path: &Path) -> Invalid {
    let field = match invalid.field.as_str() {
        "" => path.display().to_string(),
        part => format!("{}: {part}", path.display()),
    };
    Invalid { field, ..invalid }
}

/// That there is no such application, and which there are.
fn absent(name: &str, path: &Path) -> String {
    let what = format!("no application {name:?}: cannot read {}", path.display());
    let names = application_names();
    match (name.ends_with(".toml"), names.is_empty()) {
        (true, _) => what,
        (false, true) => format!(
            "{what}; expected a file that ends in .toml, or a directory with {APPLICATIONS}/"
        ),
        (false, false) => {
            format!("{what}; there are {}, or any file that ends in .toml", names.join(", "))
        }
    }
}

/// What can be named here without a path, in order.
fn application_names() -> Vec<String> {
    let name = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_suffix(".toml")?;
        Some(name.to_owned())
    };
    let files = fs::read_dir(APPLICATIONS).into_iter().flatten().flatten();
    let mut names: Vec<_> = files.filter_map(|file| name(file.path())).collect();
    names.sort();
    names
}

/// The profile in `path`, checked.
pub fn load_profile(path: &Path) -> Result<Profile> {
    let text = fs::read(path).with_context(|| {
        format!("no profile at {}: `keeptime profile` measures one", path.display())
    })?;
    let profile: Profile = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not a profile", path.display()))?;
    profile.check_new().with_context(|| format!("in the profile {}", path.display()))?;
    Ok(profile)
}

/// The profile of `application` when no file is named.
pub fn default_profile_path(application: &Name) -> PathBuf {
    Path::new(PROFILES).join(format!("{application}.json"))
}

/// What is in a file. Of what is none, as a pipe into which nobody may ever write, nothing is waited for.
///
/// # Errors
/// If it is no file, or cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    fs::read(path)
}

/// Writes `value` as JSON such that a crash leaves the old file or the new one, whole.
pub fn save_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    save(path, &text)
}

/// Writes `text` such that a crash leaves the old file or the new one, whole. What is no file and no directory, as
/// `/dev/stdout`, is written to: nothing takes its place.
pub fn save(path: &Path, text: &[u8]) -> Result<()> {
    let is_stream = fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
    let written = if is_stream { write_to(path, text) } else { put(path, text) };
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Checks that a file which somebody named has a directory: one that is mistyped is not made.
///
/// # Errors
/// If there is none.
pub fn check_directory(field: &str, path: &Path) -> Result<(), Invalid> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    if directory.is_none_or(Path::is_dir) {
        return Ok(());
    }
    Err(Invalid::new(field, path.display(), "a file in a directory that is there"))
}

fn write_to(path: &Path, text: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(text)
}

fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    // A link stays, and what it leads to is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    keeptime_files::replace(&target, text, Mode::Kept)
}

/// Makes a directory of this user's, and what is missing over it, such that nobody else writes there, whatever the
/// umask allows. Other users pass through root's: sockets of brokers and agents are beside.
///
/// # Errors
/// If it cannot be made.
pub fn make_own_directory(path: &Path) -> Result<()> {
    let mode = if geteuid().is_root() { 0o755 } else { 0o700 };
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.with_context(|| format!("cannot make {}", path.display()))
}

/// Makes a directory, unless it is there, in which this user alone writes.
///
/// # Errors
/// If it cannot be made, or others may write there.
pub fn make_private(directory: &Path) -> Result<()> {
    make_own_directory(directory)?;
    let found = fs::symlink_metadata(directory)?;
    let is_own = found.is_dir() && found.uid() == geteuid().as_raw();
    ensure!(
        is_own && found.mode() & 0o022 == 0,
        "{0} is not a directory in which this user alone writes; if it is yours: chmod go-w {0}",
        directory.display()
    );
    Ok(())
}

/// Refuses a profile that was measured under other conditions, or of a program that was changed since, with the
/// differences; `measure` is the command that measures it anew.
pub fn check_conditions(profile: &Profile, here: &Conditions, measure: &str) -> Result<()> {
    let differences = profile.conditions.differences(here);
    if differences.is_empty() {
        return Ok(());
    }
    bail!(
        "the profile of {} was measured on another cluster, or of another program:\n  {}\nmeasure it here \
         with `{measure}`",
        profile.application,
        differences.join("\n  "),
    )
}

/// The command that measures an application anew, as it and its profile's file were typed.
pub fn measuring(application: &str, profile: Option<&Path>) -> Vec<String> {
    let words = ["keeptime", "profile", application, "--fresh"].map(String::from);
    let path = profile.map(|path| ["--profile".into(), path.display().to_string()]);
    words.into_iter().chain(path.into_iter().flatten()).collect()
}

/// Refuses a profile of another program than `application` is, wherever it was measured, as [`check_conditions`] does.
pub fn check_program(profile: &Profile, application: &Application, measure: &str) -> Result<()> {
    let here = Conditions {
        process_cpu_ppm: application.cpu(),
        command: application.command_template().to_vec(),
        program: Some(Program::of(application)),
        ..profile.conditions.clone()
    };
    check_conditions(profile, &here, measure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_launch::remote::quoted;
    use keeptime_model::units::BitsPerSecond;
    use nix::sys::stat::{Mode, umask};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_is_saved_can_be_read_and_leaves_no_other_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b.json");
        save_json(&path, &[1, 2]).unwrap();
        save_json(&path, &[3]).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap().split_whitespace().collect::<String>(),
            "[3]"
        );
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_saved_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("taken.svg");
        fs::create_dir(&path).unwrap();
        let error = save(&path, b"text").unwrap_err().to_string();
        assert!(error.contains("taken.svg"), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_is_named_in_a_directory_that_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let check = |path: PathBuf| check_directory("svg", &path);
        assert_eq!(check(directory.path().join("day.svg")), Ok(()));
        assert_eq!(check("day.svg".into()), Ok(()));
        let error = check(directory.path().join("nothere/day.svg")).unwrap_err();
        assert_eq!(error.field, "svg");
    }

    #[test]
    fn what_is_wrong_in_a_file_is_told_with_its_path() {
        let told = |field| placed(Invalid::new(field, 1, "2"), Path::new("a/b.toml")).to_string();
        assert_eq!(told(""), "a/b.toml: \"1\" is not accepted; expected 2");
        assert_eq!(told("line 2"), "a/b.toml: line 2: \"1\" is not accepted; expected 2");
    }

    // Goal: neither a device nor a link gives way to a file. Method: as what a link leads to, so that a mistake
    // concerns the link alone.
    #[test]
    fn a_device_is_written_to_and_a_link_stays() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        symlink("/dev/null", at("nowhere.json")).unwrap();
        symlink("file.json", at("link.json")).unwrap();
        fs::write(at("file.json"), "old").unwrap();
        for name in ["nowhere.json", "link.json"] {
            save(&at(name), b"new").unwrap();
            assert!(fs::symlink_metadata(at(name)).unwrap().is_symlink(), "{name}");
        }
        assert_eq!(fs::read_to_string(at("file.json")).unwrap(), "new");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
    }

    // Goal: nobody else writes into what is made, as is asked of it later. Method: with the umask of a distribution
    // where each user has a group. It is the whole process's, and back at once.
    #[test]
    fn an_own_directory_is_its_users_whatever_the_umask_allows() {
        let directory = tempfile::tempdir().unwrap();
        let (outer, inner) = (directory.path().join("a"), directory.path().join("a/b"));
        let former = umask(Mode::from_bits_truncate(0o002));
        let made = make_own_directory(&inner);
        umask(former);
        made.unwrap();
        for made in [outer, inner] {
            let mode = fs::metadata(&made).unwrap().permissions().mode();
            assert_eq!(mode & 0o022, 0, "{} has mode {mode:o}", made.display());
        }
    }

    // Goal: a profile is of a program as it was; where that lies on this machine says nothing of it. Method: the file of an
    // application whose constant is changed.
    #[test]
    fn a_profile_of_a_program_that_was_changed_since_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bsp.toml");
        let application = |bytes: &str| {
            let text = format!(
                "name = \"bsp\"\ncommand = [\"{{workloads}}/bsp\", \"{{bytes}}\"]\npattern = \"ring\"\n\
                 nodes = [2]\ncpu = \"20 %\"\ntimeout = \"9 s\"\ntime = \"wall\"\n\
                 [constants]\nbytes = \"{bytes}\"\n"
            );
            fs::write(&path, text).unwrap();
            load_application(path.to_str().unwrap(), Flavour::OpenMpi).unwrap()
        };
        let then = application("10000");
        let program = Program::of(&then);
        assert_eq!(program.constants.keys().map(Name::as_str).collect::<Vec<_>>(), ["bytes"]);
        let conditions = Conditions {
            link_bits_per_second: BitsPerSecond::from_mbit(100),
            process_cpu_ppm: then.cpu(),
            processor: "any".into(),
            mpi: "any".into(),
            command: then.command_template().to_vec(),
            program: Some(program),
        };
        let profile = Profile::empty(then.name().clone(), conditions, vec![]);
        let check = |application| check_program(&profile, application, "keeptime profile a b");
        check(&then).unwrap();
        let error = check(&application("1000000")).unwrap_err().to_string();
        assert!(error.contains("constant bytes: measured with 10000, here 1000000"), "{error}");
        assert!(error.ends_with("measure it here with `keeptime profile a b`"), "{error}");
    }

    // Goal: who does as told measures the file that was typed, into the profile that was typed.
    #[test]
    fn what_measures_anew_is_told_as_it_was_typed() {
        let told = |application, profile: Option<&str>| {
            quoted(&measuring(application, profile.map(Path::new)))
        };
        assert_eq!(told("bsp", None), "keeptime profile bsp --fresh");
        let expected = "keeptime profile './my solver.toml' --fresh --profile a/solver.json";
        assert_eq!(told("./my solver.toml", Some("a/solver.json")), expected);
    }

    #[test]
    fn a_missing_or_torn_profile_is_told_with_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.json");
        assert!(format!("{:#}", load_profile(&path).unwrap_err()).contains("keeptime profile"));
        fs::write(&path, "{\"version\": 1").unwrap();
        assert!(
            format!("{:#}", load_profile(&path).unwrap_err()).contains("p.json is not a profile")
        );
    }
}
