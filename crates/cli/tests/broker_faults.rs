//! What a broker does when the machine under it fails: its disk is full, its ledger is damaged or taken,
//! its clock goes back, one of its users floods it. Real processes; each failure is made for real.

#![allow(clippy::unwrap_used, reason = "tests")]

mod process;

use keeptime_broker::client::new_key;
use keeptime_linux::testing::{mount_tiny, skip};
use keeptime_model::reservation::{Ask, NodeChoice, Request, Resources};
use keeptime_model::units::{CpuPpm, Nanos};
use process::{Broker, KEEPTIME, said, small, tomorrow};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const NOBODY: u32 = 65_534;

/// Reserves minute after minute from `number` on until it is refused; how many were granted, and why not
/// more.
fn reserve_until_refused(broker: &Broker, from: u64) -> (Vec<String>, String) {
    let client = broker.client();
    let mut granted = Vec::new();
    for number in from.. {
        let start = tomorrow().saturating_add(Nanos::from_secs(60 * number));
        match client.reserve(format!("k{number}").parse().unwrap(), small(start)) {
            Ok(reservation) => granted.push(reservation.handle.to_string()),
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                return (granted, error.to_string());
            }
        }
    }
    unreachable!("numbers do not end");
}

#[test]
fn on_a_full_disk_nothing_is_granted_and_all_goes_on_when_there_is_room() {
    let full = || {
        let place = tempfile::tempdir().unwrap();
        if let Err(errno) = mount_tiny(place.path()) {
            return skip(&["tmpfs".into()], &format!("no file system of its own: {errno}"));
        }
        let mut broker = Broker::stopped(|config| config.ledger = place.path().join("ledger.db"));
        broker.start();
        let filler = place.path().join("filler");
        let mut file = File::create(&filler).unwrap();
        while file.write(&[0; 4_096]).is_ok() {}
        let (granted, why) = reserve_until_refused(&broker, 0);
        assert!(why.contains("no room left") && why.contains("ledger.db"), "{why}");
        // Refused as often as it is asked, and what was granted is there meanwhile.
        let (none, _) = reserve_until_refused(&broker, 5_000);
        assert!(none.is_empty(), "{none:?}");
        for handle in &granted {
            assert!(broker.client().reservation(handle.parse().unwrap()).is_ok(), "{handle}");
        }
        drop(file);
        fs::remove_file(&filler).unwrap();
        let start = Instant::now();
        // It tries again a second later.
        while broker.client().reserve("again".parse().unwrap(), small(tomorrow())).is_err() {
            assert!(start.elapsed() < Duration::from_secs(10), "there is room again");
            thread::sleep(Duration::from_millis(50));
        }
        broker.kill();
        broker.start();
        for handle in &granted {
            assert!(broker.client().reservation(handle.parse().unwrap()).is_ok(), "{handle}");
        }
    };
    if let Err(panic) = thread::spawn(full).join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_damaged_ledger_is_refused_with_its_last_good_point_and_salvaged() {
    let mut broker = Broker::new();
    let client = broker.client();
    for number in 0..200u64 {
        let start = tomorrow().saturating_add(Nanos::from_secs(60 * number));
        client.reserve(format!("k{number}").parse().unwrap(), small(start)).unwrap();
    }
    broker.kill();
    // Its log is moved into the database when it is opened.
    broker.start();
    broker.kill();
    let ledger = broker.config.ledger.clone();
    let mut file = File::options().read(true).write(true).open(&ledger).unwrap();
    let length = file.metadata().unwrap().len();
    let mut bytes = [0; 64];
    file.seek(SeekFrom::Start(length * 3 / 4)).unwrap();
    file.read_exact(&mut bytes).unwrap();
    file.seek(SeekFrom::Start(length * 3 / 4)).unwrap();
    file.write_all(&bytes.map(|byte| !byte)).unwrap();
    drop(file);
    let before = fs::read(&ledger).unwrap();
    let refused = broker.command().output().unwrap();
    let text = said(&refused);
    assert_ne!(refused.status.code(), Some(0), "{text}");
    assert!(text.contains("is damaged") && text.contains("it is good up to revision"), "{text}");
    assert!(text.contains("keeptime broker salvage"), "{text}");
    assert_eq!(fs::read(&ledger).unwrap(), before, "it stays as it was found");
    let into = broker.directory.path().join("salvaged.db");
    let salvage = Command::new(KEEPTIME)
        .args(["broker", "salvage", "--json", "--into"])
        .args([&into, &ledger])
        .output()
        .unwrap();
    assert_eq!(salvage.status.code(), Some(0), "{}", said(&salvage));
    let told: serde_json::Value = serde_json::from_slice(&salvage.stdout).unwrap();
    let good = told["last_good_revision"].as_u64().unwrap();
    assert!(!told["faults"].as_array().unwrap().is_empty() && good < 200, "{told}");
    assert!(text.contains(&format!("good up to revision {good}")), "{text} and {told}");
    let again = Command::new(KEEPTIME)
        .args(["broker", "salvage", "--into"])
        .args([&into, &ledger])
        .output()
        .unwrap();
    assert!(said(&again).contains("there already"), "{}", said(&again));
    // Somebody decides to go on from there.
    for suffix in ["", "-wal", "-shm", "-writer"] {
        let file = |path: &Path| format!("{}{suffix}", path.display());
        let _ = fs::rename(file(&ledger), file(&broker.directory.path().join("damaged.db")));
        let _ = fs::rename(file(&into), file(&ledger));
    }
    broker.start();
    let found = broker.client().reservations(&Default::default()).unwrap().reservations.len();
    assert!(found <= good as usize, "{found} of {good}");
    assert!(broker.client().reserve("on".parse().unwrap(), small(tomorrow())).is_ok());
}

#[test]
fn a_second_broker_on_the_same_ledger_is_refused() {
    let first = Broker::new();
    let second = Broker::stopped(|config| config.ledger = first.config.ledger.clone());
    let refused = second.command().output().unwrap();
    let text = said(&refused);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("in use") || text.contains("another"), "{text}");
    assert!(!second.config.socket.exists(), "nobody is let in");
    assert!(first.client().reserve("k".parse().unwrap(), small(tomorrow())).is_ok());
}

