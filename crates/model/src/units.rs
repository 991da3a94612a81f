//! Quantities as integer types: rounding is in the name of each operation, overflow is an error.
//!
//! Text forms are those of configuration files and the command line. Decimal prefixes for rates
//! (1 Mbit/s = 10^6 bit/s; `MBps` = 8 * 10^6 bit/s, as in the papers) and for bytes (`MB`), binary
//! ones (`MiB`) for bytes only. `Display` is exact, and is read back; [`Rounded`] is for people.

mod rounded;
mod spans;

pub use rounded::Rounded;

use crate::Invalid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A bandwidth in bits per second, for one direction.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct BitsPerSecond(u64);

/// A disk's or file's rate in bytes per second.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct BytesPerSecond(u64);

/// An amount of data in bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(u64);

/// A span of time in nanoseconds.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(u64);

/// UTC in nanoseconds since 1970: for reservations, journals and people.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct WallTime(u64);

/// CPU as parts per million of one CPU: 200,000 is 20 % of one, 2,000,000 is two whole ones.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct CpuPpm(u32);

/// A share or probability in parts per million, 0 to 1,000,000.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(try_from = "u32", into = "u32")]
pub struct Share(u32);

impl BitsPerSecond {
    /// No bandwidth.
    pub const ZERO: Self = Self(0);

    /// A rate of `bits` per second.
    pub const fn new(bits: u64) -> Self {
        Self(bits)
    }

    /// A rate of `mbit` * 10^6 bits per second.
    pub const fn from_mbit(mbit: u64) -> Self {
        Self(mbit * 1_000_000)
    }

    /// A rate in the papers' unit, 10^6 bytes per second.
    pub const fn from_mega_bytes(mega_bytes: u64) -> Self {
        Self(mega_bytes * 8_000_000)
    }

    /// Bits per second.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Bytes per second, rounded up: what the kernel must be asked for so that the rate is reached.
    pub const fn bytes_per_second_ceil(self) -> u64 {
        self.0.div_ceil(8)
    }

    /// For curve fits and pictures only.
    pub fn as_mbit_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Bytes that pass in `span`, rounded down (supply).
    pub fn bytes_in_floor(self, span: Nanos) -> Bytes {
        let bits = u128::from(self.0) * u128::from(span.0) / NANOS_PER_SECOND;
        Bytes(u64::try_from(bits / 8).unwrap_or(u64::MAX))
    }

    /// `self + other`, or nothing if the sum does not exist.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// `self - other`, or nothing if `other` is greater.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// `self * count`, or nothing on overflow.
    pub fn checked_mul(self, count: u64) -> Option<Self> {
        self.0.checked_mul(count).map(Self)
    }

    /// An equal part for each of `count` users, rounded down (supply). `count` of 0 gives it all.
    pub fn divided_floor(self, count: u64) -> Self {
        Self(self.0 / count.max(1))
    }

    /// `share` of this rate, rounded down (supply).
    pub fn share_floor(self, share: Share) -> Self {
        Self((u128::from(self.0) * u128::from(share.0) / 1_000_000) as u64)
    }
}

impl Bytes {
    /// `bytes` bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Time to pass at `rate`, rounded up (demand); nothing at a rate of zero or beyond 584 years.
    pub fn time_at_ceil(self, rate: BitsPerSecond) -> Option<Nanos> {
        let bits = u128::from(self.0) * 8 * NANOS_PER_SECOND;
        let nanos = bits.checked_add(u128::from(rate.0).checked_sub(1)?)? / u128::from(rate.0);
        u64::try_from(nanos).ok().map(Nanos)
    }
}

impl BytesPerSecond {
    /// `bytes` bytes per second.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// `mega_bytes` * 10^6 bytes per second.
    pub const fn from_mega_bytes(mega_bytes: u64) -> Self {
        Self(mega_bytes * 1_000_000)
    }

