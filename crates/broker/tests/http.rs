//! What users meet at the broker's socket: reservations from asking to giving back, what bad input is
//! told, events that can be followed, and a broker that comes back.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_broker::client::ClientError;
use keeptime_broker::http::{APPLICATION_BYTES_MAX, BODY_BYTES_MAX};
use keeptime_broker::server::{self, ServeError};
use keeptime_broker::wire::{Filter, Position, Reserve};
use keeptime_engine::book::Reservation;
use keeptime_ledger::LedgerError;
use keeptime_model::assignment::CpuMechanism;
use keeptime_model::drain::NodeSet;
use keeptime_model::name::Name;
use keeptime_model::pattern::{Pattern, RankFlow};
use keeptime_model::reservation::{Ask, Handle, NodeChoice, Request, Resources, State};
use keeptime_model::run_end::RunEnd;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use world::{World, request, wait};

// Goal: who is at the other end of a socket is who the kernel says; whoever the broker runs as is an operator there.
#[test]
fn the_caller_is_told_as_whom_the_broker_knows_it() {
    let world = World::new(1);
    let who = world.client().who_am_i().unwrap();
    let own = keeptime_linux::users::name_of(nix::unistd::geteuid().as_raw()).unwrap();
    assert_eq!((who.user, who.operator), (own, true));
}

#[test]
fn what_is_reserved_is_told_to_agents_seen_by_all_and_given_back() {
    let world = World::new(2);
    let client = world.client();
    let asked = request(2, 40, 30, 600);
    let granted = client.reserve("one".parse().unwrap(), asked.clone()).unwrap();
    assert_eq!(granted.state, State::Active);
    assert_eq!((world.jobs(1), world.jobs(2)), (vec!["r1".to_string()], vec!["r1".to_string()]));
    let again = client.reserve("one".parse().unwrap(), asked.clone()).unwrap();
    assert_eq!(again, granted, "the same key is the same reservation");

    let nodes = client.nodes(None).unwrap().nodes;
    assert_eq!(nodes[0].cpu_reserved_ppm, CpuPpm::from_percent(40));
    assert!(nodes[0].not_enforced[0].contains("a test"), "{:?}", nodes[0].not_enforced);
    let links = client.links(None).unwrap().links;
    assert!(links.iter().all(|l| l.reserved_bits_per_second == BitsPerSecond::from_mbit(30)));
    let to = granted.from_unix_nanos.saturating_add(Nanos::from_secs(900));
    let timeline = client.timeline(None, to).unwrap();
    assert_eq!(timeline.reservations[0].handle, granted.handle);
    let changes: Vec<_> = timeline.resources.iter().map(|line| line.levels.len()).collect();
    assert!(changes.iter().all(|count| *count == 2), "reserved, then free: {changes:?}");

    let more = client.modify(granted.handle, &request(2, 60, 30, 600)).unwrap();
    assert_eq!(more.grant.unwrap().cpu_ppm, CpuPpm::from_percent(60));
    let problem = client.reserve("two".parse().unwrap(), request(1, 50, 0, 60)).unwrap_err();
    let problem = problem.problem().unwrap().clone();
    assert_eq!((problem.status, problem.handle), (409, Some(Handle::new(2))));
    assert!(problem.refusal.unwrap().earliest_start_unix_nanos.is_some());

    let cancelled = client.cancel(granted.handle).unwrap();
    assert_eq!(cancelled.state, State::Cancelled);
    wait("the agents to give it back", || world.jobs(1).is_empty() && world.jobs(2).is_empty());
    let history = client.history(granted.handle).unwrap().records;
    let kinds: Vec<_> = history.iter().map(|happened| happened.event.kind()).collect();
    assert_eq!(kinds, ["granted", "started", "modified", "cancelled"]);
    assert!(history[0].text.starts_with("granted to "), "{}", history[0].text);
    // The agents of this world enforce nothing, and say so.
    assert_eq!(granted.unenforced.len(), 2);
    assert_eq!(history[1].text, "started: its nodes have it; not enforced on n1, n2");
    assert_eq!(cancelled.unenforced, [] as [Name; 0], "it is over");
    let live = client.reservations(&Filter { live: Some(true), ..Filter::default() }).unwrap();
    assert!(live.reservations.is_empty());
    let one = client.reservations(&Filter { limit: Some(1), ..Filter::default() }).unwrap();
    assert_eq!((one.reservations.len(), one.next), (1, Some(granted.handle)));
}

