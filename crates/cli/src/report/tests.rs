//! A record as a demonstration leaves it, decided by the planner itself, and what its page shows.

use super::*;
use crate::machine::Machine;
use crate::profiler::Effort;
use crate::record::{Contention, Refused, Request, Trial};
use keeptime_model::application::{Application, Parameters};
use keeptime_model::goal::Goal;
use keeptime_model::name::Name;
use keeptime_model::profile::Conditions;
use keeptime_model::topology::Topology;
use keeptime_model::units::{CpuPpm, Share};
use keeptime_planner::availability::Availability;
use keeptime_planner::fitted::FittedProfile;
use keeptime_planner::translate::{Decision, Options, schedule};
use keeptime_planner::tree::PlacementIndex;
use std::fs;

const APPLICATION: &str = r#"
    name = "raycast"
    command = ["raycast", "--size", "{size}", "--interleave", "{interleave}"]
    pattern = "hypercube"
    nodes = [2, 4]
    cpu = "40 %"
    timeout = "60 s"
    time = "wall"
    parameters = [{ name = "size", values = ["512", "256"] },
                  { name = "interleave", values = ["0", "2"] }]
"#;

const CLUSTER: &str = r#"
    name = "lab"
    nodes = [{ name = "n1", cpu = "40 %" }, { name = "n2", cpu = "40 %" },
             { name = "n3", cpu = "40 %" }, { name = "n4", cpu = "40 %" }]
    switches = [{ name = "s1" }]
    links = [{ between = ["n1", "s1"], rate = "200 Mbit/s" },
             { between = ["n2", "s1"], rate = "200 Mbit/s" },
             { between = ["n3", "s1"], rate = "200 Mbit/s" },
             { between = ["n4", "s1"], rate = "200 Mbit/s" }]
"#;

/// Mbit/s for each flow.
const GRID: [u64; 6] = [2, 5, 10, 20, 40, 80];

/// Size, interleaving, nodes, milliseconds of computation, Mbit to send.
const CURVES: [(&str, &str, u32, u64, u64); 8] = [
    ("512", "0", 2, 900, 6),
    ("512", "0", 4, 620, 5),
    ("512", "2", 2, 640, 6),
    ("512", "2", 4, 420, 5),
    ("256", "0", 2, 300, 2),
    ("256", "0", 4, 210, 2),
    ("256", "2", 2, 220, 2),
    ("256", "2", 4, 150, 2),
];

#[test]
fn the_page_has_every_section() {
    let page = page(&record("1 s"), &[picture("A brick")], &[]).unwrap();
    for title in [
        "What was measured",
        "The profile",
        "The way of a request",
        "The plan, and the run that followed",
        "Under contention",
        "Pictures",
        "How to read this",
    ] {
        assert!(page.contains(&format!(">{title}</h")), "{title}");
    }
    for figure in ["3.2", "3.4", "3.5", "3.6 and 3.7", "3.8", "3.9"] {
        assert!(page.contains(figure), "{figure}");
    }
    assert!(page.contains("144 runs, 100 % of the 144"));
    assert!(page.contains("aria-label") && page.contains("alt=\"A brick\""));
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
}

#[test]
fn the_headline_and_the_table_tell_promised_with_and_without() {
    let page = page(&record("1 s"), &[], &[]).unwrap();
    // Errors with: 1 % and 3 %; without: 150 % and a run that did not end.
    assert!(page.contains("<strong>more than 150.0 %</strong> and <strong>∞</strong>"));
    assert!(page.contains("Of 2 requests under contention"));
    assert!(page.contains("<strong>2.0 %</strong> at the median and <strong>3.0 %</strong>"));
    assert!(page.contains("Without, 1 did not end in time and counts as ∞."));
    assert!(page.contains("With Keeptime, 1 of 2 ended by the promised time."));
    for cell in ["1 s", "990 ms", "2.5 s", "-1.0 %", "+3.0 %", "+150.0 %", "did not end"] {
        assert!(page.contains(&format!(">{cell}</td>")), "{cell}");
    }
    assert!(!page.contains("<h2>Pictures"));
}

