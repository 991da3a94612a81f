//! Which of the paper's figures a run is to measure, as people write them: `8,13-15`.

use super::plan::FIGURES;
use keeptime_model::Invalid;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// `8`, or `13-15` with both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FigureRange(RangeInclusive<u32>);

/// Whether one of `figures` is asked for; nothing asked is everything.
pub fn is_asked(asked: &[FigureRange], figures: &[u32]) -> bool {
    let is_in = |range: &FigureRange| figures.iter().any(|figure| range.0.contains(figure));
    asked.is_empty() || asked.iter().any(is_in)
}

impl FromStr for FigureRange {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let is_there = |figure: &u32| FIGURES.contains(figure);
        match (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            (Ok(first), Ok(last)) if first <= last && is_there(&first) && is_there(&last) => {
                Ok(Self(first..=last))
            }
            _ => {
                let (first, last) = (*FIGURES.start(), *FIGURES.end());
                let expected = format!("one of {first} to {last}, or some in a row as in 13-15");
                Err(Invalid::new("figure", text, expected))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(texts: &[&str]) -> Vec<FigureRange> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn one_figure_or_some_in_a_row_are_asked_for() {
        let asked = read(&["8", "13-15"]);
        let has = |figure| is_asked(&asked, &[figure]);
        let found: Vec<u32> = FIGURES.filter(|figure| has(*figure)).collect();
        assert_eq!(found, [8, 13, 14, 15]);
        // What shows several figures is measured for any of them.
        assert!(is_asked(&read(&["7"]), &[4, 6, 7]));
        assert!(!is_asked(&read(&["5"]), &[4, 6, 7]));
        assert!(is_asked(&[], &[2]), "nothing asked is everything");
    }

    #[test]
    fn a_figure_that_is_not_there_is_refused_with_those_that_are() {
        for text in ["1", "16", "1-3", "14-16", "5-4", "eight", "8-", ""] {
            let error = text.parse::<FigureRange>().unwrap_err();
            assert!(error.to_string().contains("2 to 15"), "{text}: {error}");
        }
    }
}
