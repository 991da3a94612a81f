//! What an authority's directory has: whom each certificate is for, and until when it holds. Nothing is made there.

use crate::certificates::{authority_files, broker_files, revoked_file};
use crate::columns::{Side, aligned};
use crate::commands::print_json;
use crate::times;
use anyhow::{Context, Result, bail};
use jiff::tz::TimeZone;
use keeptime_credentials::certificate::{Facts, facts_of_pem};
use keeptime_credentials::dates;
use keeptime_credentials::files::{self, FileError, Secrecy};
use keeptime_credentials::revoked::Revoked;
use keeptime_model::Invalid;
use keeptime_model::errors::chain;
use keeptime_model::units::WallTime;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A certificate as `--list --json` shows it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Listed {
    file: PathBuf,
    #[serde(rename = "for")]
    whom: String,
    until_unix_nanos: WallTime,
    /// Whole ones; below 0 where it is over.
    days_left: i64,
    state: State,
}

/// What is to be done about it, as far as that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// Nothing.
    Good,
    /// It is to be renewed.
    EndsSoon,
    /// It is to be renewed, and nobody trusts it meanwhile.
    Expired,
    /// It was withdrawn, however long it would hold.
    Revoked,
}

/// Lists the certificates in `directory` on standard output.
///
/// # Errors
/// If there are none, or one of them cannot be read: the others are listed before.
pub fn run(directory: &Path, json: bool) -> Result<()> {
    let revoked = read_revoked(&revoked_file(directory))?;
    let (mut found, mut damaged) = (Vec::new(), Vec::new());
    for path in paths(directory)? {
        match read(&path) {
            Ok(all) => found.extend(all.into_iter().map(|facts| (path.clone(), facts))),
            Err(why) => damaged.push(format!("{}: {why}", path.display())),
        }
    }
    if found.is_empty() && damaged.is_empty() {
        let expected = "one in which `keeptime broker certificates` has made some";
        return Err(Invalid::new("directory", directory.display(), expected).into());
    }
    let listed = listed(found, &revoked, dates::now());
    if json {
        print_json(&listed)?;
    } else {
        print!("{}", table(&listed, &TimeZone::system()));
    }
    if !damaged.is_empty() {
        bail!("not listed: {}", damaged.join("; "));
    }
    Ok(())
}

/// The files that should have certificates. Of an authority of a site's own some are elsewhere.
fn paths(directory: &Path) -> Result<Vec<PathBuf>> {
    let own = [authority_files(directory).certificate, broker_files(directory).certificate];
    let mut paths: Vec<_> = own.into_iter().filter(|path| path.exists()).collect();
    for part in ["nodes", "users"] {
        let part = directory.join(part);
        let names = names(&part).with_context(|| format!("cannot read {}", part.display()))?;
        let paths_of = certificates(&names).map(|name| part.join(name));
        paths.extend(paths_of.filter(|path| !is_key_alone(path)));
    }
    Ok(paths)
}

/// What a directory has; nothing if it is not there.
fn names(directory: &Path) -> io::Result<BTreeSet<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let name = |entry: io::Result<fs::DirEntry>| {
        entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    entries.map(name).collect()
}

/// Those of these names that are a certificate's: a key stands beside the certificate that it is of. A user may be called as a key
/// is, by whose own key it is known then.
fn certificates(names: &BTreeSet<String>) -> impl Iterator<Item = &String> {
    let is_there = |stem: &str, end: &str| names.contains(&format!("{stem}{end}"));
    names.iter().filter(move |name| {
        let Some(stem) = name.strip_suffix(".pem") else { return false };
        let of = stem.strip_suffix("-key");
        is_there(stem, "-key.pem") || !of.is_some_and(|of| is_there(of, ".pem"))
    })
}

/// Whether a file that is called as a key is one and nothing else: one whose certificate was removed, or that was made for one that
/// was not written any more.
fn is_key_alone(path: &Path) -> bool {
    let is_called_so = path.to_string_lossy().ends_with("-key.pem");
    is_called_so && files::read(path, Secrecy::Public).is_ok_and(|text| !text.contains(CERTIFICATE))
}

