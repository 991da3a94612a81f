//! What goes wrong, when its time has come.

use super::{Happening, Point, World};
use crate::agenda::span;
use crate::clock::WallClock;
use crate::fault::{Kind, pause};
use crate::network::End;
use keeptime_model::units::Nanos;

impl World {
    pub(super) fn plan_trouble(&mut self, kind: Kind) {
        let pause = self.troubles.get_mut(&kind).and_then(|random| pause(kind, random));
        if let Some(pause) = pause {
            let round = self.round;
            self.agenda.after(pause, Happening::Trouble { kind, round });
        }
    }

    pub(super) fn trouble(&mut self, kind: Kind, round: u64) {
        if self.is_calm || round != self.round {
            return;
        }
        self.plan_trouble(kind);
        let now = self.agenda.now();
        let Some(random) = self.troubles.get_mut(&kind) else { return };
        let node = random.below(self.nodes.len() as u64) as usize;
        match kind {
            Kind::BrokerKills => {
                let points = [
                    Point::Decided,
                    Point::HandedOver,
                    Point::Writing,
                    Point::Durable,
                    Point::Leaving,
                ];
                match random.pick(&points) {
                    Some(point) if !random.is_one_in(6) => self.doom = Some(*point),
                    _ => self.kill_broker(),
                }
            }
            Kind::FullDisks => self.fills_up = true,
            Kind::AgentKills if random.is_one_in(2) => {
                let after = random.below(3) as usize;
                self.nodes[node].doom(after);
            }
            Kind::AgentKills => {
                if self.nodes[node].is_up() {
                    self.effects.count(kind);
                    self.kill_agent(node, Nanos::from_secs(20));
                }
            }
            Kind::Reboots => {
                self.effects.count(kind);
                if self.nodes[node].is_up() {
                    self.kill_agent(node, Nanos::from_secs(60));
                }
                self.nodes[node].reboot();
            }
            Kind::Kernels => {
                let lasts = span(random, Nanos::from_secs(1)..Nanos::from_secs(20));
                self.nodes[node].refuse(true, now);
                self.agenda.after(lasts, Happening::KernelIsWell { node });
            }
            Kind::Breaks => self.break_off(node),
            Kind::Partitions => {
                let lasts = span(random, Nanos::from_secs(1)..Nanos::from_secs(30));
                self.network.cut(node, now.saturating_add(lasts));
            }
            Kind::Clocks if random.is_one_in(3) => {
                let changed = self.broker_clock.set_somehow(random);
                self.effects.add(kind, changed.into());
            }
            Kind::Clocks => {
                let effects = &mut self.effects;
                let set =
                    |clock: &mut WallClock| effects.add(kind, clock.set_somehow(random).into());
                let went_back = self.nodes[node].set_clock(now, set);
                self.compare_anew(node, went_back);
            }
            Kind::Delays | Kind::Repeats | Kind::Losses => {}
        }
    }

    pub(super) fn break_off(&mut self, node: usize) {
        let Some(connection) = self.nodes[node].connection else { return };
        self.effects.count(Kind::Breaks);
        let [at_broker, at_agent] = self.network.break_off(connection, self.agenda.now());
        for (time, end) in [(at_broker, End::Broker), (at_agent, End::Agent)] {
            self.agenda.at(time, Happening::Broken { node, connection, end });
        }
    }
}
