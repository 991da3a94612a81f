//! What all handles of one context share: inboxes, links, listeners and the way of a message
//! between them.
//!
//! | module | owns |
//! |---|---|
//! | `sending`, `waiting` | the way of a message out; waiting for a turn |
//! | `receiving`, `catcher` | the way of a message in; a thread that waits for one |
//! | `absent` | whether those are there of whom messages are waited for |
//! | `calling`, `calls` | whom this context calls, and whom just now |
//! | `connecting` | who of those that call is let in, and what is done about links as they come and go beside `junction` |
//! | `handling`, `keeping` | what is done on links by whoever has time; and every now and then |

mod absent;
mod calling;
mod calls;
mod catcher;
mod connecting;
mod handling;
mod keeping;
mod receiving;
mod sending;
mod waiting;

use crate::bridge::Survey;
use crate::config::Config;
use crate::directory::client::Client;
use crate::directory::protocol::ContextInfo;
use crate::error::OpenError;
use crate::flow::Unsent;
use crate::flusher::Flusher;
use crate::frame::{Malformed, Refusal, VERSION};
use crate::id::{ContextId, Place};
use crate::inbox::{Arrived, Inbox, Undelivered};
use crate::junction::Junction;
use crate::keeper::Keeper;
use crate::link::{Home, Link};
use crate::listen::{Listeners, spoken};
use crate::networks::{Divided, Network, discover, divide};
use crate::progress::{Parker, Progress};
use crate::random;
use crate::turns::Turns;
use absent::Absent;
use calls::Calls;
use keeptime_locks::lock;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// All of a context.
#[derive(Debug)]
pub struct Core {
    id: ContextId,
    config: Config,
    networks: Divided,
    junction: Junction,
    listeners: Listeners,
    progress: Progress,
    directory: Client,
    flusher: Arc<Flusher>,
    survey: Survey,
    keeper: Keeper,
    turns: Arc<Turns>,
    /// What did not arrive, and no resource could be told.
    untold: Mutex<Option<Unsent>>,
    /// To each other context one connection is made at a time; messages do not come this way.
    calls: Calls,
    absent: Absent,
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub enum Patience {
    /// Not at all.
    None,
    /// Until then, or for ever.
    Until(Option<Instant>),
}

impl Patience {
    /// Whether there is time for another look.
    fn is_left(self) -> bool {
        match self {
            Self::None => false,
            Self::Until(deadline) => deadline.is_none_or(|deadline| Instant::now() < deadline),
        }
    }
}

impl Core {
    /// Opens a context.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        let of = |what: &'static str| move |source| OpenError::System { what, source };
        config.between_nodes.expect_built_in()?;
        let id = ContextId::new(random().map_err(of("random numbers"))?);
        let progress = Progress::new(config.wait).map_err(of("descriptors to wait on"))?;
        let listeners = Listeners::new(id, config.listen, &progress).map_err(of("listening"))?;
        let listens = listeners.address().map_err(of("listening"))?;
        let found = discover().map_err(of("the node's interfaces"))?;
        let networks = divide(found.clone(), &config.networks)
            .map_err(|wanted| OpenError::NoNetwork { wanted, found })?;
        let addresses = reached_at(listens, &networks.used);
        // Who it belongs to, and where, its daemon says.
        let (node, owner, callers) = (String::new(), 0, config.callers);
        let carriers = spoken(config.between_nodes, &addresses);
        let info = ContextInfo { id, node, owner, callers, addresses, carriers, speaks: VERSION };
        let directory = Client::connect(&config.directory, info)?;
        let turns = Arc::new(Turns::new());
        Ok(Self {
            id,
            config,
            networks,
            junction: Junction::new(turns.clone()),
            listeners,
            progress,
            directory,
            flusher: Arc::default(),
            survey: Survey::default(),
            keeper: Keeper::default(),
            turns,
            untold: Mutex::default(),
            calls: Calls::default(),
            absent: Absent::default(),
        })
    }

