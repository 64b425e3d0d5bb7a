//! An object with all of its fields, also unknown ones, which must survive writes.
//!
//! kube's `DynamicObject` decodes unknown fields twice, and the metadata into types that are
//! encoded again at once. That was a considerable part of the operator's work for an event.
//!
//! One type serves all kinds, because kube's watcher is compiled for each type that it watches.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::pods::identity;
use crate::k8s::convert::latest;
use crate::protocol::time::WallTime;

/// Maintained by the API server, longer than everything else, and not part of writes.
const MANAGED_FIELDS: &str = "managedFields";
const METADATA: &str = "metadata";

/// An object of any kind.
#[derive(Clone)]
pub(super) struct RawObject {
    /// The identifying metadata; everything else is in `object`.
    identity: ObjectMeta,
    /// When a field was last set, by the API server's clock.
    pub(super) set_at: Option<WallTime>,
    /// The object without managedFields.
    pub(super) object: Value,
}

impl fmt::Debug for RawObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.object.fmt(f)
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = deserializer.deserialize_map(Fields {
            are_metadata: false,
        })?;
        let metadata = object.fields.get(METADATA).unwrap_or(&Value::Null);
        Ok(Self {
            identity: identity(metadata).map_err(D::Error::custom)?,
            set_at: object.set_at,
            object: Value::Object(object.fields),
        })
    }
}

impl Resource for RawObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        of.kind.as_str().into()
    }

    fn group(of: &ApiResource) -> Cow<'_, str> {
        of.group.as_str().into()
    }

    fn version(of: &ApiResource) -> Cow<'_, str> {
        of.version.as_str().into()
    }

    fn plural(of: &ApiResource) -> Cow<'_, str> {
        of.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.identity
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.identity
    }
}

/// Decodes the fields of an object, or of its metadata.
struct Fields {
    are_metadata: bool,
}

/// The fields, and the latest time of managedFields.
#[derive(Default)]
struct ParsedFields {
    fields: Map<String, Value>,
    set_at: Option<WallTime>,
}

/// An entry of managedFields.
#[derive(Deserialize)]
struct Managed {
    time: Option<String>,
}

impl<'de> Visitor<'de> for Fields {
    type Value = ParsedFields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut parsed = ParsedFields::default();
        while let Some(name) = entries.next_key::<String>()? {
            if self.are_metadata && name == MANAGED_FIELDS {
                let managed = entries.next_value::<Option<Vec<Managed>>>()?;
                let managed = managed.unwrap_or_default();
                let times = managed.iter().filter_map(|entry| entry.time.as_deref());
                parsed.set_at = latest(times);
                continue;
            }
            let value = if !self.are_metadata && name == METADATA {
                let metadata = entries.next_value::<Metadata>()?.0;
                parsed.set_at = metadata.set_at;
                Value::Object(metadata.fields)
            } else {
                entries.next_value()?
            };
            parsed.fields.insert(name, value);
        }
        Ok(parsed)
    }
}

struct Metadata(ParsedFields);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = deserializer.deserialize_map(Fields { are_metadata: true })?;
        Ok(Self(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn everything_but_managed_fields_is_kept() {
        let mut object = json!({
            "apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock", "new": [1],
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7",
                "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"x": "y"}, "new": {"managedFields": 2},
                "managedFields": [
                    {"manager": "m", "fieldsV1": {"f:spec": {}}},
                    {"manager": "n", "time": "1970-01-01T00:00:09Z", "fieldsV1": {"f:status": {}}},
                    {"manager": "o", "time": "1970-01-01T00:00:08Z", "fieldsV1": {"f:spec": {}}},
                ]},
            "spec": {"metadata": {"managedFields": 1}}, "managedFields": 4,
        });
        let raw: RawObject = serde_json::from_str(&object.to_string()).unwrap();
        assert_eq!(raw.meta().name.as_deref(), Some("a"));
        assert_eq!(raw.meta().uid.as_deref(), Some("u"));
        assert_eq!(raw.meta().resource_version.as_deref(), Some("7"));
        let metadata = object["metadata"].as_object_mut().unwrap();
        metadata.remove("managedFields");
        assert_eq!(raw.object, object);
        assert_eq!(raw.set_at, Some(WallTime(9_000_000)));
    }

    #[test]
    fn non_object_is_refused() {
        for text in [
            "[]",
            "1",
            "{}",
            "{\"metadata\": []}",
            "{\"metadata\": null}",
        ] {
            let read = serde_json::from_str::<RawObject>(text);
            assert!(read.is_err(), "{text}");
        }
    }
}
