//! A peer that says anything on a link of its own, in any order, and connects again when that has ended, while two others
//! talk to each other as they should. Each frame of it is one; what it says is true at times.

use super::*;
use crate::frame::PIECE_MOST;
use std::collections::BTreeMap;

/// Where it receives.
const THERE: Place = Place { slot: 5, generation: 0 };

/// What the peer does, or is done to it.
#[derive(Debug, Clone)]
enum Act {
    /// The others go on.
    Other(Step),
    /// It says something.
    Say(Saying, Seen),
    /// It says this message as often as that.
    Flood(Place, usize),
    /// It reads all that it was sent.
    Read,
    /// A message is sent to it.
    Send(Kind),
}

/// How much of what it was sent it says to have seen.
#[derive(Debug, Clone, Copy)]
enum Seen {
    AsItIs,
    As(u32),
}

/// What it says. A number means one of those that there are by then.
#[derive(Debug, Clone)]
enum Saying {
    Message(Place, usize),
    Offer(Place, u64, u32),
    /// A piece of one of its offers that were taken.
    Piece(usize, usize),
    /// It takes an offer.
    Takes(usize),
    /// It gives back so much for the place that it is sent to.
    Gives(u64),
    /// It has not got a message or an offer, and gives back so much.
    Rejects(usize, u32),
    /// Whatever it likes, with so much behind it if that may have a payload.
    Any(Frame, usize),
}

/// The peer, as the second side has it.
struct Stranger {
    /// What it sends, and what it gets.
    wires: [SharedWire; 2],
    link: Arc<Link>,
    next_tag: u64,
    /// The first tag that is said by this link.
    first_tag: u64,
    /// Lengths of the messages that it has said and that were neither received nor refused, by their tags.
    said: BTreeMap<u64, usize>,
    /// Lengths of what it has offered by each name.
    offered: BTreeSet<(u32, usize)>,
    /// Those that were taken.
    taken: Vec<u32>,
    /// What it was sent, the oldest first.
    sent: Vec<(Sent, Kind)>,
    /// The offers of that which it has read, and how much of them.
    got: BTreeMap<u32, (Sent, usize, usize)>,
    /// What threads lend to it, as in [`World`].
    lent: Vec<(u64, u32, Vec<u8>, usize)>,
    /// The most that it said to have seen, and what else it has said an end of.
    seen: u32,
    rejected: BTreeSet<u64>,
}

fn place() -> impl Strategy<Value = Place> {
    let near = (0..4_u32, 0..3_u32);
    let any = (any::<u32>(), any::<u32>());
    prop_oneof![30 => near, 1 => any].prop_map(|(slot, generation)| Place { slot, generation })
}

fn token() -> impl Strategy<Value = u32> {
    prop_oneof![9 => 1..5_u32, 1 => any::<u32>()]
}

fn bytes() -> impl Strategy<Value = u64> {
    let near = vec![0, 1, CHARGE_LEAST.into(), 1064, WINDOW, WINDOW_CARRIED];
    prop_oneof![9 => prop::sample::select(near), 1 => any::<u64>()]
}

fn length(all: [usize; 5]) -> impl Strategy<Value = usize> {
    prop::sample::select(all.to_vec())
}

/// As anybody may say it.
fn saying() -> impl Strategy<Value = Saying> {
    let sizes = vec![0, 1, 1000, 2 * PIECE_MOST as u64, 1 << 20, (1 << 20) + 1, u64::MAX];
    let lengths = [0, 1, 1000, EAGER_MOST - 1, EAGER_MOST];
    let pieces = [0, 1, 999, 1000, PIECE_MOST];
    let number = || 0..4_usize;
    prop_oneof![
        20 => (place(), length(lengths)).prop_map(|(to, length)| Saying::Message(to, length)),
        20 => (place(), prop::sample::select(sizes), token())
            .prop_map(|(to, size, token)| Saying::Offer(to, size, token)),
        30 => (number(), length(pieces)).prop_map(|(number, length)| Saying::Piece(number, length)),
        20 => number().prop_map(Saying::Takes),
        5 => bytes().prop_map(Saying::Gives),
        5 => (number(), prop::sample::select(vec![0, CHARGE_LEAST, 1064]))
            .prop_map(|(number, bytes)| Saying::Rejects(number, bytes)),
        5 => (frame(), length(lengths)).prop_map(|(frame, length)| Saying::Any(frame, length)),
    ]
}

