//! Tokens: a text that proves who sends it. The file of the broker holds their digests, so that who
//! reads it can use none. Pure: time and randomness are arguments.
//!
//! A token is `keeptime_ID_SECRET`: 8 hexadecimal digits that name it in lists, and 64 that nobody
//! can guess. 256 random bits need no slow digest: there is nothing to try out.

use crate::dates;
use blake3::Hash;
use keeptime_model::Invalid;
use keeptime_model::reservation::UserName;
use keeptime_model::units::WallTime;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Tokens in one file.
pub const TOKENS_MAX: usize = 10_000;
/// Random bytes of a new token: 4 of its name, 32 of its secret.
pub const RANDOM_BYTES: usize = 36;

const PREFIX: &str = "keeptime";
const ID_DIGITS: usize = 8;
const SECRET_DIGITS: usize = 64;

/// The name of a token: no secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(String);

/// The text of a token. It is not shown by accident.
#[derive(Clone)]
pub struct Secret {
    text: String,
    id: TokenId,
}

/// What the broker keeps of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Whose it is.
    pub user: UserName,
    /// From then on it is good for nothing; nothing = it has no end.
    pub expires: Option<WallTime>,
    digest: Hash,
}

/// All tokens of a broker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens(BTreeMap<TokenId, Entry>);

/// Who sent a token that is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    /// Which it is.
    pub id: TokenId,
    /// Who sent it.
    pub user: UserName,
    /// Until then it is good.
    pub expires: Option<WallTime>,
}

/// Why a token is not taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TokenProblem {
    /// It does not look like one.
    #[error(
        "that is no token: one begins with keeptime_ and is made by `keeptime broker token add`"
    )]
    Malformed,
    /// It is not in the file.
    #[error("the token is not known here, or was revoked")]
    Unknown,
    /// Its time is over.
    #[error("the token {} expired at {}", id, dates::show(*at))]
    Expired {
        /// Which.
        id: TokenId,
        /// When.
        at: WallTime,
    },
}

impl Tokens {
    /// Reads the file.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn from_toml(text: &str) -> Result<Self, Invalid> {
        let file: File =
            toml::from_str(text).map_err(|error| Invalid::in_toml("token file", text, &error))?;
        if file.tokens.len() > TOKENS_MAX {
            let expected = format!("at most {TOKENS_MAX}");
            return Err(Invalid::new("tokens", file.tokens.len(), expected));
        }
        let mut tokens = Self::default();
        for (index, line) in file.tokens.into_iter().enumerate() {
            let at = format!("tokens[{index}]");
            let (id, entry) = line.entry().map_err(|invalid| invalid.within(&at))?;
            if tokens.0.insert(id.clone(), entry).is_some() {
                return Err(Invalid::new("id", id, "each token once").within(&at));
            }
        }
        Ok(tokens)
    }

    /// The file that [`Self::from_toml`] reads back.
    pub fn to_toml(&self) -> String {
        let tokens = self.0.iter().map(|(id, entry)| Line::of(id, entry)).collect();
        // Strings only.
        toml::to_string(&File { tokens }).unwrap_or_default()
    }

    /// Makes a token for `user` of random bytes. What is returned is not kept.
    ///
    /// # Errors
    /// If there are too many already, or the bytes name one that there is.
    pub fn add(
        &mut self,
        user: UserName,
        expires: Option<WallTime>,
        random: &[u8; RANDOM_BYTES],
    ) -> Result<Secret, Invalid> {
        if self.0.len() >= TOKENS_MAX {
            let expected = format!("at most {TOKENS_MAX}: revoke those that are not used");
            return Err(Invalid::new("tokens", self.0.len() + 1, expected));
        }
        let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let (id, secret) = hex.split_at(ID_DIGITS);
        let secret: Secret = format!("{PREFIX}_{id}_{secret}").parse()?;
        if self.0.contains_key(&secret.id) {
            return Err(Invalid::new("random", id, "bytes that no other token has; try again"));
        }
        let digest = blake3::hash(secret.text.as_bytes());
        self.0.insert(secret.id.clone(), Entry { user, expires, digest });
        Ok(secret)
    }

    /// Takes a token out. What it was, if there was one.
    pub fn revoke(&mut self, id: &TokenId) -> Option<Entry> {
        self.0.remove(id)
    }

    /// All of them.
    pub fn all(&self) -> &BTreeMap<TokenId, Entry> {
        &self.0
    }

    /// Who sends `text` at `now`. Takes equally long for every wrong secret.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn check(&self, text: &str, now: WallTime) -> Result<Bearer, TokenProblem> {
        let secret: Secret = text.parse().map_err(|_| TokenProblem::Malformed)?;
        let entry = self.0.get(&secret.id).ok_or(TokenProblem::Unknown)?;
        // Compared in constant time: that is what `Hash` does.
        if blake3::hash(secret.text.as_bytes()) != entry.digest {
            return Err(TokenProblem::Unknown);
        }
        self.bearer(&secret.id, now)
    }

    /// Whether the token with this name, which was good before, is good at `now`.
    ///
    /// # Errors
    /// Why it is not.
    pub fn bearer(&self, id: &TokenId, now: WallTime) -> Result<Bearer, TokenProblem> {
        let entry = self.0.get(id).ok_or(TokenProblem::Unknown)?;
        match entry.expires {
            Some(at) if at <= now => Err(TokenProblem::Expired { id: id.clone(), at }),
            expires => Ok(Bearer { id: id.clone(), user: entry.user.clone(), expires }),
        }
    }
}

