//! Finds the lock that a user names, by the object's name or by the resource.

use serde_json::Value;

use super::api::{Api, locks};
use super::failure::Failure;
use crate::k8s::names::{is_object_name, object_name};
use crate::protocol::ids::Resource;
use crate::text::escape;

/// Reads the lock object of this name, or else the one that guards this resource.
///
/// # Errors
/// `NotFound` if no lock has the name, and none guards the resource.
pub(super) async fn find(api: &Api, text: &str) -> Result<Value, Failure> {
    for name in names(text)? {
        if let Some(object) = read(api, &name).await? {
            return Ok(object);
        }
    }
    let namespace = &api.namespace;
    Err(Failure::NotFound(format!(
        "in namespace {namespace} no lock has the name {text}, and none guards that resource; it was never acquired, or \
         was deleted when it was unused: see `kubectl leasehold list --namespace {namespace}`",
        text = escape(text),
    )))
}

/// Returns the name of the lock object, or the one that it will have.
///
/// # Errors
/// `Usage` if the text can be neither a name nor a resource.
pub(super) async fn resolve(api: &Api, text: &str) -> Result<String, Failure> {
    let mut names = names(text)?;
    // A name that looks hashed can be a resource, too; then the object that exists counts.
    let last = names.pop().unwrap_or_default();
    for name in names {
        if read(api, &name).await?.is_some() {
            return Ok(name);
        }
    }
    Ok(last)
}

/// Reads a lock object by its name; `None` if it does not exist.
pub(super) async fn read(api: &Api, name: &str) -> Result<Option<Value>, Failure> {
    api.find(&format!("{}/{name}", locks(Some(&api.namespace))))
        .await
}

/// Returns the names that the object can have, at least one.
fn names(text: &str) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    if is_object_name(text) {
        names.push(text.to_owned());
    }
    match Resource::parse(text) {
        Ok(resource) => names.push(object_name(&resource)),
        Err(error) if names.is_empty() => {
            return Err(Failure::Usage(format!(
                "{:?} is not the name of a lock: {error}",
                escape(text)
            )));
        }
        Err(_) => {}
    }
    names.dedup();
    Ok(names)
}
