//! Between the wire and the protocol, both ways.
//!
//! Reading is strict about what decisions hang on (a holder without a lease, a token that is
//! negative, a version that is no integer: `Unreadable`, and nothing is decided) and lenient about
//! what is only for people (times, incidents, reasons that a newer version brought).
//!
//! Writing begins with the object as it was read and changes what the protocol changed. So fields
//! that this version does not know survive at every level, and a time keeps the precision that it
//! was written with. What belonged to an entry that is gone (a holder, a waiter) goes with it:
//! the next one does not inherit it.

pub mod asking_pod;
pub mod binding;
pub mod lock;
pub mod session;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::errors::{Call, in_short};
use crate::crd;
use crate::protocol::time::WallTime;
use crate::protocol::token::Revision;
use crate::store::fleet::Place;
use crate::store::{Original, Page, StoreError, Stored};

/// A JSON object.
type Fields = Map<String, Value>;

/// What [`Original`] carries: the object as it was read, as text. It is kept for each lock that is
/// held, and as a tree it takes several times as much.
struct AsRead(Box<[u8]>);

/// The `apiVersion` of everything here.
#[must_use]
pub fn api_version() -> String {
    format!("{}/{}", crd::GROUP, crd::VERSION)
}

/// A LIST's answer as a page. What cannot be read is left out and named.
///
/// # Errors
/// `Unreadable` when it is no list or its revision is no integer.
pub fn page<T>(
    list: Value,
    read: impl Fn(Value) -> Result<Stored<T>, StoreError>,
) -> Result<Page<T>, StoreError> {
    let revision = revision_of(list.get("metadata"), "the list's metadata")?;
    let mut page = Page {
        items: Vec::new(),
        revision,
        next: next_page(&list),
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

/// Where an object is, by its metadata.
#[must_use]
pub fn place_of(metadata: &Value) -> Place {
    let named = |field: &str| metadata[field].as_str().unwrap_or_default().into();
    Place {
        namespace: named("namespace"),
        name: named("name"),
    }
}

/// When a field of an object was last set, by its managedFields: the API server's clock. Removing a
/// field alone leaves no time there.
#[must_use]
pub fn set_at(object: &Value) -> Option<WallTime> {
    let managed = object["metadata"]["managedFields"].as_array();
    let times = managed.into_iter().flatten();
    latest(times.filter_map(|entry| entry["time"].as_str()))
}

/// The latest of some times, of those that can be read.
pub(super) fn latest<'a>(times: impl Iterator<Item = &'a str>) -> Option<WallTime> {
    let times = times.filter_map(|text| text.parse::<jiff::Timestamp>().ok());
    times.max().map(|at| WallTime(at.as_microsecond()))
}

/// Whether somebody deleted an object, which a finalizer keeps.
#[must_use]
pub fn is_deleted(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Where a LIST goes on; none on its last page.
#[must_use]
pub fn next_page(list: &Value) -> Option<String> {
    let next = list["metadata"]["continue"].as_str();
    next.filter(|next| !next.is_empty()).map(str::to_owned)
}

/// What a write answered with. It was applied, so an answer that makes no sense must not look as
/// if nothing had happened.
///
/// # Errors
/// `Ambiguous` when the answer cannot be read.
pub fn written<T>(
    object: Value,
    read: impl Fn(Value) -> Result<Stored<T>, StoreError>,
) -> Result<Stored<T>, StoreError> {
    read(object).map_err(|error| Call::Update.unclear(error.to_string()))
}

/// The name of an object that is about to be written.
#[must_use]
pub fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn stored<T>(mut object: Fields, value: T) -> Result<Stored<T>, StoreError> {
    let version = revision_of(object.get("metadata"), "metadata")?;
    // Bookkeeping of the API server, longer than all the rest. A write without it leaves it alone.
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

/// What an update starts with: the object as it was read, carrying the version to compare with.
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

/// The version of an object.
///
/// # Errors
/// `Unreadable` when it is no integer.
pub fn version_of(object: &Value) -> Result<Revision, StoreError> {
    revision_of(object.get("metadata"), "metadata")
}

fn revision_of(metadata: Option<&Value>, place: &str) -> Result<Revision, StoreError> {
    let text = metadata
        .and_then(|metadata| metadata["resourceVersion"].as_str())
        .unwrap_or("");
    text.parse().map(Revision).map_err(|_| {
        StoreError::Unreadable(in_short(&format!(
            "{place}.resourceVersion is {text:?} and no integer; fencing tokens are made from it, \
             so this API server cannot be used"
        )))
    })
}

/// Reads a part of an object; none when it is absent or null.
fn part<T: DeserializeOwned>(
    parent: &Fields,
    path: &str,
    name: &str,
) -> Result<Option<T>, StoreError> {
    match parent.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => T::deserialize(value)
            .map(Some)
            .map_err(|error| StoreError::Unreadable(in_short(&format!("{path}.{name}: {error}")))),
    }
}

/// As [`part`], for a part that has to be there.
fn required<T: DeserializeOwned>(parent: &Fields, path: &str, name: &str) -> Result<T, StoreError> {
    part(parent, path, name)?
        .ok_or_else(|| StoreError::Unreadable(format!("{path}.{name} is missing")))
}

/// The object inside an object, made where it is missing.
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

/// Writes the fields that this version knows over an entry as it was read. A known field that has
/// no value now is removed; unknown ones stay.
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

/// A time that cannot be read is no reason to refuse: nothing is decided by it.
fn wall_time(text: &str) -> WallTime {
    text.parse::<jiff::Timestamp>()
        .map_or(WallTime::default(), |at| WallTime(at.as_microsecond()))
}

pub(super) fn time_text(at: WallTime) -> String {
    let at = jiff::Timestamp::from_microsecond(at.0).unwrap_or_default();
    format!("{at:.6}")
}

/// Free text for people, cut to what the schema takes: a long reason must not stop a take-over.
pub(super) fn cut(text: &str, longest: usize) -> String {
    text.chars().take(longest).collect()
}

/// A count that is only for people; a negative one is none.
fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// The schema takes no number above 2^53 - 1, and no counter will get there.
fn bounded(count: u64) -> i64 {
    const MOST: i64 = (1 << 53) - 1;
    i64::try_from(count).unwrap_or(MOST).min(MOST)
}

/// A TTL for the wire: 3 to 120 by its type.
fn ttl_seconds(ttl: crate::protocol::time::SessionTtl) -> i32 {
    i32::try_from(ttl.as_secs()).unwrap_or(120)
}

/// A TTL from the wire. What lies outside of the bounds is brought to the nearest: it must neither
/// block a lock for years nor let a take-over happen at once.
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
            let page = page::<()>(list, |_| unreachable!("there are no items")).unwrap();
            assert_eq!(page.next, None);
        }
    }
}
