//! A program to start on a node of a lab.

use keeptime_model::name::Name;
use keeptime_model::service::ServiceName;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;

/// What to start, where, and on whose account.
#[derive(Debug)]
pub struct Exec {
    /// The node's name or address.
    pub node: String,
    /// On whose account it runs.
    pub account: Account,
    /// The program and its arguments.
    pub words: Words,
    /// It is killed when whoever started it ends.
    pub die_with_parent: bool,
    /// Added to the caller's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Standard input, output and error; nothing = the caller's.
    pub stdio: [Option<OwnedFd>; 3],
}

/// What a program is part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Account {
    /// Nothing: it shares what jobs leave.
    Nobody,
    /// A job, whose share and flows it has.
    Job(Name),
    /// A service of the node, as `keeptime_linux::services` finds it: it shares what jobs leave until a job takes the
    /// service in.
    Service(ServiceName),
}

/// How a command is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Words {
    /// The program and each of its arguments.
    Argv(Vec<OsString>),
    /// Text for a shell, in pieces that are joined by blanks: how `ssh` treats what stands behind
    /// the host, and what launchers of MPI count on.
    Shell(Vec<OsString>),
}

impl Exec {
    /// A program with its arguments, on nobody's account.
    pub fn new<W: Into<OsString>>(
        node: impl Into<String>,
        words: impl IntoIterator<Item = W>,
    ) -> Self {
        Self::of(node, Words::Argv(words.into_iter().map(Into::into).collect()))
    }

    /// A line for the shell, on nobody's account.
    pub fn shell<W: Into<OsString>>(
        node: impl Into<String>,
        words: impl IntoIterator<Item = W>,
    ) -> Self {
        Self::of(node, Words::Shell(words.into_iter().map(Into::into).collect()))
    }

    /// On the account of a job that is assigned to the node.
    #[must_use]
    pub fn for_job(mut self, job: Name) -> Self {
        self.account = Account::Job(job);
        self
    }

    /// As the first process of a service.
    #[must_use]
    pub fn of_service(mut self, service: ServiceName) -> Self {
        self.account = Account::Service(service);
        self
    }

    /// To be killed when whoever started it ends.
    #[must_use]
    pub fn die_with_parent(mut self) -> Self {
        self.die_with_parent = true;
        self
    }

    /// With its own standard input, output and error.
    #[must_use]
    pub fn with_stdio(mut self, stdio: [Option<OwnedFd>; 3]) -> Self {
        self.stdio = stdio;
        self
    }

    fn of(node: impl Into<String>, words: Words) -> Self {
        Self {
            node: node.into(),
            account: Account::Nobody,
            words,
            die_with_parent: false,
            environment: Vec::new(),
            stdio: [None, None, None],
        }
    }
}

impl Words {
    /// The program that is started, and its arguments.
    pub fn argv(self) -> Vec<OsString> {
        match self {
            Self::Argv(words) => words,
            Self::Shell(words) => {
                vec!["/bin/sh".into(), "-c".into(), words.join(OsStr::new(" "))]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_gets_one_text() {
        let words = ["PATH=/opt:$PATH ;", "orted", "-mca", "'a b'"].map(OsString::from);
        let argv = Words::Shell(words.to_vec()).argv();
        assert_eq!(argv, ["/bin/sh", "-c", "PATH=/opt:$PATH ; orted -mca 'a b'"]);
    }
}
