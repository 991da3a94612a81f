//! The execution time as an application tells it.

use keeptime_model::application::TimeSource;
use keeptime_model::units::Nanos;

/// The time of a run that printed `lines` and took `wall`: nothing if the application should have
/// told it and did not.
pub fn told_time<'a>(
    source: &TimeSource,
    lines: impl IntoIterator<Item = &'a str>,
    wall: Nanos,
) -> Option<Nanos> {
    match source {
        TimeSource::Stdout(key) => {
            lines.into_iter().filter_map(|line| time_in_line(key, line)).last()
        }
        _ => Some(wall),
    }
}

/// The seconds of a line `KEY SECONDS`.
fn time_in_line(key: &str, line: &str) -> Option<Nanos> {
    let mut words = line.split_whitespace();
    let seconds = (words.next() == Some(key)).then(|| words.next())??;
    let nanos = Nanos::from_secs_f64(seconds.parse().ok()?)?;
    (nanos > Nanos::new(0) && words.next().is_none()).then_some(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WALL: Nanos = Nanos::from_secs(9);

    #[test]
    fn the_last_line_with_the_key_counts() {
        let source = TimeSource::Stdout("time".into());
        let lines =
            ["frame 0 0.1", "time 0.25", "time 0.5", "time nan", "time -1", "time 1 2", "timed 7"];
        assert_eq!(told_time(&source, lines, WALL), Some(Nanos::from_millis(500)));
        assert_eq!(told_time(&source, ["frame 0 0.1"], WALL), None);
        assert_eq!(told_time(&TimeSource::Wall, [], WALL), Some(WALL));
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_passed_over(line in "\\PC{0,60}") {
            let _ = told_time(&TimeSource::Stdout("time".into()), [line.as_str()], WALL);
        }
    }
}
