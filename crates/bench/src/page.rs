//! What the pages of evaluations have in common: a paper's findings beside ours, and figures as text.

use crate::figures::Figure;
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

/// With its spread and count.
pub fn value(figure: &Figure) -> String {
    let Figure { value, spread, samples, unit, .. } = figure;
    format!("{value:.2} {unit} (± {spread:.2}, n = {samples})")
}
