//! A benchmark's figures: each with its samples, spread, baseline and target, as a table and as
//! `out/NAME.json` with the raw samples in `out/NAME/`.

use anyhow::{Context, Result};
use keeptime::{files, report};
use serde::{Deserialize, Deserializer, Serialize};
use std::fs;
use std::path::Path;

/// One figure that was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// The median, or what the name says; in files null where it is no finite number.
    #[serde(deserialize_with = "number_or_none")]
    pub value: f64,
    /// What it tells of never came, so that there is no value.
    #[serde(default, skip_serializing_if = "is_false")]
    pub never: bool,
    /// Its unit.
    pub unit: String,
    /// How many measurements stand behind it.
    pub samples: usize,
    /// Half the distance between the quartiles, in the same unit.
    #[serde(deserialize_with = "number_or_none")]
    pub spread: f64,
    /// The same without Keeptime, where there is such a thing, or what `against` or the name says.
    pub baseline: Option<f64>,
    /// What the baseline is, unless it is the same without Keeptime or the name says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// That never came of the baseline.
    #[serde(default, skip_serializing_if = "is_false")]
    pub baseline_never: bool,
    /// What is to be reached, as in `>= 97`.
    pub target: Option<String>,
    /// Whether it was.
    pub met: Option<bool>,
    /// How to get it again.
    pub command: String,
}

/// A sample of what never came: greater than any other, so that medians and greatest ones are right.
pub const NEVER: f64 = f64::INFINITY;

/// What a figure is to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Both ends inclusive.
    Within(f64, f64),
}

/// The figures of one benchmark.
#[derive(Debug)]
pub struct Figures {
    name: &'static str,
    command: String,
    figures: Vec<Figure>,
}

/// What `make bench-NAME` has left in `out`.
pub fn read(out: &Path, name: &str) -> Result<Vec<Figure>> {
    let path = out.join(format!("{name}.json"));
    let text = fs::read_to_string(&path).with_context(|| {
        format!("cannot read {}: `make bench-{name}` writes it", path.display())
    })?;
    let figures: Vec<Figure> =
        serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))?;
    Ok(figures.into_iter().map(Figure::renewed).collect())
}

/// What is no number is null in JSON.
fn number_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Option::deserialize(from).map(|number| number.unwrap_or(f64::NAN))
}

/// Taken by reference since serde asks so.
fn is_false(flag: &bool) -> bool {
    !flag
}

impl Figure {
    /// Says what its baseline is.
    pub fn against(&mut self, what: &str) -> &mut Self {
        self.against = Some(what.into());
        self
    }

    /// Says that samples may be [`NEVER`]: what comes to that is no number, and has no spread.
    pub fn or_never(&mut self) -> &mut Self {
        self.never = self.value == NEVER;
        self.spread = if self.never { f64::NAN } else { self.spread };
        self.baseline_never = self.baseline == Some(NEVER);
        self
    }

    /// One of an older file as it is written now.
    fn renewed(self) -> Self {
        let was_never = |value: f64| report::was_never(&self.name, value);
        let (never, baseline_never) = (was_never(self.value), self.baseline.is_some_and(was_never));
        Self {
            value: if never { NEVER } else { self.value },
            never: self.never || never,
            baseline_never: self.baseline_never || baseline_never,
            baseline: self.baseline.filter(|_| !baseline_never),
            ..self
        }
    }

    /// Its value as a person reads it, with `places` decimals.
    pub fn value_text(&self, places: usize) -> String {
        text(Some(self.value), self.never, places)
    }

    /// The same of its baseline; nothing where it has none.
    pub fn baseline_text(&self, places: usize) -> String {
        text(self.baseline, self.baseline_never, places)
    }
}

fn text(value: Option<f64>, never: bool, places: usize) -> String {
    match value {
        _ if never => "never".into(),
        Some(value) => format!("{value:.places$}"),
        None => String::new(),
    }
}

impl Figures {
    /// No figures yet of the benchmark `name`, which `make bench-NAME` repeats.
    pub fn new(name: &'static str) -> Self {
        Self::made_by(name, &format!("make bench-{name}"))
    }

    /// No figures yet of the evaluation `name`, which `make eval-NAME` repeats.
    pub fn of_evaluation(name: &'static str) -> Self {
        Self::made_by(name, &format!("make eval-{name}"))
    }

    /// No figures yet of `name`, which `command` repeats.
    pub fn made_by(name: &'static str, command: &str) -> Self {
        let quick = if crate::quick() { "KEEPTIME_BENCH_QUICK=1 " } else { "" };
        Self { name, command: format!("{quick}{command}"), figures: Vec::new() }
    }

    /// The median of `samples`. What is returned can be told more of.
    pub fn median(
        &mut self,
        name: impl Into<String>,
        unit: &str,
        samples: &[f64],
        baseline: Option<f64>,
        target: Option<Target>,
    ) -> &mut Figure {
        let value = quantile(samples, 0.5);
        self.value(name, unit, value, samples, baseline, target)
    }

    /// A `value` that was computed from `samples`. What is returned can be told more of.
    pub fn value(
        &mut self,
        name: impl Into<String>,
        unit: &str,
        value: f64,
        samples: &[f64],
        baseline: Option<f64>,
        target: Option<Target>,
    ) -> &mut Figure {
        let at = self.figures.len();
        self.figures.push(Figure {
            name: name.into(),
            value,
            never: false,
            unit: unit.into(),
            samples: samples.len(),
            spread: (quantile(samples, 0.75) - quantile(samples, 0.25)) / 2.0,
            baseline,
            against: None,
            baseline_never: false,
            target: target.map(|t| t.to_string()),
            met: target.map(|t| t.is_met(value)),
            command: self.command.clone(),
        });
        &mut self.figures[at]
    }

