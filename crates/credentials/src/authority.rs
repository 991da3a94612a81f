//! A small certificate authority: what a cluster without one needs so that broker, nodes and users know
//! each other. Sites that have one use theirs; the names in [`crate::identity`] are all that is asked.

use crate::dates;
use crate::identity::Identity;
use keeptime_model::Invalid;
use keeptime_model::units::{Nanos, WallTime};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, PublicKeyData, RevokedCertParams, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use std::net::IpAddr;
use thiserror::Error;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::revocation_list::CertificateRevocationList;

/// Certificates hold from a little earlier on: clocks differ.
const EARLIER: Nanos = Nanos::from_secs(300);

/// Who issues certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its name, as what it issues has it (DER).
    subject: Vec<u8>,
}

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate: everybody may have it.
    pub certificate: String,
    /// The key: nobody but whom it is for.
    pub key: String,
}

/// A certificate cannot be issued.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// What was given makes none.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The authority's own certificate or key cannot be used.
    #[error("the authority's certificate or key cannot be used: {reason}")]
    Unfit {
        /// Why.
        reason: String,
    },
    /// It cannot be made.
    #[error("the certificate cannot be made")]
    Make(#[source] rcgen::Error),
}

impl Authority {
    /// A new authority called `name`, that issues from `now` on for so long.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn new(name: &str, now: WallTime, lasts: Nanos) -> Result<(Self, Issued), AuthorityError> {
        let key = KeyPair::generate().map_err(AuthorityError::Make)?;
        let mut params = params(name, now, lasts)?;
        // One that takes its place has another name: nobody mixes them up.
        let id: String = params.key_identifier(&key).iter().take(4).map(hex).collect();
        params.distinguished_name.push(DnType::CommonName, format!("{name} {id}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let own = params.self_signed(&key).map_err(AuthorityError::Make)?;
        let (_, read) = X509Certificate::from_der(own.der())
            .map_err(|error| AuthorityError::Unfit { reason: error.to_string() })?;
        let subject = read.subject().as_raw().to_vec();
        let issued = Issued { certificate: own.pem(), key: key.serialize_pem() };
        Ok((Self { issuer: Issuer::new(params, key), subject }, issued))
    }

    /// One that there is.
    ///
    /// # Errors
    /// If it cannot be read, or is none.
    pub fn load(own: &Issued) -> Result<Self, AuthorityError> {
        let unfit = |reason: String| AuthorityError::Unfit { reason };
        let key = KeyPair::from_pem(&own.key).map_err(|error| unfit(error.to_string()))?;
        let der = read(&own.certificate)?;
        let (_, read) = X509Certificate::from_der(&der).map_err(|e| unfit(e.to_string()))?;
        if !read.is_ca() {
            return Err(unfit("it may not issue others (CA:FALSE)".into()));
        }
        if read.public_key().raw != key.subject_public_key_info() {
            return Err(unfit("the key belongs to another certificate".into()));
        }
        let subject = read.subject().as_raw().to_vec();
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(|e| unfit(e.to_string()))?;
        Ok(Self { issuer, subject })
    }

    /// A certificate for a broker that is asked by these names and addresses.
    ///
    /// # Errors
    /// If there is none of them, or one is no name of a host.
    pub fn for_broker(
        &self,
        hosts: &[String],
        now: WallTime,
        lasts: Nanos,
    ) -> Result<Issued, AuthorityError> {
        let first = hosts.first();
        let first = first.ok_or_else(|| Invalid::new("hosts", "none", "at least one"))?;
        let mut params = params(first, now, lasts)?;
        for host in hosts {
            params.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(dns_name(host)?),
            });
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(params)
    }

