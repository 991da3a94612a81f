//! What happens, in words: for whoever reads why a run failed.

use super::{FromAgent, Happening, ToAgent};
use crate::clock::{START, second};
use crate::network::End;
use keeptime_engine::agents::Act;
use keeptime_engine::{Answer, Call, CallError, Event};
use keeptime_model::assignment::Assignment;
use keeptime_model::extension::Extension;
use keeptime_model::reservation::{Ask, NodeChoice, Request};
use keeptime_model::units::WallTime;
use std::fmt;

impl Happening {
    /// Whether it happens all the time, and says nothing to whoever reads why a run failed.
    pub(super) fn is_routine(&self) -> bool {
        matches!(
            self,
            Self::Think
                | Self::AskAgain { .. }
                | Self::Beat { .. }
                | Self::Tick { .. }
                | Self::Due { .. }
                | Self::FromAgent { said: FromAgent::Beat, .. }
        )
    }
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Think => f.write_str("somebody thinks of a call"),
            Self::Asked { call, caller, what } => {
                write!(f, "call {call} of {} reaches the broker: {}", caller.user, of_call(what))
            }
            Self::Told { call, answer } => {
                write!(f, "call {call} is answered: {}", of_answer(answer))
            }
            Self::AskAgain { call } => write!(f, "call {call} is sent (again), if it is open"),
            Self::ToAgent { node, connection, said } => {
                write!(f, "node {node} hears on connection {}: {said}", connection.0)
            }
            Self::FromAgent { node, connection, said } => {
                write!(f, "the broker hears of node {node} on connection {}: {said}", connection.0)
            }
            Self::Broken { node, connection, end } => {
                let who = if *end == End::Broker { "the broker" } else { "the agent" };
                write!(f, "{who} learns that connection {} of node {node} broke", connection.0)
            }
            Self::Dial { node, process } => write!(f, "agent {process} of node {node} dials"),
            Self::Beat { node, connection } => {
                write!(f, "node {node} says on connection {} that it lives", connection.0)
            }
            Self::Tick { node, process } => {
                write!(f, "agent {process} of node {node} looks at its clock")
            }
            Self::AgentStarts { node } => write!(f, "an agent starts on node {node}"),
            Self::BrokerStarts => f.write_str("a broker starts"),
            Self::Due { broker } => write!(f, "time has passed for broker {broker}"),
            Self::Written { broker } => write!(f, "the disk of broker {broker} is done"),
            Self::Trouble { kind, .. } => write!(f, "trouble: {}", kind.name()),
            Self::KernelIsWell { node } => write!(f, "the kernel of node {node} is well again"),
        }
    }
}

impl fmt::Display for ToAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HungUp => f.write_str("the broker hung up"),
            Self::Order(order) => match &order.act {
                Act::Enforce(assignment) => {
                    write!(f, "order {}, enforce {}", order.number, of_assignment(assignment))
                }
                Act::Withdraw(job) => write!(f, "order {}, withdraw {job}", order.number),
            },
        }
    }
}

impl fmt::Display for FromAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello(holding) => {
                let holding: Vec<_> = holding.iter().map(of_assignment).collect();
                write!(f, "hello, holding {}", list(&holding))
            }
            Self::Answer { number, refusal: None } => write!(f, "order {number} is done"),
            Self::Answer { number, refusal: Some(why) } => {
                write!(f, "order {number} is not: {why}")
            }
            Self::Beat => f.write_str("it lives"),
            Self::HungUp => f.write_str("it hung up"),
        }
    }
}

/// Events, in words.
pub(super) fn of_events(events: &[Event]) -> String {
    let words = |event: &Event| match event.handle() {
        Some(handle) => format!("{handle} {}", event.kind()),
        None => event.kind().to_string(),
    };
    list(&events.iter().map(words).collect::<Vec<_>>())
}