#[test]
fn a_holder_keeps_what_it_has_by_saying_that_it_lives() {
    let world = World::new(1);
    let client = world.client();
    let asked = keeptime_model::reservation::Request {
        lease_nanos: Some(Nanos::from_secs(1)),
        ..request(1, 10, 0, 600)
    };
    let [kept, silent] =
        ["a", "b"].map(|key| client.reserve(key.parse().unwrap(), asked.clone()).unwrap().handle);
    wait("the end of the silent one", || {
        assert_eq!(client.keep(kept).unwrap().state, State::Active);
        client.reservation(silent).unwrap().state == State::Cancelled
    });
    let error = client.keep(silent).unwrap_err();
    assert_eq!(error.problem().unwrap().status, 409);
    let last = client.history(silent).unwrap().records.pop().unwrap();
    assert_eq!(last.text, "given back: its holder went away");
    client.report(kept, Nanos::from_millis(1_500)).unwrap();
    let last = client.history(kept).unwrap().records.pop().unwrap();
    assert_eq!(last.text, "a run with it took 1.5 s");
    let run = RunEnd::ExitCode(3.try_into().unwrap());
    let over = client.finish(kept, run).unwrap();
    assert_eq!((over.state, over.run), (State::Failed, Some(run)));
    let last = client.history(kept).unwrap().records.pop().unwrap();
    assert_eq!(last.text, "failed (exit code 3): its run is over");
    let error = client.decision(kept).unwrap_err();
    assert!(error.to_string().contains("no decision about r1 is remembered"), "{error}");
}

/// One node, and a broker that may be asked all the time.
fn patient() -> World {
    World::with(1, |config| config.requests_per_second = 1_000_000)
}

/// More of a node than the other half leaves, for as long as that is waited for.
fn waiting(wait: Nanos) -> Request {
    Request { wait_nanos: Some(wait), ..request(1, 60, 0, 600) }
}

/// Asks for it on a thread of its own.
fn wait_for_room(world: &World) -> JoinHandle<Result<Reservation, ClientError>> {
    let client = world.client();
    let asked = waiting(Nanos::from_secs(60));
    std::thread::spawn(move || client.reserve("waits".parse().unwrap(), asked))
}

fn wait_until_waiting(world: &World, count: usize) {
    let line = format!("keeptime_waiting {count}\n");
    wait("who waits", || world.request("GET", "/metrics", "").contains(&line));
}

#[test]
fn who_waits_has_room_when_it_is_given_back_and_is_told_when_it_is_not() {
    let world = patient();
    let client = world.client();
    let first = client.reserve("first".parse().unwrap(), request(1, 60, 0, 600)).unwrap().handle;
    let (wait, began) = (Nanos::from_millis(300), Instant::now());
    let error = client.reserve("short".parse().unwrap(), waiting(wait)).unwrap_err();
    assert!(began.elapsed() >= Duration::from_nanos(wait.get()));
    let problem = error.problem().unwrap();
    assert!(problem.handle.is_some() && problem.refusal.is_some(), "{problem:?}");

    // Who hangs up has nothing.
    let body = Reserve { key: "gone".parse().ok(), request: waiting(Nanos::from_secs(60)) };
    let body = serde_json::to_string(&body).unwrap();
    let mut stream = UnixStream::connect(&world.config.socket).unwrap();
    let head =
        format!("POST /v1/reservations HTTP/1.1\r\nhost: x\r\ncontent-length: {}", body.len());
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    wait_until_waiting(&world, 1);
    drop(stream);
    wait_until_waiting(&world, 0);

    let waits = wait_for_room(&world);
    wait_until_waiting(&world, 1);
    client.cancel(first).unwrap();
    let granted = waits.join().unwrap().unwrap();
    assert_eq!((granted.state, world.jobs(1)), (State::Active, vec![granted.handle.to_string()]));
}

