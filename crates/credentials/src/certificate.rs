//! What stands in a certificate: whom it is for, who issued it, from when until when. Pure. Whether it
//! is to be believed is for [`crate::tls`].

use crate::dates;
use crate::identity::Identity;
use keeptime_model::units::{Nanos, WallTime};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::net::IpAddr;
use thiserror::Error;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A certificate that ends so soon is told about: it is renewed by people, who are away for a week at times.
pub const SOON: Nanos = Nanos::from_secs(14 * 24 * 3_600);

/// What is read of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its subject, as in `CN=n1`.
    pub subject: String,
    /// Who issued it.
    pub issuer: String,
    /// Its number among those of its issuer (big-endian, without zeros before it).
    pub serial: Vec<u8>,
    /// Names and addresses of the host that it speaks for, as a broker's does.
    pub hosts: Vec<String>,
    /// Who it speaks for; that of a broker speaks for a host instead.
    pub identity: Result<Identity, NoIdentity>,
    /// When it holds.
    pub validity: Validity,
}

/// From when until when a certificate holds, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub from: WallTime,
    /// The last second.
    pub until: WallTime,
}

/// Why a certificate speaks for nobody.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoIdentity {
    /// It names none.
    #[error(
        "the certificate names neither a user nor a node: it needs the alternative name \
         URI:keeptime:user:NAME or URI:keeptime:node:NAME"
    )]
    Missing,
    /// It names several.
    #[error("the certificate names more than one user or node, and has to name one")]
    Ambiguous,
    /// What it names is none.
    #[error(
        "the certificate names {uri:?}, which is neither keeptime:user:NAME nor keeptime:node:NAME"
    )]
    Malformed {
        /// As it stands there.
        uri: String,
    },
}

/// It cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("this is no X.509 certificate: {reason}")]
pub struct Unreadable {
    /// What the parser says.
    pub reason: String,
}

/// Reads a certificate (DER).
///
/// # Errors
/// If it is none.
pub fn facts(der: &[u8]) -> Result<Facts, Unreadable> {
    let unreadable = |reason: String| Unreadable { reason };
    let (rest, read) = X509Certificate::from_der(der).map_err(|e| unreadable(e.to_string()))?;
    if !rest.is_empty() {
        return Err(unreadable("something follows it".into()));
    }
    let validity = read.validity();
    Ok(Facts {
        subject: read.subject().to_string(),
        issuer: read.issuer().to_string(),
        serial: number(read.raw_serial()),
        hosts: hosts(&read),
        identity: identity(&read),
        validity: Validity {
            from: dates::from_unix_seconds(validity.not_before.timestamp()),
            until: dates::from_unix_seconds(validity.not_after.timestamp()),
        },
    })
}

/// Reads all certificates that stand in a text (PEM): one at least.
///
/// # Errors
/// If there is none, or one of them is damaged.
pub fn facts_of_pem(text: &str) -> Result<Vec<Facts>, Unreadable> {
    let unreadable = |reason: String| Unreadable { reason };
    let ders = CertificateDer::pem_slice_iter(text.as_bytes());
    let each = ders.map(|der| facts(&der.map_err(|error| unreadable(error.to_string()))?));
    let all: Vec<_> = each.collect::<Result<_, _>>()?;
    if all.is_empty() {
        return Err(unreadable("there is none in the form of PEM".into()));
    }
    Ok(all)
}

/// A number of a certificate as it is compared: some write zeros before it.
pub(crate) fn number(serial: &[u8]) -> Vec<u8> {
    serial.iter().copied().skip_while(|byte| *byte == 0).collect()
}

fn hosts(certificate: &X509Certificate<'_>) -> Vec<String> {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    names.iter().filter_map(host).collect()
}

fn host(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).into()),
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

fn identity(certificate: &X509Certificate<'_>) -> Result<Identity, NoIdentity> {
    // An extension that is there twice names nobody.
    let names = certificate.subject_alternative_name().map_err(|_| NoIdentity::Ambiguous)?;
    let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    let mut named = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Identity::from_uri(uri).map(|identity| (*uri, identity)),
        _ => None,
    });
    let (uri, identity) = named.next().ok_or(NoIdentity::Missing)?;
    if named.next().is_some() {
        return Err(NoIdentity::Ambiguous);
    }
    identity.map_err(|_| NoIdentity::Malformed { uri: uri.into() })
}

