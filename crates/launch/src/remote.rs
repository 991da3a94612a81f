//! Nodes that are reached by a program that is called as `ssh` is: `PROGRAM [OPTIONS] HOST COMMAND…`, where the
//! command is text for the user's shell there; or by one that wants the host elsewhere among its words (pure).

use keeptime_model::Invalid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Nobody is asked for anything while programs are started, and a host that is away is told in time.
const SSH: &str = "ssh -o BatchMode=yes -o ConnectTimeout=10";

/// In a word of a launcher it stands for the host, which then is not put behind its words.
pub const HOST: &str = "{host}";

/// Such a program with its options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Launcher(Vec<String>);

impl Launcher {
    /// One by its words.
    pub(crate) fn of_words<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        Self(words.map(str::to_owned).collect())
    }

    /// The command line that runs `command` on `host`.
    pub fn line(&self, host: &str, command: &[String]) -> Vec<String> {
        let is_named = self.0.iter().any(|word| word.contains(HOST));
        let behind = (!is_named).then(|| host.to_owned());
        let words = self.0.iter().map(|word| word.replace(HOST, host)).chain(behind);
        words.chain([quoted(command)]).collect()
    }
}

impl Default for Launcher {
    fn default() -> Self {
        Self::of_words(SSH.split_whitespace())
    }
}

impl FromStr for Launcher {
    type Err = Invalid;

    /// Words that are separated by blanks; none of them can have one inside.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let launcher = Self::of_words(text.split_whitespace());
        if launcher.0.is_empty() {
            let expected =
                "a program that is called as ssh is, with options, as in ssh -F cluster.ssh";
            return Err(Invalid::new("launcher", text, expected));
        }
        Ok(launcher)
    }
}

keeptime_model::as_text!(Launcher);

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.join(" "))
    }
}

/// What a launcher of MPI wants of its remote shell, which it calls as `ssh` is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Where.
    pub host: String,
    /// Text for the shell there.
    pub text: String,
}

impl Wanted {
    /// From the words after the program's name. Options that stand before the host mean nothing here.
    ///
    /// # Errors
    /// If there is no host, or nothing to run there.
    pub fn of(words: &[String]) -> Result<Self, Invalid> {
        let mut words = words.iter().skip_while(|word| word.starts_with('-'));
        let host = words.next().cloned().unwrap_or_default();
        let text = words.cloned().collect::<Vec<_>>().join(" ");
        if text.is_empty() {
            return Err(Invalid::new("command", host, "HOST COMMAND, as ssh is called"));
        }
        Ok(Self { host, text })
    }
}

/// Words as text that a shell takes apart into the same words.
pub fn quoted(words: &[String]) -> String {
    let quote = |word: &String| match is_plain(word) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

fn is_plain(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    !word.is_empty() && word.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    fn owned(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_command_is_one_word_behind_the_host() {
        let launcher: Launcher = " ssh  -F a.conf".parse().unwrap();
        let line = launcher.line("n1", &owned(&["sh", "-c", "echo $1 'x'"]));
        assert_eq!(line, ["ssh", "-F", "a.conf", "n1", r"sh -c 'echo $1 '\''x'\'''"]);
        assert_eq!(launcher.to_string().parse(), Ok(launcher));
        let none = " ".parse::<Launcher>().unwrap_err().to_string();
        assert!(none.contains("called as ssh is"), "{none}");
    }

    #[test]
    fn a_host_may_be_named_among_a_launchers_words() {
        let launcher: Launcher = "docker exec {host} /bin/sh -c".parse().unwrap();
        let line = launcher.line("n1", &owned(&["echo", "a b"]));
        assert_eq!(line, ["docker", "exec", "n1", "/bin/sh", "-c", "echo 'a b'"]);
    }

    #[test]
    fn what_an_mpi_launcher_calls_is_understood() {
        let wanted =
            Wanted::of(&owned(&["-x", "10.0.0.2", "PATH=/opt:$PATH ;", "orted", "-mca", "'a b'"]));
        let text = "PATH=/opt:$PATH ; orted -mca 'a b'".to_owned();
        assert_eq!(wanted, Ok(Wanted { host: "10.0.0.2".into(), text }));
        assert!(Wanted::of(&owned(&["-x", "10.0.0.2"])).is_err());
        assert!(Wanted::of(&[]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_shell_takes_quoted_words_apart_into_the_same(
            words in prop::collection::vec("[^\\x00]{0,12}", 1..4)
        ) {
            let script = format!("printf '%s\\0' {}", quoted(&words));
            let output = Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
            let told = String::from_utf8(output.stdout).unwrap();
            let told: Vec<_> = told.strip_suffix('\0').unwrap_or_default().split('\0').collect();
            prop_assert_eq!(told, words);
        }
    }
}
