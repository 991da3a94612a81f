//! The volume renderer from measuring to a run with its reservation: under both MPIs, and where
//! switches are between the nodes.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_launch::mpi::{Flavour, Mpi};
use keeptime_linux::testing::skip;
use serde_json::Value;
use std::process::Output;
use world::{PATIENCE, World, assert_code, said, wait};

const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// `verb` on the renderer, in the checkout, which has the application file and the volume.
fn raycast(world: &World, verb: &str, arguments: &[&[&str]]) -> Output {
    let profile = world.directory.path().join("raycast.json");
    let mut command = world.keeptime(&[verb, "raycast", "--profile"]);
    command.arg(&profile).args(arguments.concat());
    command.current_dir(CHECKOUT).output().unwrap()
}

/// Measures what is small and quick to draw.
fn profile(world: &World, mpi: &str, nodes: &str, bandwidths: &str) -> Output {
    let settings = ["--set", "size=256", "--set", "interleave=2", "--samples", "1", "--full"];
    let shape = ["--mpi", mpi, "--nodes", nodes, "--bandwidths", bandwidths];
    raycast(world, "profile", &[&settings, &shape])
}

fn run(world: &World, mpi: &str) -> Value {
    let output = raycast(world, "run", &[&["--mpi", mpi, "--json", "--within", "20s"]]);
    assert_code(&output, 0);
    wait("the run's end", PATIENCE, || world.jobs().is_empty());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn reserved(ran: &Value) -> u64 {
    assert_eq!(ran["reserved"], true, "{ran}");
    assert!(ran["actual_nanos"].as_u64().unwrap() > 0, "{ran}");
    ran["decision"]["verdict"]["planned"]["bandwidth_bits_per_second"].as_u64().unwrap()
}

#[test]
fn programs_of_either_mpi_are_measured_and_run_unchanged() {
    for (flavour, name) in [(Flavour::OpenMpi, "open-mpi"), (Flavour::Mpich, "mpich")] {
        if let Err(error) = Mpi::find(flavour) {
            skip(&[name.to_owned()], &error.to_string());
            continue;
        }
        let Some(world) = World::of(name, &["--nodes", "2"], 30, Some(CHECKOUT)) else { return };
        assert_code(&profile(&world, name, "2", "20 Mbit/s,40 Mbit/s"), 0);
        assert!(reserved(&run(&world, name)) <= 40_000_000);
    }
}

/// Two of four nodes under each switch: of the hypercube's flows, two in each direction cross the
/// uplinks, which hold less than the nodes' own links.
#[test]
fn uplinks_bound_what_is_reserved() {
    let shape = ["--nodes", "4", "--switches", "2", "--uplink", "50 Mbit/s"];
    let Some(world) = World::of("tiers", &shape, 30, Some(CHECKOUT)) else { return };
    assert_code(&profile(&world, "open-mpi", "4", "6 Mbit/s,24 Mbit/s"), 0);
    let rate = reserved(&run(&world, "open-mpi"));
    assert!((6_000_000..=24_000_000).contains(&rate), "{rate}");
    // A rate that the nodes' links would hold, and the uplinks do not.
    let output = profile(&world, "open-mpi", "4", "40 Mbit/s");
    assert_code(&output, 64);
    assert!(said(&output).contains("4 ranks send 2 flows over s"), "{}", said(&output));
}
