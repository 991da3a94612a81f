//! What a user asks the broker to reserve, and what was granted: the nouns of reservations.

use crate::Invalid;
use crate::application::Parameters;
use crate::assignment::{CpuMechanism, LaterCpu, check_cpu};
use crate::extension::Extension;
use crate::goal::Goal;
use crate::loss::OnLoss;
use crate::name::Name;
use crate::pattern::{Pattern, RANKS_MAX};
use crate::service::ServiceName;
use crate::shares::Shares;
use crate::site::SiteNode;
use crate::units::{BitsPerSecond, BytesPerSecond, CpuPpm, Nanos, Share, WallTime};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Longest [`UserName`] and [`RequestKey`].
pub const TEXT_LENGTH_MAX: usize = 64;

/// The shortest lease of a holder: several signs of life have to fit into it.
pub const LEASE_MIN: Nanos = Nanos::from_secs(1);

/// The longest that a request waits for room: it has a connection to the broker meanwhile.
pub const WAIT_MAX: Nanos = Nanos::from_secs(3_600);

/// Of the nodes that a request may be granted an error names so many.
const AMONG_NAMED_MAX: usize = 8;

/// The handle of a reservation, in text `r1`, `r2` and so on; it is the name of the job on every
/// node too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Handle(u64);

/// Who asks: a local user's name, or the name in a certificate or token.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UserName(String);

/// Chosen by the client, anew for every request: one that is sent twice is carried out once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RequestKey(String);

/// What a user asks the broker to reserve. Now and in advance are the same request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Resources, or a goal.
    pub ask: Ask,
    /// What its user calls it. It means nothing to Keeptime, and others may have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// From when on; nothing = now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_unix_nanos: Option<WallTime>,
    /// For how long; nothing = until it is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_nanos: Option<Nanos>,
    /// What to do when one of its nodes goes away; nothing = as its application says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_loss: Option<OnLoss>,
    /// From its grant on it is given back when its holder says nothing for so long; nothing = it needs
    /// no holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_nanos: Option<Nanos>,
    /// The flows of its pattern may use what nobody has reserved, too, as long as nobody does. Nothing that is
    /// promised counts on it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub spare: bool,
    /// Its CPU time may be had more slowly or faster, as others come and go; nothing = as it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub malleable: Option<Malleable>,
    /// What is to keep its share of the CPU: it is granted no node on which that does not serve.
    #[serde(default, skip_serializing_if = "is_auto")]
    pub cpu_mechanism: CpuMechanism,
    /// It may wait so long until it is granted, where it does not fit at once; nothing = it is refused at once. Of a
    /// change, or a question, it means nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_nanos: Option<Nanos>,
    /// It is granted these nodes or some of them, and no other: those that its user has elsewhere, as by an allocation of a
    /// batch system. Empty = any.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub among: BTreeSet<Name>,
}

/// What stays, when the share of a CPU and the end change: share times duration, on each node, by a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Malleable {
    /// All of it is had by then.
    pub by_unix_nanos: WallTime,
    /// More CPU than this makes it no faster.
    pub cpu_most_ppm: CpuPpm,
    /// It may begin at any time from then on, whenever it was asked for: sooner when there is room, and later where others have
    /// to be let in; nothing = just when it is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earliest_unix_nanos: Option<WallTime>,
}

impl Malleable {
    /// What begins when it is asked for.
    pub fn new(by_unix_nanos: WallTime, cpu_most_ppm: CpuPpm) -> Self {
        Self { by_unix_nanos, cpu_most_ppm, earliest_unix_nanos: None }
    }
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ask {
    /// A result: translated by the application's profile.
    Goal {
        /// An application that the broker knows.
        application: Name,
        /// What is wanted of it.
        goal: Goal,
    },
    /// Resources as they are.
    Resources(Resources),
    /// A node for a web site. The broker asks for it itself; users ask for sites.
    SiteNode(SiteNode),
}

impl Ask {
    /// The resources that are asked for as they are; nothing of a goal, which a profile translates.
    pub fn resources(&self) -> Option<Cow<'_, Resources>> {
        match self {
            Self::Goal { .. } => None,
            Self::Resources(resources) => Some(Cow::Borrowed(resources)),
            Self::SiteNode(asked) => Some(Cow::Owned(asked.resources())),
        }
    }
}

