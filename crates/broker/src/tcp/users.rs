//! Users over TCP: who asks is found out for each request, by the certificate of the connection, the
//! request's token, or both, which have to agree.

use super::handshake::secure;
use super::keys::{KeyRing, Shown};
use super::places::Place;
use crate::door::{CONNECTIONS_MAX, CONNECTIONS_OF_USER_MAX, Operators};
use crate::impatient::HangUp;
use crate::server;
use crate::wire::Problem;
use axum::Router;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use keeptime_agent::seats::{Full, Seat, Seats};
use keeptime_credentials::dates;
use keeptime_credentials::identity::Identity;
use keeptime_credentials::tls::Peer;
use keeptime_credentials::tokens::{Bearer, TokenProblem};
use keeptime_credentials::untrusted::Untrusted;
use keeptime_engine::Caller;
use keeptime_locks::lock;
use keeptime_model::reservation::UserName;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A connection on which no request is begun and its header sent for so long is closed.
const HEADER_WITHIN: Duration = Duration::from_secs(10);
/// How long, and for how many bytes, the body of a request is read that is not answered, so that the
/// reason is heard.
const DRAIN_WITHIN: Duration = Duration::from_secs(2);
const DRAIN_BYTES_MAX: usize = 1 << 20;

/// What every connection needs.
#[derive(Clone)]
pub(super) struct Users {
    keys: KeyRing,
    operators: Operators,
    router: Router,
    seats: Seats<UserName>,
}

/// The room that a connection takes.
struct Room {
    /// Among those that have shown nothing yet.
    unknown: Option<Place<IpAddr>>,
    /// Among those of the user whose request was the last.
    seat: Option<(UserName, Seat<UserName>)>,
}

impl Room {
    /// Has it count as one of `user` from now on.
    fn sit(&mut self, user: &UserName, seats: &Seats<UserName>) -> Result<(), Box<Problem>> {
        if self.seat.as_ref().is_some_and(|(own, _)| own == user) {
            return Ok(());
        }
        let seat = seats.try_take(user.clone()).map_err(|full| no_room(user, full))?;
        // What would be carried out for one that is being ended would be told to nobody.
        if self.unknown.take().is_some_and(|place| !place.leave()) {
            let detail = "this connection has made way for another; try again".to_owned();
            return Err(Box::new(Problem::new(503, "too many connections", detail)));
        }
        self.seat = Some((user.clone(), seat));
        Ok(())
    }
}

impl Users {
    /// With nobody there yet.
    pub fn new(keys: KeyRing, operators: Operators, router: Router) -> Self {
        let seats = Seats::new(CONNECTIONS_OF_USER_MAX).at_most(CONNECTIONS_MAX);
        Self { keys, operators, router, seats }
    }

    /// One connection, from its first byte; `place` is its own until a request says whose it is.
    pub async fn receive(self, stream: TcpStream, place: Place<IpAddr>) {
        let keys = self.keys.now();
        let Some(stream) = secure(stream, keys.users.config()).await else { return };
        let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
        let shown = Shown { chain: chain.unwrap_or_default(), ..Shown::default() };
        let peer = shown.peer(&keys.users, dates::now());
        let peer = peer.map(|peer| peer.map(|Peer { identity, .. }| identity));
        drop(keys);
        let room = Mutex::new(Room { unknown: Some(place), seat: None });
        let service = TowerToHyperService::new(self.router.clone());
        let hang_up = HangUp::default();
        let (users, service, shown, peer) = (&self, &service, &shown, peer.as_ref());
        let (room, hang_up) = (&room, &hang_up);
        let answer = move |mut request: hyper::Request<Incoming>| async move {
            match users.caller(shown, peer, room, request.headers()) {
                Ok(caller) => {
                    request.extensions_mut().insert(caller);
                    request.extensions_mut().insert(hang_up.clone());
                    hyper::service::Service::call(service, request).await
                }
                Err(problem) => {
                    let _ = timeout(DRAIN_WITHIN, drain(request.into_body())).await;
                    Ok(turned_away(*problem))
                }
            }
        };
        let conversation = server::protocol(HEADER_WITHIN)
            .serve_connection(TokioIo::new(stream), service_fn(answer));
        tokio::select! {
            // A connection that breaks concerns its user alone.
            _ = conversation => {}
            () = hang_up.is_due() => {}
            () = self.keys.outlive(shown, |keys| Some(&keys.users)) => {}
        }
    }

