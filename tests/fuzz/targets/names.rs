//! The names of two resources' objects, one resource per line. Kubernetes accepts each name, and
//! different resources have different names. No resource can be chosen to collide with another
//! one's name.

use leasehold::k8s::names::{is_object_name, object_name};
use leasehold::protocol::election::ElectionName;
use leasehold::protocol::ids::{InvalidResource, RESOURCE_MAX_BYTES, Resource};

use super::{Outcome, Target, no_seeds};

/// The number of hexadecimal digits at the end of a hashed name.
const HASH_DIGITS: usize = 20;

pub(crate) const TARGET: Target = Target {
    name: "names",
    run: |input| target(input, object_name),
    broken: |input| target(input, without_hash),
    seeds: no_seeds,
    words: &[
        "billing",
        "tenant_123",
        ":",
        ".",
        "-",
        "_",
        "A",
        "a",
        "Z",
        "election:",
        "jobs",
        "0123456789abcdef0123",
        "-0123456789abcdef0123",
        "lock",
        "lock-",
    ],
    tries: 20_000,
};

fn target(input: &[u8], name_of: fn(&Resource) -> String) -> Outcome {
    let Ok(text) = std::str::from_utf8(input) else {
        return Outcome::Refused("no text".to_owned());
    };
    // The text after a second line break is part of the second resource.
    let (one, other) = text.split_once('\n').unwrap_or((text, ""));
    let first = match checked(one) {
        Ok(resource) => resource,
        Err(invalid) => return Outcome::Refused(format!("{:?}", std::mem::discriminant(&invalid))),
    };
    let name = name_of(&first);
    let kind = assert_is_name(&first, &name, name_of);
    let Ok(second) = checked(other) else {
        return Outcome::Taken(kind);
    };
    let other_name = name_of(&second);
    let other_kind = assert_is_name(&second, &other_name, name_of);
    assert_eq!(
        first == second,
        name == other_name,
        "{one:?} and {other:?}: {name}"
    );
    Outcome::Taken(format!("{kind} and {other_kind}"))
}

/// Checks a resource, and that a refusal has the right reason.
fn checked(text: &str) -> Result<Resource, InvalidResource> {
    let parsed = Resource::parse(text);
    match &parsed {
        Ok(resource) => {
            assert_eq!(resource.as_str(), text);
            assert!((1..=RESOURCE_MAX_BYTES).contains(&text.len()));
            assert!(!text.chars().any(char::is_control));
        }
        Err(InvalidResource::Empty) => assert!(text.is_empty()),
        Err(InvalidResource::TooLong { bytes }) => {
            assert!(*bytes == text.len() && *bytes > RESOURCE_MAX_BYTES);
        }
        Err(InvalidResource::NotPrintable) => assert!(text.chars().any(|c| !c.is_ascii_graphic())),
    }
    if let Ok(election) = ElectionName::parse(text) {
        assert_eq!(election.as_str(), text);
        assert!(
            is_object_name(text),
            "{text:?} names an election and no object"
        );
    }
    parsed
}

/// Checks a name, and returns its kind.
fn assert_is_name(resource: &Resource, name: &str, name_of: fn(&Resource) -> String) -> String {
    let text = resource.as_str();
    assert!(is_object_name(name), "{text:?}: {name:?} is not a name");
    assert!(
        is_name(name),
        "{text:?}: {name:?} is not a name by RFC 1123"
    );
    assert_eq!(name, name_of(resource), "another name at another time");
    if name == text {
        assert!(!ends_hashed(name), "{name} could be another one's name");
        return "itself".to_owned();
    }
    assert!(ends_hashed(name), "{text:?}: {name} has no hash");
    // If this name is used as a resource, its object has another name.
    let met = Resource::parse(name).map(|met| name_of(&met));
    assert_ne!(met.as_deref(), Ok(name));
    let slug = name.len() - HASH_DIGITS - 1;
    assert!(slug <= 63, "{name} is too long to read");
    format!("slug of {}", slug / 16)
}

/// RFC 1123, implemented independently.
fn is_name(name: &str) -> bool {
    let alphanumeric =
        |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let label = |label: &str| {
        let mut chars = label.chars();
        alphanumeric(chars.next())
            && alphanumeric(label.chars().next_back())
            && chars.all(|c| c == '-' || alphanumeric(Some(c)))
    };
    name.len() <= 253 && name.split('.').all(label)
}

fn ends_hashed(name: &str) -> bool {
    let bytes = name.as_bytes();
    let Some(start) = bytes.len().checked_sub(HASH_DIGITS + 1) else {
        return false;
    };
    bytes[start] == b'-'
        && bytes[start + 1..]
            .iter()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Planted fault: uses a resource that looks hashed as its own name.
fn without_hash(resource: &Resource) -> String {
    let text = resource.as_str();
    if is_object_name(text) {
        text.to_owned()
    } else {
        object_name(resource)
    }
}
