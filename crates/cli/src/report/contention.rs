//! Promises under contention: one sentence, bars and a table.

use super::{count, figure, mbit, seconds};
use crate::chart::{BarChart, Group};
use crate::record::{Contention, Refused, Trial};
use crate::story;
use anyhow::Result;
use keeptime_model::units::Nanos;
use maud::{Markup, html};

/// Groups of bars in one chart: with more, they are too thin to compare.
const GROUPS_MAX: usize = 12;

/// The result in a few words: how far actual times were from promised ones.
pub(super) fn headline(contention: &Contention) -> Markup {
    let Contention { trials, refused, .. } = contention;
    let all = trials.len() + refused.len();
    let with = Errors::of(trials.iter().map(|t| Some(t.error_with())));
    let without = Errors::of(trials.iter().map(Trial::error_without));
    let (Some(with), Some(without)) = (with, without) else {
        return html! { (none_ran(all)) ", so there is nothing to compare." };
    };
    let kept = trials.iter().filter(|t| t.with_nanos <= t.promised_nanos).count();
    let unended = trials.iter().filter(|t| t.without_nanos.is_none()).count();
    html! {
        "Of " (count(all, "request")) " under contention, "
        @if !refused.is_empty() {
            (refused.len()) (if refused.len() == 1 { " was" } else { " were" })
            " refused. Of the others, "
        }
        "actual times differed from promised ones by "
        strong { (with.median_text()) } " at the median and "
        strong { (with.worst_text()) } " at worst with Keeptime, and by "
        strong { (without.median_text()) } " and " strong { (without.worst_text()) }
        " without, with no bandwidth reserved. With Keeptime, " (kept) " of " (trials.len())
        " ended by the promised time."
        @if unended > 0 { " Without, " (unended) " did not end in time and counts as ∞." }
    }
}

fn none_ran(asked: usize) -> String {
    match asked {
        0 => "No request ran under contention".into(),
        1 => "The one request under contention was refused".into(),
        all => format!("All {all} requests under contention were refused"),
    }
}

/// The bars, the table, and what was refused.
pub(super) fn section(contention: &Contention) -> Result<Markup> {
    let trials = &contention.trials;
    let charts =
        trials.chunks(GROUPS_MAX).enumerate().map(|(at, part)| chart(at * GROUPS_MAX, part));
    let charts = charts.collect::<Result<Vec<_>>>()?;
    Ok(html! {
        section {
            h2 { "Under contention" }
            p {
                "While these requests ran, the same links carried: " (contention.load) ". Each ran \
                 with the CPU and the bandwidth that were planned for it reserved, and on the same \
                 nodes with that CPU and no bandwidth reserved."
            }
            @for chart in charts { (chart) }
            @if !trials.is_empty() { (table(trials)) }
            (self::refused(&contention.refused))
        }
    })
}

fn refused(requests: &[Refused]) -> Markup {
    html! {
        @if !requests.is_empty() {
            h3 { "Refused, and so not run" }
            ul {
                @for Refused { application, goal, reason } in requests {
                    li { (application) ", " (goal) ": " (reason) "." }
                }
            }
        }
    }
}

fn chart(offset: usize, trials: &[Trial]) -> Result<Markup> {
    // Of what was promised, so that requests of a tenth of a second can be seen beside those of many.
    let bars = |trial: &Trial| {
        let times = [Some(trial.with_nanos), trial.without_nanos];
        let part = |time: Nanos| 100.0 * time.as_secs_f64() / trial.promised_nanos.as_secs_f64();
        times.into_iter().flatten().map(part).collect()
    };
    let group = |(at, trial): (usize, &Trial)| Group {
        label: format!("{}: {}", offset + at + 1, trial.application),
        bars: bars(trial),
    };
    let chart = BarChart {
        title: "Times of requests, of what each was promised".into(),
        y_label: "% of the promised time".into(),
        series: ["with Keeptime", "no bandwidth reserved"].map(String::from).into(),
        groups: trials.iter().enumerate().map(group).collect(),
        bound: Some(100.0),
    };
    let last = offset + trials.len();
    let text = format!(
        "Actual times of requests {} to {last}, numbered as in the table, in percent of the times that \
         were promised (dashed): what is below was in time. A request whose run with no bandwidth reserved did \
         not end in time has no bar for it.",
        offset + 1
    );
    Ok(figure(&chart.to_svg()?, &text, html! { (text) }))
}

