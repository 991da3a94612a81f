//! Web sites: which there are, and which node serves which. Who decides that is outside; here it is
//! recorded, and what makes no sense is refused.

use super::Engine;
use crate::book::Reservation;
use crate::call::{Answer, CallError, Caller};
use crate::event::Event;
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, Handle};
use keeptime_model::site::{SiteNode, SiteSpec};
use keeptime_model::text::one_of;
use keeptime_pools::pool::Pool;

impl Engine {
    /// A site whose hard guarantee cannot be kept beside those of all others is refused, and one before which
    /// stands what stands before another.
    pub(super) fn add_site(
        &mut self,
        caller: &Caller,
        site: Box<SiteSpec>,
    ) -> Result<Answer, CallError> {
        check_operator(caller, "add web sites")?;
        site.check()?;
        let there = self.book.sites();
        if there.get(&site.name).is_some_and(|there| there.is_leaving) {
            let expected = "a site that is not being removed: its nodes are drained first, as far as its balancers \
                            can be asked (`keeptime cancel` takes one away without that)";
            return Err(Invalid::new("name", &site.name, expected).into());
        }
        // One that leaves has its balancers until its nodes are drained.
        let others = there.values().filter(|other| other.spec.name != site.name);
        site.check_beside(others.map(|other| &other.spec))?;
        let others = there.values().filter(|other| !other.is_leaving).map(|other| &other.spec);
        let others = others.filter(|other| other.name != site.name);
        Pool::of_specs(self.cluster.topology().nodes().len(), others.chain([&*site]))?;
        if there.get(&site.name).is_none_or(|there| there.spec != *site) {
            self.record(Event::SiteAdded { site });
        }
        Ok(Answer::Recorded)
    }

    pub(super) fn remove_site(&mut self, caller: &Caller, site: Name) -> Result<Answer, CallError> {
        check_operator(caller, "remove web sites")?;
        let Some(there) = self.book.sites().get(&site) else {
            return Err(self.no_such_site("site", &site).into());
        };
        if !there.is_leaving {
            self.record(Event::SiteLeaving { site: site.clone() });
        }
        self.remove_if_empty(site);
        Ok(Answer::Recorded)
    }

    /// A node serves one site at most, and only one that is there; and no site is left with less than its
    /// hard guarantee for another, whatever has died since that was decided.
    pub(super) fn check_site_node(
        &self,
        ask: &Ask,
        old: Option<&Reservation>,
    ) -> Result<(), Invalid> {
        let Ask::SiteNode(asked) = ask else { return check_stays_of_site(ask, old) };
        if self.book.staying_site(&asked.site).is_none() {
            return Err(self.no_such_site("ask.site-node.site", &asked.site));
        }
        if let Some(old) = old {
            self.check_spared(asked, old)?;
        }
        match self.book.site_node(&asked.node) {
            Some((handle, held)) if old.is_none_or(|old| old.handle != handle) => {
                let expected =
                    format!("a node without a site: it serves {} by {handle}", held.site);
                Err(Invalid::new("ask.site-node.node", &asked.node, expected))
            }
            _ => Ok(()),
        }
    }

    /// What is offered of a site's node was decided before its agent was asked: since then the site that it serves may have
    /// lost others, or given them, and the one that it is to serve may be gone.
    pub(super) fn check_offered_site_node(&self, handle: Handle) -> Result<(), Invalid> {
        let Some(offer) = self.offers.get(&handle) else { return Ok(()) };
        let ask = &offer.proposal.request.ask;
        match self.book.reservations().get(&handle) {
            Some(old) => self.check_site_node(ask, Some(old)),
            None => self.check_site_node(ask, None),
        }
    }

