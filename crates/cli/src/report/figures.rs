//! The figures that benchmarks and evaluations left in a directory: a table for each of their files, and bars
//! where there is something to compare a figure with.

use super::bars::{self, Bar};
use super::small_chart::COLOURS;
use super::{REPORT, count, frame, left_out, tell_left_out};
use crate::files;
use crate::machine::Machine;
use crate::record::RECORD;
use anyhow::{Context, Error, Result, ensure};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What bars show; each has its own colour.
const SERIES: [&str; 3] = ["measured", "baseline", "target"];
/// In older files: so many reports stood for never.
const NEVER_ONCE: f64 = 1_000.0;
/// How rows of another policy end, which older files have targets for.
const PAPERS: &str = ", the paper's policy";

/// One figure as the crate `bench` writes it, which depends on this one. What it may leave out one day is no reason not
/// to show the rest.
#[derive(Debug, Deserialize)]
struct Figure {
    name: String,
    /// None where nothing was measured, or it never came: what is not a number is null in JSON.
    value: Option<f64>,
    /// What it tells of never came.
    #[serde(default)]
    never: bool,
    unit: String,
    #[serde(default)]
    samples: usize,
    spread: Option<f64>,
    baseline: Option<f64>,
    /// What the baseline is, where its name does not say so.
    against: Option<String>,
    #[serde(default)]
    baseline_never: bool,
    target: Option<String>,
    met: Option<bool>,
    command: String,
}

/// What one file has.
struct Measurement {
    name: String,
    figures: Vec<Figure>,
    machine: Option<Machine>,
}

/// What a directory has.
#[derive(Default)]
struct Found {
    measurements: Vec<Measurement>,
    /// Files that are not shown, and why.
    left_out: Vec<String>,
}

/// Whether a figure of an older file tells of what never came, for which 1000 stood there.
pub fn was_never(name: &str, value: f64) -> bool {
    let may_be = name.contains("to a new target") || name.contains("smallest threshold");
    may_be && value == NEVER_ONCE
}

/// The page of all figures in `directory`, where there is no record of a demonstration, or one that is `damaged`. Files that
/// are something else are named, there and on standard error.
///
/// # Errors
/// If the directory cannot be read, or has no figures; then a record that is damaged is what counts.
pub(super) fn page(directory: &Path, damaged: Option<Error>) -> Result<String> {
    let mut found = Found::look(directory)?;
    if let Some(damaged) = damaged {
        if found.measurements.is_empty() {
            return Err(damaged);
        }
        found.left_out.insert(0, format!("{RECORD}: {damaged:#}"));
    }
    tell_left_out(&found.left_out);
    ensure!(!found.measurements.is_empty(), nothing_in(directory));
    Ok(found.draw(directory))
}

/// That there are no figures in a directory, and where they are of those whose raw data it has.
fn nothing_in(directory: &Path) -> String {
    let place = directory.display();
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let beside = directory.with_file_name(format!("{name}.json"));
    if beside.is_file() {
        let over = directory.parent().filter(|over| !over.as_os_str().is_empty());
        let over = over.unwrap_or(Path::new(".")).display();
        return format!(
            "nothing to report on: {place} has raw data, and {} what came of them: try `keeptime report {over}`",
            beside.display()
        );
    }
    format!(
        "nothing to report on: {place} has neither {RECORD}, which `keeptime demo` writes, nor a NAME.json that is a list \
         of figures ({{ \"name\": .., \"value\": .., \"unit\": .., \"command\": .. }}), which `make bench-NAME` and \
         `make eval-NAME` write beside the directory NAME of their raw data; raw data and profiles alone have no figures"
    )
}

impl Found {
    fn look(directory: &Path) -> Result<Self> {
        let names = file_names(directory).with_context(|| {
            format!("nothing to report on: cannot read the directory {}", directory.display())
        })?;
        let mut found = Self::default();
        for file in names {
            if let Err(error) = found.add(directory, &file) {
                found.left_out.push(format!("{file}: {error:#}"));
            }
        }
        Ok(found)
    }

