//! What `keeptime top` shows on a terminal: all runs that are followed, and for each that is held at a rate how that and its
//! schedule went in the last minutes.

use crate::rate::door::{RateView, Views};
use anyhow::Result;
use keeptime_model::reservation::Handle;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, LegendPosition, Paragraph};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Seconds that are shown.
const SHOWN: f64 = 120.0;
/// Lines of a run's plots: fewer show nothing, more are no clearer.
const LINES: u16 = 9;
/// Reports come once a second.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How runs went.
#[derive(Debug, Default)]
pub struct History {
    runs: BTreeMap<Handle, Track>,
}

#[derive(Debug)]
struct Track {
    last: RateView,
    points: VecDeque<Point>,
}

/// One look at a run. Rates in percent of full speed, the share in percent of a processor.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    at: f64,
    target: f64,
    actual: Option<f64>,
    share: Option<f64>,
}

/// Shows what `look` finds, with `table` of it on top, until `q` is pressed or `stopped` says so, which is looked at
/// twice a second.
///
/// # Errors
/// Those of `look` and of the terminal, which is as it was before.
pub fn show(
    mut look: impl FnMut() -> Result<Views>,
    table: impl Fn(&Views) -> String,
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let mut terminal = ratatui::try_init()?;
    let mut watch = || -> Result<()> {
        let (begin, mut history, mut first) = (Instant::now(), History::default(), 0);
        while !stopped() {
            let now = begin.elapsed().as_secs_f64();
            let views = look()?;
            let text = table(&views);
            history.note(now, views.rates);
            first = first.min(history.runs.len().saturating_sub(1));
            terminal.draw(|frame| history.draw(frame, now, &text, first))?;
            while event::poll(LOOK_EVERY)? {
                let Event::Key(key) = event::read()? else { continue };
                let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if is_interrupt => return Ok(()),
                    KeyCode::Down => first += 1,
                    KeyCode::Up => first = first.saturating_sub(1),
                    _ => continue,
                }
                break;
            }
        }
        Ok(())
    };
    let watched = watch();
    ratatui::try_restore()?;
    watched
}

impl History {
    /// One more look, `now` seconds after the first. What has ended is forgotten.
    pub fn note(&mut self, now: f64, views: Vec<RateView>) {
        self.runs.retain(|job, _| views.iter().any(|view| view.job == *job));
        for view in views {
            let percent = |part: f64| 100.0 * part;
            let share = view.state.schedule.map(|s| f64::from(s.cpu().get()) / 1e4);
            let actual = view.state.actual.map(percent);
            let target = percent(view.state.target.as_f64());
            let point = Point { at: now, target, actual, share };
            let track = self
                .runs
                .entry(view.job)
                .or_insert_with(|| Track { last: view.clone(), points: VecDeque::new() });
            track.last = view;
            track.points.push_back(point);
            while track.points.front().is_some_and(|point| point.at < now - SHOWN) {
                track.points.pop_front();
            }
        }
    }

    /// The table, then the plots of as many runs as have room, from the one at `first` on.
    fn draw(&self, frame: &mut Frame<'_>, now: f64, table: &str, first: usize) {
        let lines = table.lines().count() as u16 + 1;
        let [top, rest, bottom] =
            Layout::vertical([Constraint::Max(lines), Constraint::Fill(1), Constraint::Length(1)])
                .areas(frame.area());
        frame.render_widget(Paragraph::new(table), top);
        let room = usize::from(rest.height / LINES);
        let shown = self.runs.values().skip(first).take(room);
        let rows = Layout::vertical(vec![Constraint::Length(LINES); shown.len()]).split(rest);
        for (track, row) in shown.zip(rows.iter()) {
            track.draw(frame, *row, now);
        }
        let more = match self.runs.len() > room {
            true => "up, down: other runs   ",
            false => "",
        };
        frame.render_widget(Paragraph::new(format!("{more}q: end")), bottom);
    }
}

impl Track {
    /// Its rate on the left, what it has for that on the right.
    fn draw(&self, frame: &mut Frame<'_>, area: Rect, now: f64) {
        let RateView { job, application, state, .. } = &self.last;
        let [left, right] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
        let series = |of: fn(&Point) -> Option<f64>| -> Vec<(f64, f64)> {
            self.points.iter().filter_map(|point| Some((point.at - now, of(point)?))).collect()
        };
        let (target, actual) = (series(|point| Some(point.target)), series(|point| point.actual));
        let lines = [("target", Color::Yellow, target), ("actual", Color::Cyan, actual)];
        plot(frame, left, format!("{job} {application}: rate, % of full speed"), &lines);
        let schedule = state.schedule.map_or_else(String::new, |schedule| {
            let millis = |span: keeptime_model::units::Nanos| 1e3 * span.as_secs_f64();
            let (slice, period) = (millis(schedule.slice()), millis(schedule.period()));
            format!("; {slice:.1} of {period:.1} ms")
        });
        let lines = [("CPU", Color::Green, series(|point| point.share))];
        plot(frame, right, format!("CPU of a node, %{schedule}"), &lines);
    }
}