/// Resources without a goal: the same on each of some nodes, but for CPU where ranks work unequally, and the same
/// rate for each flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Which nodes, in order of rank.
    pub nodes: NodeChoice,
    /// CPU on each; nothing = what is promised to nobody is shared.
    #[serde(default)]
    pub cpu_ppm: CpuPpm,
    /// CPU for each rank, in their order, where they work unequally: none more than `cpu_ppm`. Nothing = as much
    /// as that for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rank_cpu_ppm: Vec<CpuPpm>,
    /// In every so long a share of the CPU is to be had, by deadlines where the processes can carry them;
    /// nothing = as it comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_period_nanos: Option<Nanos>,
    /// Who sends to whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Pattern>,
    /// For each flow of the pattern.
    #[serde(default)]
    pub bits_per_second: BitsPerSecond,
    /// Read from the disk of each node.
    #[serde(default)]
    pub disk_read_bytes_per_second: BytesPerSecond,
    /// Written to the disk of each node.
    #[serde(default)]
    pub disk_write_bytes_per_second: BytesPerSecond,
}

/// Which nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum NodeChoice {
    /// So many, whichever suit best.
    Any(u32),
    /// These.
    Named(Vec<Name>),
}

/// What is reserved: one handle for the CPU, links and disks of all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The node of each rank, in order of rank.
    pub nodes: Vec<Name>,
    /// CPU on each.
    pub cpu_ppm: CpuPpm,
    /// CPU for each rank, in their order; nothing = `cpu_ppm` for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rank_cpu_ppm: Vec<CpuPpm>,
    /// Of what is malleable and makes way for others: the CPU that it has on each from a time on, which is more; nothing =
    /// the same until its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub later: Option<LaterCpu>,
    /// In every so long a share of the CPU is to be had, by deadlines where the processes can carry them;
    /// nothing = as it comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_period_nanos: Option<Nanos>,
    /// What is to keep that share, wherever processes can have it so.
    #[serde(default, skip_serializing_if = "is_auto")]
    pub cpu_mechanism: CpuMechanism,
    /// Who sends to whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Pattern>,
    /// For each flow of the pattern, on every link of its path.
    pub bits_per_second: BitsPerSecond,
    /// On the disk of each node.
    #[serde(default)]
    pub disk_read_bytes_per_second: BytesPerSecond,
    /// On the disk of each node.
    #[serde(default)]
    pub disk_write_bytes_per_second: BytesPerSecond,
    /// What it was translated from, if a goal was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<Promise>,
    /// What runs on each node already and counts to the reservation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceName>,
    /// What its program asked for beside, while it ran.
    #[serde(default, skip_serializing_if = "Extension::is_empty")]
    pub extension: Extension,
}

/// What a goal was translated to, and what is promised for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Promise {
    /// The application that the goal is of.
    pub application: Name,
    /// With these parameters.
    pub parameters: Parameters,
    /// It takes at most so long,
    pub time_nanos: Nanos,
    /// in this share of the runs: as many as was asked for, or fewer where those that were measured do not support
    /// as many. Older records have what was asked.
    #[serde(rename = "quantile_ppm")]
    pub quantile: Share,
    /// Half of the runs take less.
    pub median_nanos: Nanos,
}

/// Where a reservation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It waits for room.
    Waiting,
    /// Held, until every agent of it has accepted.
    Offered,
    /// It will be there when its time comes.
    Granted,
    /// Its time has come; every agent enforces it.
    Active,
    /// Its time is over.
    Ended,
    /// Its run is over, and did its part.
    Done,
    /// Given back before its time was over.
    Cancelled,
    /// It did not fit.
    Refused,
    /// It fitted, and an agent could not enforce it; or its run is over, and did not do its part.
    Failed,
    /// A node of it went away.
    Lost,
}

