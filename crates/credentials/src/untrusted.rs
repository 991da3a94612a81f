//! Why one end does not trust the other, in words that say whose certificate it is about, since when,
//! and what to do. Pure.

use crate::certificate::{Facts, NoIdentity, Unreadable, Validity};
use crate::dates;
use keeptime_model::units::{Nanos, WallTime};
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, InvalidMessage};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why there is no connection, or none any more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Untrusted {
    /// The certificate of the other end is over.
    #[error(
        "the certificate of the other end expired at {}, {} ago by the clock here: it has to be \
         renewed there", dates::show(*at), dates::about(*ago)
    )]
    TheirsExpired {
        /// Its last second.
        at: WallTime,
        /// How long that is ago.
        ago: Nanos,
    },
    /// The certificate of the other end has not begun.
    #[error(
        "the certificate of the other end is valid from {} on only, by the clock here",
        dates::show(*from)
    )]
    TheirsNotYet {
        /// Its first second.
        from: WallTime,
    },
    /// The certificate of the other end was issued by somebody else.
    #[error(
        "the certificate of the other end was not issued by an authority in {}: either the wrong \
         authority is given here, or somebody else answers there", ca.display()
    )]
    TheirsUnknown {
        /// The file with those that are trusted.
        ca: PathBuf,
    },
    /// The certificate of the other end is for another host.
    #[error(
        "the certificate of the other end is not for {host}, but for {presented}: ask there by one \
         of these names, or have this one put into it"
    )]
    TheirsElsewhere {
        /// Who was asked.
        host: String,
        /// Whom it is for.
        presented: String,
    },
    /// The other end shows none.
    #[error("the other end shows no certificate")]
    TheirsMissing,
    /// The certificate of the other end was withdrawn.
    #[error("the certificate of the other end was revoked")]
    TheirsRevoked,
    /// The certificate of the other end is not meant for this end of a connection.
    #[error("the certificate of the other end is for another purpose than this")]
    TheirsMisused,
    /// The certificate of the other end names nobody.
    #[error(transparent)]
    TheirsNameless(#[from] NoIdentity),
    /// The certificate of the other end cannot be read.
    #[error(transparent)]
    TheirsUnreadable(#[from] Unreadable),
    /// The other end wants a certificate.
    #[error(
        "the other end wants a certificate, and none was given (--certificate, --certificate-key)"
    )]
    OursMissing,
    /// The certificate of this end does not hold.
    #[error("the other end does not take the certificate {}: it {problem}", certificate.display())]
    OursOver {
        /// Its file.
        certificate: PathBuf,
        /// "expired at …".
        problem: String,
    },
    /// The certificate of this end was issued by somebody whom the other end does not know.
    #[error(
        "the other end does not take the certificate {}: it does not know who issued it, {issuer}",
        certificate.display()
    )]
    OursUnknown {
        /// Its file.
        certificate: PathBuf,
        /// Its issuer.
        issuer: String,
    },
    /// The certificate of this end was withdrawn.
    #[error("the other end does not take the certificate {}: it was revoked", certificate.display())]
    OursRevoked {
        /// Its file.
        certificate: PathBuf,
    },
    /// The other end does not take the certificate of this end, and does not say why.
    #[error("the other end does not take the certificate {} ({alert})", certificate.display())]
    OursRefused {
        /// Its file.
        certificate: PathBuf,
        /// What it says.
        alert: String,
    },
    /// What answers there is for others.
    #[error(
        "what answers there speaks TLS, but something else inside: users connect to `address` of the \
         broker's configuration, agents to `agents`"
    )]
    OtherProtocol,
    /// What answers there speaks something else.
    #[error("what answers there does not speak TLS: is it the port of something else?")]
    NoTls,
    /// Something else.
    #[error("{0}")]
    Other(String),
}

/// What this end has: its files, and what stands in its certificate.
#[derive(Debug, Clone)]
pub(crate) struct Own {
    pub certificate: PathBuf,
    pub facts: Facts,
}

