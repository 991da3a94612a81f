//! Names of nodes, as people and Slurm write them.

use keeptime_launch::hostlist;
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use std::str::FromStr;

/// `n1,n2`, or `n[1-4],gpu1`: one name at least, in the order in which they stand there.
// Not a list that is cut at each comma: some are in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNames(Vec<Name>);

impl NodeNames {
    /// The names.
    pub fn into_names(self) -> Vec<Name> {
        self.0
    }

    /// Those of several lists, one list after the other.
    pub fn all(lists: &[Self]) -> impl Iterator<Item = &Name> {
        lists.iter().flat_map(|list| &list.0)
    }
}

impl FromStr for NodeNames {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let names = hostlist::expanded("nodes", text)?;
        let names: Result<_, _> = names.iter().map(|name| name.trim().parse()).collect();
        names.map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command, NodeCommand};
    use clap::Parser;
    use keeptime_model::drain::NodeSet;

    // Goal: names stay in the order in which they were written, which is that of ranks, twice where they stand twice: whether
    // that may be is up to who asks for them.
    #[test]
    fn names_stay_in_their_order() {
        for (text, expected) in [
            ("n2,n1", "n2 n1"),
            ("n1, n2", "n1 n2"),
            ("n[3-4],n1", "n3 n4 n1"),
            ("gpu1,n[08-10,2]", "gpu1 n08 n09 n10 n2"),
            ("n1,n[1-2]", "n1 n1 n2"),
        ] {
            let lists = [text.parse::<NodeNames>().unwrap(), "last".parse().unwrap()];
            let names: Vec<_> = NodeNames::all(&lists).map(Name::as_str).collect();
            assert_eq!(names.join(" "), format!("{expected} last"), "{text}");
        }
    }

    // Goal: on the command line no list is cut inside its brackets, and what may be said several times still may.
    #[test]
    fn lists_are_whole_on_the_command_line() {
        let command = |words: &str| {
            let words = format!("keeptime {words}");
            Arguments::try_parse_from(words.split(' ')).unwrap().command
        };
        let names = |list: &str| -> Vec<Name> {
            list.split(' ').map(|name| name.parse().unwrap()).collect()
        };
        let Command::Node(NodeCommand::Drain(drain)) =
            command("node drain n[1-2,4],n9 n7 --reason disk")
        else {
            panic!("another command")
        };
        assert_eq!(
            drain.which.set(),
            NodeSet::Named(names("n1 n2 n4 n7 n9").into_iter().collect())
        );
        let among = names("n1 n3 n2");
        let Command::Plan(plan) = command("plan raycast --among n[1,3] --among n2") else {
            panic!("another command")
        };
        let Command::Reserve(reserve) = command("reserve --nodes 2 --among n[1,3],n2") else {
            panic!("another command")
        };
        for found in [&plan.application.among, &reserve.wanted.among] {
            assert!(NodeNames::all(found).eq(&among), "{found:?}");
        }
    }

    #[test]
    fn what_is_no_name_is_told_with_what_would_be_one() {
        for (text, expected) in [
            ("", "nodes: \"\" is not accepted; expected names of nodes, as in n1,n2 or n["),
            ("n[1-4", "nodes: \"n[1-4\" is not accepted"),
            ("n1,,n2", "nodes: \"n1,,n2\""),
            ("n[1-2],N[3-4]", "name: \"N3\" is not accepted; expected a lower-case letter"),
            ("2", "name: \"2\""),
        ] {
            let error = text.parse::<NodeNames>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
