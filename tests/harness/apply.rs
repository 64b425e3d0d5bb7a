//! Server-side apply of the shipped YAML files, with the administrator's rights.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use kube::api::{DynamicObject, Patch, PatchParams, TypeMeta};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::{Value, json};

use super::wait::{PATIENCE, eventually};

/// How long a definition or a policy may take to take effect.
pub(crate) const EFFECT: Duration = PATIENCE;

/// Applies every object in a file of the repository.
pub(crate) async fn apply_file(client: &Client, file: &Path) -> Result<Vec<DynamicObject>> {
    let mut applied = Vec::new();
    for object in read_file(file)? {
        let done = apply(client, &object).await;
        applied.push(done.with_context(|| file.display().to_string())?);
    }
    Ok(applied)
}

/// Returns the objects in a file.
pub(crate) fn read_file(file: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    objects(&text).with_context(|| file.display().to_string())
}

/// Returns the objects in a text with several YAML documents.
pub(crate) fn objects(text: &str) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        objects.push(Value::deserialize(document)?);
    }
    objects.retain(|object| !object.is_null());
    Ok(objects)
}

/// Applies one object, in the namespace that it names, if any.
pub(crate) async fn apply(client: &Client, object: &Value) -> Result<DynamicObject> {
    let (api, name) = place_of(client, object).await?;
    let params = PatchParams::apply("leasehold-tests").force();
    Ok(api.patch(&name, &params, &Patch::Apply(object)).await?)
}

/// Returns the stored object with this kind and name, or `None` if the object or its kind does not
/// exist.
pub(crate) async fn look_up(client: &Client, object: &Value) -> Result<Option<Value>> {
    let found = match place_of(client, object).await {
        Ok((api, name)) => api.get_opt(&name).await?,
        Err(error) if is_unknown(&error) => None,
        Err(error) => return Err(error),
    };
    Ok(found.map(serde_json::to_value).transpose()?)
}

/// Returns the API of an object, and its name.
pub(crate) async fn place_of(
    client: &Client,
    object: &Value,
) -> Result<(Api<DynamicObject>, String)> {
    let types: TypeMeta = serde_json::from_value(object.clone())?;
    let kind = GroupVersionKind::try_from(&types)?;
    let (resource, _) = kube::discovery::pinned_kind(client, &kind).await?;
    let name = object["metadata"]["name"]
        .as_str()
        .context("an object that we ship must have a name")?;
    let api = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    Ok((api, name.to_owned()))
}

/// Returns whether the API server does not serve a kind.
fn is_unknown(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) => status.code == 404,
        Some(kube::Error::Discovery(_)) => true,
        _ => false,
    }
}

/// Returns the path of a file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Waits until the kinds of a definition are served.
pub(crate) async fn until_served(client: &Client, kind: &str) -> Result<()> {
    let path = format!("/apis/leasehold.dev/v1alpha1/{kind}?limit=1");
    eventually(
        &format!("the API server to serve {kind}"),
        EFFECT,
        async || {
            let request = http::Request::get(&path).body(vec![]).ok()?;
            client.request_text(request).await.ok().map(drop)
        },
    )
    .await
}

/// Waits until all policies that were applied earlier are enforced.
///
/// The API server receives policies by one watch and bindings by another, and compiles all it has
/// at once. So when the policy that was applied last refuses, the earlier ones are in effect, too.
pub(crate) async fn until_policies_are_enforced(client: &Client) -> Result<()> {
    let name = format!("sentinel-{}", fastrand::u64(..));
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["configmaps"]}]},
            "matchConditions": [{"name": "sentinel",
                "expression": format!("object.metadata.name == '{name}'")}],
            "validations": [{"expression": "false", "message": "the policies are enforced"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    apply(client, &policy).await?;
    apply(client, &binding).await?;
    let canary = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    eventually(
        "the admission policies to be enforced",
        EFFECT,
        async || {
            let path = "/api/v1/namespaces/default/configmaps?dryRun=All";
            let request = http::Request::post(path)
                .header("content-type", "application/json")
                .body(canary.to_string().into_bytes())
                .ok()?;
            let refusal = client.request_text(request).await.err()?;
            refusal
                .to_string()
                .contains("the policies are enforced")
                .then_some(())
        },
    )
    .await
}
