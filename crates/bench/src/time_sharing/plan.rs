//! What is measured, and in which order: a part for each point of a figure and each who decides there, both policies'
//! parts of one point side by side.

use super::By;
use std::fmt;
use std::ops::RangeInclusive;

/// Of the paper, those that are done again.
pub const FIGURES: RangeInclusive<u32> = 2..=15;

/// A bulk-synchronous program: its name, computing to communicating, and milliseconds of computing in an iteration.
pub type Shape = (&'static str, f64, u32);

const HIGH: Shape = ("5:1", 5.0, 40);
pub const MEDIUM: Shape = ("1:1", 1.0, 25);
const LOW: Shape = ("1:5", 0.2, 10);
pub const THREE: Shape = ("3:1", 3.0, 30);
pub const HALF: Shape = ("1:2", 0.5, 20);
/// That nearly only computes: of Figure 13 and of Figure 15 (a).
pub const ALONE: Shape = ("145:1", 145.0, 80);
/// Of Figure 15 (b).
const SEVEN: Shape = ("7:1", 7.0, 40);
/// Of Figure 14.
const DISK_RATIOS: [Shape; 4] =
    [("65:1", 65.0, 80), ("2:1", 2.0, 40), HALF, ("1:3", 1.0 / 3.0, 20)];
/// MiB that each rank writes in an iteration, of Figure 13.
const DISK_MIB: [u32; 6] = [0, 1, 2, 5, 10, 20];
/// Programs at once, of Figure 12; the paper stops at six.
const PROGRAMS: [u32; 6] = [2, 3, 4, 5, 6, 8];

/// Where the paper's policy has a turn, too: both ends of what is varied, and what the paper itself singles out.
const PAPERS_PROGRAMS: [u32; 3] = [2, 6, 8];
const PAPERS_MIB: [u32; 3] = [1, 10, 20];
const PAPERS_RATIOS: [&str; 2] = ["65:1", "1:3"];

/// Programs that are watched alone, and the figures that need it: their full speed, or how they scatter by themselves.
const WATCHED_ALONE: [(Shape, &[u32]); 5] = [
    (HIGH, &[4, 6, 7]),
    (MEDIUM, &[3, 4, 5, 6, 7, 8, 11]),
    (LOW, &[4, 6, 7]),
    (THREE, &[9, 12]),
    (HALF, &[2]),
];

/// What a quick run passes through: one experiment for each figure, by all who have a turn there.
const QUICK: [Experiment; 12] = [
    Experiment::Range,
    Experiment::Drift,
    Experiment::Responding(MEDIUM),
    Experiment::Thresholds,
    Experiment::Changing,
    Experiment::Loaded,
    Experiment::Sorting,
    Experiment::Both,
    Experiment::Many(2),
    Experiment::Writing(1),
    Experiment::WritingAt(DISK_RATIOS[0]),
    Experiment::Touching(SEVEN),
];

/// A point of one of the paper's figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Experiment {
    /// A program in every schedule, and no controller.
    Range,
    /// One target for long, with a controller and without.
    Drift,
    /// From target to target.
    Responding(Shape),
    /// The same target with less and less room for errors.
    Thresholds,
    /// More targets.
    Changing,
    /// Another program wants all of one node's processor.
    Loaded,
    /// The integer sort.
    Sorting,
    /// Two programs at once.
    Both,
    /// So many at once.
    Many(u32),
    /// So many MiB are written in each iteration.
    Writing(u32),
    /// As much is always written by programs that communicate more and more.
    WritingAt(Shape),
    /// Two programs that touch much memory.
    Touching(Shape),
}

/// What is measured in one go and kept as one part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Piece {
    pub experiment: Experiment,
    /// What stands beside without a controller, on a program of the same figure, is in our part.
    pub by: By,
}

/// All parts, in their order.
pub fn pieces(is_quick: bool) -> Vec<Piece> {
    let experiments = if is_quick { QUICK.to_vec() } else { experiments() };
    let mut pieces = Vec::new();
    let mut is_papers_first = false;
    for experiment in &experiments {
        let mut turns = vec![By::Ours];
        if experiment.is_papers() {
            turns.push(By::Paper);
            // A machine's speed wanders: none of them is always the later one.
            if is_papers_first {
                turns.reverse();
            }
            is_papers_first = !is_papers_first;
        }
        pieces.extend(turns.into_iter().map(|by| Piece { experiment: *experiment, by }));
    }
    // Slurm's daemons are on all nodes from here on, so it comes last.
    let in_turns = experiments.into_iter().filter(|experiment| match experiment {
        Experiment::Both => true,
        Experiment::Many(_) => !is_quick,
        _ => false,
    });
    pieces.extend(in_turns.map(|experiment| Piece { experiment, by: By::Gang }));
    pieces
}