/// All certificates of a file: an authority that takes the place of another may stand beside it, and those that issued a
/// certificate behind it.
fn read(path: &Path) -> Result<Vec<Facts>, String> {
    let text = files::read(path, Secrecy::Public).map_err(|error| chain(&error))?;
    facts_of_pem(&text).map_err(|error| error.to_string())
}

fn read_revoked(path: &Path) -> Result<Revoked> {
    let text = match files::read(path, Secrecy::Public) {
        Err(FileError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Revoked::default());
        }
        text => text?,
    };
    Revoked::read(&text).with_context(|| format!("in {}", path.display()))
}

/// Each as it is at `now`, the soonest to end first.
fn listed(found: Vec<(PathBuf, Facts)>, revoked: &Revoked, now: WallTime) -> Vec<Listed> {
    let each = found.into_iter().map(|(file, facts)| {
        let until = facts.validity.until;
        let state = if revoked.has(&facts) {
            State::Revoked
        } else if dates::unix_seconds(now) > dates::unix_seconds(until) {
            State::Expired
        } else if facts.validity.ends_soon(now) {
            State::EndsSoon
        } else {
            State::Good
        };
        let days_left = days(now, until);
        Listed { file, whom: whom(&facts), until_unix_nanos: until, days_left, state }
    });
    let mut listed: Vec<_> = each.collect();
    listed.sort_by(|a, b| {
        (a.until_unix_nanos, &a.file, &a.whom).cmp(&(b.until_unix_nanos, &b.file, &b.whom))
    });
    listed
}

/// Whole days from one time to the other: a day that has begun is none that is left.
fn days(from: WallTime, until: WallTime) -> i64 {
    let second = |time| i64::try_from(dates::unix_seconds(time)).unwrap_or(i64::MAX);
    second(until).saturating_sub(second(from)).div_euclid(24 * 3_600)
}

fn whom(facts: &Facts) -> String {
    match &facts.identity {
        Ok(identity) => identity.to_string(),
        Err(_) if !facts.hosts.is_empty() => format!("broker at {}", facts.hosts.join(", ")),
        Err(_) if facts.subject == facts.issuer => format!("authority {}", facts.subject),
        Err(_) => facts.subject.clone(),
    }
}