impl Handle {
    /// Number `number`.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The name of its job on the nodes.
    pub fn job(self) -> Name {
        // A lower-case letter and at most 20 digits.
        #[expect(clippy::unwrap_used, reason = "every handle is a name")]
        self.to_string().parse().unwrap()
    }
}

impl Grant {
    /// What it is at `at`: more CPU counts when its time has come.
    pub fn at(&self, at: WallTime) -> Cow<'_, Self> {
        let shares = Shares { cpu: self.cpu_ppm, later: self.later };
        match shares.turned(at) {
            Some(cpu_ppm) => Cow::Owned(Self { cpu_ppm, later: None, ..self.clone() }),
            None => Cow::Borrowed(self),
        }
    }

    /// What it has later beside `cpu`, which a node has until then with what its program asked for; nothing if that is no more.
    pub fn later_beside(&self, cpu: CpuPpm) -> Option<LaterCpu> {
        let of = |later: LaterCpu| LaterCpu {
            cpu_ppm: later.cpu_ppm.max(self.extension.cpu_ppm),
            ..later
        };
        self.later.map(of).filter(|later| cpu < later.cpu_ppm)
    }

    /// CPU on the node of each rank, in their order, with what its program asked for.
    pub fn cpu(&self) -> impl Iterator<Item = CpuPpm> {
        self.cpu_asked().map(|cpu| cpu.max(self.extension.cpu_ppm))
    }

    /// CPU on the node of each rank, in their order, as it was asked for.
    pub fn cpu_asked(&self) -> impl Iterator<Item = CpuPpm> {
        let given = move |rank: usize| self.rank_cpu_ppm.get(rank).copied();
        (0..self.nodes.len()).map(move |rank| given(rank).unwrap_or(self.cpu_ppm))
    }

    /// Read from the disk of each node, with what its program asked for.
    pub fn disk_read(&self) -> BytesPerSecond {
        self.disk_read_bytes_per_second.max(self.extension.disk_read_bytes_per_second)
    }

    /// Written to the disk of each node, with what its program asked for.
    pub fn disk_write(&self) -> BytesPerSecond {
        self.disk_write_bytes_per_second.max(self.extension.disk_write_bytes_per_second)
    }
}

impl State {
    /// Whether it holds resources, now or when its time comes.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Offered | Self::Granted | Self::Active)
    }

    /// Whether nothing more comes of it.
    pub fn is_over(self) -> bool {
        !self.is_live() && self != Self::Waiting
    }
}

impl Request {
    /// `ask` from now on until it is cancelled.
    pub fn new(ask: Ask) -> Self {
        Self {
            ask,
            name: None,
            from_unix_nanos: None,
            duration_nanos: None,
            on_loss: None,
            lease_nanos: None,
            spare: false,
            malleable: None,
            cpu_mechanism: CpuMechanism::Auto,
            wait_nanos: None,
            among: BTreeSet::new(),
        }
    }

    /// Whether `other` asks for the same, however long each may wait: who asks again has waited before.
    pub fn asks_the_same(&self, other: &Self) -> bool {
        Self { wait_nanos: other.wait_nanos, ..self.clone() } == *other
    }