    /// A certificate for a user or a node.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn for_client(
        &self,
        identity: &Identity,
        now: WallTime,
        lasts: Nanos,
    ) -> Result<Issued, AuthorityError> {
        let mut params = params(&identity.to_string(), now, lasts)?;
        let uri = identity.uri();
        let refuse = |_| Invalid::new("name", &uri, "ASCII letters, digits and signs");
        params.subject_alt_names.push(SanType::URI(uri.as_str().try_into().map_err(refuse)?));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params)
    }

    /// A list (CRL, PEM) of what is withdrawn: all of the `former` one, and these certificates (PEM).
    ///
    /// # Errors
    /// If one of them, or the list, cannot be read; if one was issued by somebody else, whose list this is not.
    pub fn revoke(
        &self,
        former: Option<&str>,
        certificates: &[String],
        now: WallTime,
        lasts: Nanos,
    ) -> Result<String, AuthorityError> {
        let unfit = |reason: String| AuthorityError::Unfit { reason };
        let mut revoked_certs = former.map(revoked).transpose()?.unwrap_or_default();
        for pem in certificates {
            let der = read(pem)?;
            let (_, read) = X509Certificate::from_der(&der).map_err(|e| unfit(e.to_string()))?;
            if read.issuer().as_raw() != self.subject.as_slice() {
                // Numbers say something among those of one issuer alone: nothing would be withdrawn.
                let expected = "one that this authority issued";
                return Err(Invalid::new("certificate", read.issuer(), expected).into());
            }
            revoked_certs.push(withdrawn(read.raw_serial(), date(now)?));
        }
        let list = CertificateRevocationListParams {
            this_update: date(now)?,
            next_update: date(now.saturating_add(lasts))?,
            crl_number: SerialNumber::from_slice(&now.unix_nanos().to_be_bytes()),
            issuing_distribution_point: None,
            revoked_certs,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).and_then(|list| list.pem()).map_err(AuthorityError::Make)
    }

    fn issue(&self, mut params: CertificateParams) -> Result<Issued, AuthorityError> {
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(AuthorityError::Make)?;
        let certificate: Certificate =
            params.signed_by(&key, &self.issuer).map_err(AuthorityError::Make)?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// What a list has.
fn revoked(list: &str) -> Result<Vec<RevokedCertParams>, AuthorityError> {
    let unfit = |reason: String| AuthorityError::Unfit { reason };
    let der = CertificateRevocationListDer::from_pem_slice(list.as_bytes());
    let der = der.map_err(|error| unfit(format!("no list of revoked certificates: {error}")))?;
    let read = CertificateRevocationList::from_der(&der);
    let (_, read) = read.map_err(|error| unfit(error.to_string()))?;
    let each = read.iter_revoked_certificates().map(|entry| {
        let time = dates::from_unix_seconds(entry.revocation_date.timestamp());
        Ok(withdrawn(entry.raw_serial(), date(time)?))
    });
    each.collect()
}

fn withdrawn(serial: &[u8], revocation_time: OffsetDateTime) -> RevokedCertParams {
    let serial_number = SerialNumber::from_slice(serial);
    RevokedCertParams { serial_number, revocation_time, reason_code: None, invalidity_date: None }
}

/// What all certificates have.
fn params(name: &str, now: WallTime, lasts: Nanos) -> Result<CertificateParams, AuthorityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let from = now.unix_nanos().saturating_sub(EARLIER.get());
    params.not_before = date(WallTime::from_unix_nanos(from))?;
    params.not_after = date(now.saturating_add(lasts))?;
    Ok(params)
}

fn date(time: WallTime) -> Result<OffsetDateTime, Invalid> {
    let seconds = i64::try_from(dates::unix_seconds(time)).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds)
        .map_err(|_| Invalid::new("time", dates::show(time), "a time before the year 10000"))
}

fn hex(byte: &u8) -> String {
    format!("{byte:02x}")
}

fn dns_name(host: &str) -> Result<rcgen::string::Ia5String, Invalid> {
    let refuse = || Invalid::new("host", host, "the name or address of a host");
    rustls::pki_types::DnsName::try_from(host).map_err(|_| refuse())?;
    host.try_into().map_err(|_| refuse())
}

fn read(pem: &str) -> Result<CertificateDer<'static>, AuthorityError> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| AuthorityError::Unfit { reason: format!("no certificate: {error}") })
}
