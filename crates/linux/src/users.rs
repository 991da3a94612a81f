//! Users of this machine, by the names that reservations know them by.

use crate::syscall::SyscallError;
use keeptime_locks::lock;
use keeptime_model::reservation::UserName;
use nix::unistd::{Uid, User};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Names that are remembered for a time when nobody tells them: more than use one machine at a time.
const REMEMBERED_MAX: usize = 4_096;

/// The names that users of this machine had when they were asked for last.
#[derive(Debug)]
struct Remembered(BTreeMap<u32, UserName>);

/// The user with this number. One that has no name here is called after its number. One that had a name keeps it, for this
/// process, until it has another: a directory service that is away, or answers as if it knew nobody, makes nobody somebody
/// else. May ask such a service: not for a thread that others wait for.
///
/// # Errors
/// If that cannot be found out now, and was not before.
pub fn name_of(user: u32) -> Result<UserName, SyscallError> {
    static REMEMBERED: Mutex<Remembered> = Mutex::new(Remembered(BTreeMap::new()));
    let found = User::from_uid(Uid::from_raw(user)).map(|found| found.map(|user| user.name));
    lock(&REMEMBERED).name(user, found)
}

impl Remembered {
    /// What a user is called, of whom this was found.
    fn name(
        &mut self,
        user: u32,
        found: nix::Result<Option<String>>,
    ) -> Result<UserName, SyscallError> {
        let found = found.map_err(SyscallError::of("getpwuid_r", format!("user {user}")));
        match (found, self.0.get(&user).cloned()) {
            (Ok(Some(name)), known) => {
                let Ok(name) = name.parse::<UserName>() else { return Ok(by_number(user)) };
                if known.is_some() || self.0.len() < REMEMBERED_MAX {
                    self.0.insert(user, name.clone());
                }
                Ok(name)
            }
            (_, Some(known)) => Ok(known),
            (Ok(None), None) => Ok(by_number(user)),
            (Err(error), None) => Err(error),
        }
    }
}

fn by_number(user: u32) -> UserName {
    // Letters, a hyphen and digits.
    #[expect(clippy::unwrap_used, reason = "every number gives a user name")]
    format!("uid-{user}").parse().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;

    #[test]
    fn everybody_has_a_name() {
        assert_eq!(name_of(0).unwrap().as_str(), "root");
        // Nobody has this number: it is what unmapped users are not.
        assert_eq!(name_of(3_999_999_999).unwrap().as_str(), "uid-3999999999");
    }

    // Goal: nobody is taken for somebody else while a directory service is away. Method: what is found before, and while it
    // answers with an error, or as if there were no such user.
    #[test]
    fn who_cannot_be_looked_up_is_nobody_else() {
        let mut remembered = Remembered(BTreeMap::new());
        let mut name = |user, found: nix::Result<Option<&str>>| {
            let found = found.map(|name| name.map(str::to_owned));
            remembered.name(user, found).map(|name| name.to_string())
        };
        let error = name(1_000, Err(Errno::EIO)).unwrap_err();
        assert_eq!((error.call, error.object.as_str()), ("getpwuid_r", "user 1000"));
        assert_eq!(name(1_000, Ok(Some("ada"))).unwrap(), "ada");
        assert_eq!(name(1_000, Err(Errno::EIO)).unwrap(), "ada");
        assert_eq!(name(1_000, Ok(None)).unwrap(), "ada");
        assert_eq!(name(1_000, Ok(Some("eve"))).unwrap(), "eve");
        assert_eq!(name(1_000, Ok(None)).unwrap(), "eve");
        assert_eq!(name(1_001, Ok(None)).unwrap(), "uid-1001");
        assert!(name(1_001, Err(Errno::EIO)).is_err());
    }
}