    /// Checks what does not depend on a cluster.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.duration_nanos == Some(Nanos::new(0)) {
            return Err(Invalid::new("duration_nanos", 0, "more than 0"));
        }
        if let Some(lease) = self.lease_nanos.filter(|lease| *lease < LEASE_MIN) {
            return Err(Invalid::new("lease_nanos", lease.get(), format!("{LEASE_MIN} or more")));
        }
        if let Some(malleable) = &self.malleable {
            self.check_malleable(malleable)?;
        }
        if let Some(wait) = self.wait_nanos {
            self.check_wait(wait)?;
        }
        self.check_among()?;
        match &self.ask {
            Ask::Goal { .. } => Ok(()),
            Ask::Resources(resources) => {
                self.check_mechanism(resources)?;
                resources.check()
            }
            Ask::SiteNode(asked) => asked.check(),
        }
    }

    fn check_mechanism(&self, asked: &Resources) -> Result<(), Invalid> {
        if asked.cpu_ppm == CpuPpm::default() && self.cpu_mechanism != CpuMechanism::Auto {
            let expected = "auto, where no share of a CPU is asked for that it could keep";
            return Err(Invalid::new("cpu_mechanism", self.cpu_mechanism, expected));
        }
        Ok(())
    }

    fn check_among(&self) -> Result<(), Invalid> {
        let Some(first) = self.among.first() else { return Ok(()) };
        let (count, named) = match &self.ask {
            Ask::Resources(Resources { nodes: NodeChoice::Any(count), .. }) => (*count, &[][..]),
            Ask::Resources(Resources { nodes: NodeChoice::Named(names), .. }) => (0, &names[..]),
            Ask::Goal { goal, .. } => (goal.nodes.unwrap_or(0), &[][..]),
            Ask::SiteNode(_) => {
                let expected = "nothing, of a web site's node, which is named itself";
                return Err(Invalid::new("among", first, expected));
            }
        };
        if self.among.len() > RANKS_MAX as usize {
            let expected = format!("{RANKS_MAX} nodes at most");
            return Err(Invalid::new("among", self.among.len(), expected));
        }
        let expected = || {
            let names = self.among.iter().take(AMONG_NAMED_MAX).map(Name::as_str);
            let more = if self.among.len() > AMONG_NAMED_MAX { " and others" } else { "" };
            format!(
                "of the {} among: {}{more}",
                self.among.len(),
                names.collect::<Vec<_>>().join(", ")
            )
        };
        if count as usize > self.among.len() {
            return Err(Invalid::new("nodes", count, expected()));
        }
        match named.iter().find(|name| !self.among.contains(*name)) {
            None => Ok(()),
            Some(outside) => Err(Invalid::new("nodes", outside, expected())),
        }
    }

    fn check_wait(&self, wait: Nanos) -> Result<(), Invalid> {
        let expected = if wait == Nanos::new(0) || wait > WAIT_MAX {
            format!("more than 0, and {WAIT_MAX} at most")
        } else if self.from_unix_nanos.is_some() {
            "nothing beside from_unix_nanos: it begins then, or not at all".into()
        } else if self.malleable.is_some() {
            "nothing, of what is malleable: others make way for it, and its deadline does not wait"
                .into()
        } else if matches!(self.ask, Ask::SiteNode(_)) {
            "nothing, of a web site's node: it is asked for again when there is one".into()
        } else {
            return Ok(());
        };
        Err(Invalid::new("wait_nanos", wait.get(), expected))
    }

    fn check_malleable(&self, malleable: &Malleable) -> Result<(), Invalid> {
        if self.duration_nanos.is_none() {
            let expected = "how long it takes, of what is malleable";
            return Err(Invalid::missing("duration_nanos", expected));
        }
        let Ask::Resources(asked) = &self.ask else {
            return Err(Invalid::new("malleable", "a goal", "resources"));
        };
        if asked.cpu_ppm == CpuPpm::default() {
            let expected =
                "more than 0 %, of what is malleable: that is what it has later or sooner";
            return Err(Invalid::new("cpu_ppm", asked.cpu_ppm, expected));
        }
        if !asked.rank_cpu_ppm.is_empty() {
            let expected = "nothing, of what is malleable: all ranks have the same";
            return Err(Invalid::new("rank_cpu_ppm", asked.rank_cpu_ppm.len(), expected));
        }
        if malleable.cpu_most_ppm < asked.cpu_ppm {
            let expected = format!("at least the cpu_ppm that is asked for ({})", asked.cpu_ppm);
            return Err(Invalid::new("malleable.cpu_most_ppm", malleable.cpu_most_ppm, expected));
        }
        Ok(())
    }
}

impl From<Ask> for Request {
    fn from(ask: Ask) -> Self {
        Self::new(ask)
    }
}