/// Any that there is.
fn frame() -> impl Strategy<Value = Frame> {
    let refusal = prop_oneof![
        Just(Refusal::Gone),
        Just(Refusal::TooLong),
        any::<u16>().prop_map(|left| Refusal::NoRoom { left }),
    ];
    let places = (place(), place());
    let numbers = (token(), number_of(), bytes(), any::<u64>());
    (0..13, places, numbers, refusal).prop_map(|(kind, (from, to), numbers, reason)| {
        let (token, number, size, tag) = numbers;
        let tag = Tag(tag);
        match kind {
            0 => Frame::Message { from, to, tag, credit: size },
            1 => Frame::Offer { from, to, tag, size, token },
            2 => Frame::Clear { token },
            3 => Frame::Piece { token },
            4 => Frame::Done { token },
            5 => Frame::Withdrawn { token },
            6 => Frame::Credit { place: to, bytes: size },
            7 => Frame::Rejected { from, to, tag, token, bytes: size as u32, reason },
            8 => Frame::Begun { number },
            9 => Frame::Carried { number: size, delivered: size, arrived: number },
            10 => Frame::Noted { delivered: size, arrived: number },
            11 => Frame::Probe { token },
            _ => Frame::Answered { token },
        }
    })
}

fn number_of() -> impl Strategy<Value = u32> {
    prop_oneof![0..4_u32, any::<u32>()]
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let seen = prop_oneof![
        30 => Just(Seen::AsItIs),
        1 => number_of().prop_map(Seen::As),
    ];
    let kind = prop_oneof![
        Just(Kind::Short(1000)),
        Just(Kind::Given(EAGER_MOST + 1)),
        (EAGER_MOST + 1..400_000).prop_map(Kind::Lent),
    ];
    let act = prop_oneof![
        6 => step().prop_filter("they stay connected", |step| !matches!(step, Step::Break))
            .prop_map(Act::Other),
        4 => (0..3_usize).prop_map(|at| Act::Other(Step::Take { at })),
        1 => (0..3_usize).prop_map(|at| Act::Other(Step::Close { at })),
        20 => (saying(), seen).prop_map(|(saying, seen)| Act::Say(saying, seen)),
        1 => (place(), 1..40_usize).prop_map(|(to, count)| Act::Flood(to, count)),
        3 => Just(Act::Read),
        3 => kind.prop_map(Act::Send),
    ];
    prop::collection::vec(act, 0..200)
}

impl Stranger {
    fn new(world: &World) -> Self {
        let wires: [SharedWire; 2] = Default::default();
        let link = end(&world.sides[1], ContextId::new(9), &wires[1], &wires[0]);
        Self {
            wires,
            link,
            // Not those of the others.
            next_tag: 1 << 32,
            first_tag: 1 << 32,
            said: BTreeMap::new(),
            offered: BTreeSet::new(),
            taken: Vec::new(),
            sent: Vec::new(),
            got: BTreeMap::new(),
            lent: Vec::new(),
            seen: 0,
            rejected: BTreeSet::new(),
        }
    }

    fn act(&mut self, world: &mut World, act: &Act) {
        match act {
            Act::Other(step) => world.apply(step),
            Act::Say(saying, seen) => {
                let seen = match seen {
                    Seen::AsItIs => self.sent.len() as u32,
                    Seen::As(seen) => *seen,
                };
                self.seen = self.seen.max(seen);
                self.say(world, saying, seen);
            }
            Act::Flood(to, count) => {
                let saying = Saying::Message(*to, EAGER_MOST);
                (0..*count).for_each(|_| self.say(world, &saying, self.seen));
            }
            Act::Read => self.read(),
            Act::Send(kind) => self.send(world, *kind),
        }
        self.go_on(world);
        if self.link.broken().is_some() {
            self.ends(world);
            self.calls_again(world);
        }
    }

    fn calls_again(&mut self, world: &World) {
        let (next_tag, first_tag) = (self.next_tag, self.next_tag);
        let (said, offered) = (mem::take(&mut self.said), mem::take(&mut self.offered));
        *self = Self { next_tag, first_tag, said, offered, ..Self::new(world) };
    }