/// What is behind a failure of a connection to `host`, if it is about trust.
pub(crate) fn explain(
    error: &(dyn Error + 'static),
    host: &str,
    ca: &Path,
    own: Option<&Own>,
    now: WallTime,
) -> Option<Untrusted> {
    let Some(cause) = find(error) else {
        // The other end may have hung up before it was heard why.
        let own = own.filter(|_| hung_up(error))?;
        return over(own, now);
    };
    Some(match cause {
        rustls::Error::InvalidCertificate(problem) => theirs(problem, host, ca),
        rustls::Error::AlertReceived(alert) => ours(*alert, own, now),
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => Untrusted::NoTls,
        other => Untrusted::Other(other.to_string()),
    })
}

/// What is wrong with the certificate that the other end showed.
pub(crate) fn theirs(problem: &CertificateError, host: &str, ca: &Path) -> Untrusted {
    match problem {
        CertificateError::ExpiredContext { time, not_after } => {
            let at = wall(*not_after);
            Untrusted::TheirsExpired { at, ago: wall(*time).saturating_since(at) }
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            Untrusted::TheirsNotYet { from: wall(*not_before) }
        }
        // Signed by somebody who only has the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            Untrusted::TheirsUnknown { ca: ca.into() }
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            let none = "no host at all".to_owned();
            let presented = if presented.is_empty() { none } else { presented.join(", ") };
            Untrusted::TheirsElsewhere { host: host.into(), presented }
        }
        CertificateError::Revoked => Untrusted::TheirsRevoked,
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            Untrusted::TheirsMisused
        }
        other => Untrusted::Other(format!("the certificate of the other end: {other}")),
    }
}

/// What the other end says of the certificate here.
fn ours(alert: AlertDescription, own: Option<&Own>, now: WallTime) -> Untrusted {
    use AlertDescription as Alert;
    match (alert, own) {
        (Alert::NoApplicationProtocol, _) => return Untrusted::OtherProtocol,
        (Alert::CertificateRequired, _) => return Untrusted::OursMissing,
        _ => {}
    }
    let Some(own) = own else {
        return Untrusted::Other(format!("the other end refuses: {alert:?}"));
    };
    let certificate = own.certificate.clone();
    match alert {
        Alert::CertificateExpired => over(own, now).unwrap_or_else(|| {
            // It holds by the clock here, and not by that there.
            let Validity { from, until } = own.facts.validity;
            let (from, until) = (dates::show(from), dates::show(until));
            let problem = format!("holds from {from} until {until}, and not by the clock there");
            Untrusted::OursOver { certificate, problem }
        }),
        Alert::UnknownCA | Alert::DecryptError => {
            Untrusted::OursUnknown { certificate, issuer: own.facts.issuer.clone() }
        }
        Alert::CertificateRevoked => Untrusted::OursRevoked { certificate },
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateUnknown
        | Alert::AccessDenied => {
            Untrusted::OursRefused { certificate, alert: format!("{alert:?}") }
        }
        other => Untrusted::Other(format!("the other end refuses: {other:?}")),
    }
}

fn over(own: &Own, now: WallTime) -> Option<Untrusted> {
    let problem = own.facts.validity.problem(now)?;
    Some(Untrusted::OursOver { certificate: own.certificate.clone(), problem })
}

/// The first cause that TLS knows.
fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// Whether there was somebody, who went away.
fn hung_up(error: &(dyn Error + 'static)) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let kinds = [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof];
    let mut found = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
    found.next().is_none_or(|cause| kinds.contains(&cause.kind()))
}

/// The error and what caused it. One of I/O hides what it was made of from `source`.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'a (dyn Error + 'static) = *error;
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inside) => Some(inside as &(dyn Error + 'static)),
            None => error.source(),
        }
    })
}

fn wall(time: UnixTime) -> WallTime {
    dates::from_unix_seconds(i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_found_however_deep_it_lies() {
        let cause = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        let wrapped = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, cause));
        let now = dates::from_unix_seconds(0);
        let told = explain(&wrapped, "broker", Path::new("ca.pem"), None, now);
        assert_eq!(told, Some(Untrusted::OursMissing));
        let other = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(explain(&other, "broker", Path::new("ca.pem"), None, now), None);
    }

    #[test]
    fn who_hangs_up_on_an_expired_certificate_may_have_done_so_for_that() {
        let validity =
            Validity { from: dates::from_unix_seconds(0), until: dates::from_unix_seconds(9) };
        let identity = Err(NoIdentity::Missing);
        let (subject, issuer) = ("a".into(), "b".into());
        let facts = Facts { subject, issuer, serial: vec![1], hosts: vec![], identity, validity };
        let own = Own { certificate: "own.pem".into(), facts };
        let told = |kind: io::ErrorKind, second| {
            let now = dates::from_unix_seconds(second);
            explain(&io::Error::from(kind), "broker", Path::new("ca.pem"), Some(&own), now)
        };
        let over = told(io::ErrorKind::ConnectionReset, 10).unwrap().to_string();
        assert!(over.contains("own.pem: it expired at 1970-01-01T00:00:09Z"), "{over}");
        assert_eq!(told(io::ErrorKind::ConnectionReset, 9), None);
        assert_eq!(told(io::ErrorKind::ConnectionRefused, 10), None, "nobody was there");
    }
}
