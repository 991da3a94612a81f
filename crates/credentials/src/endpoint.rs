//! Where somebody listens: `HOST:PORT`. Pure.

use keeptime_model::Invalid;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A host, by name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    host: String,
    port: u16,
    /// What the certificate there has to be for.
    name: ServerName<'static>,
}

impl Endpoint {
    /// The host, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What the certificate there has to be for.
    pub fn name(&self) -> ServerName<'static> {
        self.name.clone()
    }
}

impl FromStr for Endpoint {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let parse = || {
            let (host, port) = text.rsplit_once(':')?;
            let port = port.parse().ok().filter(|port| *port > 0)?;
            let host = match host.strip_prefix('[') {
                Some(rest) => rest.strip_suffix(']')?,
                // Without brackets it would not be clear where the address ends.
                None if host.contains(':') => return None,
                None => host,
            };
            let name = ServerName::try_from(host.to_owned()).ok()?;
            Some(Self { host: host.into(), port, name })
        };
        let expected = "HOST:PORT, as in broker.example:7411, 10.0.0.1:7411 or [fd00::1]:7411";
        parse().ok_or_else(|| Invalid::new("address", text, expected))
    }
}

keeptime_model::as_text!(Endpoint);

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(_)) => write!(f, "[{}]:{}", self.host, self.port),
            _ => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_are_names_or_addresses() {
        for (good, host, port) in [
            ("broker.example:7411", "broker.example", 7411),
            ("10.0.0.1:1", "10.0.0.1", 1),
            ("[fd00::1]:65535", "fd00::1", 65_535),
            ("localhost:80", "localhost", 80),
        ] {
            let endpoint: Endpoint = good.parse().unwrap();
            assert_eq!((endpoint.host(), endpoint.port()), (host, port));
            assert_eq!(String::from(endpoint), good);
        }
        for bad in ["", "broker", ":1", "a:0", "a:65536", "fd00::1:7411", "[fd00::1:7", "a b:1"] {
            let error = bad.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains("HOST:PORT, as in"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_back_or_refused(text in "\\PC{0,40}") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                let again: Endpoint = endpoint.to_string().parse().unwrap();
                prop_assert_eq!((again.host(), again.port()), (endpoint.host(), endpoint.port()));
            }
        }
    }
}