    /// Drops those that nothing was measured for: where only a part was asked for, they are not missed.
    pub fn keep_measured(&mut self) {
        self.figures.retain(|figure| figure.samples > 0);
    }

    /// Those so far.
    pub fn all(&self) -> &[Figure] {
        &self.figures
    }

    /// Prints the table, writes the figures and `raw` beside them.
    pub fn finish(self, out: &Path, raw: &impl Serialize) -> Result<()> {
        files::save_json(&out.join(format!("{}.json", self.name)), &self.figures)?;
        files::save_json(&out.join(self.name).join("raw.json"), raw)?;
        print(&self.figures);
        println!("written: {}/{}.json", out.display(), self.name);
        Ok(())
    }
}

impl Target {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
            Self::Within(least, most) => (least..=most).contains(&value),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {least}"),
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::Within(least, most) => write!(f, "{least} to {most}"),
        }
    }
}

/// Prints figures as a table.
pub fn print(figures: &[Figure]) {
    println!(
        "{:<58} {:>10} {:<8} {:>8} {:>5} {:>10} {:>10}  met",
        "figure", "value", "unit", "spread", "n", "baseline", "target"
    );
    for figure in figures {
        let met = match figure.met {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        println!(
            "{:<58} {:>10} {:<8} {:>8} {:>5} {:>10} {:>10}  {met}",
            figure.name,
            figure.value_text(3),
            figure.unit,
            spread_text(figure.spread, 3),
            figure.samples,
            figure.baseline_text(3),
            figure.target.as_deref().unwrap_or(""),
        );
    }
}

/// A spread with `places` decimals; nothing where there is none, as of what partly never came.
pub fn spread_text(spread: f64, places: usize) -> String {
    if spread.is_finite() { format!("{spread:.places$}") } else { "-".into() }
}

/// The `q`-quantile of `samples`, linear between neighbours; not a number if there are none.
pub fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let position = q * last as f64;
    let (low, high) = (position.floor() as usize, position.ceil() as usize);
    // Nothing lies between equal ones, and what never came cannot be reckoned with.
    if sorted[low] == sorted[high] {
        return sorted[low];
    }
    sorted[low] + (sorted[high] - sorted[low]) * position.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_linear_between_neighbours() {
        let samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&samples, 0.5), 2.5);
        assert_eq!(quantile(&samples, 1.0), 4.0);
        assert!(quantile(&[], 0.5).is_nan());
        assert_eq!(quantile(&[1.0, NEVER, NEVER], 0.5), NEVER);
        assert_eq!(quantile(&[1.0, NEVER], 0.5), NEVER);
        assert_eq!(quantile(&[1.0, 2.0, NEVER], 0.5), 2.0);
    }

    // Goal: what never came is no number anywhere, and is not taken for what was not measured. Method: a file that is written
    // and read, and one as they were before.
    #[test]
    fn what_never_came_is_told_so_and_is_no_number() {
        let mut figures = Figures::new("test");
        let limit = Some(Target::AtMost(1.0));
        figures.median("a", "", &[1.0, NEVER, NEVER], Some(NEVER), limit).or_never();
        figures.median("b", "", &[1.0, 1.0, NEVER], Some(2.0), limit).or_never();
        figures.median("c", "", &[], None, limit).or_never();
        let directory = tempfile::tempdir().unwrap();
        figures.finish(directory.path(), &[1]).unwrap();
        let text = fs::read_to_string(directory.path().join("test.json")).unwrap();
        assert!(!text.contains("inf") && text.contains("\"value\": null"), "{text}");
        let texts = |figures: Vec<Figure>| -> Vec<_> {
            let texts = figures.iter().map(|f| (f.value_text(1), f.baseline_text(1), f.met));
            texts.collect()
        };
        let never = || "never".to_owned();
        let expected = [
            (never(), never(), Some(false)),
            ("1.0".into(), "2.0".into(), Some(true)),
            ("NaN".into(), String::new(), Some(false)),
        ];
        assert_eq!(texts(read(directory.path(), "test").unwrap()), expected);

        let mut before = Figures::new("before");
        before.value("x: reports to a new target", "", 1_000.0, &[1.0], Some(1_000.0), None);
        before.value("requests a second", "1/s", 1_000.0, &[1.0], Some(1_000.0), None);
        before.finish(directory.path(), &[1]).unwrap();
        let number = || "1000.0".to_owned();
        let expected = [(never(), never(), None), (number(), number(), None)];
        assert_eq!(texts(read(directory.path(), "before").unwrap()), expected);
    }

    #[test]
    fn what_was_not_measured_is_not_met_unless_it_was_not_asked_for() {
        let mut figures = Figures::new("test");
        figures.median("a", "s", &[], None, Some(Target::AtMost(1.5)));
        assert_eq!(figures.all()[0].met, Some(false));
        figures.keep_measured();
        assert!(figures.all().is_empty());
    }

    #[test]
    fn a_missed_target_is_told() {
        let mut figures = Figures::new("test");
        figures.median("a", "s", &[1.0, 2.0, 3.0], Some(9.0), Some(Target::AtMost(1.5)));
        figures.median("b", "s", &[1.0], None, None);
        assert_eq!(figures.figures[0].met, Some(false));
        assert_eq!(figures.figures[0].spread, 0.5);
        assert_eq!(figures.figures[1].met, None);
        let directory = tempfile::tempdir().unwrap();
        figures.finish(directory.path(), &[1]).unwrap();
        let text = std::fs::read_to_string(directory.path().join("test.json")).unwrap();
        let read: Vec<Figure> = serde_json::from_str(&text).unwrap();
        assert_eq!((read.len(), read[0].target.as_deref()), (2, Some("<= 1.5")));
    }
}
