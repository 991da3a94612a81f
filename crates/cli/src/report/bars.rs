//! Horizontal bars of a few values of one unit, from 0 on, each with its name and its value beside it.

use super::small_chart::rounded;
use maud::{Markup, html};

const WIDTH: f64 = 430.0;
/// Height of a bar and the space around it.
const ROW: f64 = 22.0;
/// Between these are the bars: names are left of them, values right.
const ENDS: (f64, f64) = (70.0, 310.0);

/// One value.
pub(super) struct Bar {
    pub label: &'static str,
    pub colour: &'static str,
    pub value: f64,
    /// The value as people read it.
    pub text: String,
}

/// All `bars` on one scale.
pub(super) fn draw(bars: &[Bar]) -> Markup {
    let height = ROW * bars.len() as f64;
    let place = scale(bars);
    let zero = rounded(place(0.0));
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (height) } font-family="sans-serif" font-size="11" {
            @for (row, bar) in bars.iter().enumerate() {
                (draw_one(bar, ROW * row as f64, (place(0.0), place(bar.value))))
            }
            line x1=(zero) x2=(zero) y1="0" y2=(height) stroke="#9aa3ab" {}
        }
    }
}

fn draw_one(bar: &Bar, top: f64, (from, to): (f64, f64)) -> Markup {
    html! {
        text x=(ENDS.0 - 6.0) y=(top + 15.0) text-anchor="end" fill="#5b6570" { (bar.label) }
        rect x=(rounded(from.min(to))) y=(top + 4.0) width=(rounded((to - from).abs()))
            height=(ROW - 8.0) fill=(bar.colour) {}
        text x=(rounded(from.max(to) + 6.0)) y=(top + 15.0) fill="#1d2329" { (bar.text) }
    }
}

/// Where a value is. All scales have a 0, so that lengths can be compared. Values count as parts of the greatest size: the
/// span of the greatest there are is more than a number can be.
fn scale(bars: &[Bar]) -> impl Fn(f64) -> f64 {
    let size = bars.iter().map(|bar| bar.value.abs()).fold(f64::MIN_POSITIVE, f64::max);
    let parts = || bars.iter().map(|bar| bar.value / size);
    let (least, most) = (parts().fold(0.0, f64::min), parts().fold(0.0, f64::max));
    let span = (most - least).max(f64::MIN_POSITIVE);
    move |value| ENDS.0 + (ENDS.1 - ENDS.0) * ((value / size - least) / span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(values: &[f64]) -> String {
        let bar =
            |value: &f64| Bar { label: "a", colour: "#000", value: *value, text: "1 s".into() };
        draw(&values.iter().map(bar).collect::<Vec<_>>()).into_string()
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let svg = drawn(&[1.0, 4.0]);
        assert!(svg.contains("width=\"60.0\"") && svg.contains("width=\"240.0\""), "{svg}");
    }

    #[test]
    fn what_is_less_than_0_is_left_of_it() {
        let svg = drawn(&[-1.0, 1.0]);
        assert!(svg.contains("rect x=\"70.0\"") && svg.contains("rect x=\"190.0\""), "{svg}");
    }

    // Goal: the greatest and least numbers that there are have bars as others of the same proportions.
    #[test]
    fn sizes_beyond_all_sums_are_drawn_as_others() {
        for size in [1e308, f64::MAX, 1e-308, f64::from_bits(1)] {
            let svg = drawn(&[-size, size]);
            assert_eq!(svg.matches("width=\"120.0\"").count(), 2, "{size}: {svg}");
        }
    }

    #[test]
    fn zeros_alone_have_bars_without_length() {
        assert_eq!(drawn(&[0.0, 0.0]).matches("width=\"0.0\"").count(), 2);
    }
}
