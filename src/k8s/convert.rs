//! Converts between the wire and the protocol.
//!
//! Reading is strict about everything that decisions depend on. A holder without a lease, a
//! negative token or a version that is not an integer is `Unreadable`. It is lenient about
//! informational fields: times, incidents, and reasons of a newer version.
//!
//! Writing starts with the object as it was read and changes only what the protocol changed. So
//! unknown fields survive at every level, and a time keeps its precision. The fields of a removed
//! entry (a holder, a waiter) are removed with it, and the next entry does not inherit them.

pub mod binding;
pub mod lock;
pub mod session;
pub mod uninjected_pod;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::errors::{Call, one_line};
use crate::crd;
use crate::protocol::time::WallTime;
use crate::protocol::token::Revision;
use crate::store::fleet::ObjectRef;
use crate::store::{Original, Page, StoreError, Stored};

/// A JSON object.
type Fields = Map<String, Value>;

/// The content of [`Original`]: the object as it was read, as text. It is kept for each held lock,
/// and as a tree it would take several times as much memory.
struct AsRead(Box<[u8]>);

/// Returns the `apiVersion` of Leasehold's kinds.
#[must_use]
pub fn api_version() -> String {
    format!("{}/{}", crd::GROUP, crd::VERSION)
}

/// Converts the response to a LIST into a page. Unreadable objects are left out and named.
///
/// # Errors
/// `Unreadable` if it is not a list, or its revision is not an integer.
pub fn page<T>(
    list: Value,
    read: impl Fn(Value) -> Result<Stored<T>, StoreError>,
) -> Result<Page<T>, StoreError> {
    let revision = revision_of(list.get("metadata"), "the list's metadata")?;
    let mut page = Page {
        items: Vec::new(),
        revision,
        next: continue_token(&list),
        unreadable: Vec::new(),
    };
    let Value::Object(mut list) = list else {
        return Err(StoreError::Unreadable("the list is no object".to_owned()));
    };
    let Some(Value::Array(items)) = list.remove("items") else {
        return Err(StoreError::Unreadable("the list has no items".to_owned()));
    };
    for item in items {
        match read(item) {
            Ok(stored) => page.items.push(stored),
            Err(error) => page.unreadable.push(error.to_string()),
        }
    }
    Ok(page)
}

/// Returns the namespace and name in an object's metadata.
#[must_use]
pub fn object_ref(metadata: &Value) -> ObjectRef {
    let named = |field: &str| metadata[field].as_str().unwrap_or_default().into();
    ObjectRef {
        namespace: named("namespace"),
        name: named("name"),
    }
}

/// Returns when a field of an object was last set, by its managedFields: the API server's clock.
/// Removing a field leaves no time there.
#[must_use]
pub fn set_at(object: &Value) -> Option<WallTime> {
    let managed = object["metadata"]["managedFields"].as_array();
    let times = managed.into_iter().flatten();
    latest(times.filter_map(|entry| entry["time"].as_str()))
}

/// Returns the latest of the times that can be read.
pub(super) fn latest<'a>(times: impl Iterator<Item = &'a str>) -> Option<WallTime> {
    let times = times.filter_map(|text| text.parse::<jiff::Timestamp>().ok());
    times.max().map(|at| WallTime(at.as_microsecond()))
}

/// Returns whether an object is being deleted, and a finalizer keeps it.
#[must_use]
pub fn is_deleted(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Returns the continue token of a LIST; `None` on the last page.
#[must_use]
pub fn continue_token(list: &Value) -> Option<String> {
    let next = list["metadata"]["continue"].as_str();
    next.filter(|next| !next.is_empty()).map(str::to_owned)
}

/// Converts the response to a write. The write was applied, so an unreadable response must not look
/// as if it was not.
///
/// # Errors
/// `Ambiguous` if the response cannot be read.
pub fn written<T>(
    object: Value,
    read: impl Fn(Value) -> Result<Stored<T>, StoreError>,
) -> Result<Stored<T>, StoreError> {
    read(object).map_err(|error| Call::Update.unknown_outcome(error.to_string()))
}

/// Returns the name of an object that is about to be written.
#[must_use]
pub fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn stored<T>(mut object: Fields, value: T) -> Result<Stored<T>, StoreError> {
    let version = revision_of(object.get("metadata"), "metadata")?;
    // The API server maintains it, and it is longer than everything else. A write without it does
    // not change it.
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
    }
    let text = serde_json::to_vec(&object)
        .map_err(|error| StoreError::Unreadable(format!("it cannot be kept: {error}")))?;
    Ok(Stored {
        value,
        version,
        original: Original::new(AsRead(text.into_boxed_slice())),
    })
}

/// Returns the object that an update starts with: as it was read, with the version to compare.
fn as_read<T>(current: &Stored<T>) -> Result<Fields, StoreError> {
    let foreign = || StoreError::Invalid("the object to update was not read from here".to_owned());
    let AsRead(text) = current.original.get().ok_or_else(foreign)?;
    let mut object: Fields = serde_json::from_slice(text).map_err(|_| foreign())?;
    fields_mut(&mut object, "metadata").insert(
        "resourceVersion".to_owned(),
        current.version.to_string().into(),
    );
    Ok(object)
}

/// Returns the version of an object.
///
/// # Errors
/// `Unreadable` if it is not an integer.
pub fn version_of(object: &Value) -> Result<Revision, StoreError> {
    revision_of(object.get("metadata"), "metadata")
}

