//! Who a certificate speaks for: a URI among the alternative names of its subject, as in
//! `keeptime:user:ada` or `keeptime:node:n1`. Pure.
//!
//! Not the common name: that of a certificate which was issued for something else may look like a
//! user's, and nothing in it tells a node from a user.

use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::reservation::UserName;
use std::fmt;

/// What URIs that name an identity begin with.
const SCHEME: &str = "keeptime:";

/// Who speaks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// A user: may reserve, and change what is theirs.
    User(UserName),
    /// The agent of a node: may say what that node holds.
    Node(Name),
}

impl Identity {
    /// As it stands in a certificate.
    pub fn uri(&self) -> String {
        match self {
            Self::User(user) => format!("{SCHEME}user:{user}"),
            Self::Node(node) => format!("{SCHEME}node:{node}"),
        }
    }

    /// The identity that `uri` names; nothing if it is about something else.
    ///
    /// # Errors
    /// If it is about Keeptime, and is neither a user nor a node.
    pub fn from_uri(uri: &str) -> Option<Result<Self, Invalid>> {
        let named = uri.strip_prefix(SCHEME)?;
        Some(match named.split_once(':') {
            Some(("user", user)) => user.parse().map(Self::User),
            Some(("node", node)) => node.parse().map(Self::Node),
            _ => Err(Invalid::new("identity", uri, "keeptime:user:NAME or keeptime:node:NAME")),
        })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user {user}"),
            Self::Node(node) => write!(f, "node {node}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_user_is_no_node_and_foreign_names_are_nobody() {
        let parse = |uri| Identity::from_uri(uri);
        assert_eq!(parse("https://example.org/ada"), None);
        assert_eq!(
            parse("keeptime:user:ada@x"),
            Some(Ok(Identity::User("ada@x".parse().unwrap())))
        );
        for bad in ["keeptime:", "keeptime:ada", "keeptime:root:ada", "keeptime:node:N 1"] {
            assert!(parse(bad).unwrap().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_the_same(uri in "(keeptime:(user|node):)?\\PC{0,20}") {
            if let Some(Ok(identity)) = Identity::from_uri(&uri) {
                prop_assert_eq!(identity.uri(), uri);
            }
        }
    }
}
