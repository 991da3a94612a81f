use super::super::decode::ObservedFilter;
use super::super::encode::{ETH_P_ARP, ETH_P_IP};
use super::super::{Filter, Leaf, Match, TREE_MAJOR};
use super::*;
use keeptime_model::units::{BitsPerSecond, Bytes};
use proptest::prelude::*;

const IFINDEX: u32 = 7;
const PLACE: Place = Place { ifindex: IFINDEX, attach: Attach::Root, major: TREE_MAJOR };

/// The kernel's rules for one op; breaks the test where the kernel would refuse.
fn carry_out(kernel: &mut Observed, place: &Place, op: &Op) {
    let class = |minor| Handle { major: place.major, minor };
    let parent = place.attach.parent();
    match *op {
        Op::AddTree { default_minor } => {
            assert!(
                kernel
                    .at(parent)
                    .is_none_or(|qdisc| [0, QUEUE_MAJOR].contains(&qdisc.handle.major)),
                "place is taken"
            );
            kernel.qdiscs.retain(|qdisc| qdisc.parent != parent);
            let kind = QdiscKind::Htb { default_minor };
            kernel.qdiscs.push(Qdisc { handle: class(0), parent, kind });
        }
        Op::ReplaceByQueue(limit) => {
            carry_out(kernel, place, &Op::RemovePlace);
            let handle = Handle { major: QUEUE_MAJOR, minor: 0 };
            kernel.qdiscs.push(Qdisc {
                handle,
                parent,
                kind: QdiscKind::Fifo(Queue::Bytes(limit)),
            });
        }
        Op::RemovePlace => {
            let major = place.major;
            kernel.qdiscs.retain(|q| q.parent != parent && q.parent.major != major);
            kernel.classes.retain(|handle, _| handle.major != major);
            kernel.filters.retain(|filter| filter.parent.major != major);
        }
        Op::AddClass(minor, wanted) => {
            assert!(!kernel.classes.contains_key(&class(minor)), "class {minor} exists");
            if wanted.parent != 0 {
                let above = kernel.classes.get_mut(&class(wanted.parent)).expect("parent is there");
                above.is_inner = true;
                above.class.leaf = None;
                kernel.qdiscs.retain(|qdisc| qdisc.parent != class(wanted.parent));
            }
            kernel.classes.insert(class(minor), leaf_as_created(wanted));
        }
        Op::ChangeClass(minor, wanted) => {
            let found = kernel.classes.get_mut(&class(minor)).expect("class is there");
            assert_eq!(found.class.parent, wanted.parent, "a class cannot move");
            let is_inner = found.is_inner;
            *found = leaf_as_created(wanted);
            found.is_inner = is_inner;
            found.class.leaf = found.class.leaf.filter(|_| !is_inner);
        }
        Op::RemoveClass(minor) => {
            let gone = kernel.classes.remove(&class(minor)).expect("class is there");
            assert!(!gone.is_inner, "class {minor} has children");
            let targets = |f: &ObservedFilter| f.filter.is_some_and(|(_, to)| to == class(minor));
            assert!(!kernel.filters.iter().any(targets), "class {minor} has filters");
            kernel.qdiscs.retain(|qdisc| qdisc.parent != class(minor));
            let above = class(gone.class.parent);
            let has_more = kernel
                .classes
                .iter()
                .any(|(h, c)| h.major == place.major && c.class.parent == above.minor);
            if let Some(above) = kernel.classes.get_mut(&above).filter(|_| !has_more) {
                above.is_inner = false;
                // The kernel remembers what the class had as a leaf, whatever that was.
                above.class.leaf = Some(Leaf { prio: 3, quantum: 1, queue: None });
            }
        }
        Op::SetQueue(minor, queue) => {
            assert!(!kernel.classes[&class(minor)].is_inner, "queue in an inner class");
            kernel.qdiscs.retain(|qdisc| qdisc.parent != class(minor));
            let handle = Handle { major: 0x8001, minor: 0 };
            let kind = QdiscKind::Fifo(queue);
            kernel.qdiscs.push(Qdisc { handle, parent: class(minor), kind });
        }
        Op::RemoveQueue(minor) => {
            assert!(kernel.at(class(minor)).is_some());
            kernel.qdiscs.retain(|qdisc| qdisc.parent != class(minor));
        }
        Op::AddFilter(priority, filter) => {
            assert!(kernel.filter(place.major, priority).is_none(), "filter {priority} exists");
            kernel.filters.push(observed_filter(place.major, priority, filter));
        }
        Op::RemoveFilter(priority, _) => {
            assert!(kernel.filter(place.major, priority).is_some(), "filter {priority} is there");
            kernel.filters.retain(|f| f.parent.major != place.major || f.priority != priority);
        }
        Op::SetShaper(_) => unreachable!("not of a tree"),
    }
}

