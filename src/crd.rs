//! The wire types: locks and sessions in the API server, and their definitions (CRDs).
//!
//! Deliberately no logic: `protocol` defines what an object *means*, and `k8s::convert` converts
//! it. The CRDs have the invariants that the API server itself must enforce ([`rules`]), so that no
//! client of any version can break them. Every string, number, list and map is bounded: an object
//! fits into etcd, and the cost of the rules can be estimated. Values that apps choose are bounded
//! by the protocol's constants. The HTTP API checks them in bytes and the schema in characters, so
//! the API server accepts everything that an agent accepts.

pub mod lock;
pub mod rules;
pub mod session;

pub use lock::DistributedLock;
pub use session::LockSession;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

/// The API group of everything here.
pub const GROUP: &str = "leasehold.dev";
/// The version of the API group.
pub const VERSION: &str = "v1alpha1";
/// The command that installs the CRDs. Server-side, so that an update by another tool does not
/// conflict with its annotation.
pub const INSTALL_COMMAND: &str = "leasehold crd | kubectl apply --server-side -f -";

/// The maximum length of a `reason` of an incident or a release request, in characters.
pub const REASON_MAX: usize = 1024;
/// The maximum duration in a spec: ten years.
pub const SPEC_SECONDS_MAX: u64 = 315_360_000;

/// Returns both definitions as one YAML stream, the lock's first. The result is always the same.
///
/// # Errors
/// If a definition cannot be written as YAML, which would be a bug in a derive macro.
pub fn all_as_yaml() -> Result<String, serde_yaml::Error> {
    let documents = [lock_as_yaml()?, session_as_yaml()?];
    Ok(documents
        .map(|document| format!("---\n{document}"))
        .concat())
}

/// Returns the definition of [`DistributedLock`] as YAML.
///
/// # Errors
/// As [`all_as_yaml`].
pub fn lock_as_yaml() -> Result<String, serde_yaml::Error> {
    as_yaml(&DistributedLock::crd())
}

/// Returns the definition of [`LockSession`] as YAML.
///
/// # Errors
/// As [`all_as_yaml`].
pub fn session_as_yaml() -> Result<String, serde_yaml::Error> {
    as_yaml(&LockSession::crd())
}

fn as_yaml(definition: &CustomResourceDefinition) -> Result<String, serde_yaml::Error> {
    let mut value = serde_yaml::to_value(definition).and_then(serde_yaml::from_value)?;
    tidy(&mut value);
    serde_yaml::to_string(&value)
}

/// Removes what the derive macros add without need.
///
/// `nullable`: an optional field is absent or has a value; `null` would be a third state, which
/// the rules' `has()` takes for a value. Bounds as floats: they are whole numbers.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("nullable") == Some(&Value::Bool(true)) {
                map.remove("nullable");
            }
            map.values_mut().for_each(tidy);
        }
        Value::Array(list) => list.iter_mut().for_each(tidy),
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().and_then(whole) {
                *schema = whole.into();
            }
        }
        _ => {}
    }
}

/// Returns the number as an integer; every bound is below 2^53, where no digit is lost.
#[allow(
    clippy::cast_possible_truncation,
    reason = "checked to have no fraction and to be small enough"
)]
fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0).then_some(number as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schemas() -> Vec<Value> {
        [lock_as_yaml(), session_as_yaml()]
            .into_iter()
            .map(|yaml| serde_yaml::from_str(&yaml.unwrap()).unwrap())
            .map(|crd: Value| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone())
            .collect()
    }

    /// Calls `check` with the path and the schema of every field below `spec` and `status`.
    fn walk(path: &str, schema: &Value, check: &impl Fn(&str, &Value)) {
        check(path, schema);
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), property, check);
        }
        for part in ["items", "additionalProperties"] {
            if schema[part].is_object() {
                walk(&format!("{path}[]"), &schema[part], check);
            }
        }
    }

    fn walk_all(check: impl Fn(&str, &Value)) {
        for schema in schemas() {
            walk("spec", &schema["properties"]["spec"], &check);
            walk("status", &schema["properties"]["status"], &check);
        }
    }

    #[test]
    fn every_field_is_bounded() {
        walk_all(|path, schema| match schema["type"].as_str() {
            Some("string") => assert!(
                schema["maxLength"].is_u64() || schema["enum"].is_array(),
                "{path} needs a maxLength"
            ),
            Some("integer") => assert!(
                schema["minimum"].is_number() && schema["maximum"].is_number(),
                "{path} needs a minimum and a maximum"
            ),
            Some("array") => assert!(schema["maxItems"].is_u64(), "{path} needs maxItems"),
            Some("object") if schema["additionalProperties"].is_object() => {
                assert!(
                    schema["maxProperties"].is_u64(),
                    "{path} needs maxProperties"
                );
            }
            Some("object" | "boolean") => {}
            other => panic!("{path} has the type {other:?}"),
        });
    }

    #[test]
    fn every_field_is_explained() {
        walk_all(|path, schema| {
            let inner = path.ends_with("[]");
            assert!(
                inner
                    || schema["description"]
                        .as_str()
                        .is_some_and(|text| text.len() > 10),
                "{path} needs a description"
            );
        });
    }

    #[test]
    fn no_field_is_nullable() {
        walk_all(|path, schema| assert!(schema["nullable"].is_null(), "{path} is nullable"));
    }

    #[test]
    fn the_yaml_is_the_same_on_every_call() {
        assert_eq!(all_as_yaml().unwrap(), all_as_yaml().unwrap());
    }
}
