//! Against small servers of our own, on loopback.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_load::report::Report;
use keeptime_load::run::{Plan, RunError, run};
use keeptime_load::schedule::Arrivals;
use keeptime_load::target::{Method, Target, Zipf};
use keeptime_model::units::Nanos;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Answers each request as `answer` says, given how many came before: nothing at all, or a text.
struct Server {
    target: Target,
    requests: Arc<AtomicUsize>,
    lines: Arc<Mutex<Vec<String>>>,
}

fn serve(answer: fn(usize) -> Option<&'static str>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("http://{}/page", listener.local_addr().unwrap()).parse().unwrap();
    let requests = Arc::new(AtomicUsize::new(0));
    let lines = Arc::new(Mutex::new(Vec::new()));
    let server = Server { target, requests: requests.clone(), lines: lines.clone() };
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, requests, lines) = (stream.unwrap(), requests.clone(), lines.clone());
            thread::spawn(move || connection(stream, answer, &requests, &lines));
        }
    });
    server
}

fn connection(
    stream: TcpStream,
    answer: fn(usize) -> Option<&'static str>,
    requests: &AtomicUsize,
    lines: &Mutex<Vec<String>>,
) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        lines.lock().unwrap().push(first.trim().into());
        let Some(text) = answer(requests.fetch_add(1, Ordering::SeqCst)) else { return };
        if reader.get_mut().write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const BUSY: &str = "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n";

fn plan(targets: Vec<Target>, rate: f64, millis: u64) -> Plan {
    Plan {
        targets,
        arrivals: Arrivals::random(rate).unwrap(),
        length: Nanos::from_millis(millis),
        method: Method::Get,
        files: None,
        connections: 16,
        timeout: Nanos::from_secs(60),
        seed: 1,
    }
}

fn go(plan: &Plan) -> Report {
    run(plan, &|| false).unwrap()
}

#[test]
fn all_that_was_meant_is_sent_once_and_answered() {
    let (first, second) = (serve(|_| Some(OK)), serve(|_| Some(OK)));
    let mut plan = plan(vec![first.target.clone(), second.target.clone()], 500.0, 500);
    plan.method = Method::Post(1_000);
    let report = go(&plan);
    let counts = &report.all.counts;
    assert!((180..330).contains(&counts.intended), "{report}");
    assert_eq!((counts.answered, counts.lost()), (counts.intended, 0), "{report}");
    for (server, summary) in [first, second].iter().zip(&report.targets) {
        assert_eq!(server.requests.load(Ordering::SeqCst) as u64, summary.counts.answered);
        let lines = server.lines.lock().unwrap();
        assert!(lines.iter().all(|line| line == "POST /page HTTP/1.1"));
    }
}

#[test]
fn a_post_that_breaks_is_lost_and_not_sent_again() {
    let server = serve(|n| if n % 3 == 2 { None } else { Some(OK) });
    let mut plan = plan(vec![server.target.clone()], 200.0, 500);
    plan.method = Method::Post(10);
    let report = go(&plan);
    let counts = &report.all.counts;
    let received = server.requests.load(Ordering::SeqCst) as u64;
    assert_eq!(received, counts.intended, "each one once: {report}");
    assert_eq!(counts.broken, received / 3, "{report}");
}

#[test]
fn a_server_that_stalls_costs_all_whose_time_came_meanwhile() {
    // One stall of 300 ms with a single connection: whoever was due during it waited for it.
    let server = serve(|n| {
        if n == 20 {
            thread::sleep(Duration::from_millis(300));
        }
        Some(OK)
    });
    let mut plan = plan(vec![server.target.clone()], 200.0, 600);
    plan.connections = 1;
    let report = go(&plan);
    let latency = report.all.latency.unwrap();
    assert!(latency.max_nanos >= Nanos::from_millis(300), "{report}");
    assert!(latency.p90_nanos >= Nanos::from_millis(100), "not one request, but many: {report}");
    assert!(report.all.lateness.unwrap().p90_nanos >= Nanos::from_millis(100), "{report}");
}

#[test]
fn refusals_and_absences_are_told_apart() {
    let server = serve(|n| Some(if n % 2 == 0 { OK } else { BUSY }));
    let report = go(&plan(vec![server.target.clone()], 200.0, 300));
    assert_eq!(report.all.counts.refused[&503], report.all.counts.intended / 2, "{report}");
    // Nobody listens there any more.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
    drop(listener);
    let report = go(&plan(vec![gone], 200.0, 200));
    assert_eq!(report.all.counts.not_connected, report.all.counts.intended, "{report}");
    assert!(report.all.counts.intended > 0);
}

