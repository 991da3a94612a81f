//! Figures 2 to 4: how many questions directories answer, from 1 to 16 clients on a node.

use super::testbed::{Node, wait_for};
use anyhow::{Context as _, Result, bail};
use keeptime_fabric::{Attributes, Config, Context, FindError, Resource, Wait, attrs};
use std::io::{BufRead, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

/// Attributes by whose subsets one resource can be asked for: so many questions that none is kept by
/// whoever asks, and each goes to the node's server.
const MARKS: u32 = 12;

/// What clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Question {
    /// Find a resource by attributes that nobody asked for before.
    Find,
    /// Register a resource and drop it again.
    Register,
}

/// A node's clients, in a process of their own.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    question: Question,
    /// This node
    node: String,
    /// All nodes, with commas between
    nodes: String,
    clients: usize,
    seconds: f64,
    /// Share of questions about resources of this node
    local: f64,
}

/// Is such a process: says `ready`, begins at the next line, and says how many were answered in a second.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (node, others) = (arguments.node.as_str(), arguments.nodes.split(','));
    let others: Vec<_> = others.filter(|other| *other != node).collect();
    let own = open()?;
    let _own = own.register(resource(node))?;
    let clients = (0..arguments.clients).map(|_| open()).collect::<Result<Vec<_>>>()?;
    let query = |of: &str| attrs! { "evaluation" => "rocl", "node" => of };
    wait_for("resources of all nodes", || {
        let there = |of: &&str| own.find(query(of)).one_of_any().is_ok();
        Ok(others.iter().all(there))
    })?;
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().lock().read_line(&mut String::new())?;
    let (start, time) = (Instant::now(), Duration::from_secs_f64(arguments.seconds));
    let counts = thread::scope(|scope| {
        let clients = clients.iter().enumerate().map(|(number, client)| {
            let others = &others;
            scope.spawn(move || -> Result<u64> {
                let mut asking = Asking::new(client, number as u32);
                while start.elapsed() < time {
                    asking.ask(arguments, node, others)?;
                }
                Ok(asking.count)
            })
        });
        let clients: Vec<_> = clients.collect();
        let joined = clients.into_iter().map(|thread| match thread.join() {
            Ok(count) => count,
            Err(_) => bail!("a client's thread has panicked"),
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    println!("{}", counts.iter().sum::<u64>() as f64 / start.elapsed().as_secs_f64());
    std::io::stdout().flush()?;
    // Resources stay until all are done.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

struct Asking<'a> {
    client: &'a Context,
    marks: u32,
    count: u64,
    seed: u64,
}

impl<'a> Asking<'a> {
    fn new(client: &'a Context, number: u32) -> Self {
        Self { client, marks: number * 100, count: 0, seed: u64::from(number) + 1 }
    }

    fn ask(&mut self, arguments: &Arguments, node: &str, others: &[&str]) -> Result<()> {
        match arguments.question {
            Question::Find => {
                let is_local = others.is_empty() || self.chance() < arguments.local;
                let other = || others.get((self.seed >> 33) as usize % others.len().max(1));
                let of = if is_local { node } else { other().copied().unwrap_or(node) };
                self.marks = self.marks.wrapping_add(1) % (1 << MARKS);
                match self.client.find(marked(of, self.marks)).one_of_any() {
                    Ok(_) => {}
                    Err(FindError::None(query)) => bail!("nobody has {query}"),
                    Err(error) => return Err(error.into()),
                }
            }
            Question::Register => drop(self.register(node)?),
        }
        self.count += 1;
        Ok(())
    }

    fn register(&self, node: &str) -> Result<Resource> {
        Ok(self.client.register(attrs! { "evaluation" => "churn", "node" => node })?)
    }

    /// From 0 to 1.
    fn chance(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn open() -> Result<Context> {
    let mut config = Config::default();
    config.wait = Wait::Block;
    Ok(Context::open(config)?)
}

fn resource(node: &str) -> Attributes {
    marked(node, (1 << MARKS) - 1)
}

fn marked(node: &str, marks: u32) -> Attributes {
    let attributes = attrs! { "evaluation" => "rocl", "node" => node };
    let set = (0..MARKS).filter(|mark| marks >> mark & 1 == 1);
    set.fold(attributes, |attributes, mark| attributes.with(format!("mark{mark}"), "yes"))
}

/// Questions a second, all clients of all `nodes` together.
pub fn rate(
    nodes: &[&Node],
    question: Question,
    clients: usize,
    local: f64,
    seconds: f64,
) -> Result<f64> {
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    let question = if question == Question::Find { "find" } else { "register" };
    let start = |node: &&Node| {
        let words = ["rocl-client".into(), question.into(), node.name.clone(), names.join(",")];
        let numbers = [clients.to_string(), seconds.to_string(), local.to_string()];
        node.start("keeptime-bench", &[&words[..], &numbers].concat())
    };
    let mut processes = nodes.iter().map(start).collect::<Result<Vec<_>>>()?;
    for process in &mut processes {
        anyhow::ensure!(process.line()? == "ready", "a client is not ready");
    }
    processes.iter_mut().try_for_each(|process| process.say(""))?;
    let mut sum = 0.0;
    for process in &mut processes {
        sum += process.line()?.parse::<f64>().context("a rate")?;
    }
    processes.into_iter().try_for_each(|process| process.finish().map(drop))?;
    Ok(sum)
}

/// Bytes that nodes have sent so far, on all networks.
pub fn sent(nodes: &[&Node]) -> Result<u64> {
    let of = |node: &&Node| {
        let text = node.run(|| Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
        let cables = text.lines().filter_map(|line| line.trim().split_once(':'));
        let cables = cables.filter(|(name, _)| name.starts_with('w'));
        let sent = cables.filter_map(|(_, numbers)| numbers.split_whitespace().nth(8));
        Ok(sent.filter_map(|number| number.parse::<u64>().ok()).sum::<u64>())
    };
    nodes.iter().map(of).sum()
}
