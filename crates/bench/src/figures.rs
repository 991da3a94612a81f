//! A benchmark's figures: each with its samples, spread, baseline and target, as a table and as
//! `out/NAME.json` with the raw samples in `out/NAME/`.

use anyhow::{Context, Result};
use keeptime::files;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// One figure that was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// The median, or what the name says.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// How many measurements stand behind it.
    pub samples: usize,
    /// Half the distance between the quartiles, in the same unit.
    pub spread: f64,
    /// The same without Keeptime, where there is such a thing.
    pub baseline: Option<f64>,
    /// What is to be reached, as in `>= 97`.
    pub target: Option<String>,
    /// Whether it was.
    pub met: Option<bool>,
    /// How to get it again.
    pub command: String,
}

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
    serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))
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

    /// The median of `samples`.
    pub fn median(
        &mut self,
        name: impl Into<String>,
        unit: &str,
        samples: &[f64],
        baseline: Option<f64>,
        target: Option<Target>,
    ) {
        let value = quantile(samples, 0.5);
        self.value(name, unit, value, samples, baseline, target);
    }

    /// A `value` that was computed from `samples`.
    pub fn value(
        &mut self,
        name: impl Into<String>,
        unit: &str,
        value: f64,
        samples: &[f64],
        baseline: Option<f64>,
        target: Option<Target>,
    ) {
        self.figures.push(Figure {
            name: name.into(),
            value,
            unit: unit.into(),
            samples: samples.len(),
            spread: (quantile(samples, 0.75) - quantile(samples, 0.25)) / 2.0,
            baseline,
            target: target.map(|t| t.to_string()),
            met: target.map(|t| t.is_met(value)),
            command: self.command.clone(),
        });
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
        let baseline = figure.baseline.map_or(String::new(), |b| format!("{b:.3}"));
        let met = match figure.met {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        println!(
            "{:<58} {:>10.3} {:<8} {:>8.3} {:>5} {:>10} {:>10}  {met}",
            figure.name,
            figure.value,
            figure.unit,
            figure.spread,
            figure.samples,
            baseline,
            figure.target.as_deref().unwrap_or(""),
        );
    }
}

/// The `q`-quantile of `samples`, linear between neighbours; not a number if there are none.
pub fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let position = q * last as f64;
    let (low, high) = (position.floor() as usize, position.ceil() as usize);
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