// Goal: who waits is seen where all others are, and told so once, at the other end. Method: one beside who has room and
// before one that is over, by every filter; its history, which has nothing yet.
#[test]
fn who_waits_is_listed_and_told() {
    let world = patient();
    let client = world.client();
    let first = client.reserve("first".parse().unwrap(), request(1, 60, 0, 600)).unwrap().handle;
    let (other, (said, heard)) = (world.client(), mpsc::channel());
    let waits = std::thread::spawn(move || {
        let tell = |found: &Reservation| said.send(found.clone()).unwrap();
        let asked = waiting(Nanos::from_secs(60));
        other.reserve_unless(&|| false, &tell, "waits".parse().unwrap(), asked)
    });
    let told = heard.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!((told.state, told.waits.map(|waits| waits.place)), (State::Waiting, Some(1)));
    assert!(told.refusal.unwrap().to_string().contains("CPU of n1"));
    let last = client.reserve("last".parse().unwrap(), request(1, 90, 0, 600)).unwrap_err();
    let last = last.problem().unwrap().handle.unwrap();
    let listed = |filter: Filter| {
        let all = client.all_reservations(filter).unwrap();
        all.into_iter().map(|found| found.handle).collect::<Vec<_>>()
    };
    let state = |state| Filter { state: Some(state), ..Filter::default() };
    let live = |live| Filter { live: Some(live), ..Filter::default() };
    assert_eq!(listed(state(State::Waiting)), [told.handle]);
    assert_eq!(listed(live(true)), [first, told.handle]);
    assert_eq!(listed(live(false)), [last]);
    assert_eq!(listed(Filter { limit: Some(1), ..Filter::default() }), [first, told.handle, last]);
    assert_eq!(client.reservation(told.handle).unwrap().owner, told.owner);
    assert!(client.history(told.handle).unwrap().records.is_empty());
    client.cancel(told.handle).unwrap();
    let error = waits.join().unwrap().unwrap_err();
    assert_eq!(error.problem().unwrap().handle, Some(told.handle));
    assert_eq!(heard.try_iter().count(), 0, "it is told once");
    assert_eq!(client.reservation(told.handle).unwrap().state, State::Refused);
}

#[test]
fn who_waits_goes_on_waiting_when_the_broker_comes_back() {
    let mut world = patient();
    let first = world.client().reserve("first".parse().unwrap(), request(1, 60, 0, 600));
    let first = first.unwrap().handle;
    let (waits, began) = (wait_for_room(&world), Instant::now());
    wait_until_waiting(&world, 1);
    // A broker that is not there at first is not waited for.
    wait("a second", || began.elapsed() > Duration::from_millis(1_500));
    world.stop();
    world.start();
    world.wait_until_all_are_there();
    wait_until_waiting(&world, 1);
    let client = world.client();
    client.cancel(first).unwrap();
    assert_eq!(waits.join().unwrap().unwrap().state, State::Active);
}

