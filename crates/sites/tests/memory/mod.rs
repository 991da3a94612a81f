//! A record in memory: changes are carried out at once, or when the test says so.

#![allow(dead_code, reason = "not every test file uses all of it")]
#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_model::name::Name;
use keeptime_sites::record::{Change, Record, Standing};
use std::sync::{Arc, Mutex};

/// What is recorded, as it outlasts controllers.
#[derive(Debug, Clone, Default)]
pub struct Memory(pub Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
pub struct Kept {
    pub standing: Standing,
    pub asked: Vec<Change>,
    pub answers: Vec<(Name, Result<(), String>)>,
    /// Whether changes are carried out when they are asked for.
    pub is_slow: bool,
}

impl Memory {
    /// How many nodes serve `site`.
    pub fn count(&self, site: &str) -> usize {
        let kept = self.0.lock().unwrap();
        let nodes = kept.standing.nodes.iter();
        nodes.filter(|node| node.site.as_ref().is_some_and(|name| name.as_str() == site)).count()
    }
}

impl Record for Memory {
    fn standing(&mut self) -> Option<Standing> {
        Some(self.0.lock().unwrap().standing.clone())
    }

    fn ask(&mut self, change: &Change) {
        let mut kept = self.0.lock().unwrap();
        kept.asked.push(change.clone());
        if !kept.is_slow {
            kept.carry_out(change);
            kept.answers.push((change.node.clone(), Ok(())));
        }
    }

    fn answers(&mut self) -> Vec<(Name, Result<(), String>)> {
        std::mem::take(&mut self.0.lock().unwrap().answers)
    }
}

impl Kept {
    pub fn carry_out(&mut self, change: &Change) {
        let node = self.standing.nodes.iter_mut().find(|node| node.name == change.node).unwrap();
        assert_eq!(node.site, change.from, "{change:?}");
        node.site.clone_from(&change.to);
    }
}
