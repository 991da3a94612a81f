//! Apache by its balancer-manager (mod_proxy_balancer). Tested with 2.4.
//!
//! The manager listens only to pages of its own (Referer), and takes changes only with its nonce.
//! What it was told is gone after a restart, unless `BalancerPersist` is on;
//! [`Front`](crate::front::Front) tells it again. A disabled worker gets no new requests, of sessions
//! that stick to it neither; a stopped one is off. What a worker has begun it ends, whatever the manager is told.

use crate::balancer::{Balancer, BalancerError};
use crate::page::{element, elements, fetch, quoted};
use crate::traffic::{Change, Observed, Seen, Server, Traffic, Weight};
use keeptime_model::Invalid;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// One balancer of one Apache.
#[derive(Debug)]
pub struct Apache {
    name: String,
    address: SocketAddr,
    /// Of the manager's page.
    path: String,
    balancer: String,
    servers: Vec<Server>,
}

impl Apache {
    /// The balancer `balancer` (without `balancer://`) whose manager is at `path` of `address`, with
    /// these members, as in `BalancerMember http://10.0.0.1:80`.
    ///
    /// # Errors
    /// If the path or the balancer's name could be taken for more than that.
    pub fn new(
        address: SocketAddr,
        path: &str,
        balancer: &str,
        servers: Vec<Server>,
    ) -> Result<Self, Invalid> {
        let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if balancer.is_empty() || !balancer.chars().all(legal) {
            return Err(Invalid::new("balancer", balancer, "letters, digits, '-', '_', '.'"));
        }
        if !path.starts_with('/') || !path.chars().all(|c| legal(c) || c == '/') {
            return Err(Invalid::new("path", path, "as in /balancer-manager"));
        }
        Ok(Self {
            name: format!("apache:http://{address}{path}/{balancer}"),
            address,
            path: path.into(),
            balancer: balancer.into(),
            servers,
        })
    }

    fn page(&self, query: &str) -> Result<String, BalancerError> {
        let request = format!("GET {}{query} HTTP/1.0\r\n{}\r\n", self.path, self.own_page());
        fetch(self.address, &request).map_err(|source| self.unreachable(source))
    }

    /// The fields without which the manager passes over all that it is asked or told.
    fn own_page(&self) -> String {
        let Self { path, address, .. } = self;
        format!("Host: {address}\r\nReferer: http://{address}{path}\r\n")
    }

    fn unreachable(&self, source: std::io::Error) -> BalancerError {
        BalancerError::Unreachable { balancer: self.name.clone(), source }
    }

    fn unexpected(&self, problem: impl Into<String>) -> BalancerError {
        let (balancer, command) = (self.name.clone(), self.path.clone());
        BalancerError::Unexpected { balancer, command, problem: problem.into() }
    }

    /// What every form of the manager has to bring along.
    fn nonce(&self) -> Result<String, BalancerError> {
        let page = self.page("")?;
        let link = format!("b={}&", self.balancer);
        let plain = page.replace("&amp;", "&");
        let found = plain.split(link.as_str()).skip(1).find_map(|rest| {
            let rest = rest.split(['"', '\'']).next()?;
            rest.split_once("nonce=").map(|(_, nonce)| nonce.to_string())
        });
        found.ok_or_else(|| self.unexpected(format!("no form for balancer {:?}", self.balancer)))
    }

    fn send(&self, nonce: &str, server: &Server, traffic: Traffic) -> Result<(), BalancerError> {
        let Self { path, address, balancer, .. } = self;
        let settings = match traffic {
            Traffic::Off => "w_status_S=1&w_status_D=0".to_string(),
            Traffic::Drain => "w_status_S=0&w_status_D=1".to_string(),
            Traffic::On(weight) => {
                format!("w_lf={}&w_status_S=0&w_status_D=0&w_status_N=0", weight.get())
            }
        };
        let worker = quoted(&worker(server.address));
        let form = format!("w={worker}&b={balancer}&nonce={nonce}&{settings}");
        let request = format!(
            "POST {path} HTTP/1.0\r\n{}Content-Type: application/x-www-form-urlencoded\r\n\
             Content-Length: {}\r\n\r\n{form}",
            self.own_page(),
            form.len()
        );
        fetch(*address, &request).map(drop).map_err(|source| self.unreachable(source))
    }
}

impl Balancer for Apache {
    fn name(&self) -> &str {
        &self.name
    }

