//! Which certificates were withdrawn, as the lists of their authorities say (CRL). Pure. Whether a list is to be believed is for
//! [`crate::tls`].

use crate::certificate::{Facts, Unreadable, number};
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use std::collections::BTreeSet;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

/// What was withdrawn: issuers, each with numbers of its certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revoked(BTreeSet<(String, Vec<u8>)>);

impl Revoked {
    /// What all lists of a text (PEM) have.
    ///
    /// # Errors
    /// If one of them is damaged.
    pub fn read(text: &str) -> Result<Self, Unreadable> {
        let mut withdrawn = BTreeSet::new();
        for der in CertificateRevocationListDer::pem_slice_iter(text.as_bytes()) {
            let der = der.map_err(|error| Unreadable { reason: error.to_string() })?;
            let read = CertificateRevocationList::from_der(&der);
            let (_, list) = read.map_err(|error| Unreadable { reason: error.to_string() })?;
            let issuer = list.issuer().to_string();
            let numbers = list.iter_revoked_certificates().map(|entry| number(entry.raw_serial()));
            withdrawn.extend(numbers.map(|number| (issuer.clone(), number)));
        }
        Ok(Self(withdrawn))
    }

    /// Whether this certificate was.
    pub fn has(&self, facts: &Facts) -> bool {
        self.0.contains(&(facts.issuer.clone(), facts.serial.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::Authority;
    use crate::certificate::facts_of_pem;
    use crate::dates;
    use crate::identity::Identity;
    use keeptime_model::units::Nanos;

    // Goal: numbers say something among those of one issuer alone. Method: two authorities, and as many certificates as it
    // takes to have numbers of all kinds.
    #[test]
    fn what_was_withdrawn_is_known_and_nothing_else() {
        let (now, hour) = (dates::now(), Nanos::from_secs(3_600));
        let authority = || Authority::new("site", now, hour).unwrap().0;
        let (ours, others) = (authority(), authority());
        let issue = |by: &Authority| {
            let ada = Identity::User("ada".parse().unwrap());
            by.for_client(&ada, now, hour).unwrap().certificate
        };
        let withdrawn: Vec<_> = (0..32).map(|_| issue(&ours)).collect();
        let list = |by: &Authority, certificates: &[String]| {
            by.revoke(None, certificates, now, hour).unwrap()
        };
        let revoked = Revoked::read(&(list(&others, &[]) + &list(&ours, &withdrawn))).unwrap();
        let has = |pem: &str| revoked.has(&facts_of_pem(pem).unwrap()[0]);
        assert!(withdrawn.iter().all(|pem| has(pem)));
        assert!(!has(&issue(&ours)) && !has(&issue(&others)));
        let mut other = facts_of_pem(&withdrawn[0]).unwrap().remove(0);
        other.issuer = facts_of_pem(&issue(&others)).unwrap()[0].issuer.clone();
        assert!(!revoked.has(&other), "the number of another issuer's");
        assert_eq!(Revoked::read(""), Ok(Revoked::default()));
        let damaged = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
        assert!(Revoked::read(damaged).is_err());
    }
}
