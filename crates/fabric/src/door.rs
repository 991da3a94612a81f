//! Who may call whom (pure). All daemons of a cluster have one key. From it each derives a key for every
//! context of its own node, with which the context knows who calls it, and writes passes to the contexts that
//! these call: a pass says of which user the caller is. Nobody makes one who has no key, and nobody is asked
//! when one is shown. These are Kerberos' tickets without their times: what a context was given ends with it,
//! since its name is never used twice.
//!
//! Programs choose names of contexts, and everybody can read them. So a key is that of a name and of the user who has it: who
//! takes another's name gets another key. And whose it is, when two have it, is who had it first: a context keeps a claim, by
//! which any daemon knows since when its user has it, whatever became of the daemon that has written it.
//!
//! Users are numbers that mean the same on every node, as file systems and schedulers of clusters have it.

use crate::id::ContextId;
use blake3::{Hash, derive_key, keyed_hash};
use keeptime_model::Invalid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::time::Duration;

/// Bytes of a key, and of what is made with one.
pub const KEY: usize = 32;
/// The least that the text of a key has: 32 random letters are more than anybody can try.
const TEXT_LEAST: usize = 32;
const ROOT: u32 = 0;

/// What the daemons of a cluster know, and nobody else.
#[derive(Clone)]
pub struct ClusterKey([u8; KEY]);

/// What a context knows callers by. Its daemon has given it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextKey([u8; KEY]);

/// What a caller shows a context.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pass {
    /// The caller's user, as the kernel has told its daemon.
    pub user: u32,
    /// That its daemon has the cluster's key.
    pub proof: [u8; KEY],
}

/// Since when a context is its user's. Its daemon has given it, and it shows it to the next one.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Since when, by the clock of the daemon that has written it: since 1970.
    pub since: Duration,
    /// That this one has the cluster's key.
    pub proof: [u8; KEY],
}

/// Whose programs are let in, of other processes and other nodes alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Callers {
    /// Those of the same user, and root's.
    #[default]
    SameUser,
    /// Everybody's: who asks has to be told apart by what is said.
    AnyUser,
}

impl ClusterKey {
    /// The key that a text makes, which is a secret of at least 32 characters.
    ///
    /// # Errors
    /// If it is shorter. The text is not repeated.
    pub fn from_text(text: &str) -> Result<Self, Invalid> {
        let text = text.trim();
        if text.len() < TEXT_LEAST {
            let value = format!("{} bytes", text.len());
            let expected = format!("a secret text of at least {TEXT_LEAST} bytes");
            return Err(Invalid::new("key", value, expected));
        }
        Ok(Self(derive_key("keeptime-fabric 2026-11 cluster key", text.as_bytes())))
    }

    /// A text that nobody else has, for a new cluster.
    ///
    /// # Errors
    /// If the kernel gives no random numbers.
    pub fn new_text() -> io::Result<String> {
        let bytes: [u8; KEY] = crate::random_bytes()?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// A key of one daemon alone: the contexts of its node are called from nowhere else.
    ///
    /// # Errors
    /// If the kernel gives no random numbers.
    pub fn random() -> io::Result<Self> {
        Ok(Self(crate::random_bytes()?))
    }

    /// The key of a context of this user.
    pub fn of_context(&self, context: ContextId, owner: u32) -> ContextKey {
        let parts: [&[u8]; 2] = [&context.number().to_le_bytes(), &owner.to_le_bytes()];
        ContextKey(self.derive(b"context", &parts))
    }

    /// A claim: that `context` is this user's since then.
    pub fn claim(&self, context: ContextId, owner: u32, since: Duration) -> Claim {
        let (context, owner) = (context.number().to_le_bytes(), owner.to_le_bytes());
        let nanos = since.as_nanos().to_le_bytes();
        Claim { since, proof: self.derive(b"claim", &[&context, &owner, &nanos]) }
    }

    /// Whether a daemon that has this key has written `claim` for `context`, of this user.
    pub fn upholds(&self, claim: &Claim, context: ContextId, owner: u32) -> bool {
        // The comparison takes the same time wherever they differ.
        let proof = self.claim(context, owner, claim.since).proof;
        Hash::from_bytes(proof) == Hash::from_bytes(claim.proof)
    }

    /// A key for what `purpose` says, which has a fixed length, and `parts`, which have too.
    pub(crate) fn derive(&self, purpose: &[u8], parts: &[&[u8]]) -> [u8; KEY] {
        let bytes = [&[purpose], parts].concat().concat();
        keyed_hash(&self.0, &bytes).into()
    }
}

impl ContextKey {
    /// A pass for the context `from`, of this user, to the one whose key this is.
    pub fn pass(&self, from: ContextId, user: u32) -> Pass {
        Pass { user, proof: self.proof(from, user).into() }
    }

