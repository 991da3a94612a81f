//! An error with its causes in one line, as daemons log it and hand it on.

use std::error::Error;
use std::iter::successors;

/// `error` and what caused it, outermost first: `a: b: c`.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use thiserror::Error;

    #[derive(Debug, Error)]
    #[error("{0}")]
    struct Wrapped(&'static str, #[source] Option<Box<Wrapped>>);

    #[test]
    fn causes_follow_their_error() {
        let alone = Wrapped("busy", None);
        assert_eq!(chain(&alone), "busy");
        let wrapped =
            Wrapped("no class", Some(Box::new(Wrapped("netlink", Some(Box::new(alone))))));
        assert_eq!(chain(&wrapped), "no class: netlink: busy");
    }
}
