//! Users of this machine, by the names that reservations know them by.

use keeptime_model::reservation::UserName;
use nix::unistd::{Uid, User};

/// The user with this number. One that has no name here is called after its number. May ask a
/// directory service: not for a thread that others wait for.
pub fn name_of(user: u32) -> UserName {
    let named = User::from_uid(Uid::from_raw(user)).ok().flatten();
    let name = named.and_then(|user| user.name.parse().ok());
    // Letters, a hyphen and digits.
    #[expect(clippy::unwrap_used, reason = "every number gives a user name")]
    name.unwrap_or_else(|| format!("uid-{user}").parse().unwrap())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_a_name() {
        assert_eq!(name_of(0).as_str(), "root");
        // Nobody has this number: it is what unmapped users are not.
        assert_eq!(name_of(3_999_999_999).as_str(), "uid-3999999999");
    }
}
