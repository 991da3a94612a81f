//! Both ends as files make them, in memory: who is let in, who is not, and what either is told.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_credentials::authority::{Authority, Issued};
use keeptime_credentials::certificate::NoIdentity;
use keeptime_credentials::dates::now;
use keeptime_credentials::identity::Identity;
use keeptime_credentials::tls::{
    AGENT, Client, Clients, HTTP, OwnFiles, Server, ServerFiles, TlsError,
};
use keeptime_credentials::untrusted::Untrusted;
use keeptime_model::units::{Nanos, WallTime};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const HOUR: Nanos = Nanos::from_secs(3_600);
const YEAR: Nanos = Nanos::from_secs(365 * 24 * 3_600);

/// An authority and a directory with what it issued.
struct Site {
    directory: tempfile::TempDir,
    authority: Authority,
}

impl Site {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (authority, own) = Authority::new("site", now(), YEAR).unwrap();
        let site = Self { directory, authority };
        site.write("ca", &own);
        site.write("broker", &site.authority.for_broker(&hosts(), now(), YEAR).unwrap());
        site
    }

    fn write(&self, name: &str, issued: &Issued) -> OwnFiles {
        let files = self.files(name);
        fs::write(&files.certificate, &issued.certificate).unwrap();
        fs::write(&files.key, &issued.key).unwrap();
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
        files
    }

    fn files(&self, name: &str) -> OwnFiles {
        let at = |end: &str| self.directory.path().join(format!("{name}{end}"));
        OwnFiles { certificate: at(".pem"), key: at("-key.pem") }
    }

    fn ca(&self) -> PathBuf {
        self.files("ca").certificate
    }

    fn issue(&self, identity: &Identity, from: WallTime) -> OwnFiles {
        self.write("client", &self.authority.for_client(identity, from, HOUR).unwrap())
    }

    fn server(&self, clients: Clients, revoked: Option<&Path>) -> Server {
        self.try_server(clients, revoked).unwrap()
    }

    fn try_server(&self, clients: Clients, revoked: Option<&Path>) -> Result<Server, TlsError> {
        let (own, ca) = (self.files("broker"), self.ca());
        let (certificate, key) = (own.certificate.as_path(), own.key.as_path());
        let files = ServerFiles { certificate, key, client_ca: Some(&ca), revoked };
        Server::read(files, clients, HTTP)
    }

    fn client(&self, files: Option<&OwnFiles>) -> Client {
        Client::read(&self.ca(), files, HTTP).unwrap()
    }
}

fn hosts() -> Vec<String> {
    vec!["broker.example".into(), "10.0.0.1".into()]
}

fn ada() -> Identity {
    Identity::User("ada".parse().unwrap())
}

/// Lets both ends talk until neither has anything to say. What each is left with.
fn shake(client: &Client, server: &Server, host: &'static str) -> (Option<Untrusted>, bool) {
    let name = ServerName::try_from(host).unwrap();
    let mut near = ClientConnection::new(client.config(), name).unwrap();
    let mut far = ServerConnection::new(server.config()).unwrap();
    let (mut told, mut refused) = (None, false);
    loop {
        let mut bytes = Vec::new();
        while near.wants_write() {
            near.write_tls(&mut bytes).unwrap();
        }
        let mut said = bytes.len();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() && far.read_tls(&mut rest).unwrap() > 0 {
            refused |= far.process_new_packets().is_err();
        }
        bytes.clear();
        while far.wants_write() {
            far.write_tls(&mut bytes).unwrap();
        }
        said += bytes.len();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() && near.read_tls(&mut rest).unwrap() > 0 {
            if let (Err(error), None) = (near.process_new_packets(), &told) {
                told = client.explain(&error, host, now());
            }
        }
        if said == 0 {
            let peer = far.peer_certificates().map(|chain| server.identify(chain, now()));
            assert!(refused || told.is_some() || peer.is_none_or(|peer| peer.is_ok()));
            return (told, refused);
        }
    }
}

#[test]
fn who_was_issued_a_certificate_is_known_by_it() {
    let site = Site::new();
    let server = site.server(Clients::WithCertificate, None);
    for identity in [ada(), Identity::Node("n1".parse().unwrap())] {
        let client = site.client(Some(&site.issue(&identity, now())));
        assert_eq!(client.facts().unwrap().identity, Ok(identity));
        for host in ["broker.example", "10.0.0.1"] {
            assert_eq!(shake(&client, &server, host), (None, false));
        }
    }
}