impl Secret {
    /// The token itself, to be sent or to be told once.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// Its name.
    pub fn id(&self) -> &TokenId {
        &self.id
    }
}

impl FromStr for Secret {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let parse = || {
            let rest = text.strip_prefix(PREFIX)?.strip_prefix('_')?;
            let (id, secret) = rest.split_once('_')?;
            let is_whole = is_hex(secret) && secret.len() == SECRET_DIGITS;
            is_whole.then(|| id.parse().ok()).flatten()
        };
        match parse() {
            Some(id) => Ok(Self { text: text.into(), id }),
            // What was given may be another secret: it is not repeated.
            None => {
                let expected = "one as `keeptime broker token add` prints it, keeptime_ID_SECRET";
                Err(Invalid::new("token", "(not shown)", expected))
            }
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.id)
    }
}

impl FromStr for TokenId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if text.len() == ID_DIGITS && is_hex(text) {
            return Ok(Self(text.into()));
        }
        Err(Invalid::new("id", text, "8 hexadecimal digits, as `keeptime broker token list` shows"))
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    tokens: Vec<Line>,
}

/// An entry as it stands in the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    user: UserName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    blake3: String,
}

impl Line {
    fn of(id: &TokenId, entry: &Entry) -> Self {
        Self {
            id: id.to_string(),
            user: entry.user.clone(),
            expires: entry.expires.map(dates::show),
            blake3: entry.digest.to_hex().to_string(),
        }
    }