    fn say(&mut self, world: &World, saying: &Saying, seen: u32) {
        let tag = Tag(self.next_tag);
        self.next_tag += 1;
        let Some((frame, payload)) = self.frame(saying, tag) else { return };
        let head = Head { frame, length: payload.len() as u32, seen }.encode();
        lock(&self.wires[0]).frames.push_back((head, payload));
        world.sides[1].read(&self.link);
    }

    /// What that is, and what is behind it.
    fn frame(&mut self, saying: &Saying, tag: Tag) -> Option<(Frame, Vec<u8>)> {
        let (from, nothing) = (THERE, Vec::new());
        Some(match *saying {
            Saying::Message(to, length) => {
                self.said.insert(tag.0, length);
                (Frame::Message { from, to, tag, credit: 0 }, vec![tag.0 as u8; length])
            }
            Saying::Offer(to, size, token) => {
                self.offered.insert((token, size as usize));
                (Frame::Offer { from, to, tag, size, token }, nothing)
            }
            Saying::Piece(number, length) => {
                let token = *self.taken.iter().cycle().nth(number)?;
                (Frame::Piece { token }, vec![token as u8; length])
            }
            Saying::Takes(number) => {
                let token = *self.got.keys().cycle().nth(number)?;
                (Frame::Clear { token }, nothing)
            }
            Saying::Gives(bytes) => (Frame::Credit { place: THERE, bytes }, nothing),
            Saying::Rejects(number, bytes) => {
                let (Sent { from, to, tag }, _) = *self.sent.get(number)?;
                let offer = self.got.iter().find(|(_, (sent, ..))| sent.tag == tag);
                let (token, reason) = (offer.map_or(0, |(token, _)| *token), Refusal::Gone);
                self.rejected.insert(tag.0);
                (Frame::Rejected { from, to, tag, token, bytes, reason }, nothing)
            }
            Saying::Any(frame, length) => match frame {
                Frame::Message { from, to, credit, .. } => {
                    self.said.insert(tag.0, length);
                    (Frame::Message { from, to, tag, credit }, vec![tag.0 as u8; length])
                }
                Frame::Piece { token } => (frame, vec![token as u8; length]),
                Frame::Offer { token, size, .. } => {
                    self.offered.insert((token, size as usize));
                    (frame, nothing)
                }
                _ => (frame, nothing),
            },
        })
    }

    /// What it was sent is what was to be sent.
    fn read(&mut self) {
        for (head, payload) in mem::take(&mut lock(&self.wires[1]).frames) {
            match Head::decode(&head).unwrap().frame {
                Frame::Offer { from, to, tag, size, token } => {
                    self.got.insert(token, (Sent { from, to, tag }, size as usize, 0));
                }
                Frame::Piece { token } => {
                    let (sent, size, arrived) = self.got.get_mut(&token).unwrap();
                    *arrived += payload.len();
                    assert!(!payload.is_empty() && *arrived <= *size, "more than was offered");
                    let is_of = |byte: &u8| *byte == sent.tag.0 as u8;
                    assert!(payload.iter().all(is_of), "another message's bytes");
                }
                Frame::Clear { token } => self.taken.push(token),
                Frame::Rejected { tag, token: 0, .. } => {
                    assert!(
                        self.said.remove(&tag.0).is_some(),
                        "{tag:?} was refused twice, or never said"
                    );
                }
                _ => {}
            }
        }
    }

    fn send(&mut self, world: &World, kind: Kind) {
        let (from, to) = (world.to[0], THERE);
        let tag = Tag(self.next_tag);
        self.next_tag += 1;
        let data = |length: usize| vec![tag.0 as u8; length];
        let sent = match kind {
            Kind::Short(length) => self.link.message(from, to, tag, &mut data(length).into(), 0),
            Kind::Given(length) => {
                self.link.offer_given(from, to, tag, &mut Buffer::from(data(length)))
            }
            Kind::Lent(length) => self.link.offer_lent(from, to, tag, length).map(|token| {
                let Some(token) = token else { return Attempt::Wait };
                self.lent.push((tag.0, token, data(length), 0));
                Attempt::Done
            }),
        };
        match sent {
            Ok(Attempt::Done) => self.sent.push((Sent { from, to, tag }, kind)),
            Ok(Attempt::Wait) => {}
            Err(broken) => world.sides[1].lost(&self.link, broken),
        }
    }