    /// Bytes per second.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Nanos {
    /// `nanos` nanoseconds.
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs * 1_000_000_000)
    }

    /// `self + other`, or the longest span there is.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// `self - other`, or nothing of it if `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// From seconds as measured; `None` if negative, not a number or beyond 584 years.
    pub fn from_secs_f64(secs: f64) -> Option<Self> {
        let nanos = secs * 1e9;
        (nanos >= 0.0 && nanos < u64::MAX as f64).then_some(Self(nanos.round() as u64))
    }

    /// The number of nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The least number of whole seconds that is no less; [`u64::MAX`] ns if there is none.
    pub const fn whole_seconds_ceil(self) -> Self {
        const SECOND: u64 = NANOS_PER_SECOND as u64;
        Self(self.0.div_ceil(SECOND).saturating_mul(SECOND))
    }

    /// For fits, pictures and people.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl WallTime {
    /// `nanos` nanoseconds after 1970-01-01T00:00:00Z.
    pub const fn from_unix_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds after 1970-01-01T00:00:00Z.
    pub const fn unix_nanos(self) -> u64 {
        self.0
    }

    /// `self + span`, or the end of time.
    #[must_use]
    pub fn saturating_add(self, span: Nanos) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The first whole second that is not before it: what people say of a time from which on something holds.
    pub const fn whole_second_ceil(self) -> Self {
        Self(Nanos(self.0).whole_seconds_ceil().0)
    }

    /// Time from `earlier` to `self`; zero if the clock was set back meanwhile.
    pub fn saturating_since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl CpuPpm {
    /// `ppm` millionths of one CPU.
    pub const fn new(ppm: u32) -> Self {
        Self(ppm)
    }

    /// `percent` hundredths of one CPU.
    pub const fn from_percent(percent: u32) -> Self {
        Self(percent * 10_000)
    }

    /// Millionths of one CPU.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// `self - other`, or nothing if `other` is greater.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// `self + other`, or nothing on overflow.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// CPU time in every `period`, rounded down.
    pub fn time_in_floor(self, period: Nanos) -> Nanos {
        Nanos((u128::from(period.0) * u128::from(self.0) / 1_000_000) as u64)
    }
}

impl Share {
    /// Everything.
    pub const ONE: Self = Self(1_000_000);

    /// `percent` hundredths; nothing above 100.
    pub const fn from_percent(percent: u32) -> Option<Self> {
        if percent <= 100 { Some(Self(percent * 10_000)) } else { None }
    }

    /// Parts per million.
    pub const fn ppm(self) -> u32 {
        self.0
    }

