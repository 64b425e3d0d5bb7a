//! `kubectl leasehold fence-object`: has the API server refuse stale writes to one object (docs/fencing-kubernetes.md).
//!
//! Each step is repeated without an effect, so a command that failed half-way is run again.

use std::time::Duration;

use serde_json::{Value, json};

use super::api::{Api, locks};
use super::failure::Failure;
use super::kinds::{self, Kind};
use super::{lock_name, terminal};
use crate::crd::{GROUP, SPEC_SECONDS_MAX, VERSION};
use crate::k8s::names::{object_name, short_name};
use crate::protocol::ids::Resource;
use crate::protocol::token::LEASES_PER_GRANT;
use crate::text::escape;

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const POLICY: &str = "leasehold-fenced-objects";
const LABEL: &str = "leasehold.dev/fenced-by";
const ANNOTATION: &str = "leasehold.dev/fencing-token";
const PAGE: &str = "https://github.com/leasehold/leasehold/blob/main/docs/fencing-kubernetes.md";
/// How long an API server may take to enforce a new binding: after its start, up to 30 s.
const ENFORCED_WITHIN: Duration = Duration::from_secs(35);
const POLL: Duration = Duration::from_millis(100);

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The kind, by any of its names, as configmap, cm or deployments.apps.
    #[arg(value_name = "KIND")]
    kind: String,
    /// The name of the object.
    #[arg(value_name = "NAME")]
    name: String,
    /// The lock; its object is created if it does not exist.
    #[arg(long, value_name = "LOCK")]
    lock: String,
}

/// An object, and the lock that guards it.
struct Fence<'a> {
    kind: &'a Kind,
    namespace: &'a str,
    name: &'a str,
    /// The name of the lock object.
    lock: String,
    /// The first token of the lock's current or last grant; 0: never granted.
    token: u64,
}

/// Guards an object by a lock.
pub(super) async fn run(api: &Api, args: &Args) -> Result<(), Failure> {
    let kind = kinds::find(api, &args.kind).await?;
    if !kind.is_namespaced {
        return Err(Failure::Usage(format!(
            "{} are cluster-scoped; a lock guards objects of its own namespace",
            kind.full_plural()
        )));
    }
    let lock = read_lock(api, &args.lock).await?;
    let policy = format!("{ADMISSION}/validatingadmissionpolicies/{POLICY}");
    if api.find(&policy).await?.is_none() {
        return Err(Failure::Usage(format!(
            "the policy {POLICY} is not installed; install it with `helm upgrade leasehold charts/leasehold --namespace \
             leasehold-system --reuse-values --set admissionPolicy.fencedObjects=true`"
        )));
    }
    let fence = Fence {
        kind: &kind,
        namespace: &api.namespace,
        name: &args.name,
        lock: text_at(&lock, "/metadata/name").to_owned(),
        token: lock["status"]["token"].as_u64().unwrap_or_default(),
    };
    let object = api.get(&fence.path()).await?;
    fence.check(&object)?;
    create_lock(api, &lock).await?;
    // Before the bindings: with them, the label needs a token, and a lock that was never granted has none.
    label(api, &fence, &object).await?;
    for operation in [Operation::Delete, Operation::Write] {
        bind(api, &fence, operation).await?;
    }
    until_enforced(api, &fence).await?;
    let object = fence.object();
    terminal::print(&format!("{object} is guarded by the lock {}\n", fence.lock))?;
    terminal::complain(&format!(
        "Each write sets the annotation {ANNOTATION} to the token of its lease; see {PAGE}"
    ));
    Ok(())
}

/// Reads the lock, or returns the one to create, which has no resourceVersion.
async fn read_lock(api: &Api, text: &str) -> Result<Value, Failure> {
    match lock_name::find(api, text).await {
        Err(Failure::NotFound(_)) => {}
        found => return found,
    }
    let resource = Resource::parse(text).map_err(|error| {
        Failure::Usage(format!(
            "{:?} is not the name of a lock: {error}",
            escape(text)
        ))
    })?;
    // Without the lock object, deletions of the guarded object pass.
    Ok(json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "DistributedLock",
        "metadata": {"name": object_name(&resource)}, "spec": {"resource": text, "retainSeconds": SPEC_SECONDS_MAX},
    }))
}

async fn create_lock(api: &Api, lock: &Value) -> Result<(), Failure> {
    let name = text_at(lock, "/metadata/name");
    if !is_stored(lock) {
        api.post(&locks(Some(&api.namespace)), lock).await?;
        return terminal::print(&format!("distributedlock.{GROUP}/{name} created\n"));
    }
    terminal::print(&format!("distributedlock.{GROUP}/{name} unchanged\n"))
}

fn is_stored(object: &Value) -> bool {
    object["metadata"]["resourceVersion"].is_string()
}

fn text_at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    let value = object.pointer(pointer).and_then(Value::as_str);
    value.unwrap_or_default()
}

