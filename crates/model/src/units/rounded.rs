//! Quantities as people read them: three digits in the greatest unit that fits, and spans of time as
//! clocks have them. What must be read back unchanged is told by the quantity's own `Display`.

use super::{
    BYTE_RATE_UNITS, BYTE_UNITS, BitsPerSecond, Bytes, BytesPerSecond, CpuPpm, Nanos, PERCENT,
    RATE_UNITS, Share, TIME_UNITS, Unit, in_decimals,
};
use std::fmt;

/// A quantity that is shown rounded: `42.3 Mbit/s`, `8.93 %`, `2 h 30 min`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounded<T> {
    quantity: T,
    towards: Towards,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Towards {
    Nearest,
    More,
    Less,
}

macro_rules! rounded {
    ($type:ident, $text:expr) => {
        impl $type {
            /// As people read it: to three digits, and a span of a minute or more in two units.
            pub const fn rounded(self) -> Rounded<Self> {
                Rounded { quantity: self, towards: Towards::Nearest }
            }

            /// The same, never less than it is: what is needed or promised.
            pub const fn rounded_up(self) -> Rounded<Self> {
                Rounded { quantity: self, towards: Towards::More }
            }

            /// The same, never more than it is: what there is.
            pub const fn rounded_down(self) -> Rounded<Self> {
                Rounded { quantity: self, towards: Towards::Less }
            }
        }
        impl fmt::Display for Rounded<$type> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&$text(u64::from(self.quantity.0), self.towards))
            }
        }
    };
}

rounded!(BitsPerSecond, |bits, towards| three_digits(bits, &RATE_UNITS[..4], towards));
rounded!(BytesPerSecond, |bytes, towards| three_digits(bytes, &BYTE_RATE_UNITS[..4], towards));
rounded!(Bytes, |bytes, towards| three_digits(bytes, &BYTE_UNITS[..4], towards));
rounded!(CpuPpm, |ppm, towards| three_digits(ppm, PERCENT, towards));
rounded!(Share, |ppm, towards| three_digits(ppm, PERCENT, towards));
rounded!(Nanos, span);

/// What is rounded up to the next greater unit is told in that one.
fn span(nanos: u64, towards: Towards) -> String {
    let count = |unit: u64| quotient(nanos.into(), unit.into(), towards);
    let (tenths, seconds, minutes) = (count(SECOND / 10), count(SECOND), count(MINUTE));
    match nanos {
        0 => "0 s".to_owned(),
        _ if tenths < 600 => three_digits(nanos, &TIME_UNITS[..4], towards),
        _ if seconds < 3_600 => two_units(seconds, 60, "min", "s"),
        _ if minutes < 1_440 => two_units(minutes, 60, "h", "min"),
        _ => two_units(count(HOUR), 24, "d", "h"),
    }
}

/// So many of the lesser unit, of which `of_greater` are one of the greater.
fn two_units(amount: u128, of_greater: u128, greater: &str, lesser: &str) -> String {
    match (amount / of_greater, amount % of_greater) {
        (whole, 0) => format!("{whole} {greater}"),
        (whole, rest) => format!("{whole} {greater} {rest} {lesser}"),
    }
}

/// Three digits of `value` in the greatest of `units` that fits; all digits of a greater whole number.
fn three_digits(value: u64, units: &[Unit], towards: Towards) -> String {
    let fits = units.iter().rposition(|unit| value >= unit.1).unwrap_or(0);
    let (name, factor) = (units[fits].0, u128::from(units[fits].1));
    let scaled = |decimals| u128::from(value) * 10u128.pow(decimals);
    let has_three = |decimals: &u32| scaled(*decimals) >= 100 * factor;
    let decimals = (0..DECIMALS_MAX).find(has_three).unwrap_or(DECIMALS_MAX);
    let digits = quotient(scaled(decimals), factor, towards);
    match units.get(fits + 1) {
        // It was rounded up to one of the next unit.
        Some((next, of)) if decimals == 0 && digits * factor == u128::from(*of) => {
            in_decimals(1, 0, next)
        }
        _ => in_decimals(digits, decimals, name),
    }
}

