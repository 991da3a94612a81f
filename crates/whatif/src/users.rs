//! Users who come at random and ask for goals of measured applications, and what they have of a cluster.

use crate::goals::{Asked, Fate, Placement, Speed, World, reserved, unreserved};
use crate::summary::Quantiles;
use keeptime_model::Invalid;
use keeptime_model::goal::Goal;
use keeptime_model::name::Name;
use keeptime_model::units::Nanos;
use keeptime_random::Random;
use serde::Serialize;

/// What a user may want.
#[derive(Debug, Clone, PartialEq)]
pub struct Wish {
    /// Of which application.
    pub application: Name,
    /// The longest that a unit of it may take.
    pub within: Nanos,
    /// What else counts.
    pub goal: Goal,
}

/// How users come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coming {
    /// How many requests there are.
    pub requests: usize,
    /// The mean time between two, which come independently of each other.
    pub every: Nanos,
    /// What each has done: so many times what is promised the time of one.
    pub units: u32,
    /// How long each waits for room; 0 = it is refused at once.
    pub wait: Nanos,
    /// Where random numbers start.
    pub seed: u64,
}

/// Who decides what a request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decides {
    /// The real broker; whoever it admits has what it reserves.
    Keeptime,
    /// The real broker; whoever it admits has what it reserves, and beside that what nobody has reserved.
    KeeptimeSpare,
    /// All start when they are asked for, and share.
    None,
}

/// What users had.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Had {
    /// Who decided.
    pub policy: Decides,
    /// How many requests there were.
    pub requests: usize,
    /// Those that ran, of all.
    pub admitted_percent: f64,
    /// Those whose units took no longer than was wanted, of all.
    pub in_time_percent: f64,
    /// From a request until its run began, of those that ran.
    pub wait_seconds: Option<Quantiles>,
    /// The time of a unit in parts of the longest that was wanted, of those that were done.
    pub time_of_wanted: Option<Quantiles>,
}

/// Requests of users who each want one of `wishes`, all with the same chance. The same seed gives the same requests.
///
/// # Errors
/// If nobody wants anything, or they come later than time can be told.
pub fn asked(wishes: &[Wish], coming: &Coming) -> Result<Vec<Asked>, Invalid> {
    if wishes.is_empty() {
        return Err(Invalid::missing("application", "one at least"));
    }
    let Coming { requests, every, units, wait, seed } = *coming;
    if every == Nanos::default() {
        return Err(Invalid::new("every", every, "more than 0 s"));
    }
    let mut random = Random::new(seed);
    let mut at = 0.0;
    let one = |_| {
        at += every.as_secs_f64() * random.exponential();
        let of = &wishes[(random.part() * wishes.len() as f64) as usize];
        let late = || Invalid::new("every", every, "times that add up to some centuries at most");
        Ok(Asked {
            at: Nanos::from_secs_f64(at).ok_or_else(late)?,
            application: of.application.clone(),
            goal: Goal { within: Some(of.within), ..of.goal.clone() },
            units,
            beside: Nanos::default(),
            wait,
        })
    };
    (0..requests).map(one).collect()
}

/// What they have in `world` if it is decided so.
///
/// # Errors
/// If the cluster, an application or a request makes no sense.
pub fn had(world: &World, asked: &[Asked], policy: Decides) -> Result<Had, Invalid> {
    let fates = match policy {
        Decides::Keeptime => reserved(world, asked, Speed::Promised),
        Decides::KeeptimeSpare => reserved(world, asked, Speed::Spare),
        Decides::None => unreserved(world, asked, Placement::Fewest),
    };
    Ok(Had::of(asked, &fates?, policy))
}