fn table(trials: &[Trial]) -> Markup {
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        th.number scope="col" { "no." }
                        @for title in ["application", "goal", "parameters"] {
                            th scope="col" { (title) }
                        }
                        @for title in ["nodes", "Mbit/s per flow", "promised", "with", "error",
                            "without", "error"] {
                            th.number scope="col" { (title) }
                        }
                    }
                }
                tbody {
                    @for (at, trial) in trials.iter().enumerate() { (row(at + 1, trial)) }
                }
            }
        }
        p.note { (quantile_note(trials)) }
    }
}

fn row(number: usize, trial: &Trial) -> Markup {
    html! {
        tr {
            td.number { (number) }
            td { (trial.application) }
            td { (trial.goal) }
            td { (story::parameters(&trial.parameters)) }
            td.number { (trial.nodes) }
            td.number { (mbit(trial.bits_per_second)) }
            td.number { (seconds(trial.promised_nanos)) }
            td.number { (seconds(trial.with_nanos)) }
            (error_cell(trial.error_with()))
            @match trial.without_nanos.zip(trial.error_without()) {
                Some((time, error)) => { td.number { (seconds(time)) } (error_cell(error)) }
                None => { td.number.late colspan="2" { "did not end" } }
            }
        }
    }
}

fn error_cell(error: f64) -> Markup {
    html! { td.number.late[error > 0.0] { (format!("{:+.1} %", 100.0 * error)) } }
}

/// The quantiles that occur: mostly one for all requests.
fn quantile_note(trials: &[Trial]) -> String {
    let mut quantiles: Vec<_> = trials.iter().map(|t| t.quantile_ppm).collect();
    quantiles.sort_unstable();
    quantiles.dedup();
    let texts: Vec<_> = quantiles.iter().map(ToString::to_string).collect();
    format!(
        "Promised times hold for {} of runs. Errors are (actual − promised) / promised; those of \
         runs later than promised are coloured.",
        texts.join(" or ")
    )
}

/// Relative errors without their signs, ascending; those of runs that did not end are infinite.
struct Errors(Vec<f64>);

impl Errors {
    fn of(errors: impl Iterator<Item = Option<f64>>) -> Option<Self> {
        let mut errors: Vec<_> = errors.map(|e| e.map_or(f64::INFINITY, f64::abs)).collect();
        errors.sort_unstable_by(f64::total_cmp);
        (!errors.is_empty()).then_some(Self(errors))
    }

    /// Of an even number the mean of the two middle ones; where only the greater of these did not
    /// end, the lesser is a bound that does not make the case look worse than it was.
    fn median_text(&self) -> String {
        let (below, above) = (self.0[(self.0.len() - 1) / 2], self.0[self.0.len() / 2]);
        if below.is_finite() && above.is_infinite() {
            return format!("more than {}", text(below));
        }
        text((below + above) / 2.0)
    }

    fn worst_text(&self) -> String {
        text(self.0[self.0.len() - 1])
    }
}

fn text(error: f64) -> String {
    if error.is_finite() { format!("{:.1} %", 100.0 * error) } else { "∞".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_did_not_end_is_worse_than_any_other() {
        let errors = Errors::of([Some(-0.02), None, Some(0.04)].into_iter()).unwrap();
        assert_eq!(errors.median_text(), "4.0 %");
        assert_eq!(errors.worst_text(), "∞");
        let half = Errors::of([Some(0.5), None].into_iter()).unwrap();
        assert_eq!(half.median_text(), "more than 50.0 %");
        let even = Errors::of([Some(0.01), Some(-0.03)].into_iter()).unwrap();
        assert_eq!((even.median_text().as_str(), even.worst_text().as_str()), ("2.0 %", "3.0 %"));
        assert!(Errors::of(std::iter::empty()).is_none());
    }
}