fn leaf_as_created(class: Class) -> ObservedClass {
    let turns = class.leaf.unwrap_or(Leaf { prio: 0, quantum: 30_000, queue: None });
    let leaf = Some(Leaf { queue: None, ..turns });
    ObservedClass { class: Class { leaf, ..class }, is_inner: false }
}

fn observed_filter(major: u16, priority: u16, filter: Filter) -> ObservedFilter {
    let protocol = if filter.matches == Match::Arp { ETH_P_ARP } else { ETH_P_IP };
    let target = Handle { major, minor: filter.minor };
    let parent = Handle { major, minor: 0 };
    ObservedFilter { parent, priority, protocol, filter: Some((filter.matches, target)) }
}

fn carry_out_all(kernel: &mut Observed, place: &Place, ops: &[Op]) {
    ops.iter().for_each(|op| carry_out(kernel, place, op));
}

fn bring_to(kernel: &mut Observed, tree: &Tree) {
    let ops = diff(tree, kernel).unwrap();
    carry_out_all(kernel, &tree.place, &ops);
}

/// Somebody else's hierarchy below a class that is not ours, and a hook.
fn with_strangers() -> Observed {
    let stranger = Place {
        ifindex: IFINDEX,
        attach: Attach::Under(Handle { major: 0x20, minor: 1 }),
        major: 0x21,
    };
    let mut kernel = Observed::empty(IFINDEX);
    let class = Class {
        parent: 0,
        rate: BitsPerSecond::from_mbit(1),
        ceil: BitsPerSecond::from_mbit(1),
        burst: Bytes::new(1600),
        cburst: Bytes::new(1600),
        leaf: Some(Leaf { prio: 0, quantum: 1500, queue: None }),
    };
    let filter = Filter { matches: Match::Dscp(9), minor: 5 };
    let ops = [Op::AddTree { default_minor: 5 }, Op::AddClass(5, class), Op::AddFilter(1, filter)];
    carry_out_all(&mut kernel, &stranger, &ops);
    let handle = Handle { major: 0xffff, minor: 0 };
    let parent = Handle { major: 0xffff, minor: 0xfff1 };
    kernel.qdiscs.push(Qdisc { handle, parent, kind: QdiscKind::Clsact });
    kernel
}

fn strangers_of(kernel: &Observed) -> Observed {
    let mut kernel = kernel.clone();
    carry_out(&mut kernel, &PLACE, &Op::RemovePlace);
    kernel
}

fn any_rate() -> impl Strategy<Value = BitsPerSecond> {
    (1u64..50).prop_map(|units| BitsPerSecond::new(units * 1_000_003))
}

fn any_queue() -> impl Strategy<Value = Option<Queue>> {
    prop_oneof![
        Just(None),
        (1u32..3).prop_map(|n| Some(Queue::Bytes(n * 1500))),
        (1u32..3).prop_map(|n| Some(Queue::Packets(n))),
    ]
}

