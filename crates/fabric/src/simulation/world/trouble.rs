//! What goes wrong in a world of three nodes.

use super::reach::pair;
use super::{MIDDLE, NODES, PAIRS, RESOURCES, World};
use crate::simulation::Fault;
use crate::simulation::line::Line;
use crate::simulation::resource::Resource;
use std::time::Duration;

/// Two nodes do not reach each other for less than that, and then do for a while: no stream gives up meanwhile.
const PARTED_MOST: Duration = Duration::from_secs(3);
const REUNITED_LEAST: Duration = Duration::from_secs(6);
/// For less than that the directory says where a context is that is no more.
const REMEMBERED_MOST: Duration = Duration::from_secs(2);

impl World {
    /// One thing goes wrong, of those that do with this seed.
    ///
    /// # Errors
    /// If something does not hold.
    pub(super) fn go_wrong(&mut self) -> Result<(), String> {
        let Some(fault) = self.random.pick(&self.faults).copied() else { return Ok(()) };
        let (node, at) = (self.random.index(NODES), self.random.index(self.lines.len()));
        self.note(format!("{fault:?}, node {node}, connection {at}"));
        match fault {
            Fault::Cut | Fault::Silence | Fault::BridgeEnd | Fault::Lag => self.harm(at, fault),
            Fault::Part => self.part(),
            Fault::Crash => self.crash(node)?,
            Fault::Close => self.close(node)?,
            Fault::Impatience => {
                for resource in &mut self.resources[node] {
                    resource.give_up(&mut self.ledger)?;
                }
            }
            // That is so all the time.
            Fault::Busy | Fault::Lazy | Fault::LateCalls => {}
        }
        Ok(())
    }

    /// Something happens to a connection, if there is one.
    fn harm(&mut self, at: usize, fault: Fault) {
        let delay = self.time(MIDDLE);
        let Some(line) = self.lines.get_mut(at) else { return };
        match fault {
            Fault::Cut => match delay.as_nanos() % 3 {
                0 => line.cut(),
                // For one end first.
                1 => line.cut_for(0),
                _ => line.cut_for(1),
            },
            Fault::Silence => line.silence(),
            Fault::BridgeEnd => line.end_bridge(),
            _ => line.lag(delay),
        }
    }

    /// Two nodes do not reach each other for a while. What there is between them ends, or says nothing.
    fn part(&mut self) {
        let parted = self.random.index(PAIRS);
        let now = self.clock.now();
        if self.parted[parted].is_some_and(|until| now < until + REUNITED_LEAST) {
            return;
        }
        let (time, is_told) = (self.time(PARTED_MOST), self.random.is_one_in(2));
        self.parted[parted] = Some(now + time);
        for line in self.lines.iter().filter(|line| pair(line.nodes) == parted) {
            if is_told {
                line.cut();
            } else {
                line.silence();
            }
        }
    }

    /// A context ends, at once or with its node, and another may begin there. If there is none, one begins.
    fn crash(&mut self, node: usize) -> Result<(), String> {
        let Some(context) = self.nodes[node].take() else {
            self.begin(node);
            return Ok(());
        };
        if self.random.is_one_in(3) {
            let of_node = self.lines.iter().filter(|line| line.nodes.contains(&node));
            of_node.for_each(Line::silence);
        }
        for resource in std::mem::take(&mut self.resources[node]) {
            resource.end(&context, &mut self.ledger)?;
        }
        self.ledger.gone(|sender| sender.context == context.id);
        let until = self.clock.now() + self.time(REMEMBERED_MOST);
        if let Some(known) = self.directory.get_mut(&context.id) {
            known.until = Some(until);
        }
        if self.random.is_one_in(2) {
            self.begin(node);
        }
        Ok(())
    }

    /// A resource goes, and another takes its slot.
    fn close(&mut self, node: usize) -> Result<(), String> {
        let at = self.random.index(RESOURCES);
        let Some(context) = self.nodes[node].clone() else { return Ok(()) };
        if self.resources[node].get(at).is_some_and(Resource::is_free) {
            self.resources[node].remove(at).close(&context, &mut self.ledger)?;
            self.open(node, &context);
        }
        Ok(())
    }
}