fn of_call(call: &Call) -> String {
    match call {
        Call::Register { application, .. } => format!("register {}", application.name()),
        Call::Reserve { key, request } => format!("reserve {key}: {}", of_request(request)),
        Call::Consider { request } => format!("consider {}", of_request(request)),
        Call::Modify { handle, request } => format!("modify {handle}: {}", of_request(request)),
        Call::Correct { handle, request } => format!("correct {handle}: {}", of_request(request)),
        Call::Extend { handle, extension } => {
            let Extension { flows, cpu_ppm, .. } = extension;
            format!("extend {handle}: {cpu_ppm} CPU, {} flows", flows.len())
        }
        Call::Cancel { handle } => format!("cancel {handle}"),
        Call::Finish { handle, run } => format!("finish {handle}: {run}"),
        Call::Spare { handle } => format!("spare {handle}"),
        Call::Move { handle } => format!("move {handle}"),
        Call::Keep { handle } => format!("keep {handle}"),
        Call::Report { handle, actual } => format!("{handle} took {actual}"),
        Call::Explain { request } => format!("explain {}", of_request(request)),
        Call::AddSite { site } => format!("add site {}", site.name),
        Call::RemoveSite { site } => format!("remove site {site}"),
        Call::Drain { nodes, .. } => format!("drain {nodes:?}"),
        Call::Resume { nodes } => format!("resume {nodes:?}"),
    }
}

fn of_answer(answer: &Result<Answer, Box<CallError>>) -> String {
    match answer {
        Ok(Answer::Registered) => "registered".into(),
        Ok(Answer::Recorded) => "recorded".into(),
        Ok(Answer::Reservation(told)) => format!("{} is {}", told.handle, told.state),
        Ok(Answer::Decided(_)) => "decided".into(),
        Ok(Answer::Possible { from, .. }) => format!("possible from {}", of_time(*from)),
        Err(error) => error.to_string(),
    }
}

fn of_request(request: &Request) -> String {
    let what = match &request.ask {
        Ask::Goal { application, goal } => format!("{application} {goal}"),
        Ask::SiteNode(asked) => format!("{} for {}", asked.node, asked.site),
        Ask::Resources(asked) => {
            let nodes = match &asked.nodes {
                NodeChoice::Any(count) => format!("any {count}"),
                NodeChoice::Named(names) => {
                    list(&names.iter().map(ToString::to_string).collect::<Vec<_>>())
                }
            };
            let (cpu, rate) = (asked.cpu_ppm, asked.bits_per_second);
            let flows = asked.pattern.as_ref().map(|p| format!(", {p} {rate}")).unwrap_or_default();
            format!("{nodes}: {cpu} CPU{flows}")
        }
    };
    let from = request.from_unix_nanos.map_or("now".into(), of_time);
    let lasts = request.duration_nanos.map_or("for ever".into(), |d| format!("for {d}"));
    let spare = if request.spare { " and what is spare" } else { "" };
    let by = request.malleable.map(|malleable| {
        format!(", up to {}, by {}", malleable.cpu_most_ppm, of_time(malleable.by_unix_nanos))
    });
    format!("{what}{spare}, from {from} {lasts}{}", by.unwrap_or_default())
}

fn of_assignment(assignment: &Assignment) -> String {
    let Assignment { job, cpu_ppm, flows, until_unix_nanos, .. } = assignment;
    let up_to = flows.iter().find_map(|flow| flow.up_to_bits_per_second);
    let up_to = up_to.map(|most| format!(" of up to {most}")).unwrap_or_default();
    let until = of_time(*until_unix_nanos);
    format!("{job} ({cpu_ppm} CPU, {} flows{up_to}) until {until}", flows.len())
}

/// Seconds since the beginning.
fn of_time(time: WallTime) -> String {
    match second(time).checked_sub(second(START)) {
        Some(since) if since < 1 << 32 => format!("{since} s"),
        Some(_) => "the end of time".into(),
        None => format!("{} s before", second(START) - second(time)),
    }
}

fn list(words: &[String]) -> String {
    if words.is_empty() { "nothing".into() } else { words.join(", ") }
}