/// A line for each, below what the columns are.
fn table(listed: &[Listed], zone: &TimeZone) -> String {
    let rows = listed.iter().map(|one| {
        let until = times::show(one.until_unix_nanos, zone);
        let (file, days) = (one.file.display().to_string(), one.days_left.to_string());
        [until, days, one.state.to_string(), one.whom.clone(), file]
    });
    let heading = ["until", "days", "", "for", "certificate"].map(String::from);
    let rows: Vec<_> = std::iter::once(heading).chain(rows).collect();
    aligned(&rows, &[Side::Left, Side::Right, Side::Left, Side::Left, Side::Left])
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Good => "",
            Self::EndsSoon => "ends soon",
            Self::Expired => "EXPIRED",
            Self::Revoked => "revoked",
        })
    }
}

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::{Site, files_of};
    use keeptime_credentials::identity::Identity;
    use keeptime_model::units::Nanos;

    const DAY: Nanos = Nanos::from_secs(24 * 3_600);

    fn user(name: &str) -> Identity {
        Identity::User(name.parse().unwrap())
    }

    /// What is read of a directory with certificates that hold for so many days.
    fn found(directory: &Path) -> Vec<(PathBuf, Facts)> {
        let each = paths(directory).unwrap().into_iter().map(|path| {
            let facts = read(&path).unwrap().remove(0);
            (path, facts)
        });
        each.collect()
    }

    // Goal: whoever renews certificates sees each that there is, what is urgent first, and nothing is taken for another thing.
    // Method: an authority with all kinds, among them a user who is called as a key, looked at on later days.
    #[test]
    fn every_certificate_is_listed_and_the_soonest_to_end_is_first() {
        let directory = tempfile::tempdir().unwrap();
        let (path, now) = (directory.path(), dates::now());
        let site = Site::open(path).unwrap();
        let lasts = |days: u64| Nanos::new(DAY.get() * days);
        let hosts = ["head".to_owned(), "10.0.0.1".to_owned()];
        site.issue_to_broker(&hosts, lasts(40)).unwrap();
        site.issue_to(&Identity::Node("n1".parse().unwrap()), lasts(20)).unwrap();
        for (name, days) in [("ada", 90), ("eve", 30), ("my-key", 60)] {
            site.issue_to(&user(name), lasts(days)).unwrap();
        }
        site.revoke(&[files_of(path, &user("eve")).certificate]).unwrap();
        drop(site);
        let revoked = read_revoked(&revoked_file(path)).unwrap();
        let at = |days: u64| listed(found(path), &revoked, now.saturating_add(lasts(days)));
        let states = |days: u64| -> Vec<_> {
            let each = at(days).into_iter().map(|one| (one.whom, one.days_left, one.state));
            each.filter(|(whom, ..)| !whom.starts_with("authority CN=Keeptime ")).collect()
        };
        use State::{EndsSoon, Expired, Good, Revoked};
        let expected = |of: [(i64, State); 5]| -> Vec<_> {
            let whom =
                ["node n1", "user eve", "broker at head, 10.0.0.1", "user my-key", "user ada"];
            whom.into_iter()
                .zip(of)
                .map(|(whom, (days, state))| (whom.into(), days, state))
                .collect()
        };
        let today = [(20, Good), (30, Revoked), (40, Good), (60, Good), (90, Good)];
        assert_eq!(states(0), expected(today));
        let later = [(-10, Expired), (0, Revoked), (10, EndsSoon), (30, Good), (60, Good)];
        assert_eq!(states(30), expected(later));
        assert_eq!(at(0).len(), 6, "the authority as well");
        let table = table(&at(30), &TimeZone::UTC);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].starts_with("until ") && lines[0].ends_with("certificate"), "{table}");
        let file = path.join("nodes/n1.pem");
        assert!(lines[1].contains(" -10  EXPIRED    node n1 "), "{table}");
        assert!(lines[1].ends_with(&file.display().to_string()), "{table}");
    }

    // Goal: a file that cannot be read does not hide the others, and is no success; a look makes no authority.
    #[test]
    fn what_cannot_be_read_is_told_and_nothing_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let error = run(path, false).unwrap_err().to_string();
        assert!(error.starts_with("directory: ") && error.contains("has made some"), "{error}");
        assert_eq!(fs::read_dir(path).unwrap().count(), 0);
        Site::open(path).unwrap();
        run(path, true).unwrap();
        // What is left of a certificate that was removed, or comes before one that was never written.
        fs::copy(path.join("ca-key.pem"), path.join("nodes/n2-key.pem")).unwrap();
        run(path, true).unwrap();
        fs::write(path.join("nodes/n1.pem"), "torn").unwrap();
        let error = run(path, true).unwrap_err().to_string();
        assert!(error.starts_with("not listed: ") && error.contains("nodes/n1.pem: "), "{error}");
    }

    #[test]
    fn keys_are_told_from_certificates_by_what_stands_beside_them() {
        let names = |list: &str| list.split(' ').map(String::from).collect();
        for (there, expected) in [
            ("a.pem a-key.pem ca.lock", "a.pem"),
            ("a-key.pem a-key-key.pem", "a-key.pem"),
            ("a.pem a-key.pem a-key-key.pem", "a-key.pem a.pem"),
            ("a.pem", "a.pem"),
        ] {
            let there = names(there);
            let found: Vec<_> = certificates(&there).map(String::as_str).collect();
            assert_eq!(found.join(" "), expected);
        }
    }
}