/// Trees over few numbers, so that two of them have much in common.
fn any_tree() -> impl Strategy<Value = Tree> {
    let class = (any_rate(), any_rate(), 0u64..4, 0u16..8, 0u8..3, any_queue());
    let classes = prop::collection::btree_map(1u16..10, class, 0..8);
    let filters = prop::collection::btree_map(1u16..4, (0u8..3, 1u16..10), 0..3);
    (classes, filters, prop_oneof![9 => Just(9u16), 1 => Just(8)]).prop_map(
        |(raw, filters, default_minor)| {
            let mut classes = BTreeMap::new();
            for (minor, (rate, more, burst, parent, prio, queue)) in &raw {
                // Only smaller numbers are parents: no circles.
                let parent = if *parent < *minor && raw.contains_key(parent) { *parent } else { 0 };
                let burst = Bytes::new(3000 + burst * 777);
                let ceil = rate.checked_add(*more).unwrap();
                let leaf = Some(Leaf { prio: *prio, quantum: 1500, queue: *queue });
                classes.insert(
                    *minor,
                    Class { parent, rate: *rate, ceil, burst, cburst: burst, leaf },
                );
            }
            let parents: Vec<u16> = classes.values().map(|c: &Class| c.parent).collect();
            for (minor, class) in &mut classes {
                class.leaf = class.leaf.filter(|_| !parents.contains(minor));
            }
            let matches = |n| if n == 0 { Match::Arp } else { Match::Dscp(n) };
            let filters = filters
                .into_iter()
                .map(|(priority, (n, minor))| (priority, Filter { matches: matches(n), minor }))
                .filter(|(_, filter)| classes.contains_key(&filter.minor))
                .collect();
            Tree { place: PLACE, default_minor, classes, filters }
        },
    )
}

fn guarantees(kernel: &Observed) -> BTreeMap<u16, (u16, u64)> {
    kernel
        .classes
        .iter()
        .filter(|(handle, _)| handle.major == TREE_MAJOR)
        .map(|(handle, c)| (handle.minor, (c.class.parent, c.class.rate.get())))
        .collect()
}

fn sum_below(guarantees: &BTreeMap<u16, (u16, u64)>, above: u16) -> u64 {
    guarantees.values().filter(|(parent, _)| *parent == above).map(|(_, rate)| rate).sum()
}

proptest! {
    #[test]
    fn the_steps_lead_to_what_is_wanted_and_then_there_are_none(
        before in any_tree(), after in any_tree(),
    ) {
        let mut kernel = with_strangers();
        for tree in [&before, &after] {
            bring_to(&mut kernel, tree);
            prop_assert_eq!(diff(tree, &kernel), Ok(Vec::new()));
            prop_assert_eq!(kernel.classes.len() - 1, tree.classes.len());
            prop_assert_eq!(kernel.filters.len() - 1, tree.filters.len());
        }
    }

    #[test]
    fn what_is_not_ours_is_never_touched(before in any_tree(), after in any_tree()) {
        let mut kernel = with_strangers();
        for tree in [&before, &after] {
            bring_to(&mut kernel, tree);
            prop_assert_eq!(strangers_of(&kernel), with_strangers());
        }
        let ops = removal(&PLACE, &kernel);
        carry_out_all(&mut kernel, &PLACE, &ops);
        prop_assert_eq!(kernel, with_strangers());
    }

    // A class that is there before and after keeps the smaller of its two guarantees all the
    // time, and no parent promises more in between than it does before or after.
    #[test]
    fn guarantees_hold_during_the_change(before in any_tree(), after in any_tree()) {
        prop_assume!(before.default_minor == after.default_minor);
        let mut kernel = with_strangers();
        bring_to(&mut kernel, &before);
        let old = guarantees(&kernel);
        let ops = diff(&after, &kernel).unwrap();
        let moved = |minor: &u16| ops.iter().any(|op| matches!(op, Op::RemoveClass(m) if m == minor));
        for op in &ops {
            carry_out(&mut kernel, &PLACE, op);
            let now = guarantees(&kernel);
            for (minor, (_, was)) in &old {
                if let Some(class) = after.classes.get(minor) && !moved(minor) {
                    prop_assert!(now[minor].1 >= class.rate.get().min(*was));
                }
            }
        }
    }

    #[test]
    fn one_rate_is_one_step(tree in any_tree(), pick: prop::sample::Index, rate in any_rate()) {
        prop_assume!(!tree.classes.is_empty());
        let mut kernel = with_strangers();
        bring_to(&mut kernel, &tree);
        let mut after = tree.clone();
        let minor = *pick.get(&tree.classes.keys().copied().collect::<Vec<_>>());
        let class = after.classes.get_mut(&minor).unwrap();
        prop_assume!(class.rate != rate);
        class.rate = rate;
        let class = *class;
        prop_assert_eq!(diff(&after, &kernel), Ok(vec![Op::ChangeClass(minor, class)]));
    }
}

