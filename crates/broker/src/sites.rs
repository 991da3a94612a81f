//! The loop that steers web sites, on a thread of its own: the engine is its record. That there is one
//! loop for a cluster follows from the ledger, which has one writer.

use crate::core::Handle as Core;
use crate::loads::Loads;
use keeptime_credentials::dates::now;
use keeptime_engine::{Call, Caller, Engine};
use keeptime_linux::vital;
use keeptime_locks::lock;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, Request};
use keeptime_model::site::{SiteNode, SiteSpec};
use keeptime_model::topology::NodeIndex;
use keeptime_sites::controller::{Controller, Now};
use keeptime_sites::cpu::Counters;
use keeptime_sites::overview::Overview;
use keeptime_sites::record::{Change, NodeStanding, Record, Standing};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Handle as Runtime;

/// Whose the reservations of sites' nodes are.
const OWNER: &str = "keeptime-sites";
/// A site that is described anew has its nodes as described within this time and what it takes.
const COMPARE_EVERY: Duration = Duration::from_secs(1);
/// How long nothing is decided after something that keeps it from being.
const PAUSE: Duration = Duration::from_secs(1);

/// The loop, running.
#[derive(Debug)]
pub struct Sites {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Sites {
    /// Starts it; calls to the engine run in `runtime`, `loads` says how busy nodes are, and what it sees is put into `seen`.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start(
        core: Core,
        runtime: Runtime,
        loads: Loads,
        seen: Arc<Mutex<Overview>>,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let work = move || {
            let counters: Box<dyn Counters> = Box::new(loads);
            let controller =
                Controller::new(Engines::new(core, runtime)).with_counters(Some(counters));
            run(controller, &seen, &told);
        };
        let thread = vital::spawn("sites", work)?;
        Ok(Self { stop, thread })
    }

    /// Ends it: nodes serve on as they do.
    pub fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
        // A panic would have ended the process.
        let _ = self.thread.join();
    }
}

fn run(mut controller: Controller<Engines>, overview: &Mutex<Overview>, stop: &AtomicBool) {
    let began = Instant::now();
    let mut told = 0;
    while !stop.load(Ordering::SeqCst) {
        let moment = Now { steady: began.elapsed().into(), wall: now() };
        let idle = controller.pass(moment).unwrap_or_else(|invalid| {
            tracing::error!("web sites keep the nodes that they have: {invalid}");
            PAUSE
        });
        told = tell_of_unfinished(controller.overview(), told);
        controller.overview().clone_into(&mut lock(overview));
        std::thread::park_timeout(idle);
    }
}

/// Says which moves did not wait for all requests, but for the first `told` of them; how many there are.
fn tell_of_unfinished(overview: &Overview, told: u64) -> u64 {
    let new = usize::try_from(overview.moves_unfinished - told).unwrap_or(usize::MAX);
    let unfinished = overview.moves.iter().rev().filter_map(|moved| {
        let left = moved.unfinished.as_ref()?;
        Some((&moved.node, moved.from.as_ref()?, left))
    });
    for (node, site, left) in unfinished.take(new) {
        tracing::warn!("{node} was taken out at {site}: {left}");
    }
    overview.moves_unfinished
}

/// The engine's thread, as a record.
struct Engines {
    core: Core,
    runtime: Runtime,
    answered: Receiver<Answered>,
    answers: Sender<Answered>,
    /// Of each node: one changes its reservation at a time.
    turns: BTreeMap<Name, Turn>,
    /// When it was last looked which nodes are held otherwise than their sites are described.
    compared: Option<Instant>,
}

type Turn = Arc<tokio::sync::Mutex<()>>;

/// A node whose change has ended.
type Answered = (Name, Result<(), String>);

impl Engines {
    fn new(core: Core, runtime: Runtime) -> Self {
        let (answers, answered) = channel();
        Self { core, runtime, answered, answers, turns: BTreeMap::new(), compared: None }
    }

    fn turn(&mut self, node: &Name) -> Turn {
        Arc::clone(self.turns.entry(node.clone()).or_default())
    }

    /// Has nodes held as their sites are described by now; those that cannot be are tried again.
    fn bring_up_to_date(&mut self) {
        if self.compared.is_some_and(|at| at.elapsed() < COMPARE_EVERY) {
            return;
        }
        self.compared = Some(Instant::now());
        let outdated = self.runtime.block_on(self.core.read(outdated)).unwrap_or_default();
        for node in outdated {
            // While an agent is slow to answer, tries that wait for each other would hold up the node's next move.
            let Ok(turn) = self.turn(&node).try_lock_owned() else { continue };
            let core = self.core.clone();
            self.runtime.spawn(async move {
                let _turn = turn;
                if let Err(why) = hold_as_described(&core, &node).await {
                    tracing::info!("{node} stays as it was reserved for its site: {why}");
                }
            });
        }
    }
}

