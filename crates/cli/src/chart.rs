//! Pictures as SVG text: lines with marked points, series over time, and grouped bars. Every plot shows what was
//! measured; nothing is smoothed.

use anyhow::{Result, ensure};
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// One line of a chart.
#[derive(Debug, Clone)]
pub struct Line {
    /// Its name in the legend.
    pub label: String,
    /// Measured points, ascending.
    pub points: Vec<(f64, f64)>,
    /// Every single sample, shown as a small dot.
    pub samples: Vec<(f64, f64)>,
    /// A point to mark with a circle: the knee, or what was chosen.
    pub marked: Option<(f64, f64)>,
    /// Drawn grey and thin: ruled out at this stage.
    pub faded: bool,
}

/// A chart of lines.
#[derive(Debug, Clone)]
pub struct LineChart {
    /// Above the chart.
    pub title: String,
    /// Under the horizontal axis, which is logarithmic.
    pub x_label: String,
    /// Beside the vertical axis.
    pub y_label: String,
    /// The lines.
    pub lines: Vec<Line>,
    /// A horizontal bound, such as the time that was asked for.
    pub bound: Option<f64>,
}

/// A series of a chart.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its name in the legend.
    pub label: String,
    /// Ascending.
    pub points: Vec<(f64, f64)>,
}

/// A chart of series over something that passes evenly, such as time: both axes begin at 0.
#[derive(Debug, Clone)]
pub struct SeriesChart {
    /// Above the chart.
    pub title: String,
    /// Under the horizontal axis.
    pub x_label: String,
    /// Beside the vertical axis.
    pub y_label: String,
    /// The series.
    pub series: Vec<Series>,
    /// What was asked for, and for how long.
    pub targets: Vec<Target>,
}

/// A height that was asked for over a part of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// Where that part begins.
    pub from: f64,
    /// And ends.
    pub to: f64,
    /// How high.
    pub height: f64,
}

/// One group of bars.
#[derive(Debug, Clone)]
pub struct Group {
    /// Under the group.
    pub label: String,
    /// One bar for each series.
    pub bars: Vec<f64>,
}

/// A chart of grouped bars.
#[derive(Debug, Clone)]
pub struct BarChart {
    /// Above the chart.
    pub title: String,
    /// Beside the vertical axis.
    pub y_label: String,
    /// One name for each bar of a group.
    pub series: Vec<String>,
    /// The groups.
    pub groups: Vec<Group>,
    /// A horizontal bound, such as what was promised.
    pub bound: Option<f64>,
}

const SIZE: (u32, u32) = (860, 420);
/// Bars that have room for their values above them.
const VALUES_MAX: usize = 16;
/// Colours that people with any colour vision tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];
const FADED: RGBColor = RGBColor(205, 205, 205);
const BOUND: RGBColor = RED;

impl LineChart {
    /// The chart as an SVG element.
    ///
    /// # Errors
    /// If the drawing library refuses, as it does a chart without any point; a point that a logarithmic axis
    /// does not have.
    pub fn to_svg(&self) -> Result<String> {
        let points = || self.lines.iter().flat_map(|l| l.points.iter().chain(&l.samples));
        let (x_least, x_most) = extent(points().map(|p| p.0), 1.0);
        ensure!(x_least > 0.0, "{}: {x_least} is not on a logarithmic axis", self.title);
        let y_most = points().map(|p| p.1).chain(self.bound).fold(0.0, f64::max).max(1e-9) * 1.06;
        draw(|area| {
            let (left, right) = (x_least / 1.1, x_most * 1.1);
            let x = (left..right).log_scale().with_key_points(ticks(left, right));
            let mut chart = framed(area, &self.title).build_cartesian_2d(x, 0.0..y_most)?;
            axes(&mut chart, &self.x_label, &self.y_label)?;
            bound(&mut chart, self.bound.map(|height| Target { from: left, to: right, height }))?;
            for (index, line) in self.lines.iter().enumerate() {
                let colour = if line.faded { FADED } else { COLOURS[index % COLOURS.len()] };
                let stroke = colour.stroke_width(if line.faded { 1 } else { 2 });
                let drawn = chart.draw_series(LineSeries::new(line.points.clone(), stroke))?;
                if !line.faded {
                    drawn.label(&line.label).legend(move |at| sample(at, colour));
                }
                let dot = |radius| move |p: &(f64, f64)| Circle::new(*p, radius, colour.filled());
                chart.draw_series(line.points.iter().map(dot(3)))?;
                chart.draw_series(line.samples.iter().map(dot(1)))?;
                let ring = line.marked.iter().map(|p| Circle::new(*p, 8, colour.stroke_width(2)));
                chart.draw_series(ring)?;
            }
            legend(&mut chart)
        })
    }
}