#[test]
fn without_a_certificate_one_gets_as_far_as_the_server_allows() {
    let site = Site::new();
    let client = site.client(None);
    assert_eq!(shake(&client, &site.server(Clients::Any, None), "10.0.0.1"), (None, false));
    let strict = site.server(Clients::WithCertificate, None);
    assert_eq!(shake(&client, &strict, "10.0.0.1"), (Some(Untrusted::OursMissing), true));
}

#[test]
fn an_expired_certificate_is_told_with_its_side_and_its_end() {
    let site = Site::new();
    let long_ago = WallTime::from_unix_nanos(now().unix_nanos() - 5 * 24 * HOUR.get());
    let client = site.client(Some(&site.issue(&ada(), long_ago)));
    let (told, refused) = shake(&client, &site.server(Clients::Any, None), "10.0.0.1");
    let text = told.unwrap().to_string();
    assert!(refused && text.contains("client.pem: it expired at 20"), "{text}");
    assert!(text.ends_with("4 d ago"), "{text}");

    let old = site.authority.for_broker(&hosts(), long_ago, HOUR).unwrap();
    site.write("broker", &old);
    let server = site.server(Clients::Any, None);
    assert!(server.facts().validity.problem(now()).is_some());
    let (told, _) = shake(&site.client(None), &server, "10.0.0.1");
    let text = told.unwrap().to_string();
    assert!(text.starts_with("the certificate of the other end expired at 20"), "{text}");
    assert!(text.contains("renewed there"), "{text}");

    let later = now().saturating_add(HOUR);
    site.write("broker", &site.authority.for_broker(&hosts(), later, HOUR).unwrap());
    let (told, _) = shake(&site.client(None), &site.server(Clients::Any, None), "10.0.0.1");
    assert!(matches!(told, Some(Untrusted::TheirsNotYet { .. })), "{told:?}");
}

#[test]
fn strangers_are_told_from_friends_at_both_ends() {
    let (site, other) = (Site::new(), Site::new());
    let stranger = Client::read(&site.ca(), Some(&other.issue(&ada(), now())), HTTP).unwrap();
    let (told, refused) = shake(&stranger, &site.server(Clients::Any, None), "10.0.0.1");
    assert!(refused && matches!(told, Some(Untrusted::OursUnknown { .. })), "{told:?}");

    let (told, _) = shake(&site.client(None), &other.server(Clients::Any, None), "10.0.0.1");
    assert_eq!(told, Some(Untrusted::TheirsUnknown { ca: site.ca() }));

    let server = site.server(Clients::Any, None);
    let (told, _) = shake(&site.client(None), &server, "elsewhere.example");
    let text = told.unwrap().to_string();
    assert!(text.contains("not for elsewhere.example") && text.contains("10.0.0.1"), "{text}");
}

#[test]
fn a_node_or_a_user_cannot_answer_as_the_broker_nor_the_broker_ask_as_a_user() {
    let site = Site::new();
    let node = site.issue(&Identity::Node("n1".parse().unwrap()), now());
    let broker = site.files("broker");
    let files = |own: &OwnFiles| (own.certificate.clone(), own.key.clone());
    let (certificate, key) = files(&node);
    let none = ServerFiles { certificate: &certificate, key: &key, client_ca: None, revoked: None };
    let server = Server::read(none, Clients::Any, HTTP).unwrap();
    assert!(shake(&site.client(None), &server, "10.0.0.1").0.is_some());
    let (_, refused) =
        shake(&site.client(Some(&broker)), &site.server(Clients::Any, None), "10.0.0.1");
    assert!(refused, "it is for servers alone");
}

#[test]
fn a_revoked_certificate_is_refused_and_others_are_not() {
    let site = Site::new();
    let files = site.issue(&ada(), now());
    let client = site.client(Some(&files));
    let list = site.directory.path().join("revoked.pem");
    let revoke = |certificates: &[String]| {
        let former = fs::read_to_string(&list).ok();
        let new = site.authority.revoke(former.as_deref(), certificates, now(), YEAR).unwrap();
        fs::write(&list, new).unwrap();
        site.server(Clients::Any, Some(&list))
    };
    assert_eq!(shake(&client, &revoke(&[]), "10.0.0.1"), (None, false));
    let server = revoke(&[fs::read_to_string(&files.certificate).unwrap()]);
    let (told, refused) = shake(&client, &server, "10.0.0.1");
    assert!(refused && matches!(told, Some(Untrusted::OursRevoked { .. })), "{told:?}");
    let again = site.client(Some(&site.issue(&ada(), now())));
    let server = revoke(&[]);
    assert_eq!(shake(&again, &server, "10.0.0.1"), (None, false), "another one of the same user");
    assert!(shake(&client, &server, "10.0.0.1").1, "a new list keeps what the former had");
}