fn revision_of(metadata: Option<&Value>, path: &str) -> Result<Revision, StoreError> {
    let text = metadata
        .and_then(|metadata| metadata["resourceVersion"].as_str())
        .unwrap_or("");
    text.parse().map(Revision).map_err(|_| {
        StoreError::Unreadable(one_line(&format!(
            "{path}.resourceVersion is {text:?} and no integer; fencing tokens are made from it, \
             so this API server cannot be used"
        )))
    })
}

/// Reads an optional field; `None` if it is absent or null.
fn optional<T: DeserializeOwned>(
    parent: &Fields,
    path: &str,
    name: &str,
) -> Result<Option<T>, StoreError> {
    match parent.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => T::deserialize(value)
            .map(Some)
            .map_err(|error| StoreError::Unreadable(one_line(&format!("{path}.{name}: {error}")))),
    }
}

/// Reads a required field.
fn required<T: DeserializeOwned>(parent: &Fields, path: &str, name: &str) -> Result<T, StoreError> {
    optional(parent, path, name)?
        .ok_or_else(|| StoreError::Unreadable(format!("{path}.{name} is missing")))
}

/// Returns the object in a field, which is created if it is missing.
fn fields_mut<'a>(parent: &'a mut Fields, name: &str) -> &'a mut Fields {
    let value = parent
        .entry(name)
        .or_insert_with(|| Value::Object(Fields::new()));
    if !value.is_object() {
        *value = Value::Object(Fields::new());
    }
    match value {
        Value::Object(fields) => fields,
        _ => unreachable!("it was just made an object"),
    }
}

/// Replaces the fields that this version knows in an entry as it was read. A known field without a
/// value is removed; unknown fields stay.
fn overlay(
    as_read: Option<&Value>,
    known: &[&str],
    now: &impl Serialize,
) -> Result<Value, StoreError> {
    let now = serde_json::to_value(now).map_err(|error| StoreError::Invalid(error.to_string()))?;
    let mut fields = as_read
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    for name in known {
        match now.get(name) {
            Some(value) => fields.insert((*name).to_owned(), value.clone()),
            None => fields.remove(*name),
        };
    }
    Ok(Value::Object(fields))
}

/// Reads a time. An unreadable time is not an error, because nothing depends on it.
fn wall_time(text: &str) -> WallTime {
    text.parse::<jiff::Timestamp>()
        .map_or(WallTime::default(), |at| WallTime(at.as_microsecond()))
}

pub(super) fn time_text(at: WallTime) -> String {
    let at = jiff::Timestamp::from_microsecond(at.0).unwrap_or_default();
    format!("{at:.6}")
}

/// Truncates informational text to the limit of the schema: a long reason must not block a
/// take-over.
pub(super) fn truncate(text: &str, longest: usize) -> String {
    text.chars().take(longest).collect()
}

/// Reads an informational count; a negative one counts as 0.
fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// The schema accepts no number above 2^53 - 1, and no counter reaches it.
fn bounded(count: u64) -> i64 {
    const MOST: i64 = (1 << 53) - 1;
    i64::try_from(count).unwrap_or(MOST).min(MOST)
}

/// Returns a TTL for the wire. It is within its bounds by its type.
fn ttl_seconds(ttl: crate::protocol::time::SessionTtl) -> i32 {
    i32::try_from(ttl.as_secs()).unwrap_or(i32::MAX)
}

/// Reads a TTL. A value out of range is clamped: it must neither block a lock for years nor allow a
/// take-over at once.
fn session_ttl(seconds: i32) -> crate::protocol::time::SessionTtl {
    crate::protocol::time::SessionTtl::clamped(u64::try_from(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn non_integer_revision_is_refused() {
        for text in ["", "abc", "-1", "1.5", "0x10"] {
            let metadata = json!({ "resourceVersion": text });
            let error = revision_of(Some(&metadata), "metadata").unwrap_err();
            assert!(matches!(error, StoreError::Unreadable(words) if words.contains("no integer")));
        }
        let gke = json!({"resourceVersion": "1760342223637167018"});
        assert_eq!(
            revision_of(Some(&gke), "metadata"),
            Ok(Revision(1_760_342_223_637_167_018))
        );
    }

    #[test]
    fn times_are_written_in_microseconds_and_read_in_any_precision() {
        let at = WallTime(1_767_225_600_123_456);
        assert_eq!(time_text(at), "2026-01-01T00:00:00.123456Z");
        assert_eq!(
            time_text(WallTime(1_767_225_600_000_000)),
            "2026-01-01T00:00:00.000000Z"
        );
        assert_eq!(wall_time("2026-01-01T00:00:00.123456789Z"), at);
        assert_eq!(wall_time("2026-01-01T01:00:00.123456+01:00"), at);
        assert_eq!(wall_time("yesterday"), WallTime(0));
    }

    #[test]
    fn page_names_its_unreadable_objects_and_its_continue_token() {
        let list = json!({
            "metadata": {"resourceVersion": "9", "continue": "more"},
            "items": [{"good": true}, {"good": false}],
        });
        let read = |item: Value| match item["good"].as_bool() {
            Some(true) => Ok(Stored {
                value: (),
                version: Revision(1),
                original: Original::new(()),
            }),
            _ => Err(StoreError::Unreadable("bad".to_owned())),
        };
        let page = page(list, read).unwrap();
        assert_eq!((page.items.len(), page.revision), (1, Revision(9)));
        assert_eq!(page.next.as_deref(), Some("more"));
        assert_eq!(page.unreadable, ["unreadable object: bad"]);
    }

    #[test]
    fn last_page_has_no_continue_token() {
        for next in [json!(null), json!("")] {
            let list = json!({"metadata": {"resourceVersion": "9", "continue": next}, "items": []});
            let page = page::<()>(list, |_| unreachable!("the list is empty")).unwrap();
            assert_eq!(page.next, None);
        }
    }
}