// Goal: a request that was refused is one of those that were asked, and its reason is told; a record from before says nothing of
// refusals and is read.
#[test]
fn requests_that_were_refused_are_told() {
    let mut asked = record("1 s");
    let refused = |goal: &str| Refused {
        application: "raycast".parse().unwrap(),
        goal: goal.into(),
        reason: format!("{goal} cannot be promised"),
    };
    asked.contention.refused = vec![refused("within 700 ms")];
    let told = page(&asked, &[], &[]).unwrap();
    assert!(told.contains("Of 3 requests under contention, 1 was refused. Of the others, "));
    assert!(told.contains("With Keeptime, 1 of 2 ended by the promised time."));
    let why = "<li>raycast, within 700 ms: within 700 ms cannot be promised.</li>";
    assert!(told.contains(why), "{told}");

    asked.contention.trials.clear();
    let none = page(&asked, &[], &[]).unwrap();
    assert!(none.contains("The one request under contention was refused, so there is nothing"));

    let mut before = serde_json::to_value(record("1 s")).unwrap();
    before["contention"].as_object_mut().unwrap().remove("refused").unwrap();
    let before: Record = serde_json::from_value(before).unwrap();
    assert!(!page(&before, &[], &[]).unwrap().contains("refused"));
}

// Goal: of what was the same in both runs the page does not say that it differed.
#[test]
fn only_bandwidth_is_said_to_differ_between_with_and_without() {
    let page = page(&record("1 s"), &[], &[]).unwrap();
    for said in [
        "with the same CPU under the same load, once with bandwidth reserved, once without",
        "on the same nodes with that CPU and no bandwidth reserved",
        "without, with no bandwidth reserved",
    ] {
        assert!(page.contains(said), "{said}");
    }
}

#[test]
fn nothing_outside_is_referred_to_and_nothing_is_run() {
    let page = page(&record("1 s"), &[picture("A brick")], &[]).unwrap();
    for outside in ["http", "<script", "<link", "@import", "url(", "file:"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("src=\"data:image/png;base64,iVBORw0KGgo"));
}

#[test]
fn special_characters_stay_text() {
    let mut record = record("1 s");
    record.contention.load = "a < b & c".into();
    let page = page(&record, &[picture("<b>\"bold\"</b> & more")], &[]).unwrap();
    assert!(page.contains("a &lt; b &amp; c"));
    assert!(page.contains("alt=\"&lt;b&gt;&quot;bold&quot;&lt;/b&gt; &amp; more\""));
    assert!(!page.contains("<b>"));
}

#[test]
fn a_refusal_is_told_with_what_would_be_admitted() {
    let page = page(&record("50 ms"), &[], &[]).unwrap();
    assert!(page.contains(">Refused</h3>") && page.contains("50 ms cannot be promised"));
    assert!(page.contains("These would be admitted now"));
    assert!(page.contains("Nothing is left to choose."));
}

#[test]
fn a_record_without_measurements_has_a_page_too() {
    let mut record = record("1 s");
    record.profile.curves.clear();
    record.request.decision.explanation.curves.clear();
    record.request.decision.explanation.chosen = None;
    record.contention.trials.clear();
    let page = page(&record, &[], &[]).unwrap();
    assert!(page.contains("there is nothing to compare") && page.contains("Nothing was measured"));
}

#[test]
fn many_curves_and_trials_are_shared_among_charts() {
    let mut record = record("1 s");
    assert_eq!(groups(&record.profile).len(), 2, "eight curves: one chart for each node count");
    record.profile.curves.truncate(7);
    assert_eq!(groups(&record.profile).len(), 1);
    record.contention.trials = vec![record.contention.trials[0].clone(); 25];
    let page = page(&record, &[], &[]).unwrap();
    assert!(page.contains("requests 13 to 24") && page.contains("requests 25 to 25"));
}

