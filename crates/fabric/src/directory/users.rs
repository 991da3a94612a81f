//! What the programs of each user have of a server, and no more than that: one user's leave room for all others' (pure).

use super::protocol::ContextInfo;
use super::state::ConnectionId;
use crate::attributes::Attributes;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Bytes of what one user's programs have registered and ask for, and of where they are: a context with as many resources as it
/// can have, with some attributes, or some thousands with the longest. All nodes keep what is registered.
const BYTES_MOST: usize = 128 << 20;
/// What counts of each besides its attributes or addresses, which may be none.
const EACH: usize = 64;
/// What a question counts that waits for its answer.
pub const LOOKUP: usize = EACH;

/// All users with programs here.
#[derive(Debug)]
pub struct Users {
    all: BTreeMap<u32, User>,
    /// Connections of programs that were let in, with or without a hello, and whose they are: until they are no more, which those
    /// of programs that are refused are only when these have taken why, or have not for a while.
    connections: BTreeMap<ConnectionId, u32>,
    connections_most: usize,
}

/// What one has.
#[derive(Debug, Default)]
struct User {
    connections: usize,
    bytes: usize,
}

impl Users {
    /// Nobody yet, of whom each may have so many connections.
    pub fn new(connections_most: usize) -> Self {
        Self { all: BTreeMap::new(), connections: BTreeMap::new(), connections_most }
    }

    /// A program of `user` connects.
    ///
    /// # Errors
    /// If the user has as many connections as may be.
    pub fn connect(&mut self, connection: ConnectionId, user: u32) -> Result<(), String> {
        let most = self.connections_most;
        let its = self.all.entry(user).or_default();
        if its.connections >= most {
            let why = format!("programs of user {user} have {most} connections to this server");
            self.forget_if_idle(user);
            return Err(why + ", which is the most");
        }
        its.connections += 1;
        self.connections.insert(connection, user);
        Ok(())
    }

    /// A connection has ended, which may have been a program's.
    pub fn disconnect(&mut self, connection: ConnectionId) {
        let Some(user) = self.connections.remove(&connection) else { return };
        if let Some(its) = self.all.get_mut(&user) {
            its.connections = its.connections.saturating_sub(1);
        }
        self.forget_if_idle(user);
    }

    /// A program of `user` wants to have that kept.
    ///
    /// # Errors
    /// If that is more than may be.
    pub fn keep(&mut self, user: u32, bytes: usize) -> Result<(), String> {
        let its = self.all.entry(user).or_default();
        if its.bytes + bytes > BYTES_MOST {
            let has = its.bytes;
            self.forget_if_idle(user);
            return Err(format!(
                "{bytes} bytes more of attributes, addresses and questions: programs of user {user} have {has} bytes on this \
                 node, of {BYTES_MOST} at most"
            ));
        }
        its.bytes += bytes;
        Ok(())
    }

    /// That is kept no longer.
    pub fn give_back(&mut self, user: u32, bytes: usize) {
        if let Some(its) = self.all.get_mut(&user) {
            its.bytes = its.bytes.saturating_sub(bytes);
        }
        self.forget_if_idle(user);
    }

    /// Users are many in time.
    fn forget_if_idle(&mut self, user: u32) {
        if self.all.get(&user).is_some_and(|its| (its.connections, its.bytes) == (0, 0)) {
            self.all.remove(&user);
        }
    }
}

/// What a resource, or a question, counts that has these.
pub fn counted(attributes: &Attributes) -> usize {
    EACH + attributes.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
}

/// What a context counts, once for all of its resources.
pub fn counted_context(context: &ContextInfo) -> usize {
    EACH + context.addresses.len() * size_of::<SocketAddr>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attrs;

    #[test]
    fn each_user_has_so_much_and_no_other_has_less_for_it() {
        let mut users = Users::new(2);
        let [one, two, three, other] = [1, 2, 3, 4].map(ConnectionId);
        assert_eq!([users.connect(one, 7), users.connect(two, 7)], [Ok(()), Ok(())]);
        let why = "programs of user 7 have 2 connections to this server, which is the most";
        assert_eq!(users.connect(three, 7), Err(why.into()));
        assert_eq!(users.keep(7, BYTES_MOST - 1), Ok(()));
        let why = users.keep(7, 2).unwrap_err();
        assert!(why.contains("user 7") && why.contains(&BYTES_MOST.to_string()), "{why}");
        assert_eq!((users.connect(other, 8), users.keep(8, BYTES_MOST)), (Ok(()), Ok(())));
        assert_eq!(users.keep(7, 1), Ok(()));
        users.disconnect(three);
        assert!(users.connect(three, 7).is_err(), "it was not let in");
        users.disconnect(one);
        assert_eq!(users.connect(three, 7), Ok(()));
        users.give_back(7, 10);
        assert_eq!(users.keep(7, 10), Ok(()));
        [two, three, other].into_iter().for_each(|connection| users.disconnect(connection));
        [7, 8].into_iter().for_each(|user| users.give_back(user, BYTES_MOST));
        assert!(users.all.is_empty() && users.connections.is_empty());
    }

    #[test]
    fn what_has_no_attributes_counts_too() {
        assert_eq!([attrs! {}, attrs! { "a" => "bc" }].map(|all| counted(&all)), [64, 67]);
    }
}