    /// For fits and reports.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

impl TryFrom<u32> for Share {
    type Error = Invalid;
    fn try_from(ppm: u32) -> Result<Self, Invalid> {
        if ppm <= 1_000_000 {
            return Ok(Self(ppm));
        }
        Err(Invalid::new("share", ppm, "0 to 1000000 parts per million"))
    }
}

/// More than 584 years are the greatest span there is.
impl From<Duration> for Nanos {
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Before 1970 is 1970.
impl From<SystemTime> for WallTime {
    fn from(time: SystemTime) -> Self {
        let since = Nanos::from(time.duration_since(UNIX_EPOCH).unwrap_or_default());
        Self(since.0)
    }
}

impl From<Share> for u32 {
    fn from(share: Share) -> u32 {
        share.0
    }
}

// ---- text forms -------------------------------------------------------------------------------

/// UTC, to the second, as RFC 3339 has it: `2026-11-30T08:00:00Z`.
impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1_000_000_000;
        let ([year, month, day], second) = (civil(seconds / 86_400), seconds % 86_400);
        let [hour, minute, second] = [second / 3_600, second / 60 % 60, second % 60];
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// Year, month and day of the Gregorian calendar, so many days after 1970-01-01. Counted in eras of 400
/// years that begin with March, so that leap days are last (H. Hinnant, "chrono-Compatible Low-Level
/// Date Algorithms", `civil_from_days`).
fn civil(days: u64) -> [u64; 3] {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    [era * 400 + year + u64::from(month <= 2), month, day]
}

/// Its name, and how many of the base unit it is.
type Unit = (&'static str, u64);

const RATE_UNITS: &[Unit] = &[
    ("bit/s", 1),
    ("kbit/s", 1_000),
    ("Mbit/s", 1_000_000),
    ("Gbit/s", 1_000_000_000),
    ("bit", 1),
    ("kbit", 1_000),
    ("Mbit", 1_000_000),
    ("Gbit", 1_000_000_000),
    ("kBps", 8_000),
    ("MBps", 8_000_000),
    ("GBps", 8_000_000_000),
];
const BYTE_UNITS: &[Unit] = &[
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];
const BYTE_RATE_UNITS: &[Unit] = &[
    ("B/s", 1),
    ("kB/s", 1_000),
    ("MB/s", 1_000_000),
    ("GB/s", 1_000_000_000),
    ("KiB/s", 1 << 10),
    ("MiB/s", 1 << 20),
    ("GiB/s", 1 << 30),
];
const TIME_UNITS: &[Unit] = &[
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    DAY,
];
const DAY: Unit = ("d", 86_400_000_000_000);
const PERCENT_UNITS: &[Unit] = &[("%", 10_000), ("ppm", 1)];
const PERCENT: &[Unit] = &[("%", 10_000)];

/// A decimal number and a unit, exactly: `"1.5 Mbit/s"` is 1,500,000. What does not come out as a
/// whole number of the base unit, or does not fit, is refused.
fn parse_quantity(field: &str, text: &str, units: &[Unit], example: &str) -> Result<u64, Invalid> {
    let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
    let form = || format!("a number and a unit ({}), as in {example:?}", names.join(", "));
    let refuse = || Invalid::new(field, text, form());
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(refuse)?;
    let (number, unit) = trimmed.split_at(split);
    let (_, factor) =
        units.iter().find(|(name, _)| *name == unit.trim_start()).ok_or_else(refuse)?;
    scale_decimal(number, *factor).map_err(|wrong| match wrong {
        Wrong::Form => refuse(),
        Wrong::TooGreat => {
            Invalid::new(field, text, format!("at most {} {}", u64::MAX, units[0].0))
        }
    })
}

/// What is wrong with a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// It is none.
    Form,
    /// There is no more than `u64::MAX` of the base unit.
    TooGreat,
}

/// `number * factor` without floating point. What is not a whole number is none.
fn scale_decimal(number: &str, factor: u64) -> Result<u64, Wrong> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_decimal = [whole, fraction].concat().bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || number.ends_with('.') || fraction.len() > 15 || !is_decimal {
        return Err(Wrong::Form);
    }
    let unit = 10u128.pow(fraction.len() as u32);
    let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| Wrong::TooGreat)?;
    let scaled = digits.checked_mul(u128::from(factor)).ok_or(Wrong::TooGreat)?;
    if scaled % unit != 0 {
        return Err(Wrong::Form);
    }
    u64::try_from(scaled / unit).map_err(|_| Wrong::TooGreat)
}

/// Writes `value` in the greatest unit that it has one of, with all decimals that it takes: what is
/// printed can be read back unchanged. Factors are powers of ten.
fn format_quantity(f: &mut fmt::Formatter<'_>, value: u64, units: &[Unit]) -> fmt::Result {
    let (name, factor) = units.iter().rfind(|unit| value >= unit.1).unwrap_or(&units[0]);
    f.pad(&in_decimals(value.into(), factor.ilog10(), name))
}

/// `value` / 10^`decimals` of the unit `name`, without zeros that say nothing.
fn in_decimals(value: u128, decimals: u32, name: &str) -> String {
    let unit = 10u128.pow(decimals);
    match (value / unit, value % unit) {
        (whole, 0) => format!("{whole} {name}"),
        (whole, rest) => {
            let fraction = format!("{rest:0width$}", width = decimals as usize);
            format!("{whole}.{} {name}", fraction.trim_end_matches('0'))
        }
    }
}