#[test]
fn a_list_that_cannot_be_used_is_named() {
    // Nobody is let in beside a list that says nothing, and nobody looks for the fault elsewhere.
    let site = Site::new();
    let list = site.directory.path().join("revoked.pem");
    let damaged = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
    for (text, expected) in [
        ("", "has no list of revoked certificates"),
        (damaged, "cannot be used"),
        (&damaged.replace("AAAA", "A"), "cannot be used"),
    ] {
        fs::write(&list, text).unwrap();
        let error = site.try_server(Clients::Any, Some(&list)).unwrap_err().to_string();
        assert!(error.contains("/revoked.pem ") && error.contains(expected), "{error}");
    }
}

#[test]
fn what_somebody_else_issued_is_not_said_to_be_revoked() {
    // Nobody looks for it on this list: it would go on to be good.
    let (site, other) = (Site::new(), Site::new());
    let foreign = fs::read_to_string(other.issue(&ada(), now()).certificate).unwrap();
    let error = site.authority.revoke(None, &[foreign], now(), YEAR).unwrap_err().to_string();
    assert!(error.contains("one that this authority issued"), "{error}");
    let loaded = Authority::load(&Issued {
        certificate: fs::read_to_string(site.ca()).unwrap(),
        key: fs::read_to_string(site.files("ca").key).unwrap(),
    });
    let own = fs::read_to_string(site.issue(&ada(), now()).certificate).unwrap();
    assert!(loaded.ok().unwrap().revoke(None, &[own], now(), YEAR).is_ok());
}

#[test]
fn what_was_believed_is_looked_at_again_later() {
    let site = Site::new();
    let files = site.issue(&ada(), now());
    let chain = [rustls::pki_types::pem::PemObject::from_pem_file(&files.certificate).unwrap()];
    let server = site.server(Clients::Any, None);
    let peer = server.identify(&chain, now()).unwrap();
    assert_eq!(peer.identity, ada());
    let after = peer.until.saturating_add(Nanos::from_secs(1));
    let over = server.identify(&chain, after).unwrap_err();
    assert!(matches!(over, Untrusted::TheirsExpired { .. }), "{over}");
    let other = Site::new().server(Clients::Any, None);
    assert!(matches!(other.identify(&chain, now()), Err(Untrusted::TheirsUnknown { .. })));
    let broker = site.files("broker").certificate;
    let nameless = [rustls::pki_types::pem::PemObject::from_pem_file(broker).unwrap()];
    let told = server.identify(&nameless, now()).unwrap_err();
    let expected = Untrusted::TheirsNameless(NoIdentity::Missing);
    assert!(told == expected || told == Untrusted::TheirsMisused, "{told}");
}

#[test]
fn ends_that_speak_different_things_do_not_meet() {
    let site = Site::new();
    let files = site.issue(&ada(), now());
    let agent = Client::read(&site.ca(), Some(&files), AGENT).unwrap();
    let (told, refused) = shake(&agent, &site.server(Clients::Any, None), "10.0.0.1");
    assert!(refused && told == Some(Untrusted::OtherProtocol), "{told:?}");
}

#[test]
fn files_that_do_not_fit_are_named() {
    let (site, other) = (Site::new(), Site::new());
    let (own, ca) = (site.files("broker"), site.ca());
    let read = |certificate: &Path, key: &Path| {
        let files = ServerFiles { certificate, key, client_ca: Some(&ca), revoked: None };
        Server::read(files, Clients::Any, HTTP).unwrap_err().to_string()
    };
    let mixed = read(&own.certificate, &other.files("broker").key);
    assert!(mixed.contains("broker-key.pem cannot be used"), "{mixed}");
    let swapped = read(&own.key, &own.key);
    assert!(swapped.contains("has no certificate"), "{swapped}");
    fs::set_permissions(&own.key, fs::Permissions::from_mode(0o644)).unwrap();
    let exposed = read(&own.certificate, &own.key);
    assert!(exposed.contains("mode 0644") && exposed.contains("chmod 600"), "{exposed}");

    let issued = |name: &str| Issued {
        certificate: fs::read_to_string(site.files(name).certificate).unwrap(),
        key: fs::read_to_string(site.files(name).key).unwrap(),
    };
    assert!(Authority::load(&issued("ca")).is_ok());
    let error = Authority::load(&issued("broker")).err().unwrap().to_string();
    assert!(error.contains("may not issue others"), "{error}");
    let bad = site.authority.for_broker(&["a b".into()], now(), YEAR).err().unwrap();
    assert!(bad.to_string().contains("host: \"a b\""), "{bad}");
}