    fn observe(&mut self) -> Result<Observed, BalancerError> {
        let page = self.page("?xml=1")?;
        let members = members(&page, &self.balancer)
            .ok_or_else(|| self.unexpected(format!("no balancer {:?}", self.balancer)))?;
        let mut observed = Observed::default();
        for server in &self.servers {
            let Some(member) = members.get(&worker(server.address)) else { continue };
            observed.servers.insert(server.name.clone(), member.seen);
            if member.fails && member.seen.traffic.is_on() {
                observed.down.insert(server.name.clone());
            }
        }
        Ok(observed)
    }

    fn tell(&mut self, changes: &[Change]) -> Result<(), BalancerError> {
        let nonce = self.nonce()?;
        for Change { server, traffic } in changes {
            let known = self.servers.iter().find(|known| known.name == *server);
            let known = known.ok_or_else(|| BalancerError::UnknownServer {
                balancer: self.name.clone(),
                server: server.to_string(),
                there: self.servers.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "),
            })?;
            self.send(&nonce, known, *traffic)?;
        }
        Ok(())
    }
}

/// What Apache calls the member at `address`: without the port that is HTTP's own, however it is configured.
fn worker(address: SocketAddr) -> String {
    let name = format!("http://{address}");
    name.strip_suffix(":80").map_or_else(|| name.clone(), String::from)
}

/// A member of a balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Member {
    seen: Seen,
    /// It did not answer when it was called last.
    fails: bool,
}

/// The members of a balancer on the manager's XML page, by their addresses.
fn members(page: &str, balancer: &str) -> Option<BTreeMap<String, Member>> {
    let name = format!("balancer://{balancer}");
    let all = elements(page, "httpd:balancer");
    let own = all.into_iter().find(|part| element(part, "httpd:name") == Some(&name))?;
    let member = |worker: &&str| {
        let number = |tag| element(worker, tag).and_then(|text| text.parse::<f64>().ok());
        let status = element(worker, "httpd:status")?;
        let traffic = if status.contains("Stop") {
            Traffic::Off
        } else if status.contains("Dis") || status.contains("Drn") {
            Traffic::Drain
        } else {
            let factor = number("httpd:loadfactor").unwrap_or(1.0);
            Traffic::On(Weight::try_from(factor.clamp(1.0, 100.0) as u8).ok()?)
        };
        // Where nobody counts, nobody knows that it has nothing in flight.
        let in_flight = number("httpd:busy")? as u64;
        let served = number("httpd:elected").map(|elected| elected as u64);
        let seen = Seen { traffic, in_flight, served };
        let fails = status.contains("Err");
        Some((element(worker, "httpd:name")?.to_string(), Member { seen, fails }))
    };
    Some(elements(own, "httpd:worker").iter().filter_map(member).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_member_is_read_whole_or_not_at_all() {
        let status = Cell::new("Ok");
        let page = |busy: &str| {
            let status = status.get();
            format!(
                "<httpd:balancer><httpd:name>balancer://shop</httpd:name><httpd:workers>\
                 <httpd:worker><httpd:name>http://10.0.0.1</httpd:name>\
                 <httpd:loadfactor>50.00</httpd:loadfactor><httpd:elected>7</httpd:elected>\
                 {busy}<httpd:status>Init {status} </httpd:status></httpd:worker>\
                 </httpd:workers></httpd:balancer>"
            )
        };
        let read = |busy| members(&page(busy), "shop").unwrap().into_values().collect::<Vec<_>>();
        let traffic = Traffic::On(Weight::try_from(50).unwrap());
        let seen = Seen { traffic, in_flight: 2, served: Some(7) };
        for (text, fails) in [("Ok", false), ("Err", true)] {
            status.set(text);
            assert_eq!(read("<httpd:busy>2</httpd:busy>"), [Member { seen, fails }]);
        }
        for busy in ["", "<httpd:busy></httpd:busy>", "<httpd:busy>many</httpd:busy>"] {
            assert!(read(busy).is_empty(), "{busy:?}");
        }
        assert_eq!(members(&page(""), "blog"), None);
    }

    #[test]
    fn members_are_called_without_the_port_of_http() {
        for (address, name) in [
            ("10.0.0.1:80", "http://10.0.0.1"),
            ("10.0.0.1:8080", "http://10.0.0.1:8080"),
            ("[fd00::80]:80", "http://[fd00::80]"),
        ] {
            assert_eq!(worker(address.parse().unwrap()), name);
        }
    }
}
