//! The targets: each takes any bytes, does with them what the shipped code does with what comes from outside,
//! and asserts what must hold whatever they are. They speak to the crate as others can, and know nothing
//! of who makes the inputs.

pub(crate) mod annotations;
pub(crate) mod api;
pub(crate) mod cluster;
pub(crate) mod journal;
pub(crate) mod lock;
pub(crate) mod names;
pub(crate) mod quantity;
pub(crate) mod review;
pub(crate) mod session;
pub(crate) mod state_file;

use leasehold::store::{StoreError, Stored};
use serde_json::{Map, Value};

/// What became of an input. The words tell apart what the code did, for whoever counts.
#[derive(Debug)]
pub(crate) enum Outcome {
    Taken(String),
    Refused(String),
}

/// One way into the code.
pub(crate) struct Target {
    /// Its name, which is that of its folder in `corpus`, too.
    pub(crate) name: &'static str,
    /// What it does with an input. It panics where something does not hold.
    pub(crate) run: fn(&[u8]) -> Outcome,
    /// The same with something broken in the code, which shows that it would be noticed.
    pub(crate) broken: fn(&[u8]) -> Outcome,
    /// Inputs beside the corpus, made by the code itself.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// What its inputs are made of.
    pub(crate) words: &'static [&'static str],
    /// How many mutations a short run tries.
    pub(crate) tries: usize,
}

/// All of them.
#[allow(dead_code, reason = "the short run names each")]
pub(crate) const ALL: [&Target; 10] = [
    &annotations::TARGET,
    &api::TARGET,
    &cluster::TARGET,
    &journal::TARGET,
    &lock::TARGET,
    &names::TARGET,
    &quantity::TARGET,
    &review::TARGET,
    &session::TARGET,
    &state_file::TARGET,
];

/// No inputs but the corpus.
pub(crate) fn no_seeds() -> Vec<Vec<u8>> {
    Vec::new()
}

/// An object, where it is one that can be compared: `serde_json` reads some fractions and very large numbers as
/// their neighbours, which is no word on what is done with them.
fn object_in(input: &[u8]) -> Result<Value, Outcome> {
    let read = |text: &[u8]| serde_json::from_slice::<Value>(text);
    let object = read(input).map_err(|_| Outcome::Refused("no JSON".to_owned()))?;
    match read(object.to_string().as_bytes()) {
        Ok(again) if again == object => Ok(object),
        _ => Err(Outcome::Refused(
            "a number that is read as another".to_owned(),
        )),
    }
}

/// The kind of an error, and its words checked: whoever reads them has nothing else.
fn unreadable(error: StoreError) -> Outcome {
    let StoreError::Unreadable(words) = error else {
        panic!("{error:?} is no word on an object that makes no sense");
    };
    assert!(words.len() > 10, "{words:?} says nothing");
    // Up to what was in the input.
    let kind = words.split('"').next_back().unwrap_or_default();
    let kind: String = kind
        .chars()
        .filter(|c| !c.is_ascii_digit())
        .take(60)
        .collect();
    Outcome::Refused(kind)
}

/// An object as it is kept: without the API server's bookkeeping.
fn kept(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
    }
    object
}

/// The members of an object but these.
fn without(object: &Value, names: &[&str]) -> Map<String, Value> {
    let mut members = object.as_object().cloned().unwrap_or_default();
    for name in names {
        members.remove(*name);
    }
    members
}

/// An object as it is written when nothing was changed, before what this version writes in other words.
fn as_read<T>(object: &Value, stored: &Stored<T>) -> Value {
    let mut object = kept(object);
    object["metadata"]["resourceVersion"] = stored.version.to_string().into();
    if !object["status"].is_object() {
        object["status"] = Value::Object(Map::new());
    }
    object
}

/// The schema takes no larger numbers.
fn bounded(number: u64) -> Value {
    number.min((1 << 53) - 1).into()
}

/// What a write does not touch is there after it: all but the version, and what this version knows of a
/// status.
fn assert_rest_is_kept(written: &Value, object: &Value, known: &[&str]) {
    let before = kept(object);
    let parts = [
        (written, &before, &["metadata", "status"][..]),
        (
            &written["metadata"],
            &before["metadata"],
            &["resourceVersion"],
        ),
        (&written["status"], &before["status"], known),
    ];
    for (now, before, changed) in parts {
        assert_eq!(without(now, changed), without(before, changed));
    }
}

/// What a version writes that forgets what it does not know of a status.
fn forgetting(mut written: Value, known: &[&str]) -> Value {
    if let Some(status) = written["status"].as_object_mut() {
        status.retain(|name, _| known.contains(&name.as_str()));
    }
    written
}