#[test]
fn bad_input_is_told_what_would_be_accepted() {
    let world = World::new(1);
    let asked = r#"{"ask": {"resources": {"nodes": {"any": 1}, "cpu_ppm": 1}}}"#;
    let with = |more: &str| format!(r#"{{"request": {asked}{more}}}"#);
    let big = "x".repeat(300 << 10);
    let how = asked.replacen('{', r#"{"cpu_mechanism": "edf", "#, 1);
    let mechanisms =
        r#"cpu_mechanism: \"edf\" is not accepted; expected auto, bandwidth, deadline"#;
    let cases: [(&str, &str, &str, u16, &str); 24] = [
        ("POST", "/v1/reservations", "{", 400, "the body is not what is expected"),
        ("POST", "/v1/reservations", &with(r#", "kee": 1"#), 400, "unknown field `kee`"),
        ("POST", "/v1/reservations", &with(""), 400, "in the header idempotency-key"),
        ("POST", "/v1/reservations", &with(r#", "key": "a b""#), 400, "letters, digits and"),
        ("POST", "/v1/reservations", &big, 413, "limit"),
        ("POST", "/v1/consider", r#"{"ask": {"resources": {"nodes": {"any": 0}}}}"#, 400, "1 to"),
        ("POST", "/v1/consider", &how, 400, mechanisms),
        ("POST", "/v1/explain", asked, 400, "a goal"),
        ("POST", "/v1/reservations/r17/keep", "", 404, "there is no reservation r17"),
        ("POST", "/v1/reservations/r17/move", "", 404, "there is no reservation r17"),
        ("POST", "/v1/reservations/r17/runs", "{}", 400, "missing field `actual_nanos`"),
        ("POST", "/v1/reservations/r17/finish", "{\"run\":\"done\"}", 404, "no reservation r17"),
        ("GET", "/v1/reservations/17", "", 400, "a handle, as in r17"),
        ("GET", "/v1/reservations/r17", "", 404, "there is no reservation r17"),
        ("GET", "/v1/reservations/r17/history", "", 404, "there is no reservation r17"),
        ("DELETE", "/v1/reservations/r17", "", 404, "there is no reservation r17"),
        ("PUT", "/v1/reservations/r17?in_turn=soon", asked, 400, "in_turn"),
        ("GET", "/v1/reservations?limit=0", "", 400, "1 to 1000"),
        ("GET", "/v1/reservations?state=good", "", 400, "good"),
        ("GET", "/v1/timeline?from=5&to=5", "", 400, "where the window starts"),
        ("GET", "/v1/events?after=soon", "", 400, "as in 12-0"),
        ("GET", "/v1/events?after=999999-0", "", 410, "which ends at revision "),
        ("PATCH", "/v1/nodes", "", 405, "does not do PATCH"),
        ("GET", "/v2", "", 404, "see /v1/openapi.json"),
    ];
    for (method, path, body, status, expected) in cases {
        let answer = world.request(method, path, body);
        let head = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&head), "{method} {path}: {answer}");
        assert!(answer.contains(expected), "{method} {path}: {answer} should contain {expected}");
        assert!(answer.contains("application/problem+json"), "{answer}");
    }
    assert!(world.say("nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    assert!(world.request("GET", "/healthz", "").ends_with("ok\n"));
}

// Goal: however long what others have asked for is, a list comes in answers that are bounded, and comes all. Method: requests
// that are refused, each of them nearly as long as a body may be.
#[test]
fn a_list_of_long_reservations_comes_in_short_pages() {
    const COUNT: usize = 30;
    let world = patient();
    let client = world.client();
    let ranks = 160;
    let flows = (0..ranks).flat_map(|from| (0..ranks).map(move |to| RankFlow { from, to }));
    let pattern = Some(Pattern::Matrix(flows.filter(|flow| flow.from != flow.to).collect()));
    let resources = Resources {
        nodes: NodeChoice::Any(ranks),
        cpu_ppm: CpuPpm::from_percent(1),
        pattern,
        bits_per_second: BitsPerSecond::from_mbit(1),
        ..Resources::nothing()
    };
    let asked = Request::new(Ask::Resources(resources));
    for number in 0..COUNT {
        let key = format!("k{number}").parse().unwrap();
        let error = client.reserve(key, asked.clone()).unwrap_err();
        assert!(error.problem().unwrap().handle.is_some(), "it is remembered");
    }
    let first = world.request("GET", "/v1/reservations", "");
    assert!((4 << 20..5 << 20).contains(&first.len()), "{} bytes", first.len());
    assert!(first.contains("\"next\":\"r"));
    assert_eq!(client.all_reservations(Filter::default()).unwrap().len(), COUNT);
}

/// The document as it is served.
fn document(world: &World) -> serde_json::Value {
    let served = world.request("GET", "/v1/openapi.json", "");
    let text = served.split_once("\r\n\r\n").unwrap().1;
    serde_json::from_str(text).unwrap()
}

// Goal: what bad input is answered is in the document, also where nothing but the address can be bad. Method: each operation is
// sent an address, a query and bodies that are not accepted, as far as it has these.
#[test]
fn what_bad_input_is_answered_is_in_the_document() {
    let world = patient();
    let document = document(&world);
    let check = |method: &str, path: &str, address: &str, body: &str, status: u16| {
        let answer = world.request(&method.to_uppercase(), address, body);
        let is_so = answer.starts_with(&format!("HTTP/1.1 {status} "));
        assert!(is_so, "{method} {address}, {} bytes: {answer}", body.len());
        let answers = &document["paths"][path][method]["responses"];
        assert!(answers[status.to_string()].is_object(), "{method} {path} has no {status}");
    };
    for (path, of_path) in document["paths"].as_object().unwrap() {
        let good = path.replace("{handle}", "r1").replace("{name}", "ray");
        let bad = path.replace("{handle}", "17").replace("{name}", "Ray");
        let of_path = of_path.as_object().unwrap().iter();
        for (method, operation) in of_path.filter(|(_, part)| part.get("operationId").is_some()) {
            if bad != good {
                check(method, path, &bad, "", 400);
            }
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            for parameter in parameters.filter(|parameter| parameter["in"] == "query") {
                let name = parameter["name"].as_str().unwrap();
                check(method, path, &format!("{good}?{name}=!"), "", 400);
            }
            if operation["requestBody"].is_object() {
                let is_application = path.starts_with("/v1/applications");
                let most = if is_application { APPLICATION_BYTES_MAX } else { BODY_BYTES_MAX };
                check(method, path, &good, &"x".repeat(most), 400);
                check(method, path, &good, &"x".repeat(most + 1), 413);
            }
        }
    }
    let info = document["info"]["description"].as_str().unwrap();
    for most in [BODY_BYTES_MAX, APPLICATION_BYTES_MAX] {
        assert!(info.contains(&format!("{} KiB", most >> 10)), "{info}");
    }
}

/// What the document names is there, and what is there is named.
#[test]
fn the_document_is_what_is_served() {
    let world = World::new(1);
    let document = document(&world);
    let paths = document["paths"].as_object().unwrap();
    for (path, of_path) in paths {
        let path = path.replace("{handle}", "r1").replace("{name}", "ray");
        for method in ["get", "put", "post", "delete"] {
            // A stream has no end.
            if path == "/v1/events" && method == "get" {
                continue;
            }
            let answer = world.request(&method.to_uppercase(), &path, "");
            let is_there = !answer.starts_with("HTTP/1.1 405");
            assert_eq!(is_there, of_path.get(method).is_some(), "{method} {path}: {answer}");
            assert!(!answer.contains("there is nothing at"), "{path}: {answer}");
        }
    }
    let of_method = paths.values().flat_map(|path| path.as_object().unwrap().values());
    for operation in of_method.filter(|part| part.get("operationId").is_some()) {
        assert!(operation["responses"]["401"].is_object(), "{operation}");
    }
    for scheme in ["certificate", "token"] {
        assert!(document["components"]["securitySchemes"][scheme].is_object());
    }
    let source = include_str!("../src/http/mod.rs").split("fn answer_in_time").next().unwrap();
    let routes = source.matches("\"/v1/").count();
    let documented = paths.keys().filter(|path| path.starts_with("/v1/")).count();
    assert_eq!(documented, routes, "every route is in the document");
}

// Goal: operators alone take nodes out of service, and whoever looks or is refused sees who did and why, also when the broker
// has come back; watchers are told. Method: the user of this test is one, as the broker's own.
#[test]
fn operators_take_nodes_out_of_service_and_all_see_why() {
    let mut world = World::new(2);
    let client = world.client();
    let set = |name: &str| NodeSet::Named([name.parse().unwrap()].into());
    client.drain(set("n1"), "new disk".parse().unwrap()).unwrap();
    world.stop();
    world.start();
    world.wait_until_all_are_there();
    let nodes = client.nodes(None).unwrap().nodes;
    let drained = nodes[0].drained.as_ref().unwrap();
    assert_eq!(drained.reason.to_string(), "new disk");
    assert!(!nodes[0].is_to_be_had() && nodes[1].is_to_be_had());
    let error = client.reserve("two".parse().unwrap(), request(2, 10, 0, 60)).unwrap_err();
    let refusal = error.problem().unwrap().refusal.clone().unwrap();
    assert_eq!(refusal.drained, 1);
    assert!(error.to_string().ends_with("; 1 node is drained"), "{error}");
    let page = || world.request("GET", "/metrics", "");
    assert!(page().contains("keeptime_nodes_drained 1\n"));
    client.resume(NodeSet::All).unwrap();
    assert!(page().contains("keeptime_nodes_drained 0\n"));
    assert!(client.reserve("again".parse().unwrap(), request(2, 10, 0, 60)).is_ok());
    let mut told = Vec::new();
    let watched = client.watch(None, Some("0-0".parse().unwrap()), |happened| {
        told.push(happened.text);
        if told.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    watched.unwrap();
    assert_eq!(told[0], format!("n1 drained by {}: new disk", drained.by));
    assert_eq!(told[2], format!("n1 resumed by {}", drained.by));
    let error = client.drain(set("n9"), "gone".parse().unwrap()).unwrap_err();
    let problem = error.problem().unwrap();
    assert_eq!((problem.status, problem.field.as_deref()), (400, Some("nodes")));
    for (path, body, expected) in [
        ("drain", r#"{"nodes": "all"}"#, "missing field `reason`"),
        ("drain", r#"{"nodes": "all", "reason": " "}"#, "one line of at most 200 bytes"),
        ("resume", r#"{"nodes": {"named": []}}"#, "nodes of the cluster, as n1, n2"),
    ] {
        let answer = world.request("POST", &format!("/v1/nodes/{path}"), body);
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains(expected), "{answer}");
    }
}

#[test]
fn events_are_followed_and_taken_up_again_without_a_gap() {
    let world = World::new(1);
    let client = world.client();
    let asked = request(1, 10, 0, 600);
    let first = client.reserve("a".parse().unwrap(), asked.clone()).unwrap();
    let second = client.reserve("b".parse().unwrap(), asked).unwrap();
    client.cancel(first.handle).unwrap();
    let from = |after: Position, handle, end: &'static str| {
        let mut seen = Vec::new();
        let watched = client.watch(handle, Some(after), |happened| {
            seen.push((happened.position(), happened.event.kind()));
            if happened.event.kind() == end {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        watched.unwrap();
        seen
    };
    let all = from("0-0".parse().unwrap(), None, "cancelled");
    let kinds: Vec<_> = all.iter().map(|(_, kind)| *kind).collect();
    assert_eq!(kinds, ["granted", "started", "granted", "started", "cancelled"]);
    for (seen, (position, _)) in all.iter().enumerate().take(4) {
        assert_eq!(from(*position, None, "cancelled"), all[seen + 1..], "after {position}");
    }
    let of_one = from("0-0".parse().unwrap(), Some(first.handle), "cancelled");
    assert_eq!(of_one.len(), 3);

    // What happens while somebody watches is told then.
    let (watcher, told) = (world.client(), std::sync::mpsc::channel());
    let after = Some(all[4].0);
    let thread = std::thread::spawn(move || {
        watcher.watch(None, after, |happened| {
            told.0.send(happened.event.kind()).unwrap();
            ControlFlow::Break(())
        })
    });
    client.cancel(second.handle).unwrap();
    assert_eq!(told.1.recv().unwrap(), "cancelled");
    thread.join().unwrap().unwrap();
}

#[test]
fn a_broker_that_comes_back_has_everything_and_agents_do_not_notice() {
    let mut world = World::new(2);
    let client = world.client();
    let granted = client.reserve("k".parse().unwrap(), request(2, 40, 10, 600)).unwrap();
    let later = keeptime_model::reservation::Request {
        from_unix_nanos: Some(granted.from_unix_nanos.saturating_add(Nanos::from_secs(7_200))),
        ..request(1, 90, 0, 60)
    };
    let later = client.reserve("later".parse().unwrap(), later).unwrap();
    let idle = world.client();
    assert!(idle.nodes(None).is_ok());
    world.stop();
    assert_eq!(world.jobs(1), ["r1"], "without a broker it goes on");
    assert!(client.reservation(granted.handle).unwrap_err().is_retryable());
    world.start();
    assert!(idle.nodes(None).is_ok(), "that its connection was closed meanwhile is not its matter");
    let known = |reservation: &Reservation| Reservation {
        // Before they are there, agents have not said again what they enforce.
        unenforced: reservation.unenforced.clone(),
        ..client.reservation(reservation.handle).unwrap()
    };
    assert_eq!((known(&granted), known(&later)), (granted.clone(), later.clone()));
    world.wait_until_all_are_there();
    assert_eq!(client.reservation(granted.handle).unwrap(), granted);
    assert_eq!(client.reservation(later.handle).unwrap(), later);
    assert_eq!(world.jobs(2), ["r1"]);
    let again = client.reserve("k".parse().unwrap(), request(2, 40, 10, 600)).unwrap();
    assert_eq!(again.handle, granted.handle, "keys outlast the broker");
}

// Goal: what a request says keeps its share comes to the agent as the assignment calls it, and is known for good.
#[test]
fn a_mechanism_comes_to_the_agent_and_outlasts_the_broker() {
    let mut world = World::new(1);
    let client = world.client();
    let cpu_mechanism = CpuMechanism::UserLevel;
    let asked = keeptime_model::reservation::Request { cpu_mechanism, ..request(1, 10, 0, 600) };
    let granted = client.reserve("a".parse().unwrap(), asked).unwrap();
    assert_eq!(granted.grant.as_ref().map(|grant| grant.cpu_mechanism), Some(cpu_mechanism));
    let told: Vec<_> =
        world.agents[0].lock().unwrap().assignments().map(|told| told.cpu_mechanism).collect();
    assert_eq!(told, [cpu_mechanism]);
    world.stop();
    world.start();
    world.wait_until_all_are_there();
    assert_eq!(client.reservation(granted.handle).unwrap(), granted);
}

#[test]
fn a_second_broker_on_the_same_ledger_is_refused_and_takes_nothing() {
    let world = World::new(1);
    match server::run(&world.config, &|| true) {
        Err(ServeError::Ledger(LedgerError::InUse { .. })) => {}
        other => panic!("{other:?}"),
    }
    let other = keeptime_broker::config::Config {
        ledger: world.directory.path().join("other.db"),
        ..world.config.clone()
    };
    match server::run(&other, &|| true) {
        Err(ServeError::Taken { socket }) => assert_eq!(socket, world.config.socket),
        other => panic!("{other:?}"),
    }
    assert!(world.client().nodes(None).is_ok());
}

#[test]
fn what_is_no_socket_is_not_taken_for_one_that_was_left() {
    // A wrong line of the configuration names a file: it stays as it is.
    let world = World::new(1);
    let at = |name: &str| world.directory.path().join(name);
    let (ledger, socket) = (at("other.db"), at("precious"));
    std::fs::write(&socket, "all of it").unwrap();
    let other = keeptime_broker::config::Config {
        ledger,
        socket: socket.clone(),
        agents: at("other-agents.sock"),
        ..world.config.clone()
    };
    match server::run(&other, &|| true) {
        Err(ServeError::Listen { source, .. }) => {
            assert!(source.to_string().contains("precious is there"), "{source}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "all of it");
}

#[test]
fn a_broker_whose_socket_is_removed_ends() {
    let mut world = World::new(1);
    std::fs::remove_file(&world.config.socket).unwrap();
    match world.end().unwrap_err() {
        ServeError::Removed { socket } => assert_eq!(socket, world.config.socket),
        other => panic!("{other}"),
    }
    world.start();
}

#[test]
fn who_floods_is_told_to_wait_and_the_figures_are_there() {
    let world = World::new(1);
    let page = world.request("GET", "/metrics", "");
    for figure in [
        "keeptime_agents_connected 1",
        "keeptime_nodes 1",
        "keeptime_nodes_away 0",
        "# TYPE keeptime_site_nodes gauge",
        "keeptime_site_moves_unfinished_total 0",
        "keeptime_ledger_revision 0",
    ] {
        assert!(page.contains(figure), "{figure} in {page}");
    }
    let line = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    let last = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answers = world.say(&(line.repeat(3_000) + last));
    let refused = answers.matches("HTTP/1.1 429").count();
    assert!(refused > 0, "none of {}", answers.matches("HTTP/1.1").count());
    assert!(answers.contains("retry-after: 1"));
    wait("the bucket to fill", || world.request("GET", "/healthz", "").ends_with("ok\n"));
}

#[test]
fn who_sends_much_waits_longer() {
    // What a body costs is known before it is read: by its length, or because that is not told.
    let world = World::with(1, |config| config.requests_per_second = 1);
    wait("a token", || world.request("GET", "/healthz", "").ends_with("ok\n"));
    let long = world.request("POST", "/v1/consider", &"x".repeat(250 << 10));
    let untold = world.say(
        "POST /v1/consider HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    );
    for answer in [long, untold] {
        assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    }
    let short = || world.request("POST", "/v1/consider", "x").starts_with("HTTP/1.1 400 ");
    wait("one more token", short);
}