/// Those of the programs that are watched alone which these parts need.
pub fn watched_alone(pieces: &[Piece], is_quick: bool) -> Vec<Shape> {
    let figures = || pieces.iter().flat_map(|piece| piece.experiment.figures());
    let is_needed = |of: &[u32]| figures().any(|figure| of.contains(figure));
    let needed = WATCHED_ALONE.into_iter().filter(|(_, of)| is_needed(of));
    needed.map(|(shape, _)| shape).filter(|shape| !is_quick || *shape == MEDIUM).collect()
}

/// All programs that may have been watched alone, with the keys of these parts.
pub fn all_alone() -> impl Iterator<Item = (Shape, String)> {
    WATCHED_ALONE.into_iter().map(|(shape, _)| (shape, alone_key(shape)))
}

/// The key of the part in which a program is watched alone.
pub fn alone_key((name, ..): Shape) -> String {
    format!("alone, {name}")
}

/// What is not there: whole figures, and single parts of others.
pub fn missing(pieces: &[Piece], is_there: impl Fn(&Piece) -> bool) -> Vec<String> {
    let mut figures: Vec<_> = pieces.iter().map(|piece| piece.experiment.figures()).collect();
    figures.sort_unstable();
    figures.dedup();
    let mut named = Vec::new();
    for figures in figures {
        let own = pieces.iter().filter(|piece| piece.experiment.figures() == figures);
        let (there, missing): (Vec<&Piece>, Vec<&Piece>) = own.partition(|piece| is_there(piece));
        match there.is_empty() {
            true => named.push(named_figures(figures)),
            false => named.extend(missing.into_iter().map(Piece::name)),
        }
    }
    named
}

fn experiments() -> Vec<Experiment> {
    let mut all = vec![Experiment::Range, Experiment::Drift];
    all.extend([HIGH, MEDIUM, LOW].map(Experiment::Responding));
    all.extend([Experiment::Thresholds, Experiment::Changing, Experiment::Loaded]);
    all.extend([Experiment::Sorting, Experiment::Both]);
    all.extend(PROGRAMS.map(Experiment::Many));
    all.extend(DISK_MIB.map(Experiment::Writing));
    all.extend(DISK_RATIOS.map(Experiment::WritingAt));
    all.extend([ALONE, SEVEN].map(Experiment::Touching));
    all
}

impl Experiment {
    /// Those of the paper that show it.
    pub fn figures(self) -> &'static [u32] {
        match self {
            Self::Range => &[2],
            Self::Drift => &[3],
            Self::Responding(_) => &[4, 6, 7],
            Self::Thresholds => &[5],
            Self::Changing => &[8],
            Self::Loaded => &[9],
            Self::Sorting => &[10],
            Self::Both => &[11],
            Self::Many(_) => &[12],
            Self::Writing(_) => &[13],
            Self::WritingAt(_) => &[14],
            Self::Touching(_) => &[15],
        }
    }

    /// Whether the paper's policy has a turn.
    fn is_papers(self) -> bool {
        match self {
            // No controller decides there, or it is compared with none.
            Self::Range | Self::Drift => false,
            Self::Many(count) => PAPERS_PROGRAMS.contains(&count),
            Self::Writing(mib) => PAPERS_MIB.contains(&mib),
            Self::WritingAt((name, ..)) => PAPERS_RATIOS.contains(&name),
            _ => true,
        }
    }
}

impl fmt::Display for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = named_figures(self.figures());
        match self {
            Self::Responding((name, ..))
            | Self::WritingAt((name, ..))
            | Self::Touching((name, ..)) => write!(f, "{figures}, {name}"),
            Self::Many(count) => write!(f, "{figures}, {count}"),
            Self::Writing(mib) => write!(f, "{figures}, {mib} MiB"),
            _ => write!(f, "{figures}"),
        }
    }
}

impl Piece {
    /// By which it is kept.
    pub fn key(&self) -> String {
        let Self { experiment, by } = self;
        match (experiment, by) {
            // The first that had two policies; all others of ours were kept before there was a second one.
            (Experiment::Responding(_) | Experiment::Thresholds, by) => {
                format!("{experiment}, {by:?}")
            }
            (_, By::Ours) => experiment.to_string(),
            (_, by) => format!("{experiment}, {by:?}"),
        }
    }

