//! Keys under which the work that a lock guards has succeeded.
//!
//! A holder records a key after its work, while it still has the lock. A later holder finds the key in
//! the lock that it was granted, and does not repeat the work. This is no proof: a holder that crashes
//! between its work and the record leaves none, and old keys are dropped.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::ids::OwnerId;
use super::time::WallTime;
use super::token::Token;

/// How many keys a lock keeps; one more drops the oldest.
pub const COMPLETED_MAX: usize = 32;
/// The maximum length of a key, in bytes.
pub const COMPLETION_KEY_MAX_BYTES: usize = 128;
/// How long a free lock with keys is kept at least, unless its spec says otherwise.
pub const COMPLETED_KEPT_FOR: Duration = Duration::from_secs(7 * 86_400);

/// The name of some work: 1 to 128 printable ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompletionKey(Arc<str>);

/// A text that is not a valid [`CompletionKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidKey;

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a key must be 1 to {COMPLETION_KEY_MAX_BYTES} printable ASCII characters, such as \
             2026-04-01"
        )
    }
}

impl std::error::Error for InvalidKey {}

impl CompletionKey {
    /// Parses an untrusted string as a key.
    ///
    /// # Errors
    /// [`InvalidKey`], which says what a key is.
    pub fn parse(text: &str) -> Result<Self, InvalidKey> {
        let is_printable = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
        let is_blank = text.bytes().all(|byte| byte == b' ');
        if text.len() > COMPLETION_KEY_MAX_BYTES || !is_printable || is_blank {
            return Err(InvalidKey);
        }
        Ok(Self(text.into()))
    }

    /// Returns the key as its caller wrote it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CompletionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The record that some work has succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Completion {
    /// The name of the work.
    pub key: CompletionKey,
    /// When it was recorded. Informational.
    pub at: WallTime,
    /// The token that the work had.
    pub token: Token,
    /// The owner. Informational.
    pub owner: OwnerId,
}

/// The latest completions of a lock, oldest first, each with another key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Completed(Arc<[Completion]>);

impl Completed {
    /// Returns the entries as they were read.
    #[must_use]
    pub fn from_entries(entries: Vec<Completion>) -> Self {
        Self(entries.into())
    }

    /// Returns the entries.
    #[must_use]
    pub fn entries(&self) -> &[Completion] {
        &self.0
    }

    /// Returns whether the work of this key has succeeded.
    #[must_use]
    pub fn contains(&self, key: &CompletionKey) -> bool {
        self.0.iter().any(|entry| entry.key == *key)
    }

    /// Returns the list with one more entry, without the oldest if there is no room. A key that is in it
    /// keeps its entry.
    #[must_use]
    pub fn with(&self, completion: Completion) -> Self {
        if self.contains(&completion.key) {
            return self.clone();
        }
        let skip = (self.0.len() + 1).saturating_sub(COMPLETED_MAX);
        let entries = self.0.iter().skip(skip).cloned();
        Self(entries.chain([completion]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(key: &str, token: u64) -> Completion {
        Completion {
            key: CompletionKey::parse(key).unwrap(),
            at: WallTime(0),
            token: Token::from_raw(token),
            owner: "o".into(),
        }
    }

    #[test]
    fn oldest_key_is_dropped_and_a_known_one_keeps_its_entry() {
        let mut completed = Completed::default();
        for n in 0..40 {
            completed = completed.with(completion(&format!("k{n}"), n));
        }
        let keys: Vec<_> = completed.entries().iter().map(|one| &*one.key.0).collect();
        assert_eq!((keys.len(), keys[0], keys[31]), (32, "k8", "k39"));
        assert_eq!(completed.with(completion("k20", 99)), completed);
        assert!(completed.contains(&CompletionKey::parse("k8").unwrap()));
        assert!(!completed.contains(&CompletionKey::parse("k7").unwrap()));
    }

    #[test]
    fn key_is_short_visible_ascii() {
        for good in ["2026-04-01", "a b", &"x".repeat(128)] {
            assert!(CompletionKey::parse(good).is_ok(), "{good}");
        }
        for bad in ["", " ", "a\n", "a\tb", "ä", &"x".repeat(129)] {
            assert_eq!(CompletionKey::parse(bad), Err(InvalidKey), "{bad}");
        }
    }
}
