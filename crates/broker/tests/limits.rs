//! What an operator allows one user, from the words of the configuration to those of a refusal.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_broker::client::Client;
use keeptime_broker::config::{Config, PolicyFile};
use keeptime_model::reservation::Request;
use keeptime_model::units::{Nanos, WallTime};
use world::{World, request};

const POLICY: &str = "[policy]\nuser_cpu = \"50 %\"\nuser_bandwidth = \"25 %\"\n\
    user_reservations = 2\nahead_max = \"2 h\"\n";

/// The policy as an operator writes it.
fn policy(config: &Config) -> PolicyFile {
    let file = config.to_toml();
    let head = file.split("[policy]").next().unwrap();
    Config::from_toml(&format!("{head}{POLICY}")).unwrap().policy
}

fn refused(client: &Client, key: &str, asked: Request) -> (String, Option<WallTime>) {
    let error = client.reserve(key.parse().unwrap(), asked).unwrap_err();
    let problem = error.problem().unwrap();
    assert_eq!(problem.status, 409);
    let refusal = problem.refusal.as_ref().unwrap();
    (problem.detail.clone(), refusal.earliest_start_unix_nanos)
}

#[test]
fn what_one_user_may_have_is_told_with_the_limit() {
    let world = World::with(2, |config| config.policy = policy(config));
    let client = world.client();
    let half = client.reserve("all".parse().unwrap(), request(2, 50, 0, 600)).unwrap();
    let (detail, earliest) = refused(&client, "more", request(1, 10, 0, 60));
    assert!(
        detail.starts_with("your share of CPU (100 % in all) lacks 10 %, first at 20"),
        "{detail}"
    );
    assert_eq!(earliest, half.until_unix_nanos, "when the first is over");
    client.cancel(half.handle).unwrap();

    // A quarter of what both nodes can send, which is a little less than their links.
    let (detail, earliest) = refused(&client, "wide", request(2, 10, 40, 60));
    assert!(detail.starts_with("your share of bandwidth ("), "{detail}");
    assert!(detail.contains(" Mbit/s in all) lacks "), "{detail}");
    assert_eq!(earliest, None, "never");

    let at = |hours: u64| half.from_unix_nanos.saturating_add(Nanos::from_secs(hours * 3_600));
    let from = |hours| Request { from_unix_nanos: Some(at(hours)), ..request(1, 10, 0, 60) };
    let (detail, _) = refused(&client, "far", from(3));
    assert_eq!(detail, "reservations start at most 2 h ahead");
    client.reserve("one".parse().unwrap(), from(1)).unwrap();
    client.reserve("two".parse().unwrap(), from(1)).unwrap();
    let (detail, _) = refused(&client, "three", from(1));
    assert_eq!(detail, "a user may have 2 reservations at a time");
}
