//! Services that a node's init system runs, by the names that operators know them by.

use crate::Invalid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Most services of one job on one node.
pub const SERVICES_MAX: usize = 16;

/// A service as systemd names it (systemd.unit(5)), with or without `.service` at its end; `nginx@shop` is the
/// instance `shop` of the template `nginx@.service`. It can never leave its directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceName(String);

impl ServiceName {
    /// As systemd calls its unit and the control group of its processes.
    pub fn unit(&self) -> String {
        format!("{}{SUFFIX}", self.0)
    }
}

impl FromStr for ServiceName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let name = text.strip_suffix(SUFFIX).unwrap_or(text);
        let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        let legal = |c: char| c.is_ascii_alphanumeric() || ":-_.@\\".contains(c);
        if starts && name.len() + SUFFIX.len() <= UNIT_LENGTH_MAX && name.chars().all(legal) {
            return Ok(Self(name.into()));
        }
        let expected = "the name of a systemd service, as nginx@shop or php-fpm.service";
        Err(Invalid::new("services", text, expected))
    }
}

crate::as_text!(ServiceName);

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// That no service is there twice, and that they are not too many.
///
/// # Errors
/// What would be accepted.
pub(crate) fn check_services(services: &[ServiceName]) -> Result<(), Invalid> {
    if services.len() > SERVICES_MAX {
        let expected = format!("at most {SERVICES_MAX}");
        return Err(Invalid::new("services", services.len(), expected));
    }
    let twice = |at: &usize| services[..*at].contains(&services[*at]);
    match (0..services.len()).find(twice) {
        Some(at) => Err(Invalid::new("services", &services[at], "every service once")),
        None => Ok(()),
    }
}

const SUFFIX: &str = ".service";
/// systemd.unit(5): 255 characters with the suffix.
const UNIT_LENGTH_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_service_has_one_name_however_it_is_written() {
        for text in ["nginx@shop", "nginx@shop.service"] {
            let name: ServiceName = text.parse().unwrap();
            assert_eq!(
                (name.to_string(), name.unit()),
                ("nginx@shop".into(), "nginx@shop.service".into())
            );
        }
        for wrong in ["", ".service", "../x", "a/b", "nginx shop", "-nginx", &"n".repeat(248)] {
            let error = wrong.parse::<ServiceName>().unwrap_err();
            assert!(error.expected.contains("nginx@shop"), "{wrong}: {error}");
        }
    }

    #[test]
    fn services_are_few_and_each_is_there_once() {
        let named = |count: usize| (0..count).map(|at| format!("s{at}").parse().unwrap());
        assert_eq!(check_services(&named(SERVICES_MAX).collect::<Vec<_>>()), Ok(()));
        assert!(check_services(&named(SERVICES_MAX + 1).collect::<Vec<_>>()).is_err());
        assert!(check_services(&named(2).chain(named(1)).collect::<Vec<_>>()).is_err());
    }

    proptest! {
        #[test]
        fn accepted_names_are_one_path_component(text in "\\PC{0,60}") {
            if let Ok(name) = text.parse::<ServiceName>() {
                prop_assert!(!name.unit().contains(['/', '\0']) && !name.unit().starts_with('.'));
            }
        }
    }
}