impl SeriesChart {
    /// The chart as an SVG element.
    ///
    /// # Errors
    /// If the drawing library refuses.
    pub fn to_svg(&self) -> Result<String> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x_most = points().map(|p| p.0).fold(1e-9, f64::max);
        let heights = self.targets.iter().map(|target| target.height);
        let y_most = points().map(|p| p.1).chain(heights).fold(1e-9, f64::max);
        draw(|area| {
            let mut chart =
                framed(area, &self.title).build_cartesian_2d(0.0..x_most, 0.0..y_most * 1.06)?;
            axes(&mut chart, &self.x_label, &self.y_label)?;
            bound(&mut chart, self.targets.iter().copied())?;
            for (index, series) in self.series.iter().enumerate() {
                let colour = COLOURS[index % COLOURS.len()];
                let line = LineSeries::new(series.points.clone(), colour.stroke_width(1));
                let drawn = chart.draw_series(line)?;
                drawn.label(&series.label).legend(move |at| sample(at, colour));
            }
            if let Some(first) = self.targets.first() {
                let nothing = LineSeries::new([(first.from, first.height)], BOUND);
                chart.draw_series(nothing)?.label("target").legend(|at| sample(at, BOUND));
            }
            legend(&mut chart)
        })
    }
}

impl BarChart {
    /// The chart as an SVG element.
    ///
    /// # Errors
    /// If the drawing library refuses.
    pub fn to_svg(&self) -> Result<String> {
        let heights = || self.groups.iter().flat_map(|g| &g.bars).copied();
        let y_most = heights().chain(self.bound).fold(0.0, f64::max);
        let has_values = heights().count() <= VALUES_MAX;
        let width = 1.0 / (self.series.len() as f64 + 1.0);
        let label = |x: &f64| {
            let group = self.groups.get((x - 0.5).round() as usize);
            group
                .filter(|_| (x - x.floor() - 0.5).abs() < 0.01)
                .map(|g| g.label.clone())
                .unwrap_or_default()
        };
        draw(|area| {
            let (x, y) = (0.0..self.groups.len() as f64, 0.0..(y_most * 1.15).max(1e-9));
            let mut chart = framed(area, &self.title).build_cartesian_2d(x, y)?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .x_labels(2 * self.groups.len() + 1)
                .x_label_formatter(&label)
                .y_desc(&self.y_label)
                .label_style(("sans-serif", 12))
                .draw()?;
            for (series, name) in self.series.iter().enumerate() {
                let colour = COLOURS[series % COLOURS.len()];
                let bars = self.groups.iter().enumerate().filter_map(|(group, bars)| {
                    let left = group as f64 + width * (series as f64 + 0.5);
                    let corners = [(left, 0.0), (left + width * 0.95, *bars.bars.get(series)?)];
                    Some(Rectangle::new(corners, colour.filled()))
                });
                chart.draw_series(bars)?.label(name).legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled())
                });
                let values = self.groups.iter().enumerate().filter_map(|(group, bars)| {
                    let height = *bars.bars.get(series)?;
                    let middle = group as f64 + width * (series as f64 + 0.975);
                    let style = ("sans-serif", 11).into_text_style(area);
                    let above = style.pos(Pos::new(HPos::Center, VPos::Bottom));
                    Some(Text::new(value(height), (middle, height), above))
                });
                chart.draw_series(values.filter(|_| has_values))?;
            }
            let to = self.groups.len() as f64;
            bound(&mut chart, self.bound.map(|height| Target { from: 0.0, to, height }))?;
            legend(&mut chart)
        })
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(body: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        body(&area)?;
        area.present()?;
    }
    Ok(svg)
}

/// A chart with its title above, and room for what is said beside its axes.
fn framed<'a, 'b>(area: &'a Area<'b>, title: &str) -> ChartBuilder<'a, 'static, SVGBackend<'b>> {
    let mut chart = ChartBuilder::on(area);
    chart.caption(title, ("sans-serif", 17)).margin(10);
    chart.x_label_area_size(42).y_label_area_size(58);
    chart
}

fn axes<'b, X, Y>(chart: &mut Chart<'_, 'b, X, Y>, x_label: &str, y_label: &str) -> Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .max_light_lines(1)
        .x_label_formatter(&|x| format!("{x}"))
        .light_line_style(RGBColor(240, 240, 240))
        .x_desc(x_label)
        .y_desc(y_label)
        .label_style(("sans-serif", 12))
        .draw()?;
    Ok(())
}