macro_rules! text_form {
    ($type:ident, $inner:ty, $field:literal, $units:expr, $shown:expr, $example:literal) => {
        impl FromStr for $type {
            type Err = Invalid;
            fn from_str(text: &str) -> Result<Self, Invalid> {
                let value = parse_quantity($field, text, $units, $example)?;
                <$inner>::try_from(value).map(Self).map_err(|_| {
                    Invalid::new($field, text, format!("at most {} {}", <$inner>::MAX, $units[0].0))
                })
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                format_quantity(f, u64::from(self.0), $shown)
            }
        }
    };
}

text_form!(BitsPerSecond, u64, "rate", RATE_UNITS, &RATE_UNITS[..4], "200 Mbit/s");
text_form!(BytesPerSecond, u64, "rate", BYTE_RATE_UNITS, &BYTE_RATE_UNITS[..4], "50 MB/s");
text_form!(Bytes, u64, "size", BYTE_UNITS, &BYTE_UNITS[..4], "64 KiB");
text_form!(CpuPpm, u32, "cpu", PERCENT_UNITS, PERCENT, "40 %");

impl FromStr for Nanos {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refuse = |wrong| {
            let units: Vec<_> = TIME_UNITS.iter().map(|(name, _)| *name).collect();
            let units = units.join(", ");
            let expected = match wrong {
                Wrong::Form => format!(
                    "a number and a unit ({units}), as in \"1.5 s\" or 2h30m; or 1:30:00, or with days 1-12:00"
                ),
                Wrong::TooGreat => format!("at most {} days", u64::MAX / DAY.1),
            };
            Invalid::new("time", text, expected)
        };
        spans::parse(text).map(Self).map_err(refuse)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        format_quantity(f, self.0, &TIME_UNITS[..4])
    }
}

impl FromStr for Share {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let ppm = parse_quantity("share", text, PERCENT_UNITS, "90 %")?;
        u32::try_from(ppm)
            .ok()
            .and_then(|ppm| Self::try_from(ppm).ok())
            .ok_or_else(|| Invalid::new("share", text, "0 % to 100 %"))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        format_quantity(f, u64::from(self.0), PERCENT)
    }
}

/// Serde as text (`"200 Mbit/s"`), for files that people write: `#[serde(with = "units::text")]`.
pub mod text {
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};
    use std::fmt::{self, Display};
    use std::marker::PhantomData;
    use std::str::FromStr;

    /// Writes the quantity such that it is read back unchanged.
    pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    /// Reads the quantity as people write it.
    pub fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err = crate::Invalid>,
        D: Deserializer<'de>,
    {
        from.deserialize_str(Text(PhantomData))
    }

    struct Text<T>(PhantomData<T>);

    /// A number without its unit is refused in the words of the quantity, as any text is.
    impl<T: FromStr<Err = crate::Invalid>> Visitor<'_> for Text<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text in quotes")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
    }
}

/// The same of what may be left out.
pub mod text_option {
    use serde::{Deserializer, Serializer};
    use std::fmt::Display;
    use std::str::FromStr;