/// Sets the label by which the bindings select the object.
async fn label(api: &Api, fence: &Fence<'_>, object: &Value) -> Result<(), Failure> {
    if object["metadata"]["labels"][LABEL].is_string() {
        return terminal::print(&format!("{} unchanged\n", fence.object()));
    }
    let path = format!("{}?fieldManager=kubectl-leasehold", fence.path());
    let mut change = json!({"metadata": {"labels": {LABEL: fence.label()}}});
    let labelled = api.merge(&path, &change).await;
    // The bindings exist since another object of this kind is guarded. They need a token, and the grant's first one is
    // not larger than that of any of its leases.
    if labelled.as_ref().is_err_and(is_by_policy) && fence.token > 0 {
        change["metadata"]["annotations"] = json!({ANNOTATION: fence.token.to_string()});
        api.merge(&path, &change).await?;
    } else if labelled.as_ref().is_err_and(is_by_policy) {
        return Err(Failure::Unfulfilled(format!(
            "the bindings of the lock {} are enforced already, and it has no token yet; acquire the lock, and repeat the \
             command",
            fence.lock
        )));
    } else {
        labelled?;
    }
    terminal::print(&format!("{} labeled\n", fence.object()))
}

/// Creates or updates a binding, with the user as the owner of its fields.
async fn bind(api: &Api, fence: &Fence<'_>, operation: Operation) -> Result<(), Failure> {
    let binding = fence.binding(operation);
    let name = text_at(&binding, "/metadata/name");
    let path = format!("{ADMISSION}/validatingadmissionpolicybindings/{name}");
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    let before = api.find(&path).await?;
    let after = api
        .apply(&format!("{path}?fieldManager=kubectl-leasehold"), &binding)
        .await?;
    let done = match before {
        None => "created",
        Some(before) if version(&before) == version(&after) => "unchanged",
        Some(_) => "configured",
    };
    terminal::print(&format!(
        "validatingadmissionpolicybinding.admissionregistration.k8s.io/{name} {done}\n"
    ))
}

/// Waits until the API server refuses a write without a token. The binding for deletions was written first, and the
/// API server receives both from one watch.
async fn until_enforced(api: &Api, fence: &Fence<'_>) -> Result<(), Failure> {
    let path = format!("{}?dryRun=All", fence.path());
    let change = json!({"metadata": {"annotations": {ANNOTATION: "none"}}});
    let refused = async {
        loop {
            match api.merge(&path, &change).await {
                Err(error) if is_by_policy(&error) && error.to_string().contains(ANNOTATION) => {
                    return Ok(());
                }
                Err(error) if !is_by_policy(&error) => return Err(error),
                _ => tokio::time::sleep(POLL).await,
            }
        }
    };
    tokio::time::timeout(ENFORCED_WITHIN, refused)
        .await
        .unwrap_or_else(|_elapsed| {
            Err(Failure::Unfulfilled(format!(
                "the bindings exist, but the API server does not compare the token of a write to {} yet; repeat the \
                 command",
                fence.object()
            )))
        })
}

/// Returns whether the policy has refused a write, and not RBAC.
fn is_by_policy(error: &Failure) -> bool {
    error.to_string().contains(&format!("'{POLICY}'"))
}

/// What a binding is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Write,
    Delete,
}

impl Fence<'_> {
    fn path(&self) -> String {
        self.kind.path(self.namespace, self.name)
    }

    fn object(&self) -> String {
        self.kind.object(self.name)
    }

    fn label(&self) -> String {
        short_name(&self.lock)
    }

    /// Returns why the object cannot be guarded by this lock.
    fn check(&self, object: &Value) -> Result<(), Failure> {
        let (object_name, namespace) = (self.object(), self.namespace);
        let metadata = &object["metadata"];
        let label = metadata["labels"][LABEL].as_str();
        if let Some(other) = label.filter(|other| *other != self.label()) {
            return Err(Failure::Usage(format!(
                "{object_name} has the label {LABEL}={other} of another guard; end that one first, as {PAGE} \
                 describes, and repeat the command"
            )));
        }
        let written = metadata["annotations"][ANNOTATION].as_str();
        let written: u64 = written.and_then(|one| one.parse().ok()).unwrap_or_default();
        if self.token > 0 && written >= self.token + LEASES_PER_GRANT {
            return Err(Failure::Usage(format!(
                "{object_name} has the fencing token {written}, which is newer than all tokens of the lock {}, so no holder could \
                 write; end its guard, if it has one, then `kubectl annotate {object_name} --namespace {namespace} {ANNOTATION}-`, and \
                 repeat the command",
                self.lock
            )));
        }
        Ok(())
    }

    /// Returns a binding of the policy, as in examples/fencing/configmap.yaml. A namespace and a label have no dots, so
    /// no two fences have the same name.
    fn binding(&self, operation: Operation) -> Value {
        let (prefix, not_found, operations) = match operation {
            Operation::Write => ("fence", "Deny", &["CREATE", "UPDATE"][..]),
            // Otherwise a namespace whose locks are deleted first could never be deleted.
            Operation::Delete => ("fence-delete", "Allow", &["DELETE"][..]),
        };
        let (namespace, label) = (self.namespace, self.label());
        let name = format!("{prefix}.{namespace}.{label}.{}", self.kind.full_plural());
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {
                "policyName": POLICY,
                "validationActions": ["Deny"],
                "paramRef": {"name": self.lock, "namespace": namespace, "parameterNotFoundAction": not_found},
                "matchResources": {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                    "objectSelector": {"matchLabels": {LABEL: label}},
                    "resourceRules": [{
                        "apiGroups": [self.kind.group], "apiVersions": ["*"],
                        "operations": operations, "resources": [self.kind.plural],
                    }],
                },
            },
        })
    }
}