#[test]
fn who_floods_is_told_to_wait_and_others_are_served() {
    if !nix::unistd::geteuid().is_root() {
        return skip(&["other users".to_owned()], "not root");
    }
    let broker = Broker::new();
    let stop = AtomicBool::new(false);
    let refused = thread::scope(|scope| {
        let flood = || {
            let mut answers = String::new();
            while !stop.load(Ordering::SeqCst) {
                let mut stream = UnixStream::connect(&broker.config.socket).unwrap();
                let line = "GET /v1/reservations HTTP/1.1\r\nhost: x\r\n\r\n".repeat(200);
                let last = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
                stream.write_all((line + last).as_bytes()).unwrap();
                stream.read_to_string(&mut answers).unwrap();
            }
            answers.matches("HTTP/1.1 429").count()
        };
        let floods: Vec<_> = (0..4).map(|_| scope.spawn(flood)).collect();
        // Meanwhile another user asks for little.
        let asked = (0..5).map(|_| {
            let mut command = Command::new(KEEPTIME);
            command.args(["list", "--broker"]).arg(&broker.config.socket).current_dir("/");
            command.gid(NOBODY).uid(NOBODY).stdin(Stdio::null()).output()
        });
        let asked: Vec<_> = asked.collect();
        thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::SeqCst);
        let refused: usize = floods.into_iter().map(|flood| flood.join().unwrap()).sum();
        for output in asked {
            match output {
                Ok(output) => assert_eq!(output.status.code(), Some(0), "{}", said(&output)),
                Err(error) => skip(&["other users".to_owned()], &error.to_string()),
            }
        }
        refused
    });
    assert!(refused > 0, "nobody was told to wait");
}

/// A library that tells a program another time: so many seconds less than there are in a file.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(id, t);
    if (id == CLOCK_REALTIME) {
        FILE *f = fopen(getenv("TEST_CLOCK_BACK"), "r");
        long back = 0;
        if (f) { if (fscanf(f, "%ld", &back) != 1) back = 0; fclose(f); }
        t->tv_sec -= back;
    }
    return done;
}
"#;

#[test]
fn a_clock_that_is_set_back_by_an_hour_neither_loses_nor_promises_anything_twice() {
    let (tomorrow, mut broker) = (tomorrow(), Broker::stopped(|_| ()));
    let at = |name: &str| broker.directory.path().join(name);
    let (library, back) = (at("clock.so"), at("back"));
    fs::write(at("clock.c"), CLOCK).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(at("clock.c")).arg("-ldl");
    assert!(compiler.status().unwrap().success());
    fs::write(&back, "0").unwrap();
    broker.variables =
        vec![("LD_PRELOAD", library.into_os_string()), ("TEST_CLOCK_BACK", back.clone().into())];
    broker.start();
    // All of a node for an hour, so many hours from tomorrow on.
    let reserve = |broker: &Broker, hour: u64| {
        let resources = Resources {
            nodes: NodeChoice::Named(vec!["n1".parse().unwrap()]),
            cpu_ppm: CpuPpm::from_percent(100),
            ..Resources::nothing()
        };
        let request = Request {
            from_unix_nanos: Some(tomorrow.saturating_add(Nanos::from_secs(3_600 * hour))),
            duration_nanos: Some(Nanos::from_secs(3_600)),
            ..Request::new(Ask::Resources(resources))
        };
        broker.client().reserve(new_key().unwrap(), request)
    };
    let granted = reserve(&broker, 0).unwrap();
    let has_noticed = |broker: &Broker| {
        let mut stream = UnixStream::connect(&broker.config.socket).unwrap();
        let ask = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(ask.as_bytes()).unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page.contains("keeptime_clock_steps_back_total 1")
    };
    assert!(!has_noticed(&broker));
    fs::write(&back, "3600").unwrap();
    let start = Instant::now();
    while !has_noticed(&broker) {
        assert!(start.elapsed() < Duration::from_secs(5), "it does not notice");
        assert!(broker.client().nodes(None).is_ok());
        thread::sleep(Duration::from_millis(20));
    }
    // Killed, and begun again with the clock as it is now.
    for hour in 1..3 {
        assert_eq!(broker.client().reservation(granted.handle).unwrap(), granted);
        let twice = reserve(&broker, 0).unwrap_err();
        assert!(twice.problem().is_some_and(|problem| problem.status == 409), "{twice}");
        reserve(&broker, hour).expect("there is room behind it");
        broker.kill();
        broker.start();
    }
}
