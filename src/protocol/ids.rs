//! Names that the protocol passes around, each a type of its own.
//!
//! They are cheap to clone (one shared string each). Only [`Resource`] checks what is inside,
//! because only it comes straight from an app; the others are made by us or checked at the wire.

use std::fmt;
use std::sync::Arc;

/// The longest resource name in bytes.
pub const RESOURCE_MAX_BYTES: usize = 512;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The id as it is written in objects and answers.
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
    /// Who an app says it is; free text that people read.
    OwnerId
}
id! {
    /// One running agent's claim to be alive; the name of its `LockSession` object.
    SessionId
}
id! {
    /// One tenure of a lock by a session, made before its first write so that an unanswered
    /// write can be recognised afterwards.
    GrantId
}
id! {
    /// What an app holds: `<grantId>.<n>`.
    LeaseId
}

impl LeaseId {
    /// The id of the `n`-th lease inside a grant.
    #[must_use]
    pub fn of(grant: &GrantId, n: u16) -> Self {
        Self(format!("{grant}.{n}").into())
    }
}

/// The string that an app locks: 1 to 512 bytes of printable text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource(Arc<str>);

/// Why a string cannot be a [`Resource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidResource {
    /// It has no bytes at all.
    Empty,
    /// It has more than [`RESOURCE_MAX_BYTES`] bytes.
    TooLong {
        /// How many bytes it has.
        bytes: usize,
    },
    /// It has a control character (also a line break or a tab), or is nothing but white space.
    NotPrintable,
}

impl fmt::Display for InvalidResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("resource is empty; name what is to be locked"),
            Self::TooLong { bytes } => write!(
                f,
                "resource has {bytes} bytes; use at most {RESOURCE_MAX_BYTES} (hash what is longer)"
            ),
            Self::NotPrintable => f.write_str(
                "resource must be printable text without control characters (no tabs or line \
                 breaks) and not only white space",
            ),
        }
    }
}

impl std::error::Error for InvalidResource {}

impl Resource {
    /// Checks a string from outside.
    ///
    /// # Errors
    /// [`InvalidResource`] says what is wrong with it and what to do.
    pub fn parse(text: &str) -> Result<Self, InvalidResource> {
        if text.is_empty() {
            return Err(InvalidResource::Empty);
        }
        if text.len() > RESOURCE_MAX_BYTES {
            return Err(InvalidResource::TooLong { bytes: text.len() });
        }
        if text.chars().any(is_unprintable) || text.trim().is_empty() {
            return Err(InvalidResource::NotPrintable);
        }
        Ok(Self(text.into()))
    }

    /// The resource as the app wrote it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Control characters, and the marks that make two strings look alike or text run backwards.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
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
        for bad in ["a\nb", "a\tb", "\u{0}", " ", "a\u{202e}b", "\u{feff}a"] {
            assert_eq!(
                Resource::parse(bad),
                Err(InvalidResource::NotPrintable),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_lease_id_names_its_grant_and_its_place_in_it() {
        assert_eq!(LeaseId::of(&GrantId::from("g1"), 7).as_str(), "g1.7");
    }
}
