//! `keeptime sim run`: what it says of a small cluster, that it says the same again, and what it refuses.

#![allow(clippy::unwrap_used, reason = "tests")]

mod simulation;

use serde_json::Value;
use simulation::said;
use std::path::PathBuf;
use std::process::Output;
use tempfile::TempDir;

/// Jobs of 100 s on all of four nodes, and of 50 s on two of them, twice; requested are 100 s.
const LOG: &str = "\
; MaxProcs: 4
1  0 -1 100 4 -1 -1 4 100 -1 1 1 1 1 1 1 -1 -1
2 10 -1  50 2 -1 -1 2 100 -1 1 1 1 1 1 1 -1 -1
3 20 -1  50 2 -1 -1 2 100 -1 1 1 1 1 1 1 -1 -1
";

/// All that give a job whole nodes, or nothing but its share.
const POLICIES: &str =
    "keeptime,keeptime-greedy,keeptime-queue,keeptime-classes,fcfs-backfill,none";

fn sim(arguments: &[&str]) -> Output {
    simulation::sim("run", arguments)
}

fn json(arguments: &[&str]) -> Value {
    let output = sim(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn summaries(arguments: &[&str]) -> Vec<Value> {
    json(arguments)["summaries"].as_array().unwrap().clone()
}

/// A file with this log, as long as the directory is there.
fn trace(log: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("jobs.swf");
    std::fs::write(&path, log).unwrap();
    (directory, path)
}

// Goal: jobs that ask by themselves have nine tenths of their nodes together, and are all in time: 333 s of a node's work, with
// the last on what the others leave.
#[test]
fn jobs_that_ask_by_themselves_share_nine_tenths_of_each_node() {
    let (_directory, path) = trace(LOG);
    let arguments =
        ["--topology", "star:4", "--trace", path.to_str().unwrap(), "--policy", "keeptime-by"];
    let of = &summaries(&arguments)[0];
    let count = |field: &str| of[field].as_u64().unwrap();
    assert_eq!((count("jobs"), count("broken"), count("refused")), (3, 0, 0), "{of}");
    assert_eq!((count("promised"), count("admitted_late")), (3, 0), "{of}");
    assert!(of["stretch"]["most"].as_f64().unwrap() > 1.11, "{of}");
    assert!(of["utilisation_percent"].as_f64().unwrap() <= 90.0, "{of}");
}

// Goal: the numbers are those that can be counted on fingers: the first has the cluster until 100 s, the others wait
// for it and have half of it each, or share with it and take longer.
#[test]
fn a_log_of_three_jobs_is_replayed_under_every_policy() {
    let (_directory, path) = trace(LOG);
    let arguments = ["--topology", "star:4", "--trace", path.to_str().unwrap()];
    let summaries = summaries(&[&arguments[..], &["--policy", POLICIES]].concat());
    let names: Vec<_> = summaries.iter().map(|of| of["policy"].as_str().unwrap()).collect();
    assert_eq!(names.join(","), POLICIES);
    let [ours @ .., backfill, none] = &summaries[..] else { panic!() };
    for of in ours {
        let count = |field: &str| of[field].as_u64().unwrap();
        assert_eq!((count("jobs"), count("broken"), count("admitted_late")), (3, 0, 0), "{of}");
        assert_eq!(count("promised") + count("refused"), 3, "{of}");
        assert_eq!(of["stretch"]["most"], 1.0, "{of}");
    }
    assert_eq!(backfill["wait_seconds"]["median"], 80.0, "{backfill}");
    assert_eq!(backfill["wait_seconds"]["most"], 90.0, "{backfill}");
    assert_eq!(backfill["utilisation_percent"], 100.0, "{backfill}");
    assert_eq!(none["wait_seconds"]["most"], 0.0, "{none}");
    assert_eq!(none["stretch"]["most"], 2.0, "{none}");
}

#[test]
fn a_table_has_a_column_for_each_policy() {
    let (_directory, path) = trace(LOG);
    let output = sim(&["--topology", "star:4", "--trace", path.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let (table, notes) = text.split_once("\n\n").unwrap();
    let first: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(first, ["keeptime", "keeptime-by", "fcfs-backfill", "none"]);
    assert!(table.lines().all(|line| line.len() == table.lines().next().unwrap().len()), "{table}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    let cells = |name: &str| {
        let row = table.lines().find(|line| line.starts_with(name)).unwrap();
        row[name.len()..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    // Who promises nothing breaks nothing.
    assert_eq!(cells("promises broken"), ["0", "0", "-", "-"]);
    assert_eq!(cells("wait, s: median")[2..], ["80.00", "0.00"]);
    let noted: Vec<_> = notes.lines().map(|line| line.split_once(':').unwrap().0).collect();
    assert_eq!(noted, ["keeptime", "fcfs-backfill", "none"]);
}

// Goal: what takes hours is run for who asks for it, and for nobody else.
#[test]
fn jobs_ask_by_themselves_on_few_nodes_unless_it_is_said() {
    let policies = |topology: &str, more: &[&str]| {
        let made = ["--topology", topology, "--generate", "chains", "--jobs", "3"];
        let all = summaries(&[&made[..], more].concat());
        all.iter().map(|of| of["policy"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(policies("star:512", &[]).len(), 4);
    assert_eq!(policies("star:513", &[]), ["keeptime", "fcfs-backfill", "none"]);
    assert_eq!(policies("star:513", &["--policy", "keeptime-by"]), ["keeptime-by"]);
    let made = ["--topology", "star:513", "--generate", "chains", "--jobs", "3"];
    let told = "keeptime-by is left out, since it takes long on more than 512 nodes";
    assert!(said(&sim(&made)).contains(told), "{}", said(&sim(&made)));
}

#[test]
fn the_same_seed_says_the_same_and_another_one_something_else() {
    let of = |generator, seed| {
        let made = ["--generate", generator, "--jobs", "60", "--seed", seed];
        let cluster = ["--topology", "fat-tree:80:8", "--communication", "30 %"];
        summaries(&[&made[..], &cluster, &["--policy", POLICIES]].concat())
    };
    for generator in ["model", "chains"] {
        assert_eq!(of(generator, "1"), of(generator, "1"));
        assert_ne!(of(generator, "1"), of(generator, "2"));
    }
}

#[test]
fn bad_input_names_the_field_the_value_and_what_would_be_accepted() {
    let made: &[&str] = &["--topology", "star:4", "--generate", "model"];
    let chains: &[&str] = &["--topology", "star:4", "--generate", "chains"];
    let cases: [(&[&str], i32, &[&str]); 23] = [
        (
            &["--topology", "ring:4", "--generate", "model"],
            64,
            &["ring:4", "star:NODES", "or a topology file, FILE.toml"],
        ),
        (&["--topology", "star:0", "--generate", "model"], 64, &["0", "1 to 50000"]),
        (&["--topology", "star:4"], 64, &["--trace <FILE>", "--generate <GENERATE>"]),
        (&["--topology", "star:4", "--trace", "/nowhere.swf"], 2, &["cannot read /nowhere.swf"]),
        (&[made, &["--trace", "x.swf"]].concat(), 64, &["--generate", "--trace"]),
        (&[made, &["--policy", "fifo"]].concat(), 64, &["fifo", "keeptime-by, fcfs-backfill"]),
        (&[made, &["--communication", "120 %"]].concat(), 64, &["120 %"]),
        (&[made, &["--jobs", "0"]].concat(), 64, &["--jobs", "0"]),
        (&[made, &["--jobs", "10000001"]].concat(), 64, &["--jobs", "10000001", "10000000"]),
        (&[made, &["--load", "9"]].concat(), 64, &["--load", "\"9\"", "0.01 to 2"]),
        (&[made, &["--interval", "9"]].concat(), 64, &["--interval", "\"9\"", "--load"]),
        (&[chains, &["--load", "0.5"]].concat(), 64, &["--load", "\"0.5\"", "--interval"]),
        (&[chains, &["--interval", "18446744073709551615"]].concat(), 64, &["--interval", "1844"]),
        (&[made, &["--load", "much"]].concat(), 64, &["--load", "much"]),
        (&["--topology", "star:4", "--trace", "x", "--load", "1"], 64, &["--trace", "--load"]),
        (&[made, &["--failures", "10 s"]].concat(), 64, &["--failures", "10 s", "1 h or more"]),
        (&[made, &["--failures", "often"]].concat(), 64, &["--failures", "often"]),
        (&[made, &["--repair", "1h"]].concat(), 64, &["--failures"]),
        (&[made, &["--failures", "1d", "--repair", "0 s"]].concat(), 64, &["--repair", "1 s to"]),
        (
            &[made, &["--link-failures", "10 s"]].concat(),
            64,
            &["--link-failures", "10 s", "1 h or more"],
        ),
        (
            &[made, &["--switch-failures", "1 s"]].concat(),
            64,
            &["--switch-failures", "1 s", "1 h or more"],
        ),
        (
            &[made, &["--link-failures", "1d", "--repair", "0 s"]].concat(),
            64,
            &["--repair", "1 s to"],
        ),
        (&["--topology", "/no.toml", "--generate", "model"], 2, &["cannot read /no.toml"]),
    ];
    for (arguments, code, expected) in cases {
        refused(arguments, code, expected);
    }
}

#[test]
fn a_bad_log_names_the_line_the_field_and_what_would_be_accepted() {
    let cases = [
        (LOG.replace("2 10 -1", "2 soon -1"), "line 3, submit time (field 2): \"soon\""),
        (
            LOG.replace("2 10 -1", "2 10"),
            "line 3: \"17 fields\" is not accepted; expected 18 numbers",
        ),
        (
            LOG.lines().next().unwrap().into(),
            "jobs: \"none\" is not accepted; expected at least one",
        ),
    ];
    for (log, expected) in cases {
        let (_directory, path) = trace(&log);
        let path = path.to_str().unwrap();
        refused(&["--topology", "star:4", "--trace", path], 64, &[path, expected]);
    }
}

#[test]
fn a_log_that_is_still_compressed_is_told_so() {
    let (_directory, path) = trace([0x1F_u8, 0x8B, 0x08, 0x00]);
    let path = path.to_str().unwrap();
    refused(&["--topology", "star:4", "--trace", path], 64, &[path, "gunzip it first"]);
}

// Goal: a log in whatever encoding, without a header, is replayed; what is left out is told and counts for nothing.
#[test]
fn a_log_as_it_is_found_is_replayed_and_what_is_left_out_is_told() {
    let never_ran = "4 5 -1 -1 4 -1 -1 4 100 -1 5 1 1 1 1 1 -1 -1\n";
    let log = LOG.replacen("1  0", &format!("{never_ran}1  0"), 1);
    let (_, jobs) = log.split_once('\n').unwrap();
    for header in [&b"; Site: K\xF6ln"[..], b"; MaxProcs: 4 (K\xF6ln)"] {
        let (_directory, path) = trace([header, b"\n", jobs.as_bytes()].concat());
        let path = path.to_str().unwrap();
        let output = sim(&["--topology", "star:4", "--trace", path, "--jobs", "3", "--json"]);
        let text = said(&output);
        assert!(text.contains("jobs left out: 1 never ran, 0 had more processors"), "{text}");
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(result["summaries"][0]["jobs"], 3, "{text}");
    }
}

/// So many jobs of a node, one second after the other.
fn many(jobs: u32) -> String {
    let line = |at| format!("{at} {at} -1 1 1 -1 -1 1 1 -1 1 1 1 1 1 1 -1 -1\n");
    format!("; MaxProcs: 64\n{}", (0..jobs).map(line).collect::<String>())
}

// Goal: a log is replayed whole, however long, unless it is said how much of it; and then it is told that there is more.
#[test]
fn a_log_is_replayed_whole_unless_it_is_said_how_much() {
    let (_directory, path) = trace(many(10_001));
    let path = path.to_str().unwrap();
    let arguments = ["--topology", "star:64", "--trace", path, "--policy", "none", "--json"];
    let replayed = |more: &[&str]| {
        let output = sim(&[&arguments[..], more].concat());
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(result["header"]["jobs"], result["summaries"][0]["jobs"]);
        (result["header"]["jobs"].as_u64().unwrap(), said(&output), result["log"].clone())
    };
    let (jobs, told, log) = replayed(&[]);
    assert_eq!((jobs, log["is_cut"].clone()), (10_001, false.into()));
    assert!(!told.contains("only the first"), "{told}");
    let (jobs, told, log) = replayed(&["--jobs", "10000"]);
    assert_eq!((jobs, log["is_cut"].clone()), (10_000, true.into()));
    assert!(told.contains("only the first 10000 jobs are replayed, see --jobs"), "{told}");
}

// Goal: of which jobs policies know more than their users said, and that the log is of another machine, is told on standard
// error and in JSON; and nothing of what is as one would expect.
#[test]
fn what_one_would_not_expect_of_a_log_is_told() {
    let replayed = |log: &str, topology: &str| {
        let (_directory, path) = trace(log);
        let path = path.to_str().unwrap();
        let arguments = ["--topology", topology, "--trace", path, "--policy", "none", "--json"];
        let output = sim(&arguments);
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        (said(&output), result["log"].clone())
    };
    let (told, log) = replayed(LOG, "star:4");
    let expected = serde_json::json!({
        "processors": 4, "larger_than_cluster": 0, "is_cut": false,
        "left_out": { "never_ran": 0, "too_large": 0, "parts": 0, "submitted_unknown": 0 },
        "foreknown": { "request_unknown": 0, "request_exceeded": 0 },
    });
    assert_eq!(log, expected);
    assert!(!told.contains("jobs.swf: "), "{told}");

    let odd = LOG.replacen("4 100 -1", "4 99 -1", 1).replacen("2 100 -1", "2 -1 -1", 1);
    let (told, log) = replayed(&odd, "star:2");
    let foreknown = "jobs of which policies know how long they take: 1 without a requested time, 1 that took longer";
    let sizes =
        "the log is of 4 processors, the cluster has 2 nodes; jobs larger than the cluster: 1";
    for line in [foreknown, sizes] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert_eq!((&log["processors"], &log["larger_than_cluster"]), (&4.into(), &1.into()));
    let expected = serde_json::json!({ "request_unknown": 1, "request_exceeded": 1 });
    assert_eq!(log["foreknown"], expected);
}

// Goal: a policy that is named twice is simulated once.
#[test]
fn a_policy_that_is_named_twice_has_one_column() {
    let (_directory, path) = trace(LOG);
    let traced = ["--topology", "star:4", "--trace", path.to_str().unwrap()];
    let all = summaries(&[&traced[..], &["--policy", "none,fcfs-backfill,none"]].concat());
    let names: Vec<_> = all.iter().map(|of| of["policy"].as_str().unwrap()).collect();
    assert_eq!(names, ["none", "fcfs-backfill"]);
}

// Goal: a run that is interrupted has told what ended before, where the table does not come any more.
#[test]
fn each_policy_is_told_as_it_ends() {
    let (_directory, path) = trace(LOG);
    let output = sim(&["--topology", "star:4", "--trace", path.to_str().unwrap()]);
    let lines = String::from_utf8(output.stderr).unwrap();
    let ended: Vec<_> = lines.lines().filter_map(|line| line.split_once(" has ended: ")).collect();
    let names: Vec<_> = ended.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["keeptime", "keeptime-by", "fcfs-backfill", "none"]);
    assert!(ended.iter().all(|(_, figures)| figures.contains("broken 0, ")), "{lines}");
}

// Goal: a result says all that is needed to have it again, also what fails and how often.
#[test]
fn a_result_is_repeated_from_its_own_header() {
    let cluster = ["--topology", "fat-tree:80:8", "--communication", "30 %"];
    let made = ["--generate", "model", "--jobs", "40", "--load", "0.9", "--seed", "7"];
    let fails = ["--failures", "1d", "--repair", "30 min"];
    let behind = ["--link-failures", "7d", "--switch-failures", "2d"];
    let result = json(&[&cluster[..], &made, &fails, &behind].concat());
    let header = &result["header"];
    let text = |field: &str| header[field].as_str().map_or(header[field].to_string(), Into::into);
    let made = ["topology", "communication", "jobs", "load", "seed"];
    let fails = ["failures", "link_failures", "switch_failures", "repair"];
    let fields = [&made[..], &fails].concat();
    let option = |field: &str| format!("--{}", field.replace('_', "-"));
    let mut again = vec!["--generate".to_string(), text("source")];
    again.extend(fields.iter().flat_map(|field| [option(field), text(field)]));
    let again: Vec<_> = again.iter().map(String::as_str).collect();
    assert_eq!(json(&again), result);
    assert_eq!(header["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_result_names_its_log_or_the_interval_of_its_chains() {
    let (_directory, path) = trace(LOG);
    let path = path.to_str().unwrap();
    let traced = json(&["--topology", "star:4", "--trace", path]);
    assert_eq!(traced["header"]["trace"], path);
    let made = json(&["--topology", "star:4", "--generate", "chains", "--jobs", "5"]);
    assert_eq!(made["header"]["interval_seconds"], 20);
}

// Goal: what failures do is said for every policy, and where nodes do not fail it is nothing and in no table.
#[test]
fn failures_of_nodes_are_counted_and_told() {
    let made = ["--topology", "star:64", "--generate", "model", "--jobs", "200", "--seed", "3"];
    let fails = ["--failures", "12h", "--repair", "30 min"];
    let policy = ["--policy", POLICIES];
    let all = [&made[..], &fails, &policy].concat();
    let result = json(&all);
    assert_eq!(json(&all), result);
    for of in result["summaries"].as_array().unwrap() {
        let count = |field: &str| of[field].as_u64().unwrap();
        assert!(count("failures") > 0 && count("jobs_hit") > 0, "{of}");
        assert!(of["lost_node_hours"].as_f64().unwrap() > 0.0, "{of}");
        assert!(count("broken") <= count("promised"), "{of}");
    }
    for of in summaries(&[&made[..], &policy].concat()) {
        let count = |field: &str| of[field].as_u64().unwrap();
        let none = [count("failures"), count("jobs_hit"), count("given_up"), count("broken")];
        assert_eq!(none, [0; 4], "{of}");
    }
    let table = |arguments: &[&str]| String::from_utf8(sim(arguments).stdout).unwrap();
    let with = table(&[&made[..], &fails].concat());
    let (with, _) = with.split_once("\n\n").unwrap();
    for row in ["failures of nodes", "jobs hit", "given up", "work lost"] {
        assert!(with.lines().any(|line| line.starts_with(row)), "{row}: {with}");
    }
    assert!(with.lines().all(|line| line.len() == with.lines().next().unwrap().len()), "{with}");
    assert!(!table(&made).contains("jobs hit"));
}

// Goal: links and switches fail by themselves and take along the nodes behind them, which is told apart from nodes that
// fail; no promise is broken for another reason.
#[test]
fn failures_of_links_and_switches_are_counted_apart() {
    let made = ["--topology", "fat-tree:80", "--generate", "model", "--jobs", "200", "--seed", "3"];
    let fails = ["--link-failures", "2d", "--switch-failures", "6h", "--repair", "30 min"];
    let all = [&made[..], &fails, &["--policy", POLICIES]].concat();
    let result = json(&all);
    assert_eq!(json(&all), result);
    assert_eq!(result["header"]["failures"], Value::Null);
    for of in result["summaries"].as_array().unwrap() {
        let count = |field: &str| of[field].as_u64().unwrap();
        assert!(count("link_failures") > 0 && count("switch_failures") > 0, "{of}");
        assert!(count("nodes_cut_off") > 0 && count("jobs_hit") > 0, "{of}");
        assert_eq!(count("failures"), 0, "{of}");
        assert_eq!(count("broken_by_failures"), count("broken"), "{of}");
    }
    let table = String::from_utf8(sim(&[&made[..], &fails].concat()).stdout).unwrap();
    let rows = ["failures of links", "failures of switches", "nodes cut off", "promises broken by"];
    for row in rows {
        assert!(table.lines().any(|line| line.starts_with(row)), "{row}: {table}");
    }
}

/// A cluster of four nodes behind a switch as a topology file, which needs no addresses to be simulated; the last node has
/// `cpu` and a link of `rate`, the others 400 % and 10 Gbit/s.
fn cluster_file(cpu: &str, rate: &str) -> (TempDir, PathBuf) {
    let node = |at: u32| {
        let cpu = if at == 4 { cpu } else { "400 %" };
        format!("[[nodes]]\nname = \"n{at}\"\ncpu = \"{cpu}\"\n")
    };
    let link = |at: u32| {
        let rate = if at == 4 { rate } else { "10 Gbit/s" };
        format!("[[links]]\nbetween = [\"n{at}\", \"s\"]\nrate = \"{rate}\"\n")
    };
    let all: String = (1..5).map(|at| node(at) + &link(at)).collect();
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("four.toml");
    std::fs::write(&path, format!("name = \"four\"\nswitches = [{{ name = \"s\" }}]\n{all}"))
        .unwrap();
    (directory, path)
}

// Goal: a cluster that a file tells is that cluster: four nodes behind one switch are `star:4`, however much CPU each has.
#[test]
fn a_topology_file_is_simulated_as_what_it_tells() {
    let (_log, log) = trace(LOG);
    let (_file, file) = cluster_file("400 %", "10 Gbit/s");
    let run = |topology: &str| {
        let traced = ["--trace", log.to_str().unwrap(), "--communication", "40 %"];
        let policies = format!("{POLICIES},keeptime-by");
        json(&[&traced[..], &["--topology", topology, "--policy", &policies]].concat())
    };
    let (told, shape) = (run(file.to_str().unwrap()), run("star:4"));
    assert_eq!(told["summaries"], shape["summaries"]);
    assert_eq!(told["header"]["topology"], file.to_str().unwrap());
}

#[test]
fn a_topology_file_that_cannot_be_simulated_is_told_why() {
    let (_directory, file) = cluster_file("800 %", "10 Gbit/s");
    let file = file.to_str().unwrap();
    let arguments = ["--topology", file, "--generate", "model", "--policy", "none"];
    refused(&arguments, 64, &[file, "nodes[3].cpu", "800 %", "400 %, as nodes[0] has"]);
    std::fs::write(file, "name = \"four\"\nnodes = []\n").unwrap();
    refused(&arguments, 64, &[file, "nodes", "at least one node"]);
}

// Goal: a slower link makes no job faster: links that differ are refused where jobs communicate, and count for nothing where
// they do not.
#[test]
fn links_of_nodes_that_differ_are_told_where_jobs_communicate() {
    let (_directory, file) = cluster_file("400 %", "1 kbit/s");
    let file = file.to_str().unwrap();
    let made = ["--topology", file, "--generate", "chains", "--jobs", "9", "--policy", "none"];
    let talking = [&made[..], &["--communication", "50 %"]].concat();
    let told = [file, "links[3].rate", "1 kbit/s", "10 Gbit/s, as links[0] has"];
    refused(&talking, 64, &told);
    assert_eq!(summaries(&made)[0]["jobs"], 9);
}

fn refused(arguments: &[&str], code: i32, expected: &[&str]) {
    simulation::refused("run", arguments, code, expected);
}
