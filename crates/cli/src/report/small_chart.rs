//! Small multiples of one set of curves: same axes and colours in each, so that only what a stage
//! rules out changes from one to the next.

use keeptime_planner::curve::Between;
use keeptime_planner::explanation::{CurveTrail, Explanation};
use maud::{Markup, html};

/// Colours that people with any colour vision tell apart (Okabe and Ito).
pub(super) const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5a5a5a"];
/// Where colours repeat, dashes differ.
const DASHES: [&str; 3] = ["none", "7 3", "2 3"];
const FADED: &str = "#cfd5da";

const SIZE: (f64, f64) = (430.0, 250.0);
/// Left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (46.0, 12.0, 10.0, 40.0);
/// Strokes between two measured points: enough for the eye to see a curve.
const STEPS: usize = 12;

/// Bandwidth in Mbit/s, promised time in seconds.
pub(super) type Position = (f64, f64);

/// What is shown of one curve.
pub(super) struct Trail {
    /// Its position among all curves, which decides its colour.
    pub index: usize,
    /// Not ruled out.
    pub left: bool,
    /// Bandwidths that are still in question; the rest of the curve is faded. All if none.
    pub range: Option<(f64, f64)>,
    /// A hollow mark: the knee.
    pub ring: Option<Position>,
    /// A filled mark: what can be held, or is chosen.
    pub dot: Option<Position>,
}

/// The axes that all charts of one explanation share.
pub(super) struct Frame<'a> {
    explanation: &'a Explanation,
    x: (f64, f64),
    y_most: f64,
}

impl<'a> Frame<'a> {
    /// Axes that have room for all curves and the bounds; nothing if there are no points.
    pub fn new(explanation: &'a Explanation) -> Option<Self> {
        let all: Vec<_> = explanation.curves.iter().flat_map(points).collect();
        let least = all.iter().map(|p| p.0).reduce(f64::min)?;
        let most = all.iter().map(|p| p.0).reduce(f64::max)?;
        let bounds = [explanation.goal.within, explanation.goal.at_least];
        let bounds = bounds.into_iter().flatten().map(|t| t.as_secs_f64());
        let y_most = all.iter().map(|p| p.1).chain(bounds).fold(1e-6, f64::max) * 1.05;
        Some(Self { explanation, x: (least / 1.12, most * 1.12), y_most })
    }

    /// One chart: faded curves below, the others and their marks above.
    pub fn draw(&self, trails: &[Trail], alternative: &str) -> Markup {
        let (width, height) = SIZE;
        html! {
            svg viewBox={ "0 0 " (width) " " (height) } role="img" aria-label=(alternative)
                font-family="sans-serif" font-size="11" {
                (self.axes())
                @for trail in trails { (self.line(trail, None)) }
                (self.bounds())
                @for trail in trails.iter().filter(|t| t.left) {
                    (self.line(trail, Some(COLOURS[trail.index % COLOURS.len()])))
                }
                @for trail in trails { (self.marks(trail)) }
            }
        }
    }

    /// The whole curve in grey, or what is left of it in `colour`.
    fn line(&self, trail: &Trail, colour: Option<&str>) -> Markup {
        let curve = &self.explanation.curves[trail.index];
        let whole = points(curve);
        let range = trail.range.filter(|_| colour.is_some());
        let shown = stretch(&whole, range, self.explanation.between);
        let path: Vec<_> = shown.iter().map(|p| self.place(*p)).collect();
        let path: Vec<_> = path.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let stroke = if colour.is_some() { "2.2" } else { "1.2" };
        html! {
            polyline points=(path.join(" ")) fill="none" stroke=(colour.unwrap_or(FADED))
                stroke-width=(stroke) stroke-dasharray=(dashes(trail.index)) {}
        }
    }

    fn marks(&self, trail: &Trail) -> Markup {
        let colour = COLOURS[trail.index % COLOURS.len()];
        html! {
            @if let Some((x, y)) = trail.ring.map(|p| self.place(p)) {
                circle cx=(rounded(x)) cy=(rounded(y)) r="5" fill="#fff" stroke=(colour)
                    stroke-width="2" {}
            }
            @if let Some((x, y)) = trail.dot.map(|p| self.place(p)) {
                circle cx=(rounded(x)) cy=(rounded(y)) r="6" fill=(colour) stroke="#fff"
                    stroke-width="1.5" {}
            }
        }
    }

    fn axes(&self) -> Markup {
        let (left, top, right, bottom) = edges();
        html! {
            @for value in ticks(self.y_most) {
                @let y = self.place((self.x.0, value)).1;
                line x1=(left) x2=(right) y1=(rounded(y)) y2=(rounded(y)) stroke="#eef0f2" {}
                text x=(left - 6.0) y=(rounded(y + 4.0)) text-anchor="end" fill="#5b6570" {
                    (value)
                }
            }
            @for value in decades(self.x) {
                @let x = self.place((value, 0.0)).0;
                line x1=(rounded(x)) x2=(rounded(x)) y1=(top) y2=(bottom) stroke="#eef0f2" {}
                text x=(rounded(x)) y=(bottom + 15.0) text-anchor="middle" fill="#5b6570" {
                    (value)
                }
            }
            polyline points={ (left) "," (top) " " (left) "," (bottom) " " (right) "," (bottom) }
                fill="none" stroke="#9aa3ab" {}
            text x=((left + right) / 2.0) y=(SIZE.1 - 8.0) text-anchor="middle" fill="#5b6570" {
                "Mbit/s for each flow"
            }
            text x="12" y=((top + bottom) / 2.0) text-anchor="middle" fill="#5b6570"
                transform={ "rotate(-90 12 " ((top + bottom) / 2.0) ")" } { "promised, s" }
        }
    }