// Goal: a run is as long as until the last answer, and not as long as one waits for others in vain. Method: a server that
// answers the first of some requests.
#[test]
fn what_never_comes_does_not_make_a_run_longer() {
    let server = serve(|n| {
        if n > 0 {
            thread::sleep(Duration::from_secs(60));
        }
        Some(OK)
    });
    let mut plan = plan(vec![server.target.clone()], 50.0, 100);
    plan.timeout = Nanos::from_secs(2);
    let report = go(&plan);
    assert!(report.all.counts.answered > 0 && report.all.counts.timed_out > 0, "{report}");
    assert!(report.length_nanos < Nanos::from_secs(1), "{report}");
}

// Goal: the time that it takes to begin, as to start two thousand threads, makes no request late. Method: who is asked before
// the first one takes longer to answer than a busy machine ever stands still.
#[test]
fn what_comes_before_the_first_request_makes_none_late() {
    const BEFORE: Duration = Duration::from_secs(3);
    let server = serve(|_| Some(OK));
    let is_first = AtomicBool::new(true);
    let slow = || {
        if is_first.swap(false, Ordering::SeqCst) {
            thread::sleep(BEFORE);
        }
        false
    };
    let report = run(&plan(vec![server.target.clone()], 200.0, 100), &slow).unwrap();
    assert!(report.all.counts.answered > 0, "{report}");
    assert!(report.all.lateness.unwrap().max_nanos < BEFORE.into(), "{report}");
}

#[test]
fn files_are_asked_for_by_zipfs_law() {
    let server = serve(|_| Some(OK));
    let target = server.target.to_string().replace("/page", "/files/{}.html").parse().unwrap();
    let mut plan = plan(vec![target], 1_000.0, 500);
    plan.files = Some(Zipf::new(100, 1.0).unwrap());
    go(&plan);
    let lines = server.lines.lock().unwrap();
    let count = |file| {
        lines.iter().filter(|line| **line == format!("GET /files/{file}.html HTTP/1.1")).count()
    };
    assert!(
        count(1) > count(10) && count(1) * 3 > lines.len() / 3,
        "{} of {}",
        count(1),
        lines.len()
    );
}

#[test]
fn it_ends_soon_after_it_is_stopped() {
    let server = serve(|_| Some(OK));
    let started = Instant::now();
    let stopped = || started.elapsed() > Duration::from_millis(200);
    let report = run(&plan(vec![server.target.clone()], 1.0, 60_000), &stopped).unwrap();
    assert!(started.elapsed() < Duration::from_secs(30), "{report}");
}

#[test]
fn what_waits_when_it_is_stopped_is_not_sent_and_counted_so() {
    // One connection, and half a second for each answer that never comes: all of them would take minutes.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("http://{}/", silent.local_addr().unwrap()).parse().unwrap();
    let mut plan = plan(vec![target], 2_000.0, 200);
    (plan.connections, plan.timeout) = (1, Nanos::from_millis(500));
    let started = Instant::now();
    let stopped = || started.elapsed() > Duration::from_millis(300);
    let report = run(&plan, &stopped).unwrap();
    let counts = &report.all.counts;
    assert!(counts.not_sent > 0 && counts.timed_out > 0, "{report}");
    assert_eq!(counts.not_sent + counts.timed_out, counts.intended, "{report}");
}

// Goal: a site that does not answer does not make a run go on for longer than it was asked for. Method: as above, with nobody
// who stops it.
#[test]
fn what_waits_when_the_run_is_over_is_not_sent_and_counted_so() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("http://{}/", silent.local_addr().unwrap()).parse().unwrap();
    let mut plan = plan(vec![target], 2_000.0, 100);
    (plan.connections, plan.timeout) = (1, Nanos::from_millis(400));
    let started = Instant::now();
    let report = go(&plan);
    assert!(started.elapsed() < Duration::from_secs(30), "{report}");
    let counts = &report.all.counts;
    assert!(counts.not_sent > 0 && counts.timed_out > 0, "{report}");
    assert_eq!(counts.not_sent + counts.timed_out, counts.intended, "{report}");
}

#[test]
fn a_plan_that_makes_no_sense_is_refused() {
    let good = plan(vec!["http://127.0.0.1:1/".parse().unwrap()], 1.0, 1);
    let refused = |change: fn(&mut Plan)| {
        let mut bad = good.clone();
        change(&mut bad);
        match run(&bad, &|| false) {
            Err(RunError::Invalid(invalid)) => invalid.field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(|plan| plan.targets.clear()), "targets");
    assert_eq!(refused(|plan| plan.connections = 0), "connections");
    assert_eq!(refused(|plan| plan.timeout = Nanos::new(0)), "timeout");
    assert_eq!(refused(|plan| plan.method = Method::Post(u32::MAX)), "post");
}
