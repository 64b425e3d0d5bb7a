//! Maps a resource to the name of its lock object.
//!
//! Names are never mapped back to resources: `spec.resource` says what a lock guards, and an agent
//! rejects an object with another resource. The function must never change, or two versions of the
//! agent would use two objects for one resource.

use sha2::{Digest, Sha256};

use crate::protocol::ids::Resource;

/// The maximum length of an object name (RFC 1123 subdomain).
const NAME_MAX: usize = 253;
/// The number of hexadecimal digits of the hash in a name: 80 bits, so that a collision cannot be
/// found by brute force.
const HASH_DIGITS: usize = 20;
/// The maximum length of the readable part, short enough for a terminal.
const SLUG_MAX: usize = 63;

/// Returns the name of the object that guards `resource`. It is the resource itself if that is a
/// valid object name that does not look hashed, otherwise a readable slug plus a hash.
#[must_use]
pub fn object_name(resource: &Resource) -> String {
    let resource = resource.as_str();
    if is_object_name(resource) && !looks_hashed(resource) {
        return resource.to_owned();
    }
    let slug = slug(resource);
    let hash = hash(resource);
    if slug.is_empty() {
        format!("lock-{hash}")
    } else {
        format!("{slug}-{hash}")
    }
}

/// Returns the object's name if that is a valid label value without dots, otherwise a slug plus a hash. Never longer
/// than a label value may be.
#[must_use]
pub fn short_name(name: &str) -> String {
    if name.len() <= SLUG_MAX && !name.contains('.') {
        return name.to_owned();
    }
    let mut slug = slug(name);
    slug.truncate(SLUG_MAX - HASH_DIGITS - 1);
    format!("{}-{}", slug.trim_end_matches('-'), hash(name))
}

/// Returns whether Kubernetes accepts this as an object name.
#[must_use]
pub fn is_object_name(name: &str) -> bool {
    name.len() <= NAME_MAX && name.split('.').all(is_label)
}

fn is_label(label: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !label.is_empty()
        && label.bytes().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// A resource that ends like a hashed name is hashed, too. Otherwise it could be chosen to equal
/// the name of another resource.
fn looks_hashed(name: &str) -> bool {
    name.rsplit_once('-').is_some_and(|(_, end)| {
        end.len() == HASH_DIGITS
            && end
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

fn slug(resource: &str) -> String {
    let mut slug = String::with_capacity(SLUG_MAX);
    for c in resource.chars() {
        if slug.len() == SLUG_MAX {
            break;
        }
        match c.to_ascii_lowercase() {
            c @ ('a'..='z' | '0'..='9') => slug.push(c),
            _ if slug.is_empty() || slug.ends_with('-') => {}
            _ => slug.push('-'),
        }
    }
    slug.truncate(slug.trim_end_matches('-').len());
    slug
}

fn hash(resource: &str) -> String {
    use std::fmt::Write;

    let digest = Sha256::digest(resource.as_bytes());
    let mut hex = String::with_capacity(HASH_DIGITS);
    for byte in digest.iter().take(HASH_DIGITS / 2) {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(resource: &str) -> String {
        object_name(&Resource::parse(resource).unwrap())
    }

    #[test]
    fn a_resource_that_is_a_name_is_the_name() {
        for resource in ["billing", "a", "jobs.nightly", "x-1", "billing-deadbeef"] {
            assert_eq!(name(resource), resource);
        }
        assert_eq!(name(&"x".repeat(253)), "x".repeat(253));
    }

    #[test]
    fn other_resources_get_a_slug_and_a_hash() {
        // Existing objects have these names, so they must never change.
        for (resource, expected) in [
            (
                "tenant_123:billing-close:2026-04",
                "tenant-123-billing-close-2026-04-d89f1d29da1037bf2263",
            ),
            ("Billing", "billing-3ac8bbca9a74cfbd6273"),
            ("::", "lock-71546855d6279ef70d20"),
            ("日本", "lock-cf2abf0c5be326cb922a"),
            ("-a-", "a-a75a468f2ce51903a28d"),
            ("a..b", "a-b-f62b42414c514fa689d3"),
            (
                "billing-e8a24e5b6b6b3b5f1a0c",
                "billing-e8a24e5b6b6b3b5f1a0c-4cca193d69c31c1159c6",
            ),
        ] {
            assert_eq!(name(resource), expected);
        }
    }

    #[test]
    fn resource_that_looks_hashed_is_hashed_again() {
        let victim = name("Billing");
        assert_ne!(name(&victim), victim);
    }

    #[test]
    fn a_name_is_never_longer_than_kubernetes_takes() {
        assert!(name(&"X".repeat(512)).len() <= NAME_MAX);
        assert!(name(&"x".repeat(254)).len() <= NAME_MAX);
    }

    #[test]
    fn short_name_is_a_label_value_without_dots() {
        let slug = format!("{}-x-", "x".repeat(40));
        for (name, expected) in [
            ("settings".to_owned(), "settings".to_owned()),
            ("x".repeat(63), "x".repeat(63)),
            (
                "jobs.nightly".to_owned(),
                format!("jobs-nightly-{}", hash("jobs.nightly")),
            ),
            (
                format!("{slug}{}", "y".repeat(200)),
                format!(
                    "{}{}",
                    &slug[..43],
                    hash(&format!("{slug}{}", "y".repeat(200)))
                ),
            ),
        ] {
            let short = short_name(&name);
            assert_eq!(short, expected);
            assert!(short.len() <= 63, "{short}");
        }
    }

    proptest! {
        #[test]
        fn every_resource_has_a_valid_name(resource in "\\PC{1,120}") {
            if let Ok(resource) = Resource::parse(&resource) {
                let name = object_name(&resource);
                prop_assert!(is_object_name(&name), "{name}");
                prop_assert_eq!(object_name(&resource), name);
            }
        }

        #[test]
        fn different_resources_have_different_names(
            a in "[aA:._-]{0,6}[a-f0-9-]{0,24}", b in "[aA:._-]{0,6}[a-f0-9-]{0,24}",
        ) {
            if let (Ok(a), Ok(b)) = (Resource::parse(&a), Resource::parse(&b)) {
                prop_assert_eq!(a == b, object_name(&a) == object_name(&b));
            }
        }
    }
}