type Drawn = (&'static str, Color, Vec<(f64, f64)>);

/// Lines over the seconds before now.
fn plot(frame: &mut Frame<'_>, area: Rect, title: String, lines: &[Drawn]) {
    let most = lines.iter().flat_map(|(_, _, points)| points).map(|point| point.1);
    // Round, so that the axis stays while values wander.
    let top = (most.fold(0.0, f64::max) * 1.1 / 10.0).ceil().max(1.0) * 10.0;
    let datasets = lines.iter().map(|(name, colour, points)| {
        Dataset::default()
            .name(*name)
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(*colour))
            .data(points)
    });
    let chart = Chart::new(datasets.collect())
        .block(Block::bordered().title(title))
        .legend_position(Some(LegendPosition::BottomLeft))
        .hidden_legend_constraints((Constraint::Percentage(100), Constraint::Percentage(100)))
        .x_axis(Axis::default().bounds([-SHOWN, 0.0]).labels(["-2 min", "now"]))
        .y_axis(Axis::default().bounds([0.0, top]).labels(["0".into(), format!("{top:.0}")]));
    frame.render_widget(chart, area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::steering::{Phase, State};
    use keeptime_control::Schedule;
    use keeptime_model::assignment::CpuMechanism;
    use keeptime_model::units::{CpuPpm, Nanos, Share};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn view(job: u64, actual: f64) -> RateView {
        RateView {
            job: Handle::new(job),
            application: "bsp".parse().unwrap(),
            nodes: vec!["n1".parse().unwrap()],
            state: State {
                is_adjusting: false,
                is_doubted: false,
                not_held_yet: None,
                target: Share::from_percent(30).unwrap(),
                phase: Phase::Steered,
                actual: Some(actual),
                full_speed: Some(12.0),
                schedule: Some(Schedule::new(CpuPpm::from_percent(15), Nanos::from_millis(20))),
                rank_cpu_ppm: Vec::new(),
                refused: 0,
            },
            limit_nanos: Nanos::from_secs(60),
            cpu_mechanism: CpuMechanism::Auto,
            cpu_kept_by: BTreeMap::new(),
            follows: None,
        }
    }

    fn drawn(history: &History, now: f64, first: usize) -> String {
        let mut terminal = Terminal::new(TestBackend::new(100, 26)).unwrap();
        terminal.draw(|frame| history.draw(frame, now, "job\n", first)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn every_run_has_its_rate_and_its_schedule() {
        let mut history = History::default();
        for second in 0..60 {
            let now = f64::from(second);
            history.note(now, vec![view(7, 0.31), view(8, 0.29), view(9, 0.3)]);
        }
        let text = drawn(&history, 59.0, 0);
        assert!(text.contains("r7 bsp: rate, % of full speed"), "{text}");
        assert!(text.contains("3.0 of 20.0 ms") && text.contains("-2 min"), "{text}");
        assert!(text.contains("target") && text.contains("actual"), "{text}");
        assert!(text.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "{text}");
        assert!(
            text.contains("r8 bsp") && !text.contains("r9 bsp"),
            "there is room for two: {text}"
        );
        assert!(text.contains("up, down"), "{text}");
        assert!(drawn(&history, 59.0, 1).contains("r9 bsp"));
    }

    // Goal: a window may be made as small as one likes. Method: all kinds of sizes, in which nothing, the table or a plot
    // has room, whole or in part.
    #[test]
    fn a_terminal_may_be_small() {
        let mut history = History::default();
        history.note(0.0, vec![view(7, 0.31), view(8, 0.29)]);
        history.note(1.0, vec![view(7, 0.3), view(8, 0.3)]);
        for width in (1..40).step_by(3) {
            for height in [1, 2, 3, 10, 11, 12, 13, 24] {
                let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
                terminal.draw(|frame| history.draw(frame, 1.0, "job\n", 1)).unwrap();
            }
        }
    }

    #[test]
    fn what_has_ended_and_what_is_long_ago_is_forgotten() {
        let mut history = History::default();
        for second in 0..300 {
            history.note(f64::from(second), vec![view(7, 0.31)]);
        }
        assert_eq!(history.runs[&Handle::new(7)].points.len(), SHOWN as usize + 1);
        history.note(300.0, vec![view(8, 0.31)]);
        assert_eq!(history.runs.len(), 1);
        assert!(!drawn(&history, 300.0, 0).contains("r7"));
        history.note(301.0, Vec::new());
        assert!(drawn(&history, 301.0, 0).contains("q: end"));
    }
}