#[test]
fn sums_never_exceed_before_and_after_when_a_flow_takes_what_another_gives() {
    let rate = |mbit| BitsPerSecond::from_mbit(mbit);
    let class = |parent, mbit| Class {
        parent,
        rate: rate(mbit),
        ceil: rate(mbit),
        burst: Bytes::new(20_000),
        cburst: Bytes::new(20_000),
        leaf: (parent != 0).then_some(Leaf { prio: 1, quantum: 3000, queue: None }),
    };
    let tree = |flows: &[(u16, u64)]| {
        let mut classes = BTreeMap::from([(1, class(0, 100))]);
        classes.extend(flows.iter().map(|(minor, mbit)| (*minor, class(1, *mbit))));
        Tree { place: PLACE, default_minor: 2, classes, filters: BTreeMap::new() }
    };
    let mut kernel = Observed::empty(IFINDEX);
    bring_to(&mut kernel, &tree(&[(16, 10), (17, 60), (18, 30)]));
    for op in diff(&tree(&[(16, 50), (17, 20), (19, 30)]), &kernel.clone()).unwrap() {
        carry_out(&mut kernel, &PLACE, &op);
        assert!(sum_below(&guarantees(&kernel), 1) <= 100_000_000, "after {op:?}");
    }
}

#[test]
fn what_stands_in_the_way_is_named() {
    let tree =
        Tree { place: PLACE, default_minor: 2, classes: BTreeMap::new(), filters: BTreeMap::new() };
    let mut kernel = Observed::empty(IFINDEX);
    let handle = Handle { major: 1, minor: 0 };
    let kind = QdiscKind::Other("fq_codel".into());
    kernel.qdiscs.push(Qdisc { handle, parent: Handle::ROOT, kind });
    let error = diff(&tree, &kernel).unwrap_err().to_string();
    assert!(error.starts_with("interface 7: fq_codel 1: stands at root"), "{error}");
    assert_eq!(removal(&PLACE, &kernel), Vec::new());
    kernel.qdiscs[0].handle = Handle::default();
    assert_eq!(diff(&tree, &kernel), Ok(vec![Op::AddTree { default_minor: 2 }]));
}

#[test]
fn a_tree_inside_of_a_shaper_leaves_a_queue_and_can_come_back() {
    // Goal: removing our tree from somebody's shaper leaves a link that still carries packets.
    let outer = Handle { major: 1, minor: 1 };
    let place = Place { ifindex: IFINDEX, attach: Attach::Under(outer), major: TREE_MAJOR };
    let mut kernel = Observed::empty(IFINDEX);
    let rate = BitsPerSecond::from_mbit(200);
    let kind = QdiscKind::Tbf { rate, burst: Bytes::new(50_000), limit: 250_000 };
    let root = Attach::Root.parent();
    kernel.qdiscs.push(Qdisc { handle: Handle { major: 1, minor: 0 }, parent: root, kind });
    let classes = BTreeMap::new();
    let tree = Tree { place, default_minor: 3, classes, filters: BTreeMap::new() };
    for _ in 0..2 {
        for op in diff(&tree, &kernel).unwrap() {
            carry_out(&mut kernel, &place, &op);
        }
        assert!(diff(&tree, &kernel).unwrap().is_empty());
        let ops = removal(&place, &kernel);
        assert_eq!(ops, [Op::ReplaceByQueue(250_000)]);
        carry_out(&mut kernel, &place, &ops[0]);
        assert!(removal(&place, &kernel).is_empty());
    }
}