impl Resources {
    /// Of no node, nothing: what to start from.
    pub fn nothing() -> Self {
        Self {
            nodes: NodeChoice::Any(0),
            cpu_ppm: CpuPpm::default(),
            rank_cpu_ppm: Vec::new(),
            cpu_period_nanos: None,
            pattern: None,
            bits_per_second: BitsPerSecond::ZERO,
            disk_read_bytes_per_second: BytesPerSecond::default(),
            disk_write_bytes_per_second: BytesPerSecond::default(),
        }
    }

    /// Whether nothing is asked of the nodes: others use them, too, so that who has nothing of them has reserved nothing.
    pub fn is_nothing(&self) -> bool {
        *self == Self { nodes: self.nodes.clone(), ..Self::nothing() }
    }

    /// CPU for each rank, in their order, or one share for all; shares that are all the same become that.
    pub fn set_rank_cpu(&mut self, ranks: Vec<CpuPpm>) {
        self.cpu_ppm = ranks.iter().copied().max().unwrap_or_default();
        let is_same = ranks.iter().all(|cpu| *cpu == self.cpu_ppm);
        self.rank_cpu_ppm = if is_same { Vec::new() } else { ranks };
    }

    pub(crate) fn check(&self) -> Result<(), Invalid> {
        let count = self.nodes.count();
        if !(1..=RANKS_MAX).contains(&count) {
            return Err(Invalid::new("nodes", count, format!("1 to {RANKS_MAX} nodes")));
        }
        if let NodeChoice::Named(names) = &self.nodes {
            let mut seen = BTreeSet::new();
            if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
                return Err(Invalid::new("nodes", twice, "every node once"));
            }
        }
        if self.is_nothing() {
            let expected = "CPU, flows (pattern and bits_per_second) or rates of a disk";
            return Err(Invalid::missing("cpu_ppm", expected));
        }
        check_cpu(self.cpu_ppm, self.cpu_period_nanos)?;
        self.check_rank_cpu(count)?;
        match (&self.pattern, self.bits_per_second) {
            (Some(pattern), rate) => {
                if rate == BitsPerSecond::ZERO {
                    let expected = "more than 0 bit/s for the flows of a pattern";
                    return Err(Invalid::new("bits_per_second", rate, expected));
                }
                pattern.check(count)
            }
            (None, BitsPerSecond::ZERO) => Ok(()),
            (None, rate) => {
                let expected =
                    format!("who sends {rate} to whom: hypercube, all-to-all, ring, pairs");
                Err(Invalid::missing("pattern", expected))
            }
        }
    }

    fn check_rank_cpu(&self, ranks: u32) -> Result<(), Invalid> {
        let given = &self.rank_cpu_ppm;
        if !given.is_empty() && given.len() != ranks as usize {
            let expected = format!("one for each of {ranks} ranks, or none");
            return Err(Invalid::new("rank_cpu_ppm", given.len(), expected));
        }
        let allowed = CpuPpm::new(1)..=self.cpu_ppm;
        match given.iter().position(|cpu| !allowed.contains(cpu)) {
            None => Ok(()),
            Some(rank) => Err(Invalid::new(
                format!("rank_cpu_ppm[{rank}]"),
                given[rank],
                format!("more than 0 %, and no more than cpu_ppm ({})", self.cpu_ppm),
            )),
        }
    }
}

