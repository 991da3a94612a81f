//! `keeptime whoami`: which broker is asked, as whom, and by what it knows that.

use super::{Ending, print_json};
use crate::arguments::WhoamiArguments;
use crate::brokers;
use crate::place::{self, Where};
use anyhow::Result;
use keeptime_broker::wire::WhoAmI;
use keeptime_model::reservation::UserName;
use serde::Serialize;

/// By what a broker knows who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Shown {
    /// What the kernel says of the process at the other end of its socket.
    Process,
    Certificate,
    Token,
}

/// What `keeptime whoami --json` prints.
#[derive(Debug, Serialize)]
struct Told {
    broker: String,
    user: UserName,
    operator: bool,
    by: Vec<Shown>,
}

/// Asks the broker.
pub fn run(arguments: &WhoamiArguments) -> Result<Ending> {
    let found = place::find(&arguments.place)?;
    let WhoAmI { user, operator } = found.client()?.who_am_i().map_err(brokers::failure)?;
    let told = Told { broker: found.broker.to_string(), user, operator, by: shown(&found.broker) };
    match arguments.json {
        true => print_json(&told)?,
        false => println!("{}", sentence(&told)),
    }
    Ok(Ending::Done)
}

/// Over the network what is shown is good: the broker has answered.
fn shown(broker: &Where) -> Vec<Shown> {
    let Where::Remote(_, files) = broker else { return vec![Shown::Process] };
    let certificate = files.certificate.as_ref().map(|_| Shown::Certificate);
    let token = files.token.as_ref().map(|_| Shown::Token);
    certificate.into_iter().chain(token).collect()
}

fn sentence(Told { broker, user, operator, by }: &Told) -> String {
    let what = if *operator { "an operator" } else { "no operator" };
    let words = by.iter().map(|shown| match shown {
        Shown::Process => "the user of this process",
        Shown::Certificate => "certificate",
        Shown::Token => "token",
    });
    let by = words.collect::<Vec<_>>().join(" and ");
    format!("{user}, {what}, at the broker {broker}, by {by}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_broker::remote::ClientFiles;

    #[test]
    fn it_is_told_by_what_the_broker_knows_who_asks() {
        let files = ClientFiles {
            certificate: Some("ada.pem".into()),
            key: Some("ada-key.pem".into()),
            token: Some("token".into()),
            ..ClientFiles::default()
        };
        let far = Where::Remote("head:7411".parse().unwrap(), files);
        assert_eq!(shown(&far), [Shown::Certificate, Shown::Token]);
        let (broker, user) = (far.to_string(), "ada".parse().unwrap());
        let told = Told { broker, user, operator: false, by: shown(&far) };
        let expected =
            "ada, no operator, at the broker https://head:7411, by certificate and token";
        assert_eq!(sentence(&told), expected);
        let near = Where::Socket("/run/keeptime/broker.sock".into());
        let broker = near.to_string();
        let told = Told { broker, operator: true, by: shown(&near), ..told };
        let expected = "ada, an operator, at the broker /run/keeptime/broker.sock, by the user of \
                        this process";
        assert_eq!(sentence(&told), expected);
    }
}