    /// Writes the quantity as people read it.
    pub fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    /// Reads the quantity as people write it.
    pub fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err = crate::Invalid>,
        D: Deserializer<'de>,
    {
        super::text::deserialize(from).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_forms_are_exact() {
        assert_eq!("1.5 Mbit/s".parse(), Ok(BitsPerSecond(1_500_000)));
        assert_eq!("40MBps".parse(), Ok(BitsPerSecond::from_mega_bytes(40)));
        assert_eq!("64KiB".parse(), Ok(Bytes(65_536)));
        assert_eq!("250 ms".parse(), Ok(Nanos::from_millis(250)));
        assert_eq!("40 %".parse(), Ok(CpuPpm(400_000)));
        assert_eq!(BitsPerSecond(0).to_string(), "0 bit/s");
        assert_eq!(Nanos(1_500_000).to_string(), "1.5 ms");
        assert_eq!(Nanos(16_666_666_667).to_string(), "16.666666667 s");
        assert_eq!(CpuPpm(89_263).to_string(), "8.9263 %");
        assert_eq!(CpuPpm(0).to_string(), "0 %");
    }

    #[test]
    fn bad_text_names_value_and_units() {
        for bad in
            ["", "12", "Mbit/s", "-3 Mbit/s", "1..2 Mbit/s", "1e3 bit/s", "0.5 bit/s", "NaN s"]
        {
            let error = bad.parse::<BitsPerSecond>().unwrap_err();
            assert_eq!((error.field.as_str(), error.value.as_deref()), ("rate", Some(bad)));
            assert!(error.expected.contains("Gbit/s"), "{error}");
        }
        let rate = "99999999999 Gbit/s".parse::<BitsPerSecond>().unwrap_err();
        assert_eq!(rate.expected, "at most 18446744073709551615 bit/s");
        let time = "999999999999999999h".parse::<Nanos>().unwrap_err();
        assert_eq!(time.expected, "at most 213503 days");
        assert!("101 %".parse::<Share>().is_err());
        assert!("99999999999 %".parse::<CpuPpm>().is_err());
    }

    #[test]
    fn a_start_is_told_as_the_second_from_which_on_it_holds() {
        let told = |nanos| WallTime(nanos).whole_second_ceil().0;
        assert_eq!([0, 1, 1_000_000_000].map(told), [0, 1_000_000_000, 1_000_000_000]);
        assert_eq!(told(2_999_999_999), 3_000_000_000);
        assert_eq!(told(u64::MAX), u64::MAX);
    }

    #[test]
    fn times_are_told_in_utc() {
        let told = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, text) in told {
            assert_eq!(WallTime(seconds * 1_000_000_000 + 999_999_999).to_string(), text);
        }
        assert!(WallTime(u64::MAX).to_string().starts_with("2554-07-21T"));
    }

    #[test]
    fn times_of_the_standard_library_fit_or_stop_at_the_ends() {
        assert_eq!(Nanos::from(Duration::from_millis(3)), Nanos::from_millis(3));
        assert_eq!(Nanos::from(Duration::MAX), Nanos(u64::MAX));
        let second = Duration::from_secs(1);
        assert_eq!(WallTime::from(UNIX_EPOCH + second), WallTime(1_000_000_000));
        assert_eq!(WallTime::from(UNIX_EPOCH - second), WallTime(0));
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(value: u64, ppm: u32) {
            prop_assert_eq!(BitsPerSecond(value).to_string().parse(), Ok(BitsPerSecond(value)));
            prop_assert_eq!(Bytes(value).to_string().parse(), Ok(Bytes(value)));
            let rate = BytesPerSecond(value);
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
            prop_assert_eq!(Nanos(value).to_string().parse(), Ok(Nanos(value)));
            prop_assert_eq!(CpuPpm(ppm).to_string().parse(), Ok(CpuPpm(ppm)));
            let share = Share(ppm % 1_000_001);
            prop_assert_eq!(share.to_string().parse(), Ok(share));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,30}") {
            let _ = (text.parse::<BitsPerSecond>(), text.parse::<Nanos>(), text.parse::<Share>());
        }

        #[test]
        fn rounding_never_makes_supply_out_of_demand(bytes in 0u64..1 << 50, rate in 1u64..1 << 40) {
            let rate = BitsPerSecond(rate);
            if let Some(span) = Bytes(bytes).time_at_ceil(rate) {
                prop_assert!(rate.bytes_in_floor(span) >= Bytes(bytes));
            }
        }
    }
}
