//! A directory with a small authority and what it issued: `ca.pem`, `revoked.pem`, `broker.pem`,
//! `nodes/NODE.pem`, `users/USER.pem`, each with its key beside it; `ca.lock`, which one at a time holds.

use anyhow::{Context, Result};
use keeptime_credentials::authority::{Authority, Issued};
use keeptime_credentials::dates;
use keeptime_credentials::files::{self, Secrecy};
use keeptime_credentials::identity::Identity;
use keeptime_credentials::tls::OwnFiles;
use keeptime_model::units::{Nanos, WallTime};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An authority outlasts what it issues.
const AUTHORITY_LASTS: Nanos = Nanos::from_secs(10 * 365 * 24 * 3_600);

/// Longer than it takes to issue a few hundred certificates.
const LOCKED_WITHIN: Duration = Duration::from_secs(5);

/// The directory, opened by who may issue.
pub struct Site {
    directory: PathBuf,
    authority: Authority,
    now: WallTime,
    /// Whoever changed the list at the same time would lose what was withdrawn here. Let go of at the end.
    _locked: File,
}

impl Site {
    /// The authority in `directory`; a new one if there is none. One program at a time has it.
    ///
    /// # Errors
    /// If the directory cannot be made, what is there cannot be used, or another program has it.
    pub fn open(directory: &Path) -> Result<Self> {
        Self::open_within(directory, LOCKED_WITHIN)
    }

    fn open_within(directory: &Path, within: Duration) -> Result<Self> {
        for part in ["", "nodes", "users"] {
            let path = directory.join(part);
            let made = DirBuilder::new().recursive(true).mode(0o755).create(&path);
            made.with_context(|| format!("cannot make {}", path.display()))?;
        }
        let (own, now) = (authority_files(directory), dates::now());
        let locked = files::lock(&own.certificate, within)?;
        let authority = if own.certificate.exists() || own.key.exists() {
            let issued = Issued {
                certificate: files::read(&own.certificate, Secrecy::Public)?,
                key: files::read(&own.key, Secrecy::Secret)?,
            };
            let loaded = Authority::load(&issued);
            loaded.with_context(|| format!("in {}", own.certificate.display()))?
        } else {
            let (authority, issued) = Authority::new("Keeptime", now, AUTHORITY_LASTS)?;
            // Empty, so that a broker can name it from the beginning; first, so that no authority is without one
            // if this ends here.
            let list = authority.revoke(None, &[], now, AUTHORITY_LASTS)?;
            files::replace(&revoked_file(directory), &list, Secrecy::Public)?;
            write(&own, &issued)?;
            authority
        };
        Ok(Self { directory: directory.into(), authority, now, _locked: locked })
    }

    /// Issues a certificate to the broker that is asked by these names and addresses.
    ///
    /// # Errors
    /// If one of them is no host, or it cannot be written.
    pub fn issue_to_broker(&self, hosts: &[String], lasts: Nanos) -> Result<OwnFiles> {
        let files = broker_files(&self.directory);
        write(&files, &self.authority.for_broker(hosts, self.now, lasts)?)?;
        Ok(files)
    }

    /// Issues a certificate to a node or a user, with a new key.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn issue_to(&self, identity: &Identity, lasts: Nanos) -> Result<OwnFiles> {
        let files = files_of(&self.directory, identity);
        write(&files, &self.authority.for_client(identity, self.now, lasts)?)?;
        Ok(files)
    }

    /// Puts certificates on the list of those that were withdrawn.
    ///
    /// # Errors
    /// If one of them, or the list, cannot be read.
    pub fn revoke(&self, certificates: &[PathBuf]) -> Result<()> {
        let path = revoked_file(&self.directory);
        let former = files::read(&path, Secrecy::Public)?;
        let read = |path: &PathBuf| files::read(path, Secrecy::Public);
        let texts: Result<Vec<_>, _> = certificates.iter().map(read).collect();
        let list = self.authority.revoke(Some(&former), &texts?, self.now, AUTHORITY_LASTS)?;
        Ok(files::replace(&path, &list, Secrecy::Public)?)
    }
}

/// Where an authority has what is its own.
pub fn authority_files(directory: &Path) -> OwnFiles {
    beside(directory, "ca")
}

/// Where an authority keeps the list of what was withdrawn.
pub fn revoked_file(directory: &Path) -> PathBuf {
    directory.join("revoked.pem")
}

/// Where it puts what is the broker's.
pub fn broker_files(directory: &Path) -> OwnFiles {
    beside(directory, "broker")
}

/// Where it puts what is a node's or a user's.
pub fn files_of(directory: &Path, identity: &Identity) -> OwnFiles {
    match identity {
        Identity::Node(node) => beside(&directory.join("nodes"), node.as_str()),
        Identity::User(user) => beside(&directory.join("users"), user.as_str()),
    }
}

/// A certificate and its key. Names of users may have dots: nothing is taken for an ending.
fn beside(directory: &Path, name: &str) -> OwnFiles {
    let at = |end: &str| directory.join(OsStr::new(&format!("{name}{end}.pem")));
    OwnFiles { certificate: at(""), key: at("-key") }
}

/// The key first: a broker that reads between both finds that they do not fit, and keeps what it has.
fn write(to: &OwnFiles, issued: &Issued) -> Result<()> {
    files::replace(&to.key, &issued.key, Secrecy::Secret)?;
    files::replace(&to.certificate, &issued.certificate, Secrecy::Public)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn an_authority_never_stands_without_its_list() {
        // The list cannot be written at first, as on a disk that is full.
        let directory = tempfile::tempdir().unwrap();
        let list = revoked_file(directory.path());
        fs::create_dir(&list).unwrap();
        assert!(Site::open(directory.path()).is_err());
        fs::remove_dir(&list).unwrap();
        assert!(Site::open(directory.path()).is_ok() && list.is_file());
    }

    #[test]
    fn one_at_a_time_issues_and_withdraws() {
        let directory = tempfile::tempdir().unwrap();
        let first = Site::open(directory.path()).unwrap();
        let error = Site::open_within(directory.path(), Duration::ZERO).err().unwrap();
        assert!(format!("{error:#}").contains("ca.lock is locked by another program"), "{error:#}");
        drop(first);
        assert!(Site::open_within(directory.path(), Duration::ZERO).is_ok());
    }
}
