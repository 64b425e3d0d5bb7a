//! Locks and sessions as the file keeps them: one JSON document each.
//!
//! Every object in a document keeps the fields that this version does not know, so that an older
//! version on a newer one's file erases nothing. What belonged to an entry that is gone (a grant,
//! a waiter) goes with it: the next one does not inherit it. An incident of a kind that this
//! version does not know is left out of the lock and stays in the document.

mod lock;
mod session;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::store::StoreError;

pub(super) use lock::LockRecord;
pub(super) use session::SessionRecord;

/// The fields that this version does not know.
type Unknown = Map<String, Value>;

/// Reads a document.
///
/// # Errors
/// `Unreadable` with its name and what makes no sense.
pub(super) fn read<T: DeserializeOwned>(name: &str, document: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(document).map_err(|error| unreadable(name, &error))
}

/// Writes a document.
///
/// # Errors
/// `Invalid`, when it cannot be written as JSON.
pub(super) fn write(record: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(record).map_err(|error| StoreError::Invalid(error.to_string()))
}

fn unreadable(name: &str, what: &impl ToString) -> StoreError {
    StoreError::Unreadable(format!("{name:?}: {}", what.to_string()))
}
