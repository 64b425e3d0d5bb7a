//! The file format of locks and sessions: one JSON document each.
//!
//! Every object in a document keeps its unknown fields, so that an older version does not erase
//! them. The fields of a removed entry (a grant, a waiter) are removed with it, and the next entry
//! does not inherit them. An incident of an unknown kind is left out of the lock and stays in the
//! document.

mod lock;
mod session;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::store::StoreError;

pub(super) use lock::LockRecord;
pub(super) use session::SessionRecord;

/// The unknown fields.
type Unknown = Map<String, Value>;

/// Reads a document.
///
/// # Errors
/// `Unreadable` with its name and the invalid content.
pub(super) fn read<T: DeserializeOwned>(name: &str, document: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(document).map_err(|error| unreadable(name, &error))
}

/// Writes a document.
///
/// # Errors
/// `Invalid` if it cannot be written as JSON.
pub(super) fn write(record: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(record).map_err(|error| StoreError::Invalid(error.to_string()))
}

fn unreadable(name: &str, what: &impl ToString) -> StoreError {
    StoreError::Unreadable(format!("{name:?}: {}", what.to_string()))
}