/// Whether what holds until then is over [`SOON`] after `now`, or is already.
pub fn ends_soon(until: WallTime, now: WallTime) -> bool {
    until.saturating_since(now) < SOON
}

impl Validity {
    /// Whether it [`ends_soon`].
    pub fn ends_soon(&self, now: WallTime) -> bool {
        ends_soon(self.until, now)
    }

    /// What is wrong with it at `now`, in words that go on after "the certificate": nothing if it
    /// holds.
    pub fn problem(&self, now: WallTime) -> Option<String> {
        let second = dates::unix_seconds(now);
        if second > dates::unix_seconds(self.until) {
            let ago = dates::about(now.saturating_since(self.until));
            return Some(format!("expired at {}, {ago} ago", dates::show(self.until)));
        }
        if second < dates::unix_seconds(self.from) {
            return Some(format!("is valid from {} on only", dates::show(self.from)));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::Nanos;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, SanType};

    fn with_names(uris: &[&str]) -> Facts {
        let mut params = CertificateParams::default();
        params.subject_alt_names =
            uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
        facts(params.self_signed(&KeyPair::generate().unwrap()).unwrap().der()).unwrap()
    }

    #[test]
    fn a_certificate_speaks_for_one_or_for_nobody() {
        let user = Identity::User("ada".parse().unwrap());
        let more = ["https://example.org", "keeptime:user:ada"];
        assert_eq!(with_names(&more).identity, Ok(user));
        assert_eq!(with_names(&[]).identity, Err(NoIdentity::Missing));
        let two = ["keeptime:user:ada", "keeptime:node:n1"];
        assert_eq!(with_names(&two).identity, Err(NoIdentity::Ambiguous));
        let bad = with_names(&["keeptime:admin:ada"]).identity.unwrap_err();
        assert!(bad.to_string().contains("keeptime:admin:ada"), "{bad}");
        assert!(with_names(&[]).subject.contains("CN="), "the common name counts for nothing");
    }

    #[test]
    fn validity_includes_its_last_second() {
        let at = |seconds: u64| WallTime::from_unix_nanos(seconds * 1_000_000_000);
        let validity = Validity { from: at(100), until: at(200) };
        assert_eq!(validity.problem(at(100)), None);
        assert_eq!(validity.problem(at(200).saturating_add(Nanos::new(999_999_999))), None);
        assert!(validity.problem(at(99)).unwrap().contains("from 1970-01-01T00:01:40Z on"));
        let expired = validity.problem(at(200 + 3 * 86_400)).unwrap();
        assert_eq!(expired, "expired at 1970-01-01T00:03:20Z, 3 d ago");
    }

    // Goal: who is to renew certificates hears of it in time, and of none that holds for longer.
    #[test]
    fn the_end_is_near_two_weeks_before() {
        let at = |day: u64| WallTime::from_unix_nanos(day * 86_400 * 1_000_000_000);
        let validity = Validity { from: at(0), until: at(90) };
        for (day, is_soon) in [(0, false), (76, false), (77, true), (90, true), (91, true)] {
            assert_eq!(validity.ends_soon(at(day)), is_soon, "{day}");
        }
    }

    #[test]
    fn all_certificates_of_a_text_are_read_with_their_hosts() {
        let one = |hosts: &[&str]| {
            let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
            let params = CertificateParams::new(hosts).unwrap();
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
        };
        let text = one(&["head", "10.0.0.1", "fd00::1"]) + &one(&[]);
        let [first, second] = &facts_of_pem(&text).unwrap()[..] else { panic!() };
        assert_eq!(first.hosts, ["head", "10.0.0.1", "fd00::1"]);
        assert!(second.hosts.is_empty() && first.serial != second.serial);
        assert_eq!(number(&[0, 0, 7, 0]), [7, 0]);
        for none in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(facts_of_pem(none).is_err(), "{none}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = facts(&bytes);
        }
    }
}