    fn caller(
        &self,
        shown: &Shown,
        peer: Option<&Result<Identity, Untrusted>>,
        room: &Mutex<Room>,
        headers: &HeaderMap,
    ) -> Result<Caller, Box<Problem>> {
        let bearer = bearer(headers)?;
        let bearer = bearer.map(|text| self.keys.now().tokens.check(text, dates::now()));
        let is_good = bearer.as_ref().and_then(|bearer| bearer.as_ref().ok());
        if let Some(bearer) = is_good {
            shown.set_token(bearer.id.clone());
        }
        let user = who(peer, bearer)?;
        lock(room).sit(&user, &self.seats)?;
        Ok(self.operators.named(user))
    }
}

/// The token that a request brings, if it brings one.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Box<Problem>> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = all.next() else { return Ok(None) };
    let token = value.to_str().ok().and_then(|text| {
        let (scheme, token) = text.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    match token {
        Some(token) if all.next().is_none() => Ok(Some(token)),
        _ => Err(unknown("the header authorization is not one of `Bearer TOKEN`".into())),
    }
}

/// Who asks, by what they showed.
fn who(
    peer: Option<&Result<Identity, Untrusted>>,
    bearer: Option<Result<Bearer, TokenProblem>>,
) -> Result<UserName, Box<Problem>> {
    let certified = match peer {
        None => None,
        Some(Ok(Identity::User(user))) => Some(user),
        Some(Ok(node @ Identity::Node(_))) => {
            let detail = format!("the certificate is that of {node}: a node reserves nothing");
            return Err(Box::new(Problem::new(403, "not a user", detail)));
        }
        Some(Err(untrusted)) => return Err(unknown(untrusted.to_string())),
    };
    let bearer = bearer.transpose().map_err(|problem| unknown(problem.to_string()))?;
    match (certified, bearer) {
        (Some(user), Some(Bearer { user: other, .. })) if *user != other => {
            let detail =
                format!("the certificate is that of {user}, and the token that of {other}");
            Err(unknown(detail))
        }
        (Some(user), _) => Ok(user.clone()),
        (None, Some(Bearer { user, .. })) => Ok(user),
        (None, None) => {
            let detail = "who asks? a user's certificate is needed, or the header \
                          `authorization: Bearer TOKEN` (`keeptime broker token add` makes one)";
            Err(unknown(detail.into()))
        }
    }
}

fn unknown(detail: String) -> Box<Problem> {
    Box::new(Problem::new(401, "not known", detail))
}

fn no_room(user: &UserName, full: Full) -> Box<Problem> {
    let (status, detail) = match full {
        Full::One => {
            (429, format!("{user} has {CONNECTIONS_OF_USER_MAX} connections, and may have no more"))
        }
        Full::All => (503, format!("users have {CONNECTIONS_MAX} connections; try again later")),
    };
    Box::new(Problem::new(status, "too many connections", detail))
}

/// The answer to somebody who is not let in: the connection ends with it.
fn turned_away(problem: Problem) -> Response {
    let is_unknown = problem.status == 401;
    let mut response = problem.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    if is_unknown {
        let scheme = HeaderValue::from_static("Bearer realm=\"keeptime\"");
        headers.insert(header::WWW_AUTHENTICATE, scheme);
    }
    response
}

async fn drain(mut body: Incoming) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, |data| data.len());
        if bytes > DRAIN_BYTES_MAX {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::places::Places;
    use keeptime_credentials::certificate::NoIdentity;
    use keeptime_model::units::WallTime;

    fn user(name: &str) -> Identity {
        Identity::User(name.parse().unwrap())
    }

    fn token(name: &str) -> Result<Bearer, TokenProblem> {
        let id = "01234567".parse().unwrap();
        Ok(Bearer { id, user: name.parse().unwrap(), expires: None })
    }

    #[test]
    fn a_certificate_or_a_token_says_who_asks_and_both_have_to_agree() {
        let ada = Ok(user("ada"));
        assert_eq!(who(Some(&ada), None).unwrap().as_str(), "ada");
        assert_eq!(who(None, Some(token("ada"))).unwrap().as_str(), "ada");
        assert_eq!(who(Some(&ada), Some(token("ada"))).unwrap().as_str(), "ada");
        let refused = |peer, bearer| *who(peer, bearer).unwrap_err();
        let differ = refused(Some(&ada), Some(token("eve")));
        assert_eq!(differ.status, 401);
        assert!(differ.detail.contains("of ada, and the token that of eve"), "{}", differ.detail);
        assert!(refused(None, None).detail.contains("who asks?"));
        let node = Ok(Identity::Node("n1".parse().unwrap()));
        assert_eq!(refused(Some(&node), None).status, 403);
        assert_eq!(refused(Some(&node), Some(token("ada"))).status, 403, "not by a token either");
        let nameless = Err(NoIdentity::Missing.into());
        assert_eq!(refused(Some(&nameless), Some(token("ada"))).status, 401);
        let at = WallTime::from_unix_nanos(0);
        let expired = Err(TokenProblem::Expired { id: "01234567".parse().unwrap(), at });
        let told = refused(Some(&ada), Some(expired)).detail;
        assert!(told.contains("expired at 1970"), "a bad token is told even where none is needed");
    }

    #[test]
    fn a_connection_counts_to_its_user_and_nobody_takes_all() {
        let unknown = Places::new(usize::MAX, usize::MAX);
        let seats = Seats::new(2).at_most(3);
        let come = || {
            let (place, _) = unknown.enter(IpAddr::from([127, 0, 0, 1]));
            Room { unknown: Some(place), seat: None }
        };
        let [mut first, mut second, mut third, mut fourth] = [come(), come(), come(), come()];
        let sit = |room: &mut Room, user: &str| {
            room.sit(&user.parse().unwrap(), &seats).map_err(|problem| problem.status)
        };
        assert_eq!((sit(&mut first, "ada"), sit(&mut first, "ada")), (Ok(()), Ok(())));
        assert!(first.unknown.is_none(), "it is known whose it is");
        assert_eq!((sit(&mut second, "ada"), sit(&mut third, "ada")), (Ok(()), Err(429)));
        assert!(third.unknown.is_some(), "it makes way for others as before");
        assert_eq!((sit(&mut third, "eve"), sit(&mut fourth, "eve")), (Ok(()), Err(503)));
        drop(first);
        assert_eq!(sit(&mut second, "eve"), Ok(()), "whose token comes with a request may change");
        assert_eq!(second.seat.as_ref().map(|(user, _)| user.as_str()), Some("eve"));
        assert_eq!(sit(&mut fourth, "ada"), Ok(()));
        drop((second, third, fourth));
        assert!(seats.are_empty());
    }

    // Goal: nothing is carried out for a connection that is being ended for another. Method: there is a place for one.
    #[test]
    fn who_has_made_way_is_not_served() {
        let unknown = Places::new(usize::MAX, 1);
        let seats = Seats::new(2);
        let come = || {
            let (place, _) = unknown.enter(IpAddr::from([127, 0, 0, 1]));
            Room { unknown: Some(place), seat: None }
        };
        let [mut first, mut second] = [come(), come()];
        let ada = "ada".parse().unwrap();
        assert_eq!(first.sit(&ada, &seats).map_err(|problem| problem.status), Err(503));
        assert!(seats.are_empty() && second.sit(&ada, &seats).is_ok());
    }

    #[test]
    fn one_header_with_one_token_is_understood() {
        let with = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().unwrap());
            }
            bearer(&headers).map(|token| token.map(str::to_owned)).map_err(|p| p.status)
        };
        assert_eq!(with(&[]), Ok(None));
        assert_eq!(with(&["bearer  x "]), Ok(Some("x".into())));
        assert_eq!(with(&["Basic eDp5"]), Err(401));
        assert_eq!(with(&["x"]), Err(401));
        assert_eq!(with(&["Bearer x", "Bearer y"]), Err(401));
    }
}