    fn add(&mut self, directory: &Path, file: &str) -> Result<()> {
        let name = file.strip_suffix(".json").context("not a NAME.json of figures")?;
        let text = files::read(&directory.join(file))?;
        let figures: Vec<Figure> = serde_json::from_slice(&text).context("not figures")?;
        ensure!(!figures.is_empty(), "no figures");
        let figures = figures.into_iter().map(Figure::renewed).collect();
        let raw = format!("{name}/raw.json");
        let machine = machine(&directory.join(&raw)).unwrap_or_else(|error| {
            self.left_out.push(format!("{raw}: {error:#}"));
            None
        });
        self.measurements.push(Measurement { name: name.into(), figures, machine });
        Ok(())
    }

    fn draw(&self, directory: &Path) -> String {
        let header = html! {
            h1 { "Figures" }
            p.subtitle { "Keeptime, as measured in " (directory.display()) }
            p.headline { (headline(&self.measurements)) }
            p.note {
                "A value is the median of its samples, or what its name says; the spread is half \
                 the distance between their quartiles; the baseline is what stands beside it or \
                 in the figure's name, mostly the same without Keeptime where neither says so."
            }
        };
        let sections = html! {
            @for measurement in &self.measurements { (section(measurement)) }
            (left_out(&self.left_out))
        };
        frame("Keeptime: figures", header, sections)
    }
}

impl Figure {
    /// One of an older file as it is written now: what never came is no number, and there are no targets for the policy
    /// that is compared with.
    fn renewed(self) -> Self {
        let was_never = |value: Option<f64>| value.is_some_and(|v| was_never(&self.name, v));
        let (never, baseline_never) = (was_never(self.value), was_never(self.baseline));
        let is_judged = !self.name.ends_with(PAPERS);
        Self {
            value: self.value.filter(|_| !never),
            never: self.never || never,
            spread: self.spread.filter(|_| !never),
            baseline: self.baseline.filter(|_| !baseline_never),
            baseline_never: self.baseline_never || baseline_never,
            target: self.target.filter(|_| is_judged),
            met: self.met.filter(|_| is_judged),
            ..self
        }
    }

    /// Its baseline, and what that is.
    fn baseline_cell(&self) -> Markup {
        let text = number_or_never(self.baseline, self.baseline_never);
        let against = self.against.as_deref().filter(|_| !text.is_empty());
        html! {
            td.number {
                (text)
                @if let Some(against) = against { " " span.note { "(" (against) ")" } }
            }
        }
    }
}

/// The files of `directory` but the page, and the record of a demonstration, by name.
fn file_names(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory)?.collect::<std::io::Result<Vec<_>>>()?;
    let files = entries.iter().filter(|entry| entry.path().is_file());
    let name = |file: &fs::DirEntry| file.file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> =
        files.map(name).filter(|name| name != REPORT && name != RECORD).collect();
    names.sort_unstable();
    Ok(names)
}

/// The machine that raw data was measured on, where they are there and say so.
fn machine(raw: &Path) -> Result<Option<Machine>> {
    if !raw.exists() {
        return Ok(None);
    }
    let raw: Value = serde_json::from_slice(&files::read(raw)?).context("not JSON")?;
    // In a list it has no name, and is the first.
    let machine = raw.get("machine").or_else(|| raw.get(0));
    Ok(machine.and_then(|machine| Machine::deserialize(machine).ok()))
}

fn headline(measurements: &[Measurement]) -> String {
    let figures = || measurements.iter().flat_map(|measurement| &measurement.figures);
    let judged: Vec<_> = figures().filter_map(|figure| figure.met).collect();
    let met = judged.iter().filter(|met| **met).count();
    let (all, targets) = (count(figures().count(), "figure"), count(judged.len(), "target"));
    format!("{all}, {targets}: {met} met.")
}

