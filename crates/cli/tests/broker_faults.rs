//! What becomes of a cluster when the machine under its broker fails: its disk is full, its ledger is damaged or
//! taken, its clock steps, one of its users floods it. Labs with real agents and a job in force, which must not
//! notice; each failure is made for real.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_broker::client::{Client, ClientError, new_key};
use keeptime_broker::config::{Config, PolicyFile};
use keeptime_engine::book::Reservation;
use keeptime_linux::testing::{mount_tiny, skip};
use keeptime_model::reservation::{Ask, NodeChoice, Request, Resources};
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use world::sending::Sending;
use world::{KEEPTIME, PAIR, World, assert_code, said, wait};

const NOBODY: u32 = 65_534;
const LIMIT: Duration = Duration::from_secs(60);
/// For now, beside the job that is in force.
const NOW: [&str; 7] = ["reserve", "--nodes", "n1", "--cpu", "5%", "--for", "10min"];

fn client(world: &World) -> Client {
    world.broker()
}

fn tomorrow() -> WallTime {
    WallTime::from(SystemTime::now()).saturating_add(Nanos::from_secs(86_400))
}

/// So many per cent of the first node for a while.
fn request(from: WallTime, duration: Nanos, percent: u32) -> Request {
    let resources = Resources {
        nodes: NodeChoice::Named(vec!["n1".parse().unwrap()]),
        cpu_ppm: CpuPpm::from_percent(percent),
        ..Resources::nothing()
    };
    Request {
        from_unix_nanos: Some(from),
        duration_nanos: Some(duration),
        ..Request::new(Ask::Resources(resources))
    }
}

/// One per cent of a node in minute `number` of tomorrow.
fn reserve_minute(client: &Client, number: u64) -> Result<Reservation, ClientError> {
    let from = tomorrow().saturating_add(Nanos::from_secs(60 * number));
    client.reserve(new_key().unwrap(), request(from, Nanos::from_secs(60), 1))
}

/// Reserves minute after minute until it is refused; what was granted, and why not more.
fn reserve_until_refused(client: &Client) -> (Vec<Reservation>, String) {
    let mut granted = Vec::new();
    for number in 0.. {
        match reserve_minute(client, number) {
            Ok(reservation) => granted.push(reservation),
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                return (granted, error.to_string());
            }
        }
    }
    unreachable!("numbers do not end");
}

fn assert_known(world: &World, granted: &[Reservation]) {
    for reservation in granted {
        assert_eq!(client(world).reservation(reservation.handle).unwrap(), *reservation);
    }
}

/// A ledger whose broker was killed, with all files that belong to it.
fn move_ledger(from: &Path, to: &Path) {
    for suffix in ["", "-wal", "-shm", "-writer"] {
        let file = |path: &Path| PathBuf::from(format!("{}{suffix}", path.display()));
        match fs::copy(file(from), file(to)) {
            Ok(_) => fs::remove_file(file(from)).unwrap(),
            // Not all of them are there, and none may stay that belonged to another.
            Err(_) => drop(fs::remove_file(file(to))),
        }
    }
}

/// What a broker says that does not start.
fn refusal(mut command: Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut broker, begin) = (command.spawn().unwrap(), Instant::now());
    while broker.try_wait().unwrap().is_none() {
        if begin.elapsed() > LIMIT {
            broker.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(10));
    }
    broker.wait_with_output().unwrap()
}