    /// What threads would do that send to it, or receive of it.
    fn go_on(&mut self, world: &mut World) {
        if let Err(broken) = self.link.pump(&world.sides[1]) {
            world.sides[1].lost(&self.link, broken);
        }
        let link = &self.link;
        self.lent.retain_mut(|(_, token, data, sent)| {
            let result = link.send_lent(*token, data, sent);
            assert!(!matches!(result, Ok(Some(Ok(())))) || *sent == data.len());
            matches!(result, Ok(None))
        });
        for Strayed { tag, token, data } in mem::take(&mut world.strayed) {
            let fill = match token {
                None => {
                    assert_eq!(self.said.remove(&tag.0), Some(data.len()), "not what was said");
                    tag.0 as u8
                }
                Some(token) => {
                    assert!(self.offered.contains(&(token, data.len())), "not what was offered");
                    token as u8
                }
            };
            assert!(data.iter().all(|byte| *byte == fill), "another message's bytes");
        }
    }

    /// Its link has ended: nothing is left of that, and whoever sent by it knows what may not have arrived.
    fn ends(&mut self, world: &mut World) {
        self.go_on(world);
        assert!(self.lent.is_empty(), "a thread waits for a link that is over");
        let told: Vec<_> = lock(&world.sides[1].notices).iter().map(|told| told.tag).collect();
        for (number, (sent, kind)) in (1..).zip(&self.sent) {
            let times = told.iter().filter(|tag| **tag == sent.tag).count();
            let is_due = number > self.seen
                && !self.rejected.contains(&sent.tag.0)
                && matches!(kind, Kind::Short(_));
            assert!(times == 1 || !is_due, "{sent:?} was told {times} times");
        }
        let out = lock(&self.link.out);
        assert_eq!((out.offers.held(), out.answers.len()), ((0, 0), 0));
        let owed = |place| world.sides[1].inboxes.with(place, |inbox| inbox.owed_to(self.link.id));
        assert!(world.to.iter().all(|place| owed(*place) == Some(0)));
    }

    /// What it makes others keep is bounded.
    fn holds_little(&self, world: &World) -> Result<(), TestCaseError> {
        let inboxes = world.to.iter().map(|to| {
            let looks = |inbox: &mut Inbox| {
                (inbox.charged(), inbox.charged_by(self.link.id), inbox.fetched_by(self.link.id))
            };
            world.sides[1].inboxes.with(*to, looks).unwrap()
        });
        let mut fetched = 0;
        for (all, own, fetches) in inboxes {
            prop_assert!(own <= WINDOW_CARRIED);
            prop_assert!(all <= GONE_MOST + WINDOW_CARRIED + WINDOW);
            fetched += fetches;
        }
        let held = self.link.assemblies.held();
        prop_assert!(held <= fetched, "{} bytes are kept of {} that are fetched", held, fetched);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    /// Goal: whatever a peer says ends its own link at most: nothing panics, nobody gets what was not sent to it, senders are
    /// told, others do not notice, and what is kept for it is bounded. Method: the same others as above.
    #[test]
    fn whatever_a_peer_says_harms_nobody_else(acts in acts()) {
        let mut world = World::new();
        let mut stranger = Stranger::new(&world);
        for act in &acts {
            stranger.act(&mut world, act);
            stranger.holds_little(&world)?;
        }
        // It reads all that it is told.
        for _ in 0..100 {
            stranger.read();
            (0..3).for_each(|at| world.take(at));
            stranger.go_on(&mut world);
        }
        let is_over = stranger.link.broken().is_some();
        world.sides[1].lost(&stranger.link, Broken::Closed);
        stranger.ends(&mut world);
        world.settle();
        stranger.go_on(&mut world);
        let lost = stranger.said.range(stranger.first_tag..).next();
        prop_assert!(is_over || lost.is_none(), "{:?} was neither received nor refused", lost);
        world.expect_all_told(false)?;
    }
}