/// Three digits of it.
fn value(height: f64) -> String {
    match height {
        height if height.abs() >= 100.0 => format!("{height:.0}"),
        height if height.abs() >= 10.0 => format!("{height:.1}"),
        height => format!("{height:.2}"),
    }
}

/// Dashed lines.
fn bound<'b, X, Y>(
    chart: &mut Chart<'_, 'b, X, Y>,
    targets: impl IntoIterator<Item = Target>,
) -> Result<()>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    for Target { from, to, height } in targets {
        let line = [(from, height), (to, height)];
        chart.draw_series(DashedLineSeries::new(line, 6, 4, BOUND.stroke_width(1)))?;
    }
    Ok(())
}

/// A piece of a line, for the legend.
fn sample((x, y): (i32, i32), colour: RGBColor) -> PathElement<(i32, i32)> {
    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
}

type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;

fn legend<'a, 'b: 'a, X, Y>(chart: &mut Chart<'a, 'b, X, Y>) -> Result<()>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
}

/// 1, 2 and 5 times powers of ten, from `least` to `most`: for a logarithmic axis.
fn ticks(least: f64, most: f64) -> Vec<f64> {
    let powers = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
    all.filter(|tick| (least..=most).contains(tick)).collect()
}

/// Least and greatest, or `(otherwise, 2 * otherwise)` where there is nothing.
fn extent(values: impl Iterator<Item = f64>, otherwise: f64) -> (f64, f64) {
    let (least, most) =
        values.fold((f64::MAX, f64::MIN), |(least, most), v| (least.min(v), most.max(v)));
    if least > most { (otherwise, 2.0 * otherwise) } else { (least, most) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_shows_every_point_and_the_legend() {
        let line = Line {
            label: "size 512, 4 nodes".into(),
            points: vec![(5.0, 2.0), (40.0, 0.6)],
            samples: vec![(5.0, 2.1), (5.0, 1.9)],
            marked: Some((40.0, 0.6)),
            faded: false,
        };
        let chart = LineChart {
            title: "t".into(),
            x_label: "x".into(),
            y_label: "y".into(),
            lines: vec![line],
            bound: Some(1.0),
        };
        let svg = chart.to_svg().unwrap();
        assert_eq!(svg.matches("<circle").count(), 2 + 2 + 1);
        assert!(svg.contains("size 512, 4 nodes"));
        let mut nowhere = chart;
        nowhere.lines[0].points[0].0 = 0.0;
        assert!(nowhere.to_svg().unwrap_err().to_string().contains("logarithmic"));
    }

    #[test]
    fn series_begin_at_0_and_have_their_bounds() {
        let series =
            |label: &str| Series { label: label.into(), points: vec![(0.0, 50.0), (9.0, 48.0)] };
        let chart = SeriesChart {
            title: "t".into(),
            x_label: "s".into(),
            y_label: "%".into(),
            series: vec![series("one"), series("other")],
            targets: vec![Target { from: 0.0, to: 4.0, height: 30.0 }],
        };
        let svg = chart.to_svg().unwrap();
        assert!(svg.contains("target"));
        assert_eq!(svg.matches("#D55E00").count(), 2, "a line and its legend: {svg}");
        assert!(svg.contains("one") && svg.contains("other") && svg.contains("#FF0000"));
    }

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        assert_eq!(ticks(8.0, 60.0), [10.0, 20.0, 50.0]);
        assert_eq!(ticks(0.09, 0.3), [0.1, 0.2]);
    }

    #[test]
    fn bars_are_drawn_for_every_group_and_series() {
        let group = |label: &str| Group { label: label.into(), bars: vec![1.0, 2.0] };
        let chart = BarChart {
            title: "t".into(),
            y_label: "s".into(),
            series: vec!["with".into(), "without".into()],
            groups: vec![group("a"), group("b"), group("c")],
            bound: Some(1.5),
        };
        let svg = chart.to_svg().unwrap();
        // Background, six bars, two legend boxes and the legend's frame.
        assert!(svg.matches("<rect").count() >= 9, "{svg}");
        assert!(svg.contains(">a<") || svg.contains("\na\n"));
        assert!(svg.contains("\n2.00\n") && svg.contains("#FF0000"));
        let many = BarChart { groups: vec![group("a"); VALUES_MAX], ..chart };
        assert!(!many.to_svg().unwrap().contains("\n2.00\n"), "no room for their values");
    }
}
