//! What `check` has read: the objects as the API server gave them, or the right that is missing to read them.

use jiff::Timestamp;
use serde_json::Value;

use crate::kubectl::world::{Known, OperatorSeen, SessionSeen};

/// The namespace for which the chart is made.
pub const DEFAULT_HOME: &str = "leasehold-system";

/// What this version of the plugin ships and expects to find.
#[derive(Clone, Debug)]
pub struct Shipped {
    /// Its version.
    pub version: String,
    /// The definitions of the two kinds.
    pub definitions: Vec<Value>,
    /// The names of the policies that every mode but `off` installs.
    pub policies: Vec<String>,
    /// The rules of the `ClusterRole` of sidecars.
    pub sidecar_rules: Vec<Value>,
    /// The objects of flow control, each with its kind.
    pub flow_control: Vec<Value>,
}

/// The objects of an installation.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The API server's time.
    pub now: Timestamp,
    /// The answer of `/version`.
    pub server: Value,
    /// What the plugin ships.
    pub own: Shipped,
    /// The definitions, in the order of [`Shipped::definitions`].
    pub definitions: Vec<Known<Option<Value>>>,
    /// All `ValidatingAdmissionPolicies` of the cluster with names like ours.
    pub policies: Known<Vec<Value>>,
    /// All `ValidatingAdmissionPolicyBindings` that bind them.
    pub bindings: Known<Vec<Value>>,
    /// The Deployments of operators.
    pub operators: Known<Vec<Value>>,
    /// Whether an operator acts.
    pub leader: Known<OperatorSeen>,
    /// The file `injection.yaml` of the operator's `ConfigMap`.
    pub injection: Known<Option<Value>>,
    /// The webhook.
    pub webhook: WebhookFindings,
    /// The namespace whose pods are checked.
    pub namespace: String,
    /// Its object.
    pub namespace_object: Known<Option<Value>>,
    /// The pods of the namespace.
    pub pods: Known<Vec<Value>>,
    /// The sessions of the namespace.
    pub sessions: Known<Vec<SessionSeen>>,
    /// The `ClusterRole` of sidecars.
    pub role: Known<Option<Value>>,
    /// The `ServiceAccounts` whose rights were asked for.
    pub accounts: Vec<Account>,
    /// The installed objects of flow control.
    pub flow_control: Known<Vec<Value>>,
    /// The dry run of creating a lock.
    pub dry_run: DryRun,
    /// The pod that the user named.
    pub pod: Option<PodFindings>,
}

impl Findings {
    /// Returns the namespace of the release, as far as it is known.
    #[must_use]
    pub fn home(&self) -> &str {
        let operator = self.operators.seen().and_then(|all| all.first());
        let webhook = self.webhook.configuration.seen().and_then(Option::as_ref);
        let service = webhook.map(|found| &found["webhooks"][0]["clientConfig"]["service"]);
        let named = operator
            .map(|operator| &operator["metadata"]["namespace"])
            .or_else(|| service.map(|service| &service["namespace"]));
        named.and_then(Value::as_str).unwrap_or(DEFAULT_HOME)
    }

    /// Returns the command that upgrades the release, with these further arguments.
    #[must_use]
    pub fn upgrade(&self, further: &str) -> String {
        let home = self.home();
        let command = format!(
            "helm upgrade leasehold charts/leasehold --namespace {home} \
             --reset-then-reuse-values {further}"
        );
        command.trim_end().to_owned()
    }
}

/// The webhook and what it needs to be called.
#[derive(Clone, Debug)]
pub struct WebhookFindings {
    /// The MutatingWebhookConfiguration.
    pub configuration: Known<Option<Value>>,
    /// The Service that it names.
    pub service: Known<Option<Value>>,
    /// The `EndpointSlices` of that Service.
    pub endpoints: Known<Vec<Value>>,
    /// The certificate in the operator's Secret.
    pub certificate: Known<Option<Certificate>>,
}

/// The certificate that the webhook serves.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The Secret, as `NAMESPACE/NAME`.
    pub secret: String,
    /// What it contains; the error if that is no certificate with its key.
    pub content: Result<Validity, String>,
}

/// From when until when a certificate is valid, and whether the API server trusts it.
#[derive(Clone, Debug)]
pub struct Validity {
    /// The start.
    pub not_before: Timestamp,
    /// The end.
    pub not_after: Timestamp,
    /// For each webhook of the configuration, why its `caBundle` does not verify the certificate.
    pub distrusted: Vec<String>,
}

/// A right on the kinds of Leasehold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// The verb.
    pub verb: String,
    /// The resource, with its subresource if it has one: `distributedlocks/status`.
    pub resource: String,
}

/// Why a `ServiceAccount` is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The user named it.
    Named,
    /// A pod with a sidecar has it.
    OfPods,
    /// The namespace has no such pod.
    Assumed,
}

/// A `ServiceAccount` and what the API server says about its rights.
#[derive(Clone, Debug)]
pub struct Account {
    /// Its name, in the namespace of the command.
    pub name: String,
    /// Why it is checked.
    pub origin: Origin,
    /// The rights that a sidecar needs and it has not.
    pub missing: Known<Vec<Right>>,
}

/// The answer to the dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRun {
    /// The API server would create the lock.
    Accepted,
    /// The user may not create locks; the missing right.
    NotAllowed(String),
    /// The API server refused it: a policy, a quota or the definition.
    Refused(String),
    /// The kind does not exist.
    NotServed,
}

/// A pod that the user named.
#[derive(Clone, Debug)]
pub struct PodFindings {
    /// Its name.
    pub name: String,
    /// Its object.
    pub object: Known<Option<Value>>,
    /// Its Events.
    pub events: Known<Vec<Value>>,
}

/// What matters before the installation.
#[derive(Clone, Debug)]
pub struct PreFindings {
    /// The answer of `/version`.
    pub server: Value,
    /// Each right that the installation needs, and whether the user has it.
    pub rights: Known<Vec<(String, bool)>>,
    /// The Deployments of operators.
    pub operators: Known<Vec<Value>>,
    /// Other objects with the names of ours, each as `KIND NAME`.
    pub leftovers: Vec<String>,
    /// Why other objects are not known: the missing rights.
    pub unknown: Vec<String>,
}
