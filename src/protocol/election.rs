//! Elections: the holder of the lock `election:<name>` is the leader of the election `<name>`.
//!
//! An election has no other state. Its terms are grants, with tokens like those of every lock.

use std::fmt;

use super::ids::Resource;

/// The prefix of the resources of elections.
pub const PREFIX: &str = "election:";
/// The maximum length of a name: with a prefix like `leader-` it is still a valid label key.
pub const NAME_MAX_BYTES: usize = 56;

/// The name of an election: a DNS label (RFC 1123) of at most [`NAME_MAX_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElectionName {
    resource: Resource,
}

/// A string that cannot name an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidElectionName;

impl fmt::Display for InvalidElectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "an election's name is 1 to {NAME_MAX_BYTES} lower-case letters, digits and dashes, \
             and begins and ends with a letter or a digit, like `billing-worker`"
        )
    }
}

impl std::error::Error for InvalidElectionName {}

impl ElectionName {
    /// Parses an untrusted string as the name of an election.
    ///
    /// # Errors
    /// [`InvalidElectionName`], which says what to write.
    pub fn parse(text: &str) -> Result<Self, InvalidElectionName> {
        let is_inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
        let bytes = text.as_bytes();
        let is_label = (1..=NAME_MAX_BYTES).contains(&bytes.len())
            && bytes.iter().all(is_inner)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if !is_label {
            return Err(InvalidElectionName);
        }
        let resource = Resource::parse(&format!("{PREFIX}{text}"));
        let resource = resource.map_err(|_never| InvalidElectionName)?;
        Ok(Self { resource })
    }

    /// Returns the name without its prefix.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.resource.as_str()[PREFIX.len()..]
    }

    /// Returns the resource whose lock the leader holds.
    #[must_use]
    pub const fn resource(&self) -> &Resource {
        &self.resource
    }
}

impl fmt::Display for ElectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns whether the lock of a resource decides an election.
#[must_use]
pub fn is_election(resource: &Resource) -> bool {
    resource.as_str().starts_with(PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_elections_name_is_a_short_dns_label() {
        let longest = "a".repeat(56);
        for good in ["a", "billing-worker", "0", "a--b", &longest] {
            let name = ElectionName::parse(good).unwrap();
            assert_eq!(name.as_str(), good);
            assert_eq!(name.resource().as_str(), format!("election:{good}"));
            assert!(is_election(name.resource()));
        }
        let too_long = "a".repeat(57);
        let bad = [
            "", "-a", "a-", "A", "a.b", "a_b", "a b", "é", "a:b", "a/b", &too_long,
        ];
        for bad in bad {
            assert_eq!(ElectionName::parse(bad), Err(InvalidElectionName), "{bad}");
        }
    }
}
