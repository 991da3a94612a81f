//! Who is at the other end of a connection: on a Unix socket it is who the kernel says. Over TCP it is
//! who a certificate or a token says: [`crate::tcp`].

use keeptime_engine::Caller;
use keeptime_model::reservation::UserName;
use std::collections::BTreeSet;

/// Connections of users at a time, through each door.
pub(crate) const CONNECTIONS_MAX: usize = 1_024;
/// Of one user, so that nobody takes all, wherever they come from.
pub(crate) const CONNECTIONS_OF_USER_MAX: usize = 256;

/// Who may change the reservations of others.
#[derive(Debug, Clone, Default)]
pub struct Operators(BTreeSet<UserName>);

impl Operators {
    /// These, root, and the user that the broker runs as.
    pub fn new(names: impl IntoIterator<Item = UserName>) -> Self {
        Self(names.into_iter().collect())
    }

    /// The user of this machine with this number, who is called `user`.
    pub fn caller(&self, uid: u32, user: UserName) -> Caller {
        let operator = is_own(uid) || self.0.contains(&user);
        Caller { user, operator }
    }

    /// The user of this name, who came over the network: an operator only if named as one. What root
    /// and the broker's own user may, they may on this machine.
    pub fn named(&self, user: UserName) -> Caller {
        let operator = self.0.contains(&user);
        Caller { user, operator }
    }
}

/// Whether `user`, which the user with this number is called, is no name but that number. On most machines everybody has
/// 65,536 such numbers beside their own (subuid(5)), and can be at the other end as any of them.
pub fn is_nameless(uid: u32, user: &UserName) -> bool {
    user.as_str() == format!("uid-{uid}")
}

/// Whether an agent may run as this user.
pub fn may_be_agent(uid: u32) -> bool {
    is_own(uid)
}

pub(crate) fn is_own(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_linux::users;

    /// Nobody has this number: it is what unmapped users are not.
    const STRANGER: u32 = 3_999_999_999;

    #[test]
    fn root_and_the_named_are_operators_and_strangers_have_a_name() {
        let operators = Operators::new([format!("uid-{STRANGER}").parse().unwrap()]);
        let here = |operators: &Operators, uid| operators.caller(uid, users::name_of(uid).unwrap());
        let root = here(&operators, 0);
        assert_eq!((root.user.as_str(), root.operator), ("root", true));
        assert!(here(&operators, STRANGER).operator);
        let other = here(&Operators::default(), STRANGER);
        assert_eq!((other.user.to_string(), other.operator), (format!("uid-{STRANGER}"), false));
        assert!(is_nameless(STRANGER, &other.user) && !is_nameless(1, &other.user));
        assert!(!is_nameless(0, &root.user));
        assert!(may_be_agent(0) && !may_be_agent(STRANGER));
        let far = |name: &str| operators.named(name.parse().unwrap()).operator;
        assert!(far(&format!("uid-{STRANGER}")) && !far("root"), "root is so on its machine alone");
    }
}
