//! What a user asks for: any subset of `{t1, t2, x_1..x_n}` (thesis, 3.5.1), and what to prefer.

use crate::Invalid;
use crate::application::{Application, Parameters};
use crate::name::Name;
use crate::units::{Nanos, Share};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The share of runs that a promised time shall hold for, where nothing is said of it: nine in ten.
pub const QUANTILE: Share = Share::from_percent(90).expect("at most 100");

/// A request in the user's terms. Every part may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// `t1`: the execution time shall be at least this long.
    #[serde(default, rename = "at_least_nanos", skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Nanos>,
    /// `t2`: the execution time shall be at most this long.
    #[serde(default, rename = "within_nanos", skip_serializing_if = "Option::is_none")]
    pub within: Option<Nanos>,
    /// `x_i`: parameters that must have these values.
    #[serde(default)]
    pub set: Parameters,
    /// The number of nodes, where the user insists on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// What to take among all that satisfies the above.
    #[serde(default)]
    pub prefer: Preference,
    /// The share of runs that the promised time shall hold for; whoever plans chooses where it is
    /// left out.
    #[serde(default, rename = "quantile_ppm", skip_serializing_if = "Option::is_none")]
    pub quantile: Option<Share>,
}

/// The order among alternatives that satisfy a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Preference {
    /// The least execution time (the thesis).
    #[default]
    Fastest,
    /// The application's order of preference among parameters, then the least time.
    Best,
    /// The fewest resources: bandwidth of all flows and nodes.
    Cheapest,
    /// The least time where the cluster is idle, and the fewer resources the more of it is reserved: so many
    /// that others would gain more by the next than this one.
    Balanced,
}

impl Goal {
    /// Checks the goal against the application that it is about.
    ///
    /// # Errors
    /// An unknown parameter, value or number of nodes, or `t1 > t2`.
    pub fn check(&self, application: &Application) -> Result<(), Invalid> {
        for (name, value) in &self.set {
            application.check_value(name.as_str(), value)?;
        }
        if let Some(nodes) = self.nodes.filter(|n| !application.nodes().contains(n)) {
            let known: Vec<_> = application.nodes().iter().map(u32::to_string).collect();
            return Err(Invalid::new("nodes", nodes, known.join(", ")));
        }
        if self.within == Some(Nanos::new(0)) {
            return Err(Invalid::new("within", "0 s", "more than 0 s"));
        }
        if let Some(never) = self.quantile.filter(|quantile| quantile.ppm() == 0) {
            return Err(Invalid::new(
                "quantile",
                never,
                "more than 0 %: what is never kept is no promise",
            ));
        }
        match (self.at_least, self.within) {
            (Some(least), Some(most)) if least > most => {
                Err(Invalid::new("at-least", least, format!("at most the bound within, {most}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether `time` lies between the bounds (`match_time` in the thesis).
    pub fn admits_time(&self, time: Nanos) -> bool {
        self.at_least.is_none_or(|t1| time >= t1) && self.within.is_none_or(|t2| time <= t2)
    }

    /// Whether a curve's attributes match (`match` in the thesis).
    pub fn admits_curve(&self, parameters: &Parameters, nodes: u32) -> bool {
        let given = |(name, value): (&Name, &String)| parameters.get(name) == Some(value);
        self.nodes.is_none_or(|n| n == nodes) && self.set.iter().all(given)
    }
}

impl Goal {
    /// As people read it, with bounds to three digits: whoever asks for that asks for no more than this.
    pub fn rounded(&self) -> String {
        let at_least = self.at_least.map(|bound| bound.rounded_down().to_string());
        self.words(at_least, self.within.map(|bound| bound.rounded_up().to_string()))
    }

    fn words(&self, at_least: Option<String>, within: Option<String>) -> String {
        let mut parts = Vec::new();
        parts.extend(at_least.map(|bound| format!("at least {bound}")));
        parts.extend(within.map(|bound| format!("within {bound}")));
        parts.extend(self.set.iter().map(|(name, value)| format!("{name} = {value}")));
        parts.extend(self.nodes.map(|n| format!("on {n} nodes")));
        if parts.is_empty() {
            parts.push("no condition".into());
        }
        let unusual = self.quantile.filter(|quantile| *quantile != QUANTILE);
        parts.extend(unusual.map(|quantile| format!("for {quantile} of runs")));
        format!("{}, {} first", parts.join(", "), self.prefer)
    }
}

/// With its bounds as they were given.
impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exactly = |bound: Option<Nanos>| bound.map(|bound| bound.to_string());
        f.write_str(&self.words(exactly(self.at_least), exactly(self.within)))
    }
}

crate::named!(
    Preference, "prefer", either:
    Fastest "fastest",
    Best "best",
    Cheapest "cheapest",
    Balanced "balanced",
);

/// Reads `NAME=VALUE`, as after `--set`.
///
/// # Errors
/// If there is no `=` or the name cannot be a parameter's.
pub fn parse_setting(text: &str) -> Result<(Name, String), Invalid> {
    let refuse = || Invalid::new("set", text, "NAME=VALUE, as in interleave=0");
    let (name, value) = text.split_once('=').ok_or_else(refuse)?;
    if value.is_empty() {
        return Err(refuse());
    }
    Ok((name.parse().map_err(|_| refuse())?, value.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_are_inclusive_and_optional() {
        let second = Nanos::from_secs(1);
        let goal = Goal { within: Some(second), ..Goal::default() };
        assert!(goal.admits_time(second) && !goal.admits_time(Nanos::new(second.get() + 1)));
        assert!(Goal::default().admits_time(Nanos::new(u64::MAX)));
    }

    #[test]
    fn a_share_of_runs_is_said_where_it_is_not_the_usual_one() {
        let said = |percent| {
            let within = Some(Nanos::from_secs(1));
            Goal { within, quantile: Share::from_percent(percent), ..Goal::default() }.to_string()
        };
        assert_eq!(said(90), "within 1 s, fastest first");
        assert_eq!(said(99), "within 1 s, for 99 % of runs, fastest first");
        let goal = Goal { quantile: Share::from_percent(50), ..Goal::default() };
        assert_eq!(goal.to_string(), "no condition, for 50 % of runs, fastest first");
        assert_eq!(Goal::default().to_string(), "no condition, fastest first");
    }

    #[test]
    fn what_is_never_kept_is_no_goal() {
        let file = "name = \"a\"\ncommand = [\"a\"]\npattern = \"pairs\"\nnodes = [2]\n\
            cpu = \"20 %\"\ntimeout = \"60 s\"\ntime = \"wall\"\n";
        let application = Application::from_toml(file).unwrap();
        let check = |ppm: u32| {
            let quantile = Some(Share::try_from(ppm).unwrap());
            Goal { quantile, ..Goal::default() }.check(&application).map_err(|error| error.field)
        };
        assert_eq!(check(0), Err("quantile".into()));
        assert_eq!(check(1), Ok(()));
    }

    #[test]
    fn settings_need_a_name_and_a_value() {
        assert!(parse_setting("size=512").is_ok());
        for bad in ["size", "=512", "size=", "Size=1", ""] {
            assert_eq!(parse_setting(bad).unwrap_err().value.as_deref(), Some(bad));
        }
    }

    proptest! {
        #[test]
        fn any_setting_is_read_or_refused(text in "\\PC{0,40}") {
            if let Ok((name, value)) = parse_setting(&text) {
                prop_assert_eq!(format!("{name}={value}"), text);
            }
        }
    }
}
