//! What one user may have reserved at a time, and what they were promised before that became less: it stands until it is
//! over, and counts against whatever is asked for next.

use super::Engine;
use crate::book::Reservation;
use crate::cluster::Cluster;
use crate::offers::span;
use crate::policy::Policy;
use keeptime_calendar::ResourceId;
use keeptime_model::reservation::{Ask, UserName};

/// What one user may have reserved at a time: CPU and sent rate.
pub(super) fn shares_of_a_user(cluster: &Cluster, policy: &Policy) -> [u64; 2] {
    let [cpu, sent] = cluster.totals();
    let share = |all: u64, part: u32| (u128::from(all) * u128::from(part) / 1_000_000) as u64;
    [share(cpu, policy.user_cpu.into()), share(sent, policy.user_bandwidth.into())]
}

impl Engine {
    /// The tables of its owner in which what is asked for counts. A web site's node counts in none: it is no user's.
    pub(super) fn counted_in(&mut self, owner: &UserName, ask: &Ask) -> Option<[ResourceId; 2]> {
        match ask {
            Ask::SiteNode(_) => None,
            Ask::Goal { .. } | Ask::Resources(_) => Some(self.tables_of(owner)),
        }
    }

    /// A user's own tables, made when they are seen first.
    pub(super) fn tables_of(&mut self, owner: &UserName) -> [ResourceId; 2] {
        if let Some(tables) = self.users.get(owner) {
            return *tables;
        }
        let tables = self.shares.map(|share| self.calendar.add_resource(share));
        self.users.insert(owner.clone(), tables);
        tables
    }

    /// What `plan` finds as if `old` were not there. Of its user's limits it meets no less than what they have meanwhile:
    /// who was promised more than one may have by now keeps it in another form, too.
    pub(super) fn without<T>(&mut self, old: &Reservation, plan: impl FnOnce(&mut Self) -> T) -> T {
        let tables = self.counted_in(&old.owner, &old.request.ask);
        let has = tables.map(|tables| tables.map(|table| self.most_during(table, old)));
        self.release(old.handle);
        if let (Some(tables), Some([has_cpu, has_sent])) = (tables, has) {
            let [cpu, sent] = self.shares;
            self.limit(tables, [cpu.max(has_cpu), sent.max(has_sent)]);
        }
        let found = plan(self);
        if let Some(tables) = tables {
            self.limit(tables, self.shares);
        }
        self.hold_again(old);
        found
    }

    /// How much of a table is taken at the worst instant of a reservation.
    fn most_during(&self, table: ResourceId, reservation: &Reservation) -> u64 {
        let span = span(reservation.from_unix_nanos, reservation.until_unix_nanos);
        self.calendar.table(table).map_or(0, |table| table.most_used(span))
    }

    /// So much may be taken of a user's tables.
    fn limit(&mut self, tables: [ResourceId; 2], limits: [u64; 2]) {
        for (table, limit) in tables.into_iter().zip(limits) {
            let is_so = self.calendar.table(table).is_some_and(|table| table.capacity() == limit);
            if !is_so {
                let limited = self.calendar.set_capacity(table, limit);
                debug_assert!(limited.is_ok(), "{limited:?}");
            }
        }
    }
}