    fn check_spared(&self, asked: &SiteNode, old: &Reservation) -> Result<(), Invalid> {
        let Ask::SiteNode(held) = &old.request.ask else { return Ok(()) };
        let giver = self.book.staying_site(&held.site);
        let Some(giver) = giver.filter(|_| held.site != asked.site) else { return Ok(()) };
        let (there, hard) = (self.others_there(held), giver.guarantee.hard);
        if there >= hard as usize {
            return Ok(());
        }
        let SiteNode { site, node, .. } = held;
        let expected = format!(
            "one that {site} can spare: it keeps {hard} for certain, and beside {node} {there} are there"
        );
        Err(Invalid::new("ask.site-node.node", &asked.node, expected))
    }

    /// How many nodes a site has beside this one whose agents are there: what is away may be lost.
    fn others_there(&self, SiteNode { site, node, .. }: &SiteNode) -> usize {
        let others = self.book.nodes_of_site(site).filter(|other| *other != node);
        let indices = others.filter_map(|other| self.cluster.node(other).ok());
        indices.filter(|index| self.agents.is_connected(*index)).count()
    }

    /// A site gives back a node: unlike by a cancel, no site is left with less than its hard guarantee.
    pub(super) fn spare(&mut self, caller: &Caller, handle: Handle) -> Result<Answer, CallError> {
        check_operator(caller, "have web sites give back nodes")?;
        self.check_dispensable(self.own(caller, handle)?)?;
        self.cancel(caller, handle)
    }

    fn check_dispensable(&self, reservation: &Reservation) -> Result<(), Invalid> {
        let handle = reservation.handle;
        let Ask::SiteNode(held) = &reservation.request.ask else {
            return Err(Invalid::new("handle", handle, "that of a node which serves a web site"));
        };
        let SiteNode { site, node, .. } = held;
        let hard = self.book.staying_site(site).map_or(0, |site| site.guarantee.hard);
        let there = self.others_there(held);
        if there >= hard as usize {
            return Ok(());
        }
        let expected = format!(
            "that of a node which {site} can do without: it keeps {hard} for certain, and beside {node} {there} are there"
        );
        Err(Invalid::new("handle", handle, expected))
    }

    /// A reservation is over: if it was the last node of a site that leaves, the site is gone.
    pub(super) fn site_lost_node(&mut self, handle: Handle) {
        if let Some(site) = self.site_of(handle) {
            self.remove_if_empty(site);
        }
    }

    /// The site that a reservation's node serves, if it is one of a site.
    pub(super) fn site_of(&self, handle: Handle) -> Option<Name> {
        match &self.book.reservations().get(&handle)?.request.ask {
            Ask::SiteNode(held) => Some(held.site.clone()),
            Ask::Goal { .. } | Ask::Resources(_) => None,
        }
    }

    /// A site that leaves and has no node any more is gone.
    pub(super) fn remove_if_empty(&mut self, site: Name) {
        let is_leaving = self.book.sites().get(&site).is_some_and(|there| there.is_leaving);
        if is_leaving && self.book.nodes_of_site(&site).next().is_none() {
            self.record(Event::SiteRemoved { site });
        }
    }

    fn no_such_site(&self, field: &str, site: &Name) -> Invalid {
        let there = self.book.sites().values().filter(|there| !there.is_leaving);
        let names: Vec<_> = there.map(|there| there.spec.name.as_str()).collect();
        let expected = match names.as_slice() {
            [] => "a site that was added; none was".into(),
            names => one_of(names),
        };
        Invalid::new(field, site, expected)
    }
}

/// A node that serves a site is drained before anybody else has it: its reservation becomes nothing else.
fn check_stays_of_site(ask: &Ask, old: Option<&Reservation>) -> Result<(), Invalid> {
    let Some(Ask::SiteNode(held)) = old.map(|old| &old.request.ask) else { return Ok(()) };
    let asked = if matches!(ask, Ask::Goal { .. }) { "goal" } else { "resources" };
    let expected = format!("site-node: {} serves {} by it", held.node, held.site);
    Err(Invalid::new("ask", asked, expected))
}

pub(super) fn check_operator(caller: &Caller, what: &'static str) -> Result<(), CallError> {
    if caller.operator { Ok(()) } else { Err(CallError::OperatorsOnly { what }) }
}