#[test]
fn the_page_is_written_beside_its_record() {
    let directory = tempfile::tempdir().unwrap();
    let mut record = record("1 s");
    record.pictures = vec![("A brick".into(), "brick.png".into())];
    assert!(format!("{:#}", write(directory.path()).unwrap_err()).contains("nothing to report on"));
    files::save_json(&directory.path().join(RECORD), &record).unwrap();
    fs::write(directory.path().join("brick.png"), picture("").1).unwrap();
    let path = write(directory.path()).unwrap();
    assert_eq!(path, directory.path().join(REPORT));
    let page = fs::read_to_string(path).unwrap();
    assert!(page.ends_with("</html>") && page.contains("data:image/png"));
    assert!(!page.contains("Left out"));
    // To look at it: REPORT_SAMPLE=/tmp/report.html cargo test
    if let Some(sample) = std::env::var_os("REPORT_SAMPLE") {
        fs::write(sample, page).unwrap();
    }
}

// Goal: a picture that is not there, or is none, costs nothing but itself.
#[test]
fn a_picture_that_cannot_be_read_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let mut record = record("1 s");
    record.pictures = ["brick", "gone", "film"].map(|of| (of.into(), format!("{of}.png"))).into();
    files::save_json(&directory.path().join(RECORD), &record).unwrap();
    fs::write(directory.path().join("brick.png"), picture("").1).unwrap();
    fs::write(directory.path().join("film.png"), "GIF89a").unwrap();
    let page = fs::read_to_string(write(directory.path()).unwrap()).unwrap();
    assert_eq!(page.matches("data:image/png").count(), 1, "{page}");
    for left_out in ["<li>gone.png: cannot read", "<li>film.png: not a PNG file<"] {
        assert!(page.contains(left_out), "{left_out}: {page}");
    }
}

// Goal: a damaged record costs no figures that are beside it, and where there are none it is what is told.
#[test]
fn a_damaged_record_is_left_out_where_there_are_figures() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(RECORD), "{").unwrap();
    let error = format!("{:#}", write(directory.path()).unwrap_err());
    assert!(error.contains("is not a record of a demonstration"), "{error}");
    let figures = r#"[{ "name": "plan", "value": 1.0, "unit": "s", "command": "make" }]"#;
    fs::write(directory.path().join("plan.json"), figures).unwrap();
    let page = fs::read_to_string(write(directory.path()).unwrap()).unwrap();
    assert!(page.contains("<h2>plan<") && page.contains("1 figure, "), "{page}");
    assert!(page.contains("<li>demo.json: ") && page.contains("is not a record"), "{page}");
    assert_eq!(page.matches("<li>").count(), 1, "{page}");
}

// Goal: what never ends is not waited for: pipes in the place of a record, a picture, figures and raw data.
#[test]
fn pipes_are_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = |name: &str| {
        nix::unistd::mkfifo(&directory.path().join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
    };
    pipe("brick.png");
    let mut record = record("1 s");
    record.pictures = vec![("A brick".into(), "brick.png".into())];
    files::save_json(&directory.path().join(RECORD), &record).unwrap();
    let page = fs::read_to_string(write(directory.path()).unwrap()).unwrap();
    assert!(page.contains("<li>brick.png: cannot read the picture: not a file<"), "{page}");

    fs::remove_file(directory.path().join(RECORD)).unwrap();
    pipe(RECORD);
    pipe("search.json");
    let figures = r#"[{ "name": "plan", "value": 1.0, "unit": "s", "command": "make" }]"#;
    fs::write(directory.path().join("plan.json"), figures).unwrap();
    fs::create_dir(directory.path().join("plan")).unwrap();
    pipe("plan/raw.json");
    let page = fs::read_to_string(write(directory.path()).unwrap()).unwrap();
    for left_out in ["<li>demo.json: ", "<li>plan/raw.json: not a file<"] {
        assert!(page.contains(left_out), "{left_out}: {page}");
    }
}