impl Record for Engines {
    fn standing(&mut self) -> Option<Standing> {
        self.bring_up_to_date();
        self.runtime.block_on(self.core.read(standing)).ok()
    }

    fn ask(&mut self, change: &Change) {
        let (core, change, answers) = (self.core.clone(), change.clone(), self.answers.clone());
        let turn = self.turn(&change.node);
        self.runtime.spawn(async move {
            let _turn = turn.lock().await;
            let outcome = carry_out(&core, &change).await;
            // If the loop has ended, its successor reads what is recorded.
            drop(answers.send((change.node, outcome)));
        });
    }

    fn answers(&mut self) -> Vec<Answered> {
        self.answered.try_iter().collect()
    }
}

fn standing(engine: &Engine) -> Standing {
    let (book, cluster) = (engine.book(), engine.cluster());
    let node = |index: NodeIndex| {
        let (name, node) = (cluster.name(index), cluster.topology().node(index));
        let held = book.site_node(name).map(|(_, held)| held);
        let of_site = held.map(|held| held.cpu_ppm).unwrap_or_default();
        let free = engine.free_cpu(index);
        NodeStanding {
            name: name.clone(),
            address: node.address,
            site: held.map(|held| held.site.clone()),
            is_connected: engine.is_connected(index),
            is_out_of_service: engine.drained(index).is_some(),
            cpu: node.cpu,
            // Another site would have it in the place of this one.
            cpu_free: free.checked_add(of_site).unwrap_or(free),
        }
    };
    Standing {
        sites: book.sites().values().cloned().collect(),
        nodes: cluster.topology().node_indices().map(node).collect(),
    }
}

/// Has a change recorded: a node that changes hands is reserved all the time, so that nobody else gets it
/// between two sites.
async fn carry_out(core: &Core, change: &Change) -> Result<(), String> {
    let caller = Caller { user: OWNER.parse().map_err(told)?, operator: true };
    let Change { node, from, to } = change.clone();
    let look = move |engine: &Engine| -> Result<Call, String> {
        let held = engine.book().site_node(&node).map(|(handle, held)| (handle, &held.site));
        if held.map(|(_, site)| site) != from.as_ref() {
            return Err("it serves another site by now, or none".into());
        }
        let Some(site) = to else {
            let (handle, _) = held.ok_or("it serves no site")?;
            return Ok(Call::Spare { handle });
        };
        let held = held.map(|(handle, _)| handle);
        let asked = described(engine, &site, &node)?;
        // No two requests have the same key: nodes change hands one after the other.
        let key = format!("{node}-{}", now().unix_nanos()).parse().map_err(told)?;
        let request = Request::new(Ask::SiteNode(asked));
        Ok(match held {
            Some(handle) => Call::Modify { handle, request },
            None => Call::Reserve { key, request },
        })
    };
    let call = core.read(look).await.map_err(told)??;
    core.call(caller, call).await.map_err(told)?.map(drop).map_err(told)
}

/// What a site is to have of a node, by how it is described now.
fn described(engine: &Engine, site: &Name, node: &Name) -> Result<SiteNode, String> {
    let hosted = engine.book().sites().get(site).ok_or("the site is gone")?;
    let SiteSpec { cpu_ppm, services, .. } = hosted.spec.clone();
    let cluster = engine.cluster();
    let whole = || cluster.node(node).map(|index| cluster.topology().node(index).cpu);
    let cpu_ppm = cpu_ppm.map_or_else(whole, Ok).map_err(told)?;
    Ok(SiteNode { site: site.clone(), node: node.clone(), cpu_ppm, services })
}

/// Nodes that are held otherwise than the sites that they serve are described.
fn outdated(engine: &Engine) -> Vec<Name> {
    let cluster = engine.cluster();
    let is_outdated = |node: &Name| {
        let held = engine.book().site_node(node).map(|(_, held)| held);
        held.is_some_and(|held| described(engine, &held.site, node).is_ok_and(|new| new != *held))
    };
    let names = cluster.topology().node_indices().map(|index| cluster.name(index));
    names.filter(|node| is_outdated(node)).cloned().collect()
}

/// Nothing happens if somebody was quicker.
async fn hold_as_described(core: &Core, node: &Name) -> Result<(), String> {
    let caller = Caller { user: OWNER.parse().map_err(told)?, operator: true };
    let own = node.clone();
    let look = move |engine: &Engine| -> Result<Option<Call>, String> {
        let Some((handle, held)) = engine.book().site_node(&own) else { return Ok(None) };
        let asked = described(engine, &held.site, &own)?;
        let is_outdated = asked != *held;
        let request = Request::new(Ask::SiteNode(asked));
        Ok(is_outdated.then_some(Call::Modify { handle, request }))
    };
    match core.read(look).await.map_err(told)?? {
        None => Ok(()),
        Some(call) => core.call(caller, call).await.map_err(told)?.map(drop).map_err(told),
    }
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}
