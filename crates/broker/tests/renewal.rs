//! Clients that stay while what they show is renewed: a broker with a door over TCP, certificates and tokens, without a
//! restart of either end.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_broker::client::Client;
use keeptime_broker::remote::{ClientFiles, Remote};
use keeptime_broker::tcp::config::{Listen, Tcp};
use keeptime_credentials::authority::{Authority, Issued};
use keeptime_credentials::dates::now;
use keeptime_credentials::files::{self, Secrecy};
use keeptime_credentials::identity::Identity;
use keeptime_credentials::token_file;
use keeptime_credentials::tokens::{RANDOM_BYTES, Secret};
use keeptime_model::units::Nanos;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use world::{World, request, wait};

const HOUR: Nanos = Nanos::from_secs(3_600);
const HOST: &str = "127.0.0.1";

/// A broker that is asked over TCP, and the directory of who issues certificates and tokens for it.
struct Door {
    _world: World,
    authority: Authority,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl Door {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (authority, own) = Authority::new("site", now(), HOUR).unwrap();
        let at = |name: &str| directory.path().join(name);
        write(&at("ca"), &own);
        write(&at("broker"), &authority.for_broker(&[HOST.to_owned()], now(), HOUR).unwrap());
        let list = authority.revoke(None, &[], now(), HOUR).unwrap();
        files::replace(&at("revoked.pem"), &list, Secrecy::Public).unwrap();
        token_file::change(&at("tokens.toml"), |_| Ok(())).unwrap();
        // Nobody else listens there, most likely.
        let address = TcpListener::bind((HOST, 0)).unwrap().local_addr().unwrap();
        let tcp = Tcp {
            address: Listen(address),
            agents: None,
            certificate: at("broker.pem"),
            key: at("broker.key"),
            client_ca: Some(at("ca.pem")),
            revoked: Some(at("revoked.pem")),
            tokens: Some(at("tokens.toml")),
        };
        let world = World::with(1, |config| {
            config.requests_per_second = 1_000_000;
            config.tcp = Some(tcp);
        });
        Self { _world: world, authority, address, directory }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Puts a new certificate of `user` in the place of what is in these files.
    fn issue(&self, user: &str, name: &str) {
        let identity = Identity::User(user.parse().unwrap());
        write(&self.at(name), &self.authority.for_client(&identity, now(), HOUR).unwrap());
    }

    /// Withdraws the certificate in this file.
    fn withdraw(&self, name: &str) {
        let certificate = fs::read_to_string(self.at(name)).unwrap();
        let list = self.authority.revoke(None, &[certificate], now(), HOUR).unwrap();
        files::replace(&self.at("revoked.pem"), &list, Secrecy::Public).unwrap();
    }

    /// Makes a token for ada and puts it in the place of what is in this file.
    fn add_token(&self, random: u8, name: &str) -> Secret {
        let ada = "ada".parse().unwrap();
        let add = token_file::change(&self.at("tokens.toml"), |tokens| {
            tokens.add(ada, None, &[random; RANDOM_BYTES])
        });
        let secret = add.unwrap();
        files::replace(&self.at(name), secret.expose(), Secrecy::Secret).unwrap();
        secret
    }

    fn by_certificate(&self, name: &str) -> Client {
        let at = |end: &str| Some(self.at(&format!("{name}.{end}")));
        self.client(ClientFiles { certificate: at("pem"), key: at("key"), ..Default::default() })
    }

    fn by_token(&self, name: &str) -> Client {
        self.client(ClientFiles { token: Some(self.at(name)), ..Default::default() })
    }

    fn client(&self, files: ClientFiles) -> Client {
        let files = ClientFiles { ca: Some(self.at("ca.pem")), ..files };
        let remote = Remote::new(self.address.to_string().parse().unwrap(), &files).unwrap();
        Client::remote(remote).unwrap()
    }
}

/// A certificate and its key, in files with these endings.
fn write(path: &Path, issued: &Issued) {
    files::replace(&path.with_extension("key"), &issued.key, Secrecy::Secret).unwrap();
    files::replace(&path.with_extension("pem"), &issued.certificate, Secrecy::Public).unwrap();
}

/// Whether a client that comes now is turned away.
fn is_refused(client: &Client) -> bool {
    client.nodes(None).is_err_and(|error| error.is_about_trust())
}

/// Asks until there is an answer; whatever is told before does not end a run.
fn ask_on(client: &Client) {
    wait("an answer", || match client.nodes(None) {
        Ok(_) => true,
        Err(error) => {
            assert!(error.is_retryable(), "{error:?}");
            false
        }
    });
}

// Goal: who holds a reservation for hours outlives their certificate. Method: the certificate is exchanged in its files and
// the former one withdrawn, which ends its connections as its last second does. Others see that it is good no more.
#[test]
fn a_client_goes_on_by_the_certificate_that_took_the_place_of_its_first() {
    let door = Door::new();
    door.issue("ada", "ada");
    let client = door.by_certificate("ada");
    client.nodes(None).unwrap();
    for end in ["pem", "key"] {
        fs::copy(door.at(&format!("ada.{end}")), door.at(&format!("former.{end}"))).unwrap();
    }
    door.issue("ada", "ada");
    door.withdraw("former.pem");
    wait("the end of the former", || is_refused(&door.by_certificate("former")));
    ask_on(&client);
    // Without new files it would have been the end.
    door.withdraw("ada.pem");
    wait("the end of the second", || is_refused(&client));
}

#[test]
fn a_client_goes_on_by_the_token_that_took_the_place_of_its_first() {
    let door = Door::new();
    let former = door.add_token(1, "ada.token");
    wait("the first token", || door.by_token("ada.token").nodes(None).is_ok());
    let client = door.by_token("ada.token");
    client.nodes(None).unwrap();
    fs::copy(door.at("ada.token"), door.at("former.token")).unwrap();
    door.add_token(2, "next.token");
    wait("the second token", || door.by_token("next.token").nodes(None).is_ok());
    fs::rename(door.at("next.token"), door.at("ada.token")).unwrap();
    token_file::change(&door.at("tokens.toml"), |tokens| Ok(tokens.revoke(former.id()))).unwrap();
    wait("the end of the first", || is_refused(&door.by_token("former.token")));
    ask_on(&client);
}

// Goal: a connection does not last until its certificate is refused. Method: another user's takes the place of one that
// is still good; what is asked then, on the same client, is asked by the other.
#[test]
fn a_connection_is_replaced_while_what_was_shown_on_it_is_still_good() {
    let door = Door::new();
    door.issue("ada", "own");
    let client = door.by_certificate("own");
    let granted = client.reserve("one".parse().unwrap(), request(1, 10, 0, 600)).unwrap();
    assert_eq!(granted.owner.as_str(), "ada");
    client.keep(granted.handle).unwrap();
    door.issue("eve", "own");
    wait("another connection", || client.keep(granted.handle).is_err());
    let told = client.keep(granted.handle).unwrap_err().to_string();
    assert!(told.contains("belongs to ada"), "{told}");
}
