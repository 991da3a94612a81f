//! The thesis' three metrics (4.4.3), and promises kept, in percent.

use super::arms::Outcome;

/// `(without - with) / with` of those that were admitted, where both ended.
pub fn improvements(with: &[Outcome], without: &[Outcome]) -> Vec<f64> {
    let pairs = with.iter().zip(without);
    pairs.filter_map(|(with, without)| percent_over(without.seconds, with.seconds)).collect()
}

/// The same of responses, from when a request was asked for until its run had ended: what the wait of those that waited
/// leaves of the improvement. Launching counts in both.
pub fn response_improvements(with: &[Outcome], without: &[Outcome]) -> Vec<f64> {
    let pairs = with.iter().zip(without);
    let over = |(with, without): (&Outcome, &Outcome)| {
        percent_over(without.response_seconds(), with.response_seconds())
    };
    pairs.filter_map(over).collect()
}

/// How long those waited that were admitted and had to wait, in seconds.
pub fn waits(outcomes: &[Outcome]) -> Vec<f64> {
    let all = outcomes.iter().filter_map(|outcome| outcome.waited_seconds);
    all.filter(|waited| *waited > AT_ONCE_SECONDS).collect()
}

/// `(actual - requested) / requested` of `actual`, of those that `with` admitted.
pub fn over_requested(with: &[Outcome], actual: &[Outcome], within: &[f64]) -> Vec<f64> {
    let all = with.iter().zip(actual).zip(within).filter(|((with, _), _)| with.is_admitted());
    all.filter_map(|((_, actual), within)| percent_over(actual.seconds, Some(*within))).collect()
}

/// `(actual - promised) / promised` of `actual`, by what `with` promised.
pub fn over_promised(with: &[Outcome], actual: &[Outcome]) -> Vec<f64> {
    let pairs = with.iter().zip(actual);
    pairs.filter_map(|(with, actual)| percent_over(actual.seconds, with.promised_seconds)).collect()
}

/// 100 for each promise that `with` made and `actual` kept, 0 for each that it did not: by what did not end, too.
pub fn promises_kept(with: &[Outcome], actual: &[Outcome]) -> Vec<f64> {
    let kept = |(with, actual): (&Outcome, &Outcome)| {
        let promised = with.promised_seconds?;
        let is_kept = actual.seconds.is_some_and(|seconds| seconds <= promised);
        Some(if is_kept { 100.0 } else { 0.0 })
    };
    with.iter().zip(actual).filter_map(kept).collect()
}

/// Admitted, of all.
pub fn admission(outcomes: &[Outcome]) -> f64 {
    let admitted = outcomes.iter().filter(|outcome| outcome.is_admitted()).count();
    100.0 * admitted as f64 / outcomes.len().max(1) as f64
}

/// Whoever was admitted after so long did not wait: on a busy machine decisions and agents take some tenths of a second.
const AT_ONCE_SECONDS: f64 = 0.5;

/// The mean; not a number of nothing.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn percent_over(value: Option<f64>, base: Option<f64>) -> Option<f64> {
    Some(100.0 * (value? / base? - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(promised: Option<f64>, seconds: Option<f64>) -> Outcome {
        let refused = promised.is_none().then(|| "no room".to_owned());
        Outcome { refused, promised_seconds: promised, seconds, ..Outcome::default() }
    }

    // Goal: a run that is twice as fast and waited as long as that saves is no improvement; where nothing was recorded
    // of waiting there was none. Method: runs of 4 s and 8 s without, one of each with a wait.
    #[test]
    fn waiting_counts_in_what_a_request_has_of_it() {
        let run = |wall, waited| Outcome {
            wall_seconds: Some(wall),
            waited_seconds: waited,
            ..outcome(Some(1.0), Some(1.0))
        };
        let with = [
            run(4.0, Some(4.0)),
            run(4.0, Some(0.02)),
            run(4.0, None),
            outcome(None, None),
            run(4.0, Some(6.0)),
        ];
        let without = [8.0, 8.04, 8.0, 8.0, 8.0].map(|wall| run(wall, None));
        let round = |values: Vec<f64>| values.iter().map(|v| v.round()).collect::<Vec<_>>();
        let improved = response_improvements(&with, &without);
        assert_eq!(round(improved), [0.0, 100.0, 100.0, -20.0]);
        assert_eq!(waits(&with), [4.0, 6.0]);
    }

    // Goal: who was refused counts for admission alone, who did not end for nothing that needs its time.
    #[test]
    fn metrics_are_those_of_the_admitted() {
        let with =
            [outcome(Some(2.0), Some(2.0)), outcome(None, None), outcome(Some(1.0), Some(1.1))];
        let without =
            [2.5, 9.0, 0.0].map(|seconds| outcome(None, (seconds > 0.0).then_some(seconds)));
        let round = |values: Vec<f64>| values.iter().map(|v| v.round()).collect::<Vec<_>>();
        assert_eq!(round(improvements(&with, &without)), [25.0]);
        assert_eq!(round(over_promised(&with, &with)), [0.0, 10.0]);
        assert_eq!(round(over_promised(&with, &without)), [25.0]);
        assert_eq!(promises_kept(&with, &with), [100.0, 0.0]);
        assert_eq!(promises_kept(&with, &without), [0.0, 0.0]);
        let within = [4.0, 4.0, 2.2];
        assert_eq!(round(over_requested(&with, &with, &within)), [-50.0, -50.0]);
        assert_eq!(round(over_requested(&with, &without, &within)), [-38.0]);
        assert_eq!(admission(&with).round(), 67.0);
    }
}
