//! What there is to share and who shares it. A pool that exists can keep every hard guarantee.

use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::site::SiteSpec;
use keeptime_model::topology::NodeIndex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

pub use keeptime_model::site::Guarantee;

/// Most nodes of a pool: a decision about as many stays within tens of milliseconds.
pub const NODES_MAX: usize = 10_000;
/// Most sites of a pool.
pub const SITES_MAX: usize = 1_000;
/// Most kinds of node: people name them.
pub const KINDS_MAX: usize = 64;

/// Position of a site in [`Pool::sites`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SiteIndex(pub u32);

/// Position of a kind of node in [`Pool::kinds`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KindIndex(pub u32);

/// What a node is worth to a site, in thousandths of a standard node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Weight(u32);

/// One web site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// Its name.
    pub name: Name,
    /// What it is promised.
    pub guarantee: Guarantee,
    /// Greater goes first.
    pub priority: u32,
    /// What a node of each kind is worth to it, in the order of [`Pool::kinds`].
    pub weights: Vec<Weight>,
}

/// Nodes and the sites that share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    kinds: Vec<Name>,
    nodes: Vec<KindIndex>,
    sites: Vec<Site>,
}

/// What a node is worth to each site, in the order of [`Pool::sites`]; less is of less use.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Worths {
    total: u64,
    each: Vec<Weight>,
}

impl Pool {
    /// `nodes`, each of one of `kinds`, shared by `sites`.
    ///
    /// # Errors
    /// If a number or name is out of bounds, or not all hard guarantees can be kept at a time.
    pub fn new(kinds: Vec<Name>, nodes: Vec<KindIndex>, sites: Vec<Site>) -> Result<Self, Invalid> {
        check_count("kinds", kinds.len(), KINDS_MAX)?;
        check_count("nodes", nodes.len(), NODES_MAX)?;
        check_count("sites", sites.len(), SITES_MAX)?;
        check_names("kinds", kinds.iter())?;
        check_names("sites", sites.iter().map(|site| &site.name))?;
        for (at, kind) in nodes.iter().enumerate() {
            if kind.0 as usize >= kinds.len() {
                let expected = format!("one of the {} kinds, from 0", kinds.len());
                return Err(Invalid::new(format!("nodes[{at}].kind"), kind.0, expected));
            }
        }
        for site in &sites {
            check_site(site, kinds.len())
                .map_err(|error| error.within(&format!("sites.{}", site.name)))?;
        }
        let pool = Self { kinds, nodes, sites };
        pool.check_guarantees()?;
        Ok(pool)
    }