fn record(within: &str) -> Record {
    let profile = profile();
    let goal = Goal {
        within: Some(within.parse().unwrap()),
        set: parameters("512", "0").into_iter().filter(|(n, _)| n.as_str() != "size").collect(),
        ..Goal::default()
    };
    let decision = decide(&profile, &goal);
    Record {
        machine: Machine {
            processor: "Some CPU".into(),
            processors: 2,
            kernel: "6.0".into(),
            load: 0.5,
            keeptime: "0.1.0".into(),
        },
        cluster: "4 nodes, 200 Mbit/s links".into(),
        mpi: "Open MPI 4.1.6".into(),
        command: "make demo".into(),
        effort: Effort { runs: profile.run_count(), full_grid: profile.run_count() },
        profile,
        request: Request { goal, decision, nodes: nodes(), actual_nanos: Nanos::from_millis(379) },
        contention: Contention {
            load: "12 greedy TCP flows".into(),
            trials: vec![trial(990, Some(2500)), trial(1030, None)],
            refused: vec![],
        },
        pictures: vec![],
    }
}

fn decide(profile: &Profile, goal: &Goal) -> Decision {
    let application = Application::from_toml(APPLICATION).unwrap();
    let fitted = FittedProfile::new(application, profile).unwrap();
    let topology = Topology::from_toml(CLUSTER).unwrap();
    let availability = Availability::full(&topology, |rate| rate.divided_floor(8));
    let index = PlacementIndex::new(topology);
    schedule(goal, &fitted, &index, &availability, &Options::default())
}

fn profile() -> Profile {
    let application = Application::from_toml(APPLICATION).unwrap();
    let conditions = Conditions {
        link_bits_per_second: BitsPerSecond::from_mbit(200),
        process_cpu_ppm: CpuPpm::from_percent(40),
        processor: "Some CPU".into(),
        mpi: "Open MPI 4.1.6".into(),
        command: application.command_template().to_vec(),
        program: None,
    };
    let grid = GRID.map(BitsPerSecond::from_mbit).to_vec();
    let mut profile = Profile::empty(application.name().clone(), conditions, grid);
    for (size, interleave, nodes, computation, volume) in CURVES {
        for mbit in GRID {
            let millis = computation + volume * 1000 / mbit;
            // Three runs, 2 % apart.
            for percent in [100, 102, 98] {
                let time = Nanos::from_millis(millis * percent / 100);
                let bandwidth = BitsPerSecond::from_mbit(mbit);
                profile.record(&parameters(size, interleave), nodes, bandwidth, time);
            }
        }
    }
    profile
}

fn parameters(size: &str, interleave: &str) -> Parameters {
    let values = [("size", size), ("interleave", interleave)];
    values.into_iter().map(|(name, value)| (name.parse().unwrap(), value.into())).collect()
}

/// Promised for one second.
fn trial(with_millis: u64, without_millis: Option<u64>) -> Trial {
    Trial {
        application: "raycast".parse().unwrap(),
        goal: "within 1 s".into(),
        parameters: parameters("512", "0"),
        nodes: 4,
        bits_per_second: BitsPerSecond::from_mbit(25),
        promised_nanos: Nanos::from_secs(1),
        median_nanos: Nanos::from_millis(980),
        profiled_nanos: Nanos::from_millis(970),
        quantile_ppm: Share::from_percent(90).unwrap(),
        with_nanos: Nanos::from_millis(with_millis),
        at_full_nanos: Nanos::from_millis(with_millis),
        without_nanos: without_millis.map(Nanos::from_millis),
    }
}

/// One white pixel.
fn picture(caption: &str) -> (String, Vec<u8>) {
    let pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTwAnwAAAABJRU5ErkJggg==";
    (caption.into(), STANDARD.decode(pixel).unwrap())
}

fn nodes() -> Vec<Name> {
    ["n1", "n2", "n3", "n4"].map(|name| name.parse().unwrap()).to_vec()
}
