//! The operator's port of the namespaces that are labelled for sidecars: which those are, who may do
//! there what a sidecar does, and whose sidecar is missing.
//!
//! Only a cluster has them; nothing about who holds a lock hangs on it.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::StoreError;
use super::fleet::{Feed, Object};

/// Who is bound to a role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// All service accounts of the binding's namespace.
    AllAccounts,
    /// A service account of the binding's namespace, by its name.
    Account(Arc<str>),
    /// Anybody else.
    Other,
}

/// The binding of a namespace that has the one name which is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Whether the operator made it. Any other one is left alone.
    pub is_ours: bool,
    /// Whether what it gives is the sidecar's role.
    pub binds_role: bool,
    /// To whom.
    pub subjects: BTreeSet<Subject>,
}

/// A pod that asks for a sidecar by its label, and does not say that it was injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UninjectedPod {
    /// Whether it has one all the same: somebody wrote it down.
    pub has_sidecar: bool,
    /// Whether it is the mirror of what a kubelet runs from a file.
    pub is_mirror: bool,
    /// Whether it has ended.
    pub has_ended: bool,
}

/// The labelled namespaces, and the bindings of the one name that is ours.
#[async_trait]
pub trait Namespaces: Send + Sync + 'static {
    /// The namespaces that are labelled for injection, and no others. They are placed in none.
    fn labelled(&self) -> Feed<Object<()>>;

    /// The service accounts that are labelled for the sidecar's role, of all namespaces.
    fn accounts(&self) -> Feed<Object<()>>;

    /// The bindings of that name, of all namespaces.
    fn bindings(&self) -> Feed<Object<Binding>>;

    /// The pods that ask for a sidecar by their label and do not say that they were injected, of all
    /// namespaces.
    fn uninjected_pods(&self) -> Feed<Object<UninjectedPod>>;

    /// The binding of a namespace, as of now; none when there is none.
    async fn binding(&self, namespace: &str) -> Result<Option<Object<Binding>>, StoreError>;

    /// Makes it, with the sidecar's role. `Conflict` when there is one.
    async fn create_binding(
        &self,
        namespace: &str,
        subjects: &BTreeSet<Subject>,
    ) -> Result<Object<Binding>, StoreError>;

    /// Compare-and-swap on the version of `current`.
    async fn update_binding(
        &self,
        current: &Object<Binding>,
        subjects: &BTreeSet<Subject>,
    ) -> Result<Object<Binding>, StoreError>;

    /// Deletes it if it is still this one, at this version. `Conflict` when it is not, `NotFound`
    /// when there is none.
    async fn delete_binding(&self, current: &Object<Binding>) -> Result<(), StoreError>;
}