    /// What people read.
    fn name(&self) -> String {
        format!("{}, {}", self.experiment, self.by.name())
    }
}

/// `figure 8`, or `figures 4, 6 and 7`.
fn named_figures(figures: &[u32]) -> String {
    match figures {
        [others @ .., last] if !others.is_empty() => {
            let others: Vec<_> = others.iter().map(ToString::to_string).collect();
            format!("figures {} and {last}", others.join(", "))
        }
        _ => figures.iter().map(|figure| format!("figure {figure}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn keys(pieces: &[Piece]) -> Vec<String> {
        pieces.iter().map(Piece::key).collect()
    }

    // Goal: a run that was interrupted before the paper's policy had all these turns goes on with what it has.
    #[test]
    fn parts_that_are_kept_keep_their_names() {
        let keys = keys(&pieces(false));
        for kept in [
            "figure 2",
            "figure 3",
            "figures 4, 6 and 7, 1:5, Paper",
            "figures 4, 6 and 7, 5:1, Ours",
            "figure 5, Ours",
            "figure 5, Paper",
            "figure 8",
            "figure 9",
            "figure 10",
            "figure 11",
            "figure 12, 8",
            "figure 13, 20 MiB",
            "figure 14, 65:1",
            "figure 15, 145:1",
        ] {
            assert!(keys.iter().any(|key| key == kept), "{kept} is not among {keys:?}");
        }
        assert_eq!(alone_key(HIGH), "alone, 5:1");
        let distinct: BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    // Goal: both policies are measured close to each other, and none is always the first.
    #[test]
    fn the_papers_policy_has_a_turn_beside_ours() {
        let pieces = pieces(false);
        let (mut first, mut second) = (0_u32, 0_u32);
        for (at, papers) in pieces.iter().enumerate().filter(|(_, piece)| piece.by == By::Paper) {
            let ours = Piece { by: By::Ours, ..*papers };
            match pieces.get(at + 1) == Some(&ours) {
                true => first += 1,
                false => {
                    assert_eq!(pieces[at - 1], ours);
                    second += 1;
                }
            }
        }
        assert!(first + second >= 14 && first.abs_diff(second) <= 1, "{first}, {second}");
        let is_papers = |figure: u32| {
            let mut papers = pieces.iter().filter(|piece| piece.by == By::Paper);
            papers.any(|piece| piece.experiment.figures().contains(&figure))
        };
        let without: Vec<u32> = FIGURES.filter(|figure| !is_papers(*figure)).collect();
        assert_eq!(without, [2, 3]);
    }

    #[test]
    fn a_quick_run_has_every_figure_and_everybody_who_has_a_turn_there() {
        let [quick, whole] = [true, false].map(pieces);
        assert!(quick.iter().all(|piece| whole.contains(piece)));
        let turns = |pieces: &[Piece]| {
            let figures = pieces.iter().flat_map(|piece| {
                piece.experiment.figures().iter().map(move |figure| (*figure, piece.by.name()))
            });
            figures.collect::<BTreeSet<_>>()
        };
        let mut expected = turns(&whole);
        // It would take as long as all the rest.
        expected.remove(&(12, By::Gang.name()));
        assert_eq!(turns(&quick), expected);
        assert_eq!(watched_alone(&quick, true), [MEDIUM]);
    }

    #[test]
    fn only_programs_that_figures_need_are_watched_alone() {
        let of = |figures: &[u32]| {
            let mut own = pieces(false);
            own.retain(|piece| piece.experiment.figures().iter().any(|one| figures.contains(one)));
            watched_alone(&own, false)
        };
        assert!(of(&[13, 14, 15]).is_empty());
        assert_eq!(of(&[9, 8]), [MEDIUM, THREE]);
        assert_eq!(of(&[7]), [HIGH, MEDIUM, LOW]);
    }

    #[test]
    fn what_is_missing_is_named_by_figures_and_else_by_parts() {
        let pieces = pieces(false);
        assert_eq!(missing(&pieces, |_| true), Vec::<String>::new());
        let none = missing(&pieces, |_| false);
        assert_eq!(none.len(), 12);
        assert_eq!(none[..3], ["figure 2", "figure 3", "figures 4, 6 and 7"]);
        let some = missing(&pieces, |piece| {
            let is_there = piece.experiment != Experiment::Range;
            is_there && piece.key() != "figure 13, 20 MiB, Paper"
        });
        assert_eq!(some, ["figure 2", "figure 13, 20 MiB, the paper's policy"]);
    }
}