// Goal: who asks is told, agents and their job do not notice, and all goes on as soon as there is room.
#[test]
fn on_a_full_disk_nothing_is_granted_and_jobs_go_on() {
    let Some(world) = World::with_job("full") else { return };
    // Its file system is seen by one thread and what that starts.
    let full = move || {
        fill_the_disk(&world);
        world
    };
    match thread::spawn(full).join() {
        Ok(world) => drop(world),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn fill_the_disk(world: &World) {
    let place = world.directory.path().join("tiny");
    fs::create_dir(&place).unwrap();
    if let Err(errno) = mount_tiny(&place) {
        return skip(&["tmpfs".into()], &format!("no file system of its own: {errno}"));
    }
    let mut job = Sending::start(world, "r1");
    world.kill_broker();
    let config = world.broker_config();
    move_ledger(&config.ledger, &place.join("ledger.db"));
    world.configure_broker(&Config { ledger: place.join("ledger.db"), ..config });
    world.start_broker();
    world.wait_for_agents();
    job.assert_undisturbed();

    let filler = place.join("filler");
    let mut file = File::create(&filler).unwrap();
    while file.write(&[0; 4_096]).is_ok() {}
    let (granted, why) = reserve_until_refused(&client(world));
    assert!(why.contains("no room left") && why.contains("ledger.db"), "{why}");
    // Refused as often as it is asked, also what would have to begin at once; what was granted is there meanwhile.
    assert!(world.run(&NOW, 2).contains("no room left"));
    assert!(reserve_until_refused(&client(world)).0.is_empty());
    assert_known(world, &granted);
    job.assert_undisturbed();
    wait("what was not recorded to be withdrawn", LIMIT, || world.jobs().len() == 2);

    drop(file);
    fs::remove_file(&filler).unwrap();
    // It tries again a second later.
    let is_served = || reserve_minute(&client(world), 5_000).is_ok();
    wait("new grants, since there is room", LIMIT, is_served);
    world.wait_for_agents();
    assert!(world.run(&NOW, 0).contains(" active, "));
    world.kill_broker();
    world.start_broker();
    world.wait_for_agents();
    assert_known(world, &granted);
    assert!(world.run(&["show", "r1"], 0).starts_with("r1 active"));
    job.assert_undisturbed();
}

// Goal: agents keep what was granted until somebody decides what the record is. Method: bytes three quarters into the
// ledger are inverted; the record of the job that sends is before them, and that of another one behind.
#[test]
fn a_damaged_ledger_is_refused_salvaged_and_gone_on_with_while_its_job_runs() {
    let Some(world) = World::with_job("harm") else { return };
    let mut job = Sending::start(&world, "r1");
    for number in 0..200 {
        reserve_minute(&client(&world), number).unwrap();
    }
    let late = world.run(&NOW, 0);
    let late = late.split(' ').next().unwrap();
    world.kill_broker();
    // Its log is moved into the database when it is opened.
    world.start_broker();
    world.kill_broker();
    let ledger = world.broker_config().ledger;
    let mut file = File::options().read(true).write(true).open(&ledger).unwrap();
    let length = file.metadata().unwrap().len();
    let mut bytes = [0; 64];
    file.seek(SeekFrom::Start(length * 3 / 4)).unwrap();
    file.read_exact(&mut bytes).unwrap();
    file.seek(SeekFrom::Start(length * 3 / 4)).unwrap();
    file.write_all(&bytes.map(|byte| !byte)).unwrap();
    drop(file);
    let before = fs::read(&ledger).unwrap();
    let refused = refusal(world.broker_command());
    let text = said(&refused);
    assert_code(&refused, 2);
    assert!(text.contains("is damaged") && text.contains("it is good up to revision"), "{text}");
    assert!(text.contains("keeptime broker salvage"), "{text}");
    assert_eq!(fs::read(&ledger).unwrap(), before, "it stays as it was found");
    job.assert_undisturbed();
    assert_eq!(world.jobs().len(), 3, "agents keep what was granted");

    let into = world.directory.path().join("salvaged.db");
    let salvage = || -> Output {
        let mut command = world.keeptime(&["broker", "salvage", "--json", "--into"]);
        command.args([&into, &ledger]).output().unwrap()
    };
    let salvaged = salvage();
    assert_code(&salvaged, 0);
    let told: Value = serde_json::from_slice(&salvaged.stdout).unwrap();
    let good = told["last_good_revision"].as_u64().unwrap();
    assert!(!told["faults"].as_array().unwrap().is_empty() && good < 200, "{told}");
    assert!(text.contains(&format!("good up to revision {good}")), "{text} and {told}");
    assert!(said(&salvage()).contains("there already"), "{}", said(&salvage()));
    // Somebody decides to go on from there.
    move_ledger(&ledger, &world.directory.path().join("damaged.db"));
    move_ledger(&into, &ledger);
    world.start_broker();
    world.wait_for_agents();
    let found = client(&world).reservations(&Default::default()).unwrap().reservations.len();
    assert!(found <= good as usize, "{found} of {good}");
    assert!(world.run(&["show", "r1"], 0).starts_with("r1 active"));
    world.run(&["show", late], 2);
    wait("the end of what it does not know", LIMIT, || world.jobs().len() == 2);
    job.assert_undisturbed();
    assert!(world.run(&NOW, 0).contains(" active, "));
}

// Method: one with the same configuration, as an init system may start it twice, and one with doors of its own.
#[test]
fn a_second_broker_on_the_same_ledger_is_refused_and_takes_nobody_over() {
    let Some(world) = World::with_job("twice") else { return };
    let mut job = Sending::start(&world, "r1");
    let at = |name: &str| world.directory.path().join(name);
    let (socket, agents) = (at("second.sock"), at("second-agents.sock"));
    let own = Config { socket: socket.clone(), agents, ..world.broker_config() };
    fs::write(at("second.toml"), own.to_toml()).unwrap();
    let mut elsewhere = Command::new(KEEPTIME);
    elsewhere.args(["broker", "run", "--config"]).arg(at("second.toml"));
    for second in [world.broker_command(), elsewhere] {
        let refused = refusal(second);
        assert_code(&refused, 2);
        let text = said(&refused);
        assert!(text.contains("in use") || text.contains("another"), "{text}");
    }
    assert!(!socket.exists(), "nobody is let in");
    let nodes = client(&world).nodes(None).unwrap().nodes;
    assert!(nodes.iter().all(|node| node.connected), "agents stay with the first: {nodes:?}");
    assert!(world.run(&NOW, 0).contains(" active, "));
    assert_eq!(world.jobs().len(), 3);
    job.assert_undisturbed();
}

// Goal: a flood of one user takes neither other users' answers nor agents' signs of life. Method: it lasts for
// longer than two leases.
#[test]
fn who_floods_is_told_to_wait_while_others_are_served_and_agents_keep_their_leases() {
    const LEASE: Nanos = Nanos::from_secs(4);
    const FLOOD: Duration = Duration::from_secs(9);
    let Some(world) = World::with_job("flood") else { return };
    let config = world.broker_config();
    let other = |words: &[&str]| {
        let mut command = Command::new(KEEPTIME);
        command.args(words).arg("--broker").arg(&config.socket).current_dir("/");
        command.gid(NOBODY).uid(NOBODY).stdin(Stdio::null()).output()
    };
    if let Err(error) = other(&["list"]) {
        return skip(&["other users".to_owned()], &error.to_string());
    }
    let mut job = Sending::start(&world, "r1");
    world.kill_broker();
    let policy = PolicyFile { agent_lease: LEASE, ..config.policy.clone() };
    world.configure_broker(&Config { policy, ..config.clone() });
    world.start_broker();
    world.wait_for_agents();

    let stop = AtomicBool::new(false);
    let flood = || {
        let (mut answers, mut refused) = (String::new(), 0);
        while !stop.load(Ordering::SeqCst) {
            let Ok(mut stream) = UnixStream::connect(&config.socket) else { continue };
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let line = "GET /v1/reservations HTTP/1.1\r\nhost: x\r\n\r\n".repeat(200);
            let last = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            stream.write_all((line + last).as_bytes()).unwrap();
            answers.clear();
            stream.read_to_string(&mut answers).unwrap();
            refused += answers.matches("HTTP/1.1 429").count();
        }
        refused
    };
    let (refused, answers) = thread::scope(|scope| {
        let floods: Vec<_> = (0..4).map(|_| scope.spawn(flood)).collect();
        let begin = Instant::now();
        let mut answers = Vec::new();
        while begin.elapsed() < FLOOD {
            answers.extend([other(&["list"]), other(&["nodes", "--json"])]);
        }
        stop.store(true, Ordering::SeqCst);
        let refused: usize = floods.into_iter().map(|flood| flood.join().unwrap()).sum();
        (refused, answers)
    });
    assert!(refused > 0, "nobody was told to wait");
    assert!(answers.len() >= 4, "others wait too: {} answers", answers.len());
    for pair in answers.chunks_exact(2) {
        let [list, nodes] = pair else { unreachable!("pairs") };
        let (list, nodes) = (list.as_ref().unwrap(), nodes.as_ref().unwrap());
        assert_code(list, 0);
        assert!(said(list).contains("\nr1   active "), "{}", said(list));
        assert_code(nodes, 0);
        let nodes: Value = serde_json::from_slice(&nodes.stdout).unwrap();
        let nodes = nodes["nodes"].as_array().unwrap();
        assert!(nodes.iter().all(|node| node["connected"] == true), "{nodes:?}");
    }
    job.assert_undisturbed();
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

/// The library, and the file in which it reads how far the clock is back.
fn make_clock(directory: &Path) -> [PathBuf; 2] {
    let [source, library, back] = ["clock.c", "clock.so", "back"].map(|name| directory.join(name));
    fs::write(&source, CLOCK).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(&source).arg("-ldl");
    assert!(compiler.status().unwrap().success());
    fs::write(&back, "0").unwrap();
    [library, back]
}

/// What a broker counts.
fn figure(world: &World, name: &str) -> u64 {
    let mut stream = UnixStream::connect(world.broker_config().socket).unwrap();
    let ask = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(ask.as_bytes()).unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let count = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    page.lines().find_map(count).expect("the figure is told")
}

/// How often the broker has seen its clock go back.
fn steps_back(world: &World) -> u64 {
    figure(world, "keeptime_clock_steps_back_total")
}

/// Waits until the broker has looked at its clock for some times.
fn wait_for_looks(world: &World) {
    let looks = || figure(world, "keeptime_steps_total");
    let before = looks();
    wait("looks at the clock", LIMIT, || looks() > before + 2);
}

// Goal: a clock that is wrong for a moment, as one may be that is being set, ends nothing: what is over is so for good.
// Method: the broker's alone, a day ahead, by when everything would be over, for as long as it looks at it a few times.
#[test]
fn a_clock_that_is_ahead_by_a_day_for_a_moment_ends_nothing() {
    const HOUR: Nanos = Nanos::from_secs(3_600);
    let Some(world) = World::new("ahead", 30) else { return };
    let [library, back] = make_clock(world.directory.path());
    let variables = [("LD_PRELOAD", library.as_os_str()), ("TEST_CLOCK_BACK", back.as_os_str())];
    world.kill_broker();
    world.start_broker_with(&variables);
    world.wait_for_agents();
    world.run(&[&["reserve"], &PAIR[..], &["--for", "10min"]].concat(), 0);
    let mut job = Sending::start(&world, "r1");
    let soon = WallTime::from(SystemTime::now()).saturating_add(HOUR);
    let later = client(&world).reserve(new_key().unwrap(), request(soon, HOUR, 5)).unwrap();
    wait_for_looks(&world);
    fs::write(&back, "-86400").unwrap();
    wait_for_looks(&world);
    fs::write(&back, "0").unwrap();
    wait_for_looks(&world);
    assert_known(&world, std::slice::from_ref(&later));
    assert!(world.run(&["show", "r1"], 0).starts_with("r1 active"));
    job.assert_undisturbed();
    let now = Request { from_unix_nanos: None, ..request(soon, HOUR, 5) };
    let begun = client(&world).reserve(new_key().unwrap(), now).unwrap();
    assert!(begun.from_unix_nanos < soon, "its time is that of others");
    assert_eq!(steps_back(&world), 0);
}

// Method: the clock of the broker and of both agents, which are then killed and begin again with the clock as it is: the broker
// when somebody has said that it is right.
#[test]
fn a_clock_that_is_set_back_by_an_hour_neither_ends_jobs_nor_promises_anything_twice() {
    const HOUR: Nanos = Nanos::from_secs(3_600);
    let Some(world) = World::new("clock", 30) else { return };
    let [library, back] = make_clock(world.directory.path());
    let variables = [("LD_PRELOAD", library.as_os_str()), ("TEST_CLOCK_BACK", back.as_os_str())];
    world.kill_broker();
    world.start_broker_with(&variables);
    let restart_agent = |node: &str| {
        world.kill_agent(node);
        world.start_agent_with(node, &variables);
        world.wait_for_agents();
    };
    restart_agent("n1");
    restart_agent("n2");
    world.run(&[&["reserve"], &PAIR[..], &["--for", "10min"]].concat(), 0);
    let mut job = Sending::start(&world, "r1");
    // All of a node for an hour, so many hours from tomorrow on.
    let tomorrow = tomorrow();
    let reserve = |hour: u64| {
        let from = tomorrow.saturating_add(Nanos::new(HOUR.get() * hour));
        client(&world).reserve(new_key().unwrap(), request(from, HOUR, 30))
    };
    let mut granted = reserve(0).unwrap();
    let assert_nothing_is_lost = |granted: &Reservation, hour: u64| {
        assert_known(&world, std::slice::from_ref(granted));
        assert!(world.run(&["show", "r1"], 0).starts_with("r1 active"));
        let twice = reserve(0).unwrap_err();
        assert!(twice.problem().is_some_and(|problem| problem.status == 409), "{twice}");
        reserve(hour).expect("there is room behind it");
    };
    assert_eq!(steps_back(&world), 0);
    fs::write(&back, "3600").unwrap();
    wait("the broker to notice", LIMIT, || steps_back(&world) == 1);
    job.assert_undisturbed();
    assert_nothing_is_lost(&granted, 1);
    assert_eq!(steps_back(&world), 1, "that is one step");
    world.kill_broker();
    // Its time would stand still for an hour.
    let mut again = world.broker_command();
    again.envs(variables);
    let refused = refusal(again);
    assert_code(&refused, 2);
    let text = said(&refused);
    assert!(text.contains("the clock shows") && text.contains("accept-clock"), "{text}");
    job.assert_undisturbed();
    let accept = |expected: &str| {
        let config = world.broker_socket().with_file_name("broker.toml");
        let mut command = world.keeptime(&["broker", "accept-clock", "--config"]);
        let accepted = command.arg(config).envs(variables).output().unwrap();
        assert_code(&accepted, 0);
        assert!(said(&accepted).contains(expected), "{}", said(&accepted));
    };
    accept("time goes on from");
    accept("nothing later is recorded");
    for hour in 2..4 {
        world.start_broker_with(&variables);
        restart_agent("n1");
        if hour == 2 {
            // By the clock that was accepted nothing has been since later than now.
            job.expect_earlier_start();
            let now = client(&world).reservation(granted.handle).unwrap().since_unix_nanos;
            assert!(now < granted.since_unix_nanos);
            granted.since_unix_nanos = now;
        }
        job.assert_undisturbed();
        assert_nothing_is_lost(&granted, hour);
        assert_eq!(steps_back(&world), 0, "its time is that of the clock");
        world.kill_broker();
    }
    world.start_broker_with(&variables);
    world.wait_for_agents();
    job.assert_undisturbed();
    // Set right.
    fs::write(&back, "0").unwrap();
    restart_agent("n1");
    job.assert_undisturbed();
    drop(job);
    world.run(&["cancel", "r1"], 0);
    wait("the end of it", LIMIT, || world.jobs().is_empty());
}
