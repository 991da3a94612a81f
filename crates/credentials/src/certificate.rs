//! What stands in a certificate: whom it is for, who issued it, from when until when. Pure. Whether it
//! is to be believed is for [`crate::tls`].

use crate::dates;
use crate::identity::Identity;
use keeptime_model::units::WallTime;
use thiserror::Error;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// What is read of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its subject, as in `CN=n1`.
    pub subject: String,
    /// Who issued it.
    pub issuer: String,
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
        identity: identity(&read),
        validity: Validity {
            from: dates::from_unix_seconds(validity.not_before.timestamp()),
            until: dates::from_unix_seconds(validity.not_after.timestamp()),
        },
    })
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

impl Validity {
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

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = facts(&bytes);
        }
    }
}