fn quotient(value: u128, by: u128, towards: Towards) -> u128 {
    match towards {
        Towards::Nearest => (value + by / 2) / by,
        Towards::More => value.div_ceil(by),
        Towards::Less => value / by,
    }
}

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
/// A millionth of a CPU is exact to so many decimals of a percent, and three digits of it to two more.
const DECIMALS_MAX: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn people_are_told_three_digits_in_the_unit_that_fits() {
        let rates = [
            (0, "0 bit/s"),
            (999, "999 bit/s"),
            (1_500_000, "1.5 Mbit/s"),
            (9_994_999, "9.99 Mbit/s"),
            (9_995_000, "10 Mbit/s"),
            (42_311_011, "42.3 Mbit/s"),
            (999_499_999, "999 Mbit/s"),
            (999_500_000, "1 Gbit/s"),
            (1_234_567_000_000, "1235 Gbit/s"),
        ];
        for (bits, told) in rates {
            assert_eq!(BitsPerSecond::new(bits).rounded().to_string(), told);
        }
        assert_eq!(BytesPerSecond::new(1_234_567).rounded().to_string(), "1.23 MB/s");
        assert_eq!(Bytes::new(1_234_567).rounded().to_string(), "1.23 MB");
        let shares = [(0, "0 %"), (1, "0.0001 %"), (1_234, "0.123 %"), (89_263, "8.93 %")];
        let shares = [&shares[..], &[(8_000_000, "800 %"), (12_345_678, "1235 %")]].concat();
        for (ppm, told) in shares {
            assert_eq!(CpuPpm::new(ppm).rounded().to_string(), told);
        }
        assert_eq!(
            format!("{:>8}|{:<6}|", CpuPpm::new(89_263).rounded(), Share::ONE.rounded()),
            "  8.93 %|100 % |"
        );
    }

    #[test]
    fn spans_are_told_as_clocks_have_them() {
        let spans = [
            (0, "0 s"),
            (7, "7 ns"),
            (384_674_000, "385 ms"),
            (16_666_666_667, "16.7 s"),
            (59_949_999_999, "59.9 s"),
            (59_950_000_000, "1 min"),
            (1_441_400_000_000, "24 min 1 s"),
            (3_599_499_999_999, "59 min 59 s"),
            (3_599_500_000_000, "1 h"),
            (9_000_000_000_000, "2 h 30 min"),
            (84_457_000_000_000, "23 h 28 min"),
            (86_370_000_000_000, "1 d"),
            (129_600_000_000_000, "1 d 12 h"),
        ];
        for (nanos, told) in spans {
            assert_eq!(Nanos::new(nanos).rounded().to_string(), told);
        }
    }

    #[test]
    fn what_is_needed_is_rounded_up_and_what_there_is_down() {
        let told = |nanos| {
            let span = Nanos::new(nanos);
            [span.rounded_up(), span.rounded_down()].map(|span| span.to_string())
        };
        assert_eq!(told(384_100_000), ["385 ms", "384 ms"]);
        assert_eq!(told(384_900_000), ["385 ms", "384 ms"]);
        assert_eq!(told(999_000_001), ["1 s", "999 ms"]);
        assert_eq!(told(59_900_000_001), ["1 min", "59.9 s"]);
        assert_eq!(told(3_599_000_000_001), ["1 h", "59 min 59 s"]);
    }

    proptest! {
        // Goal: what people are told is what is so, but for its last digit. Method: it is read back.
        #[test]
        fn what_is_rounded_is_near(bits: u64, nanos in 0u64..1 << 63) {
            let read = |rate: Rounded<BitsPerSecond>| rate.to_string().parse::<BitsPerSecond>().unwrap().get();
            let rate = BitsPerSecond::new(bits);
            prop_assert!(read(rate.rounded()).abs_diff(bits) <= bits / 200 + 1);
            // An hour beside a day is the coarsest.
            let read = |span: Rounded<Nanos>| span.to_string().parse::<Nanos>().unwrap().get();
            let span = Nanos::new(nanos);
            prop_assert!(read(span.rounded()).abs_diff(nanos) <= nanos / 48 + 1);
            let (more, less) = (read(span.rounded_up()), read(span.rounded_down()));
            prop_assert!(less <= nanos && nanos <= more && more - less <= nanos / 24 + 1);
        }
    }
}
