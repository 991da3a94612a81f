//! The words about who is known to a broker.

use super::NodeNames;
use clap::{Args, Subcommand};
use keeptime_credentials::tokens::TokenId;
use keeptime_model::reservation::UserName;
use keeptime_model::units::Nanos;
use std::path::PathBuf;

/// The file of tokens.
#[derive(Debug, Clone, Args)]
pub struct TokenPlace {
    /// The broker's configuration, which names the file of tokens
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/keeptime/broker.toml",
        env = "KEEPTIME_BROKER_CONFIG"
    )]
    pub config: PathBuf,
    /// The file of tokens itself
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token for a user, and print it: the broker keeps its digest alone
    ///
    /// The token goes to the standard output or to a file, and cannot be shown again. A broker that
    /// runs knows it within a second.
    #[command(after_help = "Examples:\n  \
        keeptime broker token add ada --expires +90d --out ada.token\n  \
        keeptime list --broker https://broker:7411 --ca ca.pem \\\n      \
            --token-file ada.token")]
    Add {
        /// Whose it will be: reservations made with it are this user's
        user: UserName,
        /// Until when it is good: +90d, "2026-12-31 0:00", or RFC 3339 [default: until it is revoked]
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
        /// Write the token into this file (mode 0600) instead of printing it
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        #[command(flatten)]
        place: TokenPlace,
    },
    /// List the tokens: whose they are and until when they are good
    List {
        #[command(flatten)]
        place: TokenPlace,
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token: nobody is let in by it any more, and who was let in is sent away
    Revoke {
        /// Which, as `list` shows it
        id: TokenId,
        #[command(flatten)]
        place: TokenPlace,
    },
}

/// What to issue.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keeptime broker certificates /etc/keeptime/pki \\\n      \
        --broker broker.example,10.0.0.1 \\\n      \
        --topology /etc/keeptime/topology.toml --users ada,eve\n  \
    keeptime broker certificates /etc/keeptime/pki --nodes n3    # renew one\n  \
    keeptime broker certificates /etc/keeptime/pki \\\n      \
        --revoke /etc/keeptime/pki/users/eve.pem\n  \
    keeptime broker certificates /etc/keeptime/pki --list\n\n\
    The directory holds ca.pem and ca-key.pem (made at first), revoked.pem,\n\
    broker.pem, nodes/NODE.pem and users/USER.pem, each with its key beside it as\n\
    NAME-key.pem (mode 0600). Give everybody ca.pem and what is theirs, and nobody\n\
    ca-key.pem: who has it can be anybody.\n\n\
    --list marks what has expired, ends in less than 14 days, or was revoked; with\n\
    --json, as state: good, ends-soon, expired or revoked. Exit code 2: a file could\n\
    not be read; the others are listed.")]
pub struct CertificatesArguments {
    /// The directory for all of them
    pub directory: PathBuf,
    /// Names and addresses by which the broker is asked
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    pub broker: Vec<String>,
    /// Nodes, as in n1,n2 or "n[1-4],n7"
    #[arg(long, value_name = "NAMES")]
    pub nodes: Vec<NodeNames>,
    /// All nodes of this topology file
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Users
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub users: Vec<UserName>,
    /// For how long what is issued holds
    #[arg(long, value_name = "SPAN", default_value = "90d")]
    pub lasts: Nanos,
    /// Certificates to withdraw, before anything is issued
    #[arg(long, value_name = "FILES", value_delimiter = ',')]
    pub revoke: Vec<PathBuf>,
    /// Only list what is there: whom each certificate is for and until when it holds, the soonest to end first
    #[arg(long, conflicts_with_all = ["broker", "nodes", "topology", "users", "lasts", "revoke"])]
    pub list: bool,
    /// With --list: print JSON instead of a table
    #[arg(long, requires = "list")]
    pub json: bool,
}