    /// So many nodes, all of one kind, shared by the sites that an operator described.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_specs<'a>(
        nodes: usize,
        specs: impl IntoIterator<Item = &'a SiteSpec>,
    ) -> Result<Self, Invalid> {
        let site = |spec: &SiteSpec| Site {
            name: spec.name.clone(),
            guarantee: spec.guarantee,
            priority: spec.priority,
            weights: vec![Weight::STANDARD],
        };
        let kinds = vec!["node".parse()?];
        Self::new(kinds, vec![KindIndex(0); nodes], specs.into_iter().map(site).collect())
    }

    /// Kinds of node.
    pub fn kinds(&self) -> &[Name] {
        &self.kinds
    }

    /// The kind of each node.
    pub fn nodes(&self) -> &[KindIndex] {
        &self.nodes
    }

    /// All sites.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// One site.
    pub fn site(&self, site: SiteIndex) -> &Site {
        &self.sites[site.0 as usize]
    }

    /// All positions of sites.
    pub fn site_indices(&self) -> impl DoubleEndedIterator<Item = SiteIndex> + Clone + use<> {
        (0..self.sites.len() as u32).map(SiteIndex)
    }

    /// All positions of nodes.
    pub fn node_indices(&self) -> impl DoubleEndedIterator<Item = NodeIndex> + Clone + use<> {
        (0..self.nodes.len() as u32).map(NodeIndex)
    }

    /// The kind of `node`.
    pub fn kind(&self, node: NodeIndex) -> KindIndex {
        self.nodes[node.0 as usize]
    }

    /// What a node of `kind` is worth to `site`.
    pub fn weight(&self, site: SiteIndex, kind: KindIndex) -> Weight {
        self.site(site).weights[kind.0 as usize]
    }

    /// What `node` is worth to `site`.
    pub fn worth(&self, site: SiteIndex, node: NodeIndex) -> Weight {
        self.weight(site, self.kind(node))
    }

    /// The same while sites cannot use some nodes. Kinds are then what nodes are worth: one for all that are worth the
    /// same to every site, whatever they were before, from the one that is of least use; so there may be more than
    /// [`KINDS_MAX`]. Of kinds that are worth the same to a site it is to take the first, and leave the others to others.
    ///
    /// Whether all hard guarantees can be kept so is not asked: a pool that exists can keep them when that is over.
    /// O(nodes * (sites + log nodes)).
    ///
    /// # Panics
    /// If a node or a site is not of this pool.
    #[must_use]
    pub fn without(&self, unfit: &BTreeMap<NodeIndex, BTreeSet<SiteIndex>>) -> Self {
        let known = |node: &NodeIndex| (node.0 as usize) < self.nodes.len();
        assert!(unfit.keys().all(known), "nodes of the pool");
        let mut alike = BTreeMap::<Worths, Vec<NodeIndex>>::new();
        for node in self.node_indices() {
            let worths = self.worths(node, unfit.get(&node));
            alike.entry(worths).or_default().push(node);
        }
        let kinds = alike.values().map(|nodes| self.kinds[self.kind(nodes[0]).0 as usize].clone());
        let mut pool = Self { kinds: kinds.collect(), ..self.clone() };
        pool.sites.iter_mut().for_each(|site| site.weights.clear());
        for (kind, (worths, nodes)) in (0..).map(KindIndex).zip(alike) {
            for (site, worth) in pool.sites.iter_mut().zip(worths.each) {
                site.weights.push(worth);
            }
            for node in nodes {
                pool.nodes[node.0 as usize] = kind;
            }
        }
        pool
    }

    /// What `node` is worth while some sites cannot use it.
    fn worths(&self, node: NodeIndex, unfit: Option<&BTreeSet<SiteIndex>>) -> Worths {
        let mut each: Vec<_> = self.site_indices().map(|site| self.worth(site, node)).collect();
        for site in unfit.into_iter().flatten() {
            each[site.0 as usize] = Weight::NONE;
        }
        Worths { total: each.iter().map(|weight| u64::from(weight.0)).sum(), each }
    }

    /// Gives every site its hard guarantee from nodes that can serve it, one node after the other,
    /// handing on those of others where that helps; refused where it cannot be done.
    fn check_guarantees(&self) -> Result<(), Invalid> {
        let mut free = vec![0u32; self.kinds.len()];
        for kind in &self.nodes {
            free[kind.0 as usize] += 1;
        }
        let mut given = vec![vec![0u32; self.kinds.len()]; self.sites.len()];
        for (at, site) in self.sites.iter().enumerate() {
            for promised in 0..site.guarantee.hard {
                let mut seen = vec![false; self.kinds.len()];
                if self.give_one(at, &mut free, &mut given, &mut seen) {
                    continue;
                }
                let before: u32 = self.sites[..at].iter().map(|site| site.guarantee.hard).sum();
                let expected = format!(
                    "at most {promised}: of the pool's {} nodes {before} are promised to the sites \
                     before it",
                    self.nodes.len(),
                );
                let field = format!("sites.{}.hard", site.name);
                return Err(Invalid::new(field, site.guarantee.hard, expected));
            }
        }
        Ok(())
    }

    /// Finds `site` one more node, of kinds that were not `seen`.
    fn give_one(
        &self,
        site: usize,
        free: &mut [u32],
        given: &mut [Vec<u32>],
        seen: &mut [bool],
    ) -> bool {
        for kind in 0..self.kinds.len() {
            if self.sites[site].weights[kind] == Weight::NONE || seen[kind] {
                continue;
            }
            seen[kind] = true;
            if free[kind] > 0 {
                free[kind] -= 1;
                given[site][kind] += 1;
                return true;
            }
            for other in 0..self.sites.len() {
                if given[other][kind] > 0 && self.give_one(other, free, given, seen) {
                    given[other][kind] -= 1;
                    given[site][kind] += 1;
                    return true;
                }
            }
        }
        false
    }
}

