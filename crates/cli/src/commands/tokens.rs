//! `keeptime broker token`: who is known by a token.

use super::{broker, print_json};
use crate::arguments::{TokenCommand, TokenPlace};
use crate::times;
use anyhow::{Context, Result};
use jiff::Zoned;
use jiff::tz::TimeZone;
use keeptime_credentials::files::{self, Secrecy};
use keeptime_credentials::token_file;
use keeptime_credentials::tokens::{RANDOM_BYTES, Tokens};
use keeptime_model::Invalid;
use keeptime_model::units::WallTime;
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A token as `list --json` shows it.
#[derive(Debug, Serialize)]
struct Shown {
    id: String,
    user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_unix_nanos: Option<WallTime>,
    expired: bool,
}

/// Adds, lists or revokes.
///
/// # Errors
/// If the file cannot be used, or there is no such token.
pub fn run(command: TokenCommand) -> Result<()> {
    let now = Zoned::now();
    match command {
        TokenCommand::Add { user, expires, out, place } => {
            let expires = expires.as_deref();
            let expires = expires.map(|text| times::parse_field("expires", text, &now));
            let expires = expires.transpose()?;
            if let Some(end) = expires.filter(|end| *end <= wall(&now).unwrap_or_default()) {
                let end = times::show(end, now.time_zone());
                return Err(Invalid::new("expires", end, "a time in the future").into());
            }
            let random = random()?;
            let path = path(&place)?;
            let secret =
                token_file::change(&path, |tokens| tokens.add(user.clone(), expires, &random))?;
            let end = expires.map(|end| format!("until {}", times::show(end, now.time_zone())));
            let end = end.unwrap_or_else(|| "until it is revoked".into());
            eprintln!("token {} of {user}, good {end}; it cannot be shown again", secret.id());
            match out {
                None => println!("{}", secret.expose()),
                Some(out) => {
                    told_replaced(&out).into_iter().for_each(|told| eprintln!("keeptime: {told}"));
                    files::replace(&out, &format!("{}\n", secret.expose()), Secrecy::Secret)?;
                }
            }
        }
        TokenCommand::List { place, json } => {
            let tokens = token_file::load(&path(&place)?)?;
            let all = shown(&tokens, wall(&now).unwrap_or_default());
            if json {
                print_json(&all)?;
            } else {
                all.iter().for_each(|token| println!("{}", line(token, now.time_zone())));
            }
        }
        TokenCommand::Revoke { id, place } => {
            let entry = token_file::change(&path(&place)?, |tokens| {
                let expected = "one that `keeptime broker token list` shows";
                tokens.revoke(&id).ok_or_else(|| Invalid::new("id", &id, expected))
            })?;
            println!("{id} of {} is revoked", entry.user);
        }
    }
    Ok(())
}

/// Whoever replaces a file may take the token in it for one that is good no more.
fn told_replaced(out: &Path) -> Option<String> {
    out.symlink_metadata().ok()?;
    Some(format!(
        "{} was there, and is replaced: a token that was in it stays good until it is revoked \
         (keeptime broker token list, revoke)",
        out.display()
    ))
}

/// The file that is meant.
fn path(place: &TokenPlace) -> Result<PathBuf> {
    if let Some(path) = &place.tokens {
        return Ok(path.clone());
    }
    let config = broker::read(&place.config)?;
    let missing = || Invalid::missing("tcp.tokens", "the path of a file (or give --tokens)");
    let tokens = config.tcp.and_then(|tcp| tcp.tokens);
    tokens.ok_or_else(missing).with_context(|| format!("in {}", place.config.display()))
}

fn shown(tokens: &Tokens, now: WallTime) -> Vec<Shown> {
    let each = tokens.all().iter().map(|(id, entry)| Shown {
        id: id.to_string(),
        user: entry.user.to_string(),
        expires_unix_nanos: entry.expires,
        expired: entry.expires.is_some_and(|end| end <= now),
    });
    each.collect()
}

fn line(token: &Shown, zone: &TimeZone) -> String {
    let Shown { id, user, expires_unix_nanos, expired } = token;
    let end = expires_unix_nanos.map(|end| times::show(end, zone));
    let end = match (end, expired) {
        (None, _) => "good until it is revoked".into(),
        (Some(end), false) => format!("good until {end}"),
        (Some(end), true) => format!("expired at {end}"),
    };
    format!("{id} {user}, {end}")
}

fn wall(now: &Zoned) -> Result<WallTime, Invalid> {
    times::parse("now", now)
}

fn random() -> Result<[u8; RANDOM_BYTES]> {
    let mut bytes = [0; RANDOM_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_takes_the_place_of_another_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("eve.token");
        assert_eq!(told_replaced(&out), None);
        std::fs::write(&out, "secret").unwrap();
        let told = told_replaced(&out).unwrap();
        assert!(told.contains("eve.token was there") && !told.contains("secret"), "{told}");
    }
}
