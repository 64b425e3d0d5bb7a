//! The names of the protocol, each with its own type.
//!
//! They are cheap to clone (one shared string each). Only [`Resource`] validates its content,
//! because only it comes directly from an app. Leasehold creates the others, or validates them at
//! the wire.

use std::fmt;
use std::sync::Arc;

/// The maximum length of a resource, in bytes.
pub const RESOURCE_MAX_BYTES: usize = 512;
/// The maximum length of an `ownerId`, in bytes.
pub const OWNER_ID_MAX_BYTES: usize = 256;
/// The maximum number of entries in the `metadata` of a holder.
pub const METADATA_MAX_ENTRIES: usize = 16;
/// The maximum length of a key in a holder's `metadata`, in bytes.
pub const METADATA_KEY_MAX_BYTES: usize = 63;
/// The maximum length of a value in a holder's `metadata`, in bytes.
pub const METADATA_VALUE_MAX_BYTES: usize = 256;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Returns the id as it is written in objects and responses.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id! {
    /// The name that an app gives itself: free text for human readers.
    OwnerId
}
id! {
    /// The id of a session (one running agent's claim to be alive): the name of its `LockSession`
    /// object.
    SessionId
}
id! {
    /// The id of a grant (a lock held by a session). It is chosen before the first write, so that
    /// an unanswered write can be recognized afterwards.
    GrantId
}
id! {
    /// The id of a lease, which an app holds: `<grantId>.<n>`.
    LeaseId
}

impl LeaseId {
    /// Returns the id of the `n`-th lease of a grant.
    #[must_use]
    pub fn of(grant: &GrantId, n: u16) -> Self {
        Self(format!("{grant}.{n}").into())
    }

    /// Returns the grant of the lease; `None` if [`LeaseId::of`] did not create this id.
    #[must_use]
    pub fn grant(&self) -> Option<GrantId> {
        let (grant, _) = self.0.rsplit_once('.')?;
        Some(GrantId::from(grant))
    }
}

/// The string that an app locks: 1 to 512 bytes of printable text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource(Arc<str>);

/// Why a string is not a valid [`Resource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidResource {
    /// It is empty.
    Empty,
    /// It has more than [`RESOURCE_MAX_BYTES`] bytes.
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// It has a control character (such as a line break or a tab), or only invisible characters.
    NotPrintable,
}

impl fmt::Display for InvalidResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("resource is empty; name the resource to lock"),
            Self::TooLong { bytes } => write!(
                f,
                "resource has {bytes} bytes; use at most {RESOURCE_MAX_BYTES} (hash longer names)"
            ),
            Self::NotPrintable => f.write_str(
                "resource must be printable text without control characters (no tabs or line \
                 breaks), with at least one visible character",
            ),
        }
    }
}

impl std::error::Error for InvalidResource {}

impl Resource {
    /// Parses an untrusted string as a resource.
    ///
    /// # Errors
    /// [`InvalidResource`], which says what is invalid and what to do.
    pub fn parse(text: &str) -> Result<Self, InvalidResource> {
        if text.is_empty() {
            return Err(InvalidResource::Empty);
        }
        if text.len() > RESOURCE_MAX_BYTES {
            return Err(InvalidResource::TooLong { bytes: text.len() });
        }
        if !is_printable(text) || is_blank(text) {
            return Err(InvalidResource::NotPrintable);
        }
        Ok(Self(text.into()))
    }

    /// Returns the resource as the app wrote it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns whether a text has neither control characters nor the marks that make two texts look
/// alike or reverse their direction. A terminal or a log line shows such a text as it is.
#[must_use]
pub fn is_printable(text: &str) -> bool {
    !text.chars().any(is_unprintable)
}

/// Returns whether a text has no visible character.
#[must_use]
pub fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || is_invisible(c))
}

fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Returns whether a character has no shape of its own. These are the soft hyphen, fillers,
/// joiners, variation selectors and tags (Unicode's `Default_Ignorable_Code_Point`), and the empty
/// Braille pattern.
fn is_invisible(c: char) -> bool {
    is_unprintable(c)
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}'
            | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2060}'..='\u{206f}' | '\u{2800}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_one_to_512_bytes_of_printable_text() {
        assert!(Resource::parse("tenant_123:billing-close:2026-04").is_ok());
        assert!(Resource::parse("a b / ü 日本").is_ok());
        assert!(Resource::parse(&"x".repeat(512)).is_ok());
        assert_eq!(Resource::parse(""), Err(InvalidResource::Empty));
        assert_eq!(
            Resource::parse(&"x".repeat(513)),
            Err(InvalidResource::TooLong { bytes: 513 })
        );
        for bad in [
            "a\nb",
            "a\tb",
            "\u{0}",
            " ",
            "a\u{202e}b",
            "\u{feff}a",
            "\u{3164}",
            "\u{2060} \u{fe0f}",
        ] {
            assert_eq!(
                Resource::parse(bad),
                Err(InvalidResource::NotPrintable),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn lease_id_contains_its_grant_id_and_number() {
        let grant = GrantId::from("g1");
        let lease = LeaseId::of(&grant, 7);
        assert_eq!(lease.as_str(), "g1.7");
        assert_eq!(lease.grant(), Some(grant));
        assert_eq!(LeaseId::from("none").grant(), None);
    }
}