    fn bounds(&self) -> Markup {
        let goal = &self.explanation.goal;
        let (left, _, right, _) = edges();
        let bounds = [("at most", goal.within), ("at least", goal.at_least)];
        html! {
            @for (name, time) in bounds.into_iter().filter_map(|(n, t)| Some((n, t?))) {
                @let y = self.place((self.x.0, time.as_secs_f64())).1;
                line x1=(left) x2=(right) y1=(rounded(y)) y2=(rounded(y)) stroke="#c00"
                    stroke-dasharray="6 4" {}
                text x=(right - 2.0) y=(rounded(y - 4.0)) text-anchor="end" fill="#c00"
                    stroke="#fff" stroke-width="3" paint-order="stroke" {
                    (name) " " (time)
                }
            }
        }
    }

    fn place(&self, (x, y): Position) -> Position {
        let (left, top, right, bottom) = edges();
        let across = (x / self.x.0).ln() / (self.x.1 / self.x.0).ln();
        (left + across * (right - left), bottom - y / self.y_most * (bottom - top))
    }
}

/// The sample of a curve's colour and dashes, for the key of all charts.
pub(super) fn swatch(index: usize) -> Markup {
    html! {
        svg viewBox="0 0 26 12" aria-hidden="true" {
            line x1="1" x2="25" y1="6" y2="6" stroke=(COLOURS[index % COLOURS.len()])
                stroke-width="3" stroke-dasharray=(dashes(index)) {}
        }
    }
}

/// The promised times of a curve's points.
pub(super) fn points(curve: &CurveTrail) -> Vec<Position> {
    let position = |p: &keeptime_planner::curve::FittedPoint| {
        let time = curve.promise.time(p.time_nanos);
        (p.bandwidth_bits_per_second.as_mbit_f64(), time.as_secs_f64())
    };
    curve.points.iter().map(position).collect()
}

/// What is drawn of `points` inside `range`. Where planning goes by times between measured points,
/// these are drawn as it takes them: linear in 1 / bandwidth.
fn stretch(points: &[Position], range: Option<(f64, f64)>, between: Between) -> Vec<Position> {
    let (least, most) = range.unwrap_or((0.0, f64::INFINITY));
    let steps = if between == Between::Measured { 1 } else { STEPS };
    let mut bandwidths: Vec<f64> = points.iter().map(|p| p.0).collect();
    for pair in points.windows(2) {
        let ratio = pair[1].0 / pair[0].0;
        bandwidths
            .extend((1..steps).map(|step| pair[0].0 * ratio.powf(step as f64 / steps as f64)));
    }
    bandwidths.extend([least, most]);
    bandwidths.retain(|b| least <= *b && *b <= most);
    bandwidths.sort_unstable_by(f64::total_cmp);
    bandwidths.into_iter().filter_map(|b| Some((b, time_at(points, b)?))).collect()
}

/// Nothing outside the measured range.
fn time_at(points: &[Position], bandwidth: f64) -> Option<f64> {
    let at = points.partition_point(|p| p.0 < bandwidth);
    let right = points.get(at)?;
    if right.0 == bandwidth {
        return Some(right.1);
    }
    let left = points.get(at.checked_sub(1)?)?;
    let share = (1.0 / bandwidth - 1.0 / right.0) / (1.0 / left.0 - 1.0 / right.0);
    Some(right.1 + share * (left.1 - right.1))
}

/// Round values, at most six of them, from 0 up to `most`.
fn ticks(most: f64) -> Vec<f64> {
    let magnitude = 10f64.powf((most / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0].map(|s| s * magnitude).into_iter().find(|s| most / s <= 5.0);
    let step = step.unwrap_or(10.0 * magnitude);
    let places = (-step.log10().floor()).max(0.0) as i32;
    let round = |value: f64| (value * 10f64.powi(places)).round() / 10f64.powi(places);
    (0..=(most / step + 1e-9) as u32).map(|n| round(f64::from(n) * step)).collect()
}

/// 1, 2 and 5 of every decade inside `(least, most)`.
fn decades((least, most): (f64, f64)) -> Vec<f64> {
    let exponents = (least.log10().floor() as i32)..=(most.log10().ceil() as i32);
    let values = exponents.flat_map(|e| [1.0, 2.0, 5.0].map(|v| v * 10f64.powi(e)));
    values.filter(|v| least <= *v && *v <= most).collect()
}

fn edges() -> (f64, f64, f64, f64) {
    (MARGIN.0, MARGIN.1, SIZE.0 - MARGIN.2, SIZE.1 - MARGIN.3)
}

fn dashes(index: usize) -> &'static str {
    DASHES[index / COLOURS.len() % DASHES.len()]
}

/// A tenth of a unit is finer than anybody sees.
pub(super) fn rounded(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_ends_where_the_range_does() {
        let points = [(10.0, 4.0), (20.0, 2.0), (40.0, 1.5)];
        let shown = stretch(&points, Some((15.0, 30.0)), Between::Interpolated);
        assert_eq!((shown[0].0, shown[shown.len() - 1].0), (15.0, 30.0));
        // Linear in 1 / bandwidth between 10 and 20 Mbit/s.
        assert!((shown[0].1 - (2.0 + 2.0 / 3.0)).abs() < 1e-9);
        assert_eq!(stretch(&points, None, Between::Measured), points);
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(2.1), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(ticks(0.3), [0.0, 0.1, 0.2, 0.3]);
        assert_eq!(decades((4.0, 60.0)), [5.0, 10.0, 20.0, 50.0]);
    }
}