fn section(measurement: &Measurement) -> Markup {
    let Measurement { name, figures, machine } = measurement;
    // Mostly one for all of them.
    let commands: BTreeSet<_> = figures.iter().map(|figure| figure.command.as_str()).collect();
    let charts: Vec<_> = figures.iter().filter_map(chart).collect();
    html! {
        section {
            h2 { (name) }
            dl {
                dt { "Machine" }
                dd { @if let Some(machine) = machine { (machine) } @else { "not recorded" } }
                dt { "These figures again" }
                dd { @for command in commands { code { (command) } " " } }
            }
            (table(figures))
            @if !charts.is_empty() {
                div.pictures { @for chart in charts { (chart) } }
            }
        }
    }
}

fn table(figures: &[Figure]) -> Markup {
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        th scope="col" { "figure" }
                        th.number scope="col" { "value" }
                        th scope="col" { "unit" }
                        @for title in ["spread", "samples", "baseline", "target"] {
                            th.number scope="col" { (title) }
                        }
                        th scope="col" { "met" }
                    }
                }
                tbody {
                    @for figure in figures { (row(figure)) }
                }
            }
        }
    }
}

fn row(figure: &Figure) -> Markup {
    html! {
        tr {
            td { (figure.name) }
            td.number { (number_or_never(figure.value, figure.never)) }
            td { (figure.unit) }
            td.number { (number_or_never(figure.spread, false)) }
            td.number { (figure.samples) }
            (figure.baseline_cell())
            td.number { (figure.target.as_deref().unwrap_or_default()) }
            td.late[figure.met == Some(false)] { (met_text(figure.met)) }
        }
    }
}

fn met_text(met: Option<bool>) -> &'static str {
    match met {
        Some(true) => "yes",
        Some(false) => "no",
        None => "",
    }
}

/// A figure beside its baseline and target; nothing where it has neither, was not measured or never came.
fn chart(figure: &Figure) -> Option<Markup> {
    let bars = compared(figure, figure.value?);
    let told: Vec<_> = bars.iter().map(|bar| format!("{} {}", bar.label, bar.text)).collect();
    let text = format!("{}: {}", figure.name, told.join(", "));
    let draw = || super::figure(&bars::draw(&bars).into_string(), &text, html! { (figure.name) });
    (bars.len() > 1).then(draw)
}

fn compared(figure: &Figure, value: f64) -> Vec<Bar> {
    let bounds = figure.target.iter().flat_map(|target| numbers(target));
    let baseline = figure.baseline.map(|value| (1, value));
    let all = std::iter::once((0, value)).chain(baseline).chain(bounds.map(|value| (2, value)));
    let bar = |(series, value): (usize, f64)| Bar {
        label: SERIES[series],
        colour: COLOURS[series],
        value,
        // Mere numbers have no unit.
        text: format!("{} {}", number(value), figure.unit).trim_end().into(),
    };
    all.map(bar).collect()
}

/// Those in a target, as in `>= 97` or `2 to 5`.
fn numbers(target: &str) -> impl Iterator<Item = f64> {
    let words = target.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
    words.filter(|number| number.is_finite())
}