impl NodeChoice {
    /// How many.
    pub fn count(&self) -> u32 {
        match self {
            Self::Any(count) => *count,
            Self::Named(names) => u32::try_from(names.len()).unwrap_or(u32::MAX),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
fn is_auto(mechanism: &CpuMechanism) -> bool {
    *mechanism == CpuMechanism::Auto
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

impl FromStr for Handle {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let digits = text.strip_prefix('r').filter(|d| d.starts_with(|c: char| c.is_ascii_digit()));
        let number = digits.and_then(|digits| digits.parse().ok()).map(Self);
        number.ok_or_else(|| Invalid::new("reservation", text, "a handle, as in r17"))
    }
}

macro_rules! text {
    ($name:ident, $field:literal, $extra:literal) => {
        impl $name {
            /// As text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Invalid;
            fn from_str(text: &str) -> Result<Self, Invalid> {
                let legal = |c: char| c.is_ascii_alphanumeric() || $extra.contains(c);
                let length = 1..=TEXT_LENGTH_MAX;
                if length.contains(&text.len()) && text.chars().all(legal) {
                    return Ok(Self(text.into()));
                }
                let expected = format!("1 to {TEXT_LENGTH_MAX} letters, digits and {}", $extra);
                Err(Invalid::new($field, text, expected))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        crate::as_text!($name);
    };
}

text!(UserName, "user", "._@-");
text!(RequestKey, "key", "._:-");
crate::as_text!(Handle);

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Waiting => "waiting",
            Self::Offered => "offered",
            Self::Granted => "granted",
            Self::Active => "active",
            Self::Ended => "ended",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Lost => "lost",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn resources(nodes: NodeChoice) -> Resources {
        Resources {
            nodes,
            cpu_ppm: CpuPpm::from_percent(10),
            pattern: Some(Pattern::Pairs),
            bits_per_second: BitsPerSecond::from_mbit(5),
            ..Resources::nothing()
        }
    }

    fn refused(change: impl FnOnce(&mut Resources)) -> String {
        let mut asked = resources(NodeChoice::Any(2));
        change(&mut asked);
        asked.check().unwrap_err().to_string()
    }

    #[test]
    fn bad_requests_name_the_field() {
        assert_eq!(resources(NodeChoice::Any(2)).check(), Ok(()));
        let none = refused(|r| r.nodes = NodeChoice::Any(0));
        assert!(none.contains("nodes: \"0\""), "{none}");
        let twice = refused(|r| r.nodes = NodeChoice::Named(vec!["a".parse().unwrap(); 2]));
        assert!(twice.contains("every node once"), "{twice}");
        let odd = refused(|r| r.nodes = NodeChoice::Any(3));
        assert!(odd.contains("even"), "{odd}");
        let without_cpu = |r: &mut Resources| r.cpu_ppm = CpuPpm::default();
        let mut flows_alone = resources(NodeChoice::Any(2));
        without_cpu(&mut flows_alone);
        assert_eq!(flows_alone.check(), Ok(()));
        let nothing =
            refused(|r| *r = Resources { nodes: r.nodes.clone(), ..Resources::nothing() });
        assert!(nothing.contains("cpu_ppm is missing; expected CPU, flows"), "{nothing}");
        let idle = refused(|r| {
            without_cpu(r);
            r.cpu_period_nanos = Some(Nanos::from_millis(10));
        });
        assert!(idle.contains("cpu_ppm") && idle.contains("more than 0 %, to be had"), "{idle}");
        let short = refused(|r| r.cpu_period_nanos = Some(Nanos::new(1)));
        assert!(short.contains("cpu_period_nanos"), "{short}");
        let few = refused(|r| r.rank_cpu_ppm = vec![CpuPpm::from_percent(10)]);
        assert!(few.contains("rank_cpu_ppm: \"1\"") && few.contains("each of 2 ranks"), "{few}");
        for wrong in [0, 11] {
            let wrong = [10, wrong].map(CpuPpm::from_percent);
            let wrong = refused(|r| r.rank_cpu_ppm = wrong.to_vec());
            assert!(wrong.contains("rank_cpu_ppm[1]") && wrong.contains("(10 %)"), "{wrong}");
        }
        let still = refused(|r| r.bits_per_second = BitsPerSecond::ZERO);
        assert!(still.contains("more than 0 bit/s"), "{still}");
        let nobody = refused(|r| r.pattern = None);
        assert!(nobody.contains("pattern") && nobody.contains("5 Mbit/s"), "{nobody}");
    }

    #[test]
    fn what_is_malleable_has_an_end_and_one_share() {
        let of = |ask| Request {
            duration_nanos: Some(Nanos::from_secs(1)),
            malleable: Some(Malleable::new(WallTime::from_unix_nanos(1), CpuPpm::from_percent(10))),
            ..Request::new(ask)
        };
        let refused = |change: fn(&mut Request)| {
            let mut request = of(Ask::Resources(resources(NodeChoice::Any(2))));
            change(&mut request);
            request.check().map_err(|invalid| invalid.field)
        };
        assert_eq!(refused(|_| {}), Ok(()));
        assert_eq!(refused(|r| r.duration_nanos = None), Err("duration_nanos".into()));
        let goal = Ask::Goal { application: "ray".parse().unwrap(), goal: Goal::default() };
        assert_eq!(of(goal).check().unwrap_err().field, "malleable");
        let unequal = |r: &mut Request| {
            let Ask::Resources(asked) = &mut r.ask else { unreachable!() };
            asked.set_rank_cpu([10, 5].map(CpuPpm::from_percent).to_vec());
        };
        assert_eq!(refused(unequal), Err("rank_cpu_ppm".into()));
        let too_little = |r: &mut Request| {
            let of = r.malleable.as_mut().unwrap();
            of.cpu_most_ppm = CpuPpm::from_percent(9);
        };
        assert_eq!(refused(too_little), Err("malleable.cpu_most_ppm".into()));
    }

    #[test]
    fn a_request_reads_as_people_write_it() {
        let text = r#"{"ask": {"resources": {"nodes": {"any": 2}, "cpu_ppm": 100000}},
                       "duration_nanos": 60000000000}"#;
        let request: Request = serde_json::from_str(text).unwrap();
        assert_eq!(request.check(), Ok(()));
        assert_eq!(request.on_loss, None);
        let before = text.replacen('{', r#"{"on_loss": "tell", "#, 1);
        let before: Request = serde_json::from_str(&before).unwrap();
        assert_eq!(before.on_loss, Some(OnLoss::Offer), "as ledgers have it that are older");
        assert!(serde_json::from_str::<Request>(r#"{"ask": {"resources": {}}, "x": 1}"#).is_err());
    }

    #[test]
    fn who_waits_says_how_long_and_begins_as_soon_as_can_be() {
        let with = |wait| Request {
            wait_nanos: Some(wait),
            ..Request::new(Ask::Resources(resources(NodeChoice::Any(2))))
        };
        let refused = |request: Request| {
            let invalid = request.check().unwrap_err();
            assert_eq!(invalid.field, "wait_nanos");
            invalid.to_string()
        };
        let second = with(Nanos::from_secs(1));
        assert_eq!((second.check(), with(WAIT_MAX).check()), (Ok(()), Ok(())));
        for wait in [Nanos::new(0), WAIT_MAX.saturating_add(Nanos::new(1))] {
            let said = refused(with(wait));
            assert!(said.contains(&format!("{WAIT_MAX} at most")), "{said}");
        }
        let from = Some(WallTime::from_unix_nanos(1));
        let said = refused(Request { from_unix_nanos: from, ..second.clone() });
        assert!(said.contains("from_unix_nanos"), "{said}");
        let (by_unix_nanos, cpu_most_ppm) =
            (WallTime::from_unix_nanos(1), CpuPpm::from_percent(10));
        let said = refused(Request {
            duration_nanos: Some(Nanos::from_secs(1)),
            malleable: Some(Malleable::new(by_unix_nanos, cpu_most_ppm)),
            ..second.clone()
        });
        assert!(said.contains("malleable"), "{said}");
        assert!(second.asks_the_same(&with(Nanos::from_secs(2))));
        assert!(!second.asks_the_same(&Request { spare: true, ..second.clone() }));
        let written = serde_json::to_string(&second).unwrap();
        assert_eq!(serde_json::from_str::<Request>(&written).unwrap(), second);
        let before = Request { wait_nanos: None, ..second };
        let written = serde_json::to_string(&before).unwrap();
        assert!(!written.contains("wait_nanos"), "{written}");
        assert_eq!(serde_json::from_str::<Request>(&written).unwrap(), before);
    }

    // Goal: nobody names nodes, or wants more of them, than there are to be granted. Method: two nodes, and what is
    // granted some of them and what cannot be.
    #[test]
    fn what_is_granted_some_nodes_alone_wants_no_others() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let among = |nodes| Request {
            among: [name("n1"), name("n2")].into(),
            ..Request::new(Ask::Resources(resources(nodes)))
        };
        let [n1, n2, n3] = ["n1", "n2", "n3"].map(name);
        for fits in [NodeChoice::Any(2), NodeChoice::Named(vec![n2, n1.clone()])] {
            assert_eq!(among(fits).check(), Ok(()));
        }
        let refused = |request: Request| request.check().unwrap_err().to_string();
        let said = refused(among(NodeChoice::Named(vec![n1, n3])));
        assert_eq!(said, "nodes: \"n3\" is not accepted; expected of the 2 among: n1, n2");
        let said = refused(among(NodeChoice::Any(4)));
        assert!(said.starts_with("nodes: \"4\" is not accepted"), "{said}");
        let goal = Goal { nodes: Some(4), ..Goal::default() };
        let asked = Ask::Goal { application: name("solver"), goal };
        let said = refused(Request { ask: asked, ..among(NodeChoice::Any(2)) });
        assert!(said.starts_with("nodes: \"4\" is not accepted"), "{said}");
        let written = serde_json::to_string(&among(NodeChoice::Any(2))).unwrap();
        assert!(written.contains(r#""among":["n1","n2"]"#), "{written}");
        let any =
            serde_json::to_string(&Request::new(Ask::Resources(resources(NodeChoice::Any(2)))));
        assert!(!any.unwrap().contains("among"));
    }

    // Goal: what does not say a mechanism is as it was before there was one to say, and one that nobody knows is named.
    #[test]
    fn a_request_may_say_what_keeps_its_share() {
        let text = |more: &str| {
            format!(r#"{{"ask":{{"resources":{{"nodes":{{"any":1}},"cpu_ppm":1}}}}{more}}}"#)
        };
        let read = |more: &str| serde_json::from_str::<Request>(&text(more));
        let before = read("").unwrap();
        assert_eq!(before.cpu_mechanism, CpuMechanism::Auto);
        assert!(!serde_json::to_string(&before).unwrap().contains("cpu_mechanism"));
        let said = read(r#","cpu_mechanism":"user-level""#).unwrap();
        assert_eq!((said.cpu_mechanism, said.check()), (CpuMechanism::UserLevel, Ok(())));
        let written = serde_json::to_string(&said).unwrap();
        assert_eq!(serde_json::from_str::<Request>(&written).unwrap(), said);
        let error = read(r#","cpu_mechanism":"edf""#).unwrap_err().to_string();
        let expected = "cpu_mechanism: \"edf\" is not accepted; expected auto, bandwidth, deadline";
        assert!(error.contains(expected), "{error}");
        let grant = r#"{"nodes":["n1"],"cpu_ppm":1,"bits_per_second":0}"#;
        let grant: Grant = serde_json::from_str(grant).unwrap();
        assert_eq!(grant.cpu_mechanism, CpuMechanism::Auto, "as older ledgers have it");
        assert!(!serde_json::to_string(&grant).unwrap().contains("cpu_mechanism"));
    }

    proptest! {
        #[test]
        fn handles_read_back(number in any::<u64>()) {
            let handle = Handle::new(number);
            prop_assert_eq!(handle.to_string().parse::<Handle>(), Ok(handle));
            prop_assert_eq!(handle.job().to_string(), handle.to_string());
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,70}") {
            if let Ok(handle) = text.parse::<Handle>() {
                prop_assert!(text.trim_start_matches('r').parse() == Ok(handle.number()));
            }
            if let Ok(user) = text.parse::<UserName>() {
                prop_assert_eq!(user.as_str(), &text);
            }
            if let Ok(key) = text.parse::<RequestKey>() {
                prop_assert_eq!(key.to_string(), text);
            }
        }
    }
}