impl Had {
    fn of(asked: &[Asked], fates: &[Fate], policy: Decides) -> Self {
        let pairs = || asked.iter().zip(fates);
        let part = |is: fn(&Asked, &Fate) -> bool| {
            let count = pairs().filter(|(asked, fate)| is(asked, fate)).count();
            100.0 * count as f64 / asked.len().max(1) as f64
        };
        let of_wanted = |(asked, fate): (&Asked, &Fate)| {
            Some(fate.unit?.as_secs_f64() / asked.goal.within?.as_secs_f64())
        };
        let wait = |(_, fate): (&Asked, &Fate)| {
            fate.ended.map(|_| fate.waited.unwrap_or_default().as_secs_f64())
        };
        Self {
            policy,
            requests: asked.len(),
            // Who is ended at a time limit had run.
            admitted_percent: part(|_, fate| fate.ended.is_some()),
            in_time_percent: part(|asked, fate| {
                fate.unit.zip(asked.goal.within).is_some_and(|(unit, within)| unit <= within)
            }),
            wait_seconds: Quantiles::of(pairs().filter_map(wait).collect()),
            time_of_wanted: Quantiles::of(pairs().filter_map(of_wanted).collect()),
        }
    }
}

keeptime_model::named!(
    Decides, "policy", listed:
    Keeptime "keeptime",
    KeeptimeSpare "keeptime-spare",
    None "none",
);

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(name: &str, seconds: u64) -> Wish {
        let within = Nanos::from_secs(seconds);
        Wish { application: name.parse().unwrap(), within, goal: Goal::default() }
    }

    fn coming(seed: u64) -> Coming {
        let (every, wait) = (Nanos::from_secs(10), Nanos::from_secs(1));
        Coming { requests: 4_000, every, units: 3, wait, seed }
    }

    // Goal: users come at random, as often as is said, and want each of what there is; the same come again.
    #[test]
    fn users_come_as_often_as_is_said() {
        let wishes = [wish("one", 2), wish("two", 3)];
        let all = asked(&wishes, &coming(1)).unwrap();
        assert_eq!(all, asked(&wishes, &coming(1)).unwrap());
        assert_ne!(all, asked(&wishes, &coming(2)).unwrap());
        let last = all.last().unwrap().at.as_secs_f64();
        assert!((0.9..1.1).contains(&(last / 40_000.0)), "{last} s");
        let of_one = all.iter().filter(|asked| asked.application.as_str() == "one").count();
        assert!((1_800..2_200).contains(&of_one), "{of_one}");
        let first = &all[0];
        assert_eq!(
            first.goal.within,
            Some(Nanos::from_secs(if first.application.as_str() == "one" { 2 } else { 3 }))
        );
        assert_eq!((first.units, first.wait), (3, Nanos::from_secs(1)));
        assert!(asked(&[], &coming(1)).is_err());
        let at_once = Coming { every: Nanos::default(), ..coming(1) };
        assert_eq!(asked(&wishes, &at_once).unwrap_err().field, "every");
    }

    // Goal: each number is what it says. Method: of five, one in time at once, one after some waiting, one late, one that was
    // ended, and one that was refused.
    #[test]
    fn numbers_are_those_of_the_fates() {
        let all = &asked(&[wish("one", 2)], &coming(1)).unwrap()[..5];
        let ended = Some(Nanos::from_secs(99));
        let ran = |seconds, waited| Fate {
            unit: Some(Nanos::from_secs(seconds)),
            waited: Some(Nanos::from_secs(waited)),
            ended,
            ..Fate::default()
        };
        let cut = Fate { ended, ..Fate::default() };
        let fates = [ran(1, 0), ran(2, 7), ran(3, 0), cut, Fate::default()];
        let had = Had::of(all, &fates, Decides::Keeptime);
        assert_eq!((had.requests, had.admitted_percent, had.in_time_percent), (5, 80.0, 40.0));
        let (wait, time) = (had.wait_seconds.unwrap(), had.time_of_wanted.unwrap());
        assert_eq!((wait.median, wait.most, time.median, time.most), (0.0, 7.0, 1.0, 1.5));
        let none = Had::of(all, &[Fate::default(); 5], Decides::Keeptime);
        assert_eq!((none.wait_seconds, none.time_of_wanted), (None, None));
    }

    #[test]
    fn who_decides_is_read_as_it_is_written() {
        for decides in Decides::ALL {
            assert_eq!(decides.to_string().parse(), Ok(decides));
        }
        let error = "all".parse::<Decides>().unwrap_err().to_string();
        assert!(error.contains("keeptime, keeptime-spare, none"), "{error}");
    }
}