impl Weight {
    /// The site cannot use such a node.
    pub const NONE: Self = Self(0);
    /// What needs are counted in.
    pub const STANDARD: Self = Self(1_000);
    /// A hundred standard nodes.
    pub const MAX: Self = Self(100_000);

    /// Thousandths of a standard node.
    pub const fn thousandths(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Weight {
    type Error = Invalid;
    fn try_from(thousandths: u32) -> Result<Self, Invalid> {
        if thousandths <= Self::MAX.0 {
            return Ok(Self(thousandths));
        }
        let expected = format!("0 to {} thousandths of a standard node", Self::MAX.0);
        Err(Invalid::new("weight", thousandths, expected))
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> u32 {
        weight.0
    }
}

fn check_count(field: &str, count: usize, most: usize) -> Result<(), Invalid> {
    if (1..=most).contains(&count) {
        return Ok(());
    }
    Err(Invalid::new(field, count, format!("1 to {most} of them")))
}

fn check_names<'a>(field: &str, names: impl Iterator<Item = &'a Name>) -> Result<(), Invalid> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Invalid::new(format!("{field}.name"), name, "each name once"));
        }
    }
    Ok(())
}

fn check_site(site: &Site, kinds: usize) -> Result<(), Invalid> {
    let Guarantee { hard, soft, max } = site.guarantee;
    if hard == 0 {
        return Err(Invalid::new("hard", hard, "at least 1: a site without a node answers nobody"));
    }
    if soft < hard {
        return Err(Invalid::new("soft", soft, format!("at least the hard guarantee, {hard}")));
    }
    if max < soft {
        return Err(Invalid::new("max", max, format!("at least the soft guarantee, {soft}")));
    }
    if site.weights.len() != kinds {
        let expected = format!("one for each of the {kinds} kinds of node");
        return Err(Invalid::new("weights", format!("{} weights", site.weights.len()), expected));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(name: &str, hard: u32, weights: &[u32]) -> Site {
        let weights = weights.iter().map(|w| Weight::try_from(*w).unwrap()).collect();
        let guarantee = Guarantee { hard, soft: hard, max: hard };
        Site { name: name.parse().unwrap(), guarantee, priority: 1, weights }
    }

    fn pool(nodes: &[u32], sites: Vec<Site>) -> Result<Pool, Invalid> {
        let kinds = vec!["small".parse().unwrap(), "large".parse().unwrap()];
        Pool::new(kinds, nodes.iter().map(|kind| KindIndex(*kind)).collect(), sites)
    }

    #[test]
    fn hard_guarantees_beyond_the_pool_are_refused_with_what_is_left() {
        let sites = vec![site("shop", 2, &[1_000, 0]), site("blog", 2, &[1_000, 1_000])];
        let error = pool(&[0, 0, 0], sites).unwrap_err();
        assert_eq!((error.field.as_str(), error.value.as_deref()), ("sites.blog.hard", Some("2")));
        assert!(error.expected.starts_with("at most 1"), "{error}");
    }

    #[test]
    fn a_site_that_could_use_both_kinds_leaves_the_one_that_another_needs() {
        let sites = vec![site("shop", 2, &[1_000, 1_000]), site("blog", 2, &[1_000, 0])];
        assert!(pool(&[0, 0, 1, 1], sites.clone()).is_ok());
        let error = pool(&[0, 1, 1, 1], sites).unwrap_err();
        assert_eq!(error.field, "sites.blog.hard");
    }

    #[test]
    fn what_was_handed_on_once_is_handed_on_again() {
        // The blog gets the small one, which the shop had, and then the last of the three kinds for the wiki.
        let sites = vec![
            site("shop", 1, &[1_000, 1_000, 0]),
            site("blog", 1, &[1_000, 0, 1_000]),
            site("wiki", 1, &[1_000, 0, 0]),
        ];
        let kinds = ["small", "large", "huge"].map(|kind| kind.parse().unwrap()).to_vec();
        assert!(Pool::new(kinds, [0, 1, 2].map(KindIndex).to_vec(), sites).is_ok());
    }

    #[test]
    fn a_node_that_a_site_cannot_use_for_a_while_is_worth_to_others_what_it_was() {
        let sites = vec![site("shop", 1, &[1_000, 500]), site("blog", 1, &[1_000, 1_000])];
        let pool = pool(&[0, 1, 1, 0], sites).unwrap();
        let (shop, blog) = (SiteIndex(0), SiteIndex(1));
        let unfit = [(1, vec![shop]), (2, vec![shop]), (3, vec![shop, blog])];
        let unfit = unfit.map(|(node, sites)| (NodeIndex(node), BTreeSet::from_iter(sites)));
        let less = pool.without(&BTreeMap::from(unfit));
        let worth = |site| [0, 1, 2, 3].map(|node| less.worth(site, NodeIndex(node)).thousandths());
        assert_eq!((worth(shop), worth(blog)), ([1_000, 0, 0, 0], [1_000, 1_000, 1_000, 0]));
        assert_eq!(less.kind(NodeIndex(1)), less.kind(NodeIndex(2)), "no more kinds than it takes");
        let all = pool.without(&BTreeMap::new());
        let worth = |pool: &Pool, node| [shop, blog].map(|site| pool.worth(site, node));
        assert!(pool.node_indices().all(|node| worth(&all, node) == worth(&pool, node)));
    }

    #[test]
    fn while_sites_cannot_use_some_nodes_kinds_are_what_nodes_are_worth_from_the_least() {
        let sites = vec![site("shop", 1, &[1_000, 500]), site("blog", 1, &[1_000, 1_000])];
        let pool = pool(&[0, 1, 0, 1, 1], sites).unwrap();
        let unfit = [(0, 0), (1, 0), (4, 1)];
        let unfit = unfit.map(|(node, site)| (NodeIndex(node), BTreeSet::from([SiteIndex(site)])));
        let less = pool.without(&BTreeMap::from(unfit));
        // A small and a large one that only the blog can use are alike; the last is of less use than any.
        assert_eq!(less.nodes(), [1, 1, 3, 2, 0].map(KindIndex));
        assert_eq!(less.kinds().len(), 4);
        assert!(less.sites().iter().all(|site| site.weights.len() == 4), "{less:?}");
        assert_eq!(less.without(&BTreeMap::new()), less);
    }

    #[test]
    fn every_field_that_is_wrong_is_named() {
        let refused = |change: fn(&mut Site)| {
            let mut bad = site("shop", 1, &[1_000, 1_000]);
            change(&mut bad);
            pool(&[0], vec![bad]).unwrap_err().field
        };
        assert_eq!(refused(|s| s.guarantee.hard = 0), "sites.shop.hard");
        assert_eq!(refused(|s| s.guarantee.soft = 0), "sites.shop.soft");
        assert_eq!(refused(|s| s.guarantee.max = 0), "sites.shop.max");
        assert_eq!(refused(|s| s.weights.truncate(1)), "sites.shop.weights");
        assert_eq!(pool(&[7], vec![site("shop", 1, &[1, 1])]).unwrap_err().field, "nodes[0].kind");
        assert_eq!(pool(&[], vec![site("shop", 1, &[1, 1])]).unwrap_err().field, "nodes");
        let twice = vec![site("shop", 1, &[1, 1]), site("shop", 1, &[1, 1])];
        assert_eq!(pool(&[0, 0], twice).unwrap_err().field, "sites.name");
        assert!(Weight::try_from(100_001).is_err());
    }
}