/// Three places, as benchmarks print them; fewer or more where these say too much or nothing.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 0.01 || size == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// Nothing where there is none.
fn number_or_never(value: Option<f64>, never: bool) -> String {
    if never { "never".into() } else { value.map(number).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::save_json;
    use crate::report::write;
    use serde_json::json;
    use tempfile::TempDir;

    fn figure(name: &str, target: Option<&str>, met: Option<bool>) -> Value {
        json!({
            "name": name, "value": 7.25, "unit": "ms", "samples": 30, "spread": 0.5,
            "baseline": null, "target": target, "met": met, "command": "make bench-plan"
        })
    }

    fn directory(files: &[(&str, Value)]) -> TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, value) in files {
            save_json(&directory.path().join(name), value).unwrap();
        }
        directory
    }

    fn written(directory: &TempDir) -> String {
        fs::read_to_string(write(directory.path()).unwrap()).unwrap()
    }

    fn machine_called(processor: &str) -> Value {
        let machine = Machine { processor: processor.into(), processors: 2, ..Machine::default() };
        json!(machine)
    }

    // Goal: all that was measured is on the page, and what cannot be read costs nothing but itself. Method: two
    // files of figures, whose raw data name the machine in both ways, beside damaged ones and others.
    #[test]
    fn every_file_of_figures_has_its_section_and_others_are_named() {
        let late = figure("plan", Some("<= 5"), Some(false));
        let mut compared = figure("search", None, None);
        compared["baseline"] = json!(1000.0);
        let directory = directory(&[
            ("plan.json", json!([late, figure("b", None, None)])),
            ("plan/raw.json", json!({ "machine": machine_called("First CPU"), "runs": [] })),
            ("search.json", json!([compared])),
            ("search/raw.json", json!([machine_called("Second CPU"), []])),
            ("empty.json", json!([])),
            ("profile.json", json!({ "version": 1 })),
        ]);
        fs::write(directory.path().join("torn.json"), "[{\"name\": ").unwrap();
        fs::write(directory.path().join("notes.txt"), "").unwrap();
        for round in ["the first page", "the page over another"] {
            let page = written(&directory);
            assert!(page.contains("3 figures, 1 target: 0 met."), "{round}: {page}");
            for there in ["<h2>plan<", "<h2>search<", ">7.250<", ">0.500<", ">30<", ">1000<"] {
                assert!(page.contains(there), "{round}: {there}");
            }
            for machine in ["2 x First CPU", "2 x Second CPU"] {
                assert!(page.contains(machine), "{round}: {machine}");
            }
            assert!(page.contains("&lt;= 5") && page.contains("<td class=\"late\">no<"), "{page}");
            assert!(page.contains("plan: measured 7.250 ms, target 5.000 ms"), "{page}");
            assert!(page.contains("search: measured 7.250 ms, baseline 1000 ms"), "{page}");
            assert_eq!(page.matches("<svg").count(), 2, "one figure has nothing beside it");
            assert_eq!(page.matches("make bench-plan").count(), 2, "once in each section");
            for file in ["empty.json: no", "notes.txt: not", "profile.json: not", "torn.json: not"]
            {
                assert!(page.contains(&format!("<li>{file}")), "{round}: {file}");
            }
            assert_eq!(page.matches("<li>").count(), 4, "{round}: {page}");
        }
    }

    #[test]
    fn damaged_raw_data_cost_the_machine_alone() {
        let directory = directory(&[("plan.json", json!([figure("plan", None, None)]))]);
        assert!(!written(&directory).contains("Left out"));
        fs::create_dir(directory.path().join("plan")).unwrap();
        fs::write(directory.path().join("plan/raw.json"), "{").unwrap();
        let page = written(&directory);
        assert!(page.contains("<h2>plan<") && page.contains("not recorded"), "{page}");
        assert!(page.contains("<li>plan/raw.json: not JSON"), "{page}");
    }

    #[test]
    fn what_was_not_measured_has_no_bars() {
        let mut unmeasured = figure("plan", Some("2 to 5"), Some(false));
        unmeasured["value"] = Value::Null;
        let page = written(&directory(&[("plan.json", json!([unmeasured]))]));
        assert!(page.contains("2 to 5") && !page.contains("<svg"), "{page}");
    }

    // Goal: what never came is told in words and has no bar, and nobody is judged by what another policy comes to. Method: as
    // it is written now, with and without a baseline, and as older files have it.
    #[test]
    fn what_never_came_is_no_number_and_only_our_own_rows_have_targets() {
        let mut ours = figure("1:1: reports to a new target", Some("<= 1"), Some(true));
        (ours["baseline"], ours["baseline_never"]) = (Value::Null, json!(true));
        ours["against"] = json!("the paper's policy");
        let mut never = ours.clone();
        (never["value"], never["never"], never["met"]) = (Value::Null, json!(true), json!(false));
        let mut before = figure("1:1: reports to a new target, worst", Some("<= 3"), Some(true));
        before["baseline"] = json!(1000.0);
        let name = "1:5: reports to a new target, the paper's policy";
        let mut papers = figure(name, Some("<= 1"), Some(false));
        (papers["value"], papers["spread"]) = (json!(1000.0), json!(247.0));
        let page = written(&directory(&[("control.json", json!([ours, never, before, papers]))]));
        assert!(page.contains("4 figures, 3 targets: 2 met."), "{page}");
        assert_eq!(page.matches("<svg").count(), 2, "measured and target of two: {page}");
        assert_eq!(page.matches(">never<").count(), 3, "{page}");
        let named = ">never <span class=\"note\">(the paper's policy)<";
        assert_eq!(page.matches(named).count(), 2, "{page}");
        for absent in [">1000<", "1000 ", "247", "baseline 0"] {
            assert!(!page.contains(absent), "{absent}: {page}");
        }
    }

    // Goal: a baseline that is not the same without Keeptime is called what it is.
    #[test]
    fn a_baseline_is_called_what_it_is() {
        let mut search = figure("search", None, None);
        (search["baseline"], search["against"]) = (json!(9.5), json!("a sorted list"));
        let page = written(&directory(&[("calendar.json", json!([search]))]));
        assert!(page.contains(">9.500 <span class=\"note\">(a sorted list)<"), "{page}");
        assert!(!page.contains("baseline is the same without Keeptime"), "{page}");
    }

    #[test]
    fn special_characters_stay_text_and_nothing_outside_is_referred_to() {
        let strange = figure("<b>\"bold\"</b> & more", Some(">= 97"), Some(false));
        let page = written(&directory(&[("a<i>b.json", json!([strange]))]));
        assert!(page.contains("aria-label=\"&lt;b&gt;&quot;bold&quot;&lt;/b&gt; &amp; more: "));
        assert!(page.contains("<h2>a&lt;i&gt;b<"), "{page}");
        for raw in ["<b>", "<i>", "http", "<script", "<link", "url(", "file:"] {
            assert!(!page.contains(raw), "{raw}");
        }
    }

    #[test]
    fn a_directory_without_figures_is_refused_with_what_would_be_accepted() {
        let directory = directory(&[("profile.json", json!({ "version": 1 }))]);
        let error = format!("{:#}", write(directory.path()).unwrap_err());
        assert!(error.contains(RECORD) && error.contains("make bench-NAME"), "{error}");
        assert!(!directory.path().join(REPORT).exists());
    }

    // Goal: whoever asks for a page of raw data is told where the page is that they are shown on.
    #[test]
    fn of_raw_data_it_is_told_where_their_figures_are() {
        let directory = directory(&[("plan.json", json!([figure("plan", None, None)]))]);
        let raw = directory.path().join("plan");
        fs::create_dir(&raw).unwrap();
        save_json(&raw.join("alone.json"), &json!({ "version": 1 })).unwrap();
        let error = format!("{:#}", write(&raw).unwrap_err());
        let told = format!("try `keeptime report {}`", directory.path().display());
        assert!(error.contains(&told), "{error}");
    }

    #[test]
    fn numbers_are_as_long_as_they_say_something() {
        let texts = [12345.6, 7.25, 0.0, -0.00015].map(number);
        assert_eq!(texts, ["12346", "7.250", "0.000", "-1.5e-4"]);
        assert_eq!(numbers("2 to 5").collect::<Vec<_>>(), [2.0, 5.0]);
        assert_eq!(numbers(">= inf").count(), 0);
    }
}