    fn entry(self) -> Result<(TokenId, Entry), Invalid> {
        let id: TokenId = self.id.parse()?;
        let expires = self.expires.map(|text| {
            let expected = "a time, as in 2026-12-01T00:00:00Z";
            dates::parse(&text).ok_or_else(|| Invalid::new("expires", &text, expected))
        });
        let digest = Hash::from_hex(&self.blake3).map_err(|_| {
            let expected = "64 hexadecimal digits: the BLAKE3 digest of the token";
            Invalid::new("blake3", &self.blake3, expected)
        })?;
        Ok((id, Entry { user: self.user, expires: expires.transpose()?, digest }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(seconds * 1_000_000_000)
    }

    fn two() -> (Tokens, Secret, Secret) {
        let mut tokens = Tokens::default();
        let ada = tokens.add("ada".parse().unwrap(), None, &[1; RANDOM_BYTES]).unwrap();
        let eve = tokens.add("eve".parse().unwrap(), Some(at(100)), &[2; RANDOM_BYTES]).unwrap();
        (tokens, ada, eve)
    }

    #[test]
    fn a_token_is_its_users_until_it_expires_or_is_revoked() {
        let (mut tokens, ada, eve) = two();
        assert_eq!(tokens.check(ada.expose(), at(5)).unwrap().user.as_str(), "ada");
        assert_eq!(tokens.check(eve.expose(), at(99)).unwrap().user.as_str(), "eve");
        let expired = tokens.check(eve.expose(), at(100)).unwrap_err();
        assert_eq!(expired.to_string(), "the token 02020202 expired at 1970-01-01T00:01:40Z");
        assert!(tokens.revoke(ada.id()).is_some() && tokens.revoke(ada.id()).is_none());
        assert_eq!(tokens.check(ada.expose(), at(5)), Err(TokenProblem::Unknown));
    }

    #[test]
    fn another_secret_under_a_known_name_is_unknown() {
        let (tokens, ada, eve) = two();
        let mixed = format!("keeptime_{}_{}", ada.id(), eve.expose().rsplit('_').next().unwrap());
        assert_eq!(tokens.check(&mixed, at(5)), Err(TokenProblem::Unknown));
        let ada = ada.expose();
        // One digit less, one more, and one that is none.
        let (short, long) = (&ada[..ada.len() - 1], format!("{ada}0"));
        let (no_digit, no_name) = (format!("{short}g"), ada.replacen("_01", "_0g", 1));
        let bad = ["", "keeptime_", "secret", &ada[1..], &ada.to_uppercase(), short, &long];
        for bad in bad.into_iter().chain([no_digit.as_str(), &no_name]) {
            assert_eq!(tokens.check(bad, at(5)), Err(TokenProblem::Malformed), "{bad}");
        }
    }

    #[test]
    fn as_many_as_a_file_may_have_are_added_and_read_back() {
        let mut tokens = Tokens::default();
        let mut add = |number: usize| {
            let mut random = [0; RANDOM_BYTES];
            random[..4].copy_from_slice(&(number as u32).to_be_bytes());
            tokens.add("ada".parse().unwrap(), None, &random)
        };
        (0..TOKENS_MAX).for_each(|number| drop(add(number).unwrap()));
        let refused = add(TOKENS_MAX).unwrap_err().to_string();
        assert!(refused.contains("10001"), "{refused}");
        let file = tokens.to_toml();
        assert_eq!(Tokens::from_toml(&file), Ok(tokens));
        for more in [1, 2] {
            let line =
                |id| format!("[[tokens]]\nid = \"{id:08x}\"\nuser = \"ada\"\nblake3 = \"\"\n");
            let lines: String = (TOKENS_MAX..TOKENS_MAX + more).map(line).collect();
            let error = Tokens::from_toml(&(file.clone() + &lines)).unwrap_err().to_string();
            assert!(error.contains("at most 10000"), "{error}");
        }
    }

    #[test]
    fn the_file_holds_no_secret_and_messages_repeat_none() {
        let (tokens, ada, _) = two();
        let secret = ada.expose().rsplit('_').next().unwrap();
        assert!(!tokens.to_toml().contains(secret));
        assert!(!format!("{ada:?}").contains(secret));
        let error = ada.expose().replace("keeptime", "kept").parse::<Secret>().unwrap_err();
        assert!(!error.to_string().contains(secret), "{error}");
    }

    #[test]
    fn bad_files_name_the_line() {
        let (tokens, ..) = two();
        let file = tokens.to_toml();
        let digest = blake3::hash(b"x").to_hex();
        let line = |id: &str| format!("[[tokens]]\nid = \"{id}\"\nuser = \"ada\"\n");
        let cases = [
            (file.replace("02020202", "01010101"), "tokens[1].id: \"01010101\""),
            (file.replace("1970-01-01T00:01:40Z", "soon"), "tokens[1].expires: \"soon\""),
            (file.replace("id", "ident"), "unknown field `ident`"),
            (format!("{}blake3 = \"{digest}\"", line("0101")), "tokens[0].id: \"0101\""),
            (format!("{}blake3 = \"feed\"", line("01010101")), "tokens[0].blake3: \"feed\""),
            (line("01010101"), "blake3 is missing"),
            (file.replace("\"ada\"", "\"a b\""), "user: \"a b\""),
        ];
        for (text, expected) in cases {
            let error = Tokens::from_toml(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} should contain {expected}");
        }
    }

    prop_compose! {
        fn any_tokens()(
            entries in prop::collection::vec(
                ("[A-Za-z0-9._@-]{1,64}", prop::option::of(0u64..10_000_000_000), any::<[u8; 36]>()),
                0..20,
            ),
        ) -> (Tokens, Vec<Secret>) {
            let (mut tokens, mut secrets) = (Tokens::default(), Vec::new());
            for (user, expires, random) in entries {
                // The same name twice is refused, and changes nothing.
                secrets.extend(tokens.add(user.parse().unwrap(), expires.map(at), &random));
            }
            (tokens, secrets)
        }
    }

    proptest! {
        #[test]
        fn any_file_is_read_or_refused(text in "\\PC{0,300}") {
            if let Ok(tokens) = Tokens::from_toml(&text) {
                prop_assert_eq!(Tokens::from_toml(&tokens.to_toml()), Ok(tokens));
            }
        }

        #[test]
        fn any_text_is_no_token_but_one_that_was_made(
            (tokens, secrets) in any_tokens(),
            text in "(keeptime_)?[0-9a-f]{0,8}(_[0-9a-f]{0,64})?",
        ) {
            let is_made = secrets.iter().any(|secret| secret.expose() == text);
            prop_assert!(is_made || tokens.check(&text, at(0)).is_err());
        }

        #[test]
        fn a_file_reads_back_and_knows_exactly_its_tokens(
            (tokens, secrets) in any_tokens(),
            now in 0u64..10_000_000_000,
        ) {
            let read = Tokens::from_toml(&tokens.to_toml()).unwrap();
            prop_assert_eq!(&read, &tokens);
            prop_assert_eq!(read.all().len(), secrets.len());
            for secret in &secrets {
                let entry = &read.all()[secret.id()];
                let is_over = entry.expires.is_some_and(|expires| expires <= at(now));
                prop_assert_eq!(read.check(secret.expose(), at(now)).is_err(), is_over);
            }
        }

        /// One byte of the file is another: it is refused, or concerns one token. (It may be in the
        /// name of a user, which the file alone knows.)
        #[test]
        fn a_changed_byte_changes_one_token_at_most(
            (tokens, secrets) in any_tokens(),
            position in any::<prop::sample::Index>(),
            byte in 32u8..127,
        ) {
            let mut bytes = tokens.to_toml().into_bytes();
            prop_assume!(!bytes.is_empty());
            let position = position.index(bytes.len());
            bytes[position] = byte;
            let Ok(text) = String::from_utf8(bytes) else { return Ok(()) };
            let Ok(read) = Tokens::from_toml(&text) else { return Ok(()) };
            let bearer = |tokens: &Tokens, secret: &Secret| tokens.check(secret.expose(), at(0)).ok();
            let changed = secrets.iter().filter(|s| bearer(&read, s) != bearer(&tokens, s));
            prop_assert!(changed.count() <= 1);
        }
    }
}
