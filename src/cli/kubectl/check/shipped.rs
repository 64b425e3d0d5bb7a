//! What this version ships: the files of the chart, as they are in the binary.

use serde::Deserialize as _;
use serde_json::Value;

use crate::cli::kubectl::failure::Failure;
use crate::crd::{lock_as_yaml, session_as_yaml};
use crate::kubectl::check::containers::name;
use crate::kubectl::check::findings::Shipped;

/// The policies that the chart installs in every mode but `off`; of the two modes those of one, because their names
/// are the same. What a value turns on is not among them.
const POLICIES: [&str; 11] = [
    include_str!("../../../../charts/leasehold/files/admission/create.yaml"),
    include_str!("../../../../charts/leasehold/files/admission/delete.yaml"),
    include_str!("../../../../charts/leasehold/files/admission/identity-lock.yaml"),
    include_str!("../../../../charts/leasehold/files/admission/identity-session.yaml"),
    include_str!("../../../../charts/leasehold/files/admission/operator-bindings.yaml"),
    include_str!("../../../../charts/leasehold/files/admission/operator-events.yaml"),
    include_str!("../../../../charts/leasehold/files/admission/operator-locks.yaml"),
    include_str!("../../../../charts/leasehold/files/admission/operator-secrets.yaml"),
    include_str!("../../../../charts/leasehold/files/admission/operator-webhook.yaml"),
    include_str!("../../../../charts/leasehold/files/admission/release-request.yaml"),
    include_str!("../../../../charts/leasehold/files/admission/take-over-strict.yaml"),
];
const SIDECAR: &str = include_str!("../../../../charts/leasehold/files/rbac/sidecar.yaml");
const FLOW_CONTROL: &str = include_str!("../../../../charts/leasehold/files/flowcontrol.yaml");

/// Reads the files.
pub(super) fn shipped() -> Result<Shipped, Failure> {
    let mut policies = Vec::new();
    for file in POLICIES {
        let mut objects = objects(file)?;
        objects.retain(|object| object["kind"] == "ValidatingAdmissionPolicy");
        policies.extend(objects.iter().map(|object| name(object).to_owned()));
    }
    let sidecar = objects(SIDECAR)?;
    let rules = sidecar.iter().filter_map(|role| role["rules"].as_array());
    let definitions = [lock_as_yaml(), session_as_yaml()];
    let definitions = definitions.into_iter().map(|yaml| {
        let yaml = yaml.map_err(|error| unreadable(&error))?;
        serde_yaml::from_str(&yaml).map_err(|error| unreadable(&error))
    });
    Ok(Shipped {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        definitions: definitions.collect::<Result<_, _>>()?,
        policies,
        sidecar_rules: rules.flatten().cloned().collect(),
        flow_control: objects(FLOW_CONTROL)?,
    })
}

fn objects(text: &str) -> Result<Vec<Value>, Failure> {
    let documents = serde_yaml::Deserializer::from_str(text);
    let objects: Result<Vec<_>, _> = documents.map(Value::deserialize).collect();
    objects.map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_yaml::Error) -> Failure {
    Failure::Usage(format!(
        "a file of this plugin cannot be read; report this bug: {error}"
    ))
}