    /// Its name.
    pub fn id(&self) -> ContextId {
        self.id
    }

    /// What it was asked to be.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The networks of its node that it uses.
    pub fn networks(&self) -> &[Network] {
        &self.networks.used
    }

    /// Where to try to call a peer, in that order.
    pub fn candidates(&self, peer: &[SocketAddr], same_node: bool) -> Vec<SocketAddr> {
        self.networks.candidates(peer, same_node)
    }

    /// Its side of the directory.
    pub fn directory(&self) -> &Client {
        &self.directory
    }

    /// What carries gathered messages when nobody else does.
    pub fn flusher(&self) -> &Arc<Flusher> {
        &self.flusher
    }

    /// Its links, streams and inboxes.
    pub fn junction(&self) -> &Junction {
        &self.junction
    }

    /// Who looks after them.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Others are asked for nothing any more: threads that make connections end soon, whatever they wait for.
    pub fn give_up_calls(&self) {
        self.directory.close();
        self.survey.end();
    }

    /// Works until `stopped`, which is looked at whenever `enlist`ed threads are woken.
    pub fn work_until(&self, mut stopped: impl FnMut() -> bool, enlist: impl FnMut(&Arc<Parker>)) {
        self.progress.wait(self, None, || stopped().then_some(()), enlist);
    }

    /// Wakes a thread.
    pub fn wake(&self, parker: &Parker) {
        self.progress.wake(parker);
    }
}

/// Where a context is called that `listens` there, on a node on `networks`: at addresses of IPv6 last, which fewer nodes have.
fn reached_at(listens: SocketAddr, networks: &[Network]) -> Vec<SocketAddr> {
    if !listens.ip().is_unspecified() {
        return vec![listens];
    }
    // What listens over IPv6 takes callers over both.
    let taken = networks.iter().filter(|own| listens.is_ipv6() || own.address.is_ipv4());
    let mut all: Vec<_> = taken.map(|own| SocketAddr::new(own.address, listens.port())).collect();
    all.sort_by_key(SocketAddr::is_ipv6);
    all
}

impl Home for Core {
    fn message_most(&self) -> u64 {
        self.config.message_most
    }

    fn deliver(&self, to: Place, message: Arrived) -> Result<Option<Refusal>, Malformed> {
        self.deliver_by(None, to, message)
    }

    fn begun(&self, link: &Arc<Link>, number: u32) -> Result<(), Malformed> {
        self.junction.begun(link, number, self)
    }

    fn fetched(&self, to: Place) {
        let next = self.junction.inboxes.with(to, Inbox::next_receiver).flatten();
        next.iter().for_each(|parker| self.progress.wake(parker));
    }

    fn notify(&self, sender: Place, notice: Undelivered) {
        let to = notice.to;
        let told = self.junction.inboxes.with(sender, |inbox| inbox.notify(notice)).flatten();
        let Some(receivers) = told else {
            // The sender is gone as well, or takes none of what it is told: whoever closes the context wants to know.
            let mut untold = lock(&self.untold);
            *untold = Some(Unsent::with(*untold, to));
            return;
        };
        receivers.iter().for_each(|parker| self.progress.wake(parker));
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_everywhere_is_called_at_every_address_that_takes_calls() {
        let networks = ["127.0.0.1/8", "::1/128", "fd00::1/64", "10.0.0.1/24"];
        let networks = networks.map(|network| network.parse().unwrap());
        let all = |listens: &str| {
            let all = reached_at(listens.parse().unwrap(), &networks);
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(all("[::]:7"), ["127.0.0.1:7", "10.0.0.1:7", "[::1]:7", "[fd00::1]:7"]);
        assert_eq!(all("0.0.0.0:7"), ["127.0.0.1:7", "10.0.0.1:7"]);
        assert_eq!(all("10.0.0.1:7"), ["10.0.0.1:7"]);
    }
}
