//! What the pages of evaluations have in common: a paper's findings beside ours, and figures as text.

use crate::figures::{Figure, spread_text};
use maud::{Markup, html};

/// A finding: which figure of the paper, what of it, what the paper says, what was found here.
pub type Claim = (&'static str, &'static str, &'static str, String);

/// Findings as a table.
pub fn claims(rows: &[Claim]) -> Markup {
    html! {
        div.wide {
            table {
                thead {
                    tr { @for title in ["figure", "what", "paper", "here"] { th scope="col" { (title) } } }
                }
                tbody {
                    @for (figure, what, paper, here) in rows {
                        tr { td { (figure) } td { (what) } td { (paper) } td { (here) } }
                    }
                }
            }
        }
    }
}

/// With its spread and count; what never came has neither.
pub fn value(figure: &Figure) -> String {
    let Figure { spread, samples, unit, never, .. } = figure;
    let value = figure.value_text(2);
    match never {
        true => value,
        false => format!("{value} {unit} (± {}, n = {samples})", spread_text(*spread, 2)),
    }
}