    /// Whether `pass` was written for `from`, by a daemon that has the cluster's key.
    pub fn knows(&self, pass: &Pass, from: ContextId) -> bool {
        // The comparison takes the same time wherever they differ.
        self.proof(from, pass.user) == Hash::from_bytes(pass.proof)
    }

    fn proof(&self, from: ContextId, user: u32) -> Hash {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&from.number().to_le_bytes());
        bytes[8..].copy_from_slice(&user.to_le_bytes());
        keyed_hash(&self.0, &bytes)
    }
}

impl Callers {
    /// Whether a context of `owner` lets in programs of `caller`.
    pub fn include(self, owner: u32, caller: u32) -> bool {
        self == Self::AnyUser || is_trusted(owner, caller)
    }
}

/// Whether `owner` lets programs of `caller` do what would harm it if they did it wrong, such as sharing its
/// memory.
pub fn is_trusted(owner: u32, caller: u32) -> bool {
    caller == owner || caller == ROOT
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey")
    }
}

impl fmt::Debug for ContextKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContextKey")
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("since", &self.since).finish_non_exhaustive()
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> ClusterKey {
        ClusterKey::from_text(&text.repeat(TEXT_LEAST)).unwrap()
    }

    #[test]
    fn a_pass_is_for_one_caller_of_one_user_to_one_context_of_one_cluster() {
        let [here, there, third] = [1, 2, 3].map(ContextId::new);
        let pass = key("a").of_context(there, 7).pass(here, 1000);
        assert!(key("a").of_context(there, 7).knows(&pass, here));
        assert!(!key("a").of_context(third, 7).knows(&pass, here));
        assert!(!key("a").of_context(there, 7).knows(&pass, third));
        assert!(!key("b").of_context(there, 7).knows(&pass, here));
        assert!(!key("a").of_context(there, 7).knows(&Pass { user: 0, ..pass }, here));
        // Nor does one that another user who has taken its name can make.
        assert!(
            !key("a")
                .of_context(there, 7)
                .knows(&key("a").of_context(there, 8).pass(here, 1000), here)
        );
    }

    #[test]
    fn a_claim_is_of_one_user_to_one_context_since_one_moment() {
        let [here, there] = [1, 2].map(ContextId::new);
        let second = Duration::from_secs(1);
        let claim = key("a").claim(here, 7, second);
        assert!(key("a").upholds(&claim, here, 7));
        assert!(!key("a").upholds(&claim, there, 7));
        assert!(!key("a").upholds(&claim, here, 8));
        assert!(!key("b").upholds(&claim, here, 7));
        assert!(!key("a").upholds(&Claim { since: Duration::ZERO, ..claim }, here, 7));
    }

    #[test]
    fn users_are_let_in_as_was_said() {
        let cases = [(1000, 1000), (1000, 0), (1000, 1001), (0, 1000)];
        let same = cases.map(|(owner, caller)| Callers::SameUser.include(owner, caller));
        assert_eq!(same, [true, true, false, false]);
        assert_eq!(cases.map(|(owner, caller)| Callers::AnyUser.include(owner, caller)), [true; 4]);
    }

    #[test]
    fn keys_are_long_and_never_shown() {
        let error = ClusterKey::from_text("  too short, even with blanks    \n").unwrap_err();
        assert!(error.to_string().contains("at least 32 bytes"), "{error}");
        assert!(!error.to_string().contains("short"), "{error}");
        let key = ClusterKey::from_text(&ClusterKey::new_text().unwrap()).unwrap();
        let context = key.of_context(ContextId::new(1), 7);
        let claim = key.claim(ContextId::new(1), 7, Duration::from_secs(1));
        let shown =
            format!("{key:?} {context:?} {:?} {claim:?}", context.pass(ContextId::new(2), 7));
        let wanted = "ClusterKey ContextKey Pass { user: 7, .. } Claim { since: 1s, .. }";
        assert_eq!(shown, wanted);
    }
}
