//! A command speaks with the agents of more nodes than it may have descriptors when it is started.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime::reach::{AgentPlace, KeptAgents};
use keeptime_agent::client::Client;
use keeptime_linux::testing::skip;
use keeptime_model::name::Name;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::time::{Duration, Instant};

const NODES: usize = 1_100;
/// What a process may have at first nearly everywhere.
const USUAL: u64 = 1_024;
/// No machine is so busy that it takes longer.
const PATIENCE: Duration = Duration::from_mins(2);

// Goal: a run on more nodes than the usual limit of descriptors hears all of their agents, again and again. Method: relays
// as ssh would be, each of which is a process and answers as an agent does.
#[test]
fn agents_of_more_nodes_than_the_usual_limit_of_descriptors_are_heard() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if most < 4 * USUAL {
        skip(&["descriptors".to_owned()], &format!("there can be no more than {most}"));
        return;
    }
    setrlimit(Resource::RLIMIT_NOFILE, USUAL, most).unwrap();
    let place = |node: usize| {
        let script = format!(r#"while read -r asked; do echo '{{"used":{node}}}'; done"#);
        let line = ["/bin/sh".into(), "-c".into(), script].to_vec();
        AgentPlace::Relay { node: format!("n{node}").parse().unwrap(), line }
    };
    let mut agents = KeptAgents::new((0..NODES).map(place));
    let job: Name = "r7".parse().unwrap();
    for round in ["connecting", "again"] {
        let (begun, job) = (Instant::now(), job.clone());
        let heard = agents.ask(Some(PATIENCE), move |agent: &mut Client| agent.used(&job));
        println!("{round}: {NODES} agents in {:?}", begun.elapsed());
        for (node, said) in heard.into_iter().enumerate() {
            assert_eq!(said.unwrap().get(), node as u64);
        }
    }
    let ended = Instant::now();
    drop(agents);
    println!("their end: {:?}", ended.elapsed());
}
