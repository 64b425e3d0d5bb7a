//! The operator's port to the namespaces that are labelled for injection: their role bindings, and
//! pods without a requested sidecar.
//!
//! Only a cluster has them. The holder of a lock does not depend on them.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::StoreError;
use super::fleet::{Feed, Object};

/// A subject of a role binding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// All service accounts of the binding's namespace.
    AllAccounts,
    /// A service account of the binding's namespace, by its name.
    Account(Arc<str>),
    /// Any other subject.
    Other,
}

/// The binding with the operator's name in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Whether the operator created it. Other bindings are not touched.
    pub is_ours: bool,
    /// Whether its role is the sidecar's.
    pub binds_role: bool,
    /// Its subjects.
    pub subjects: BTreeSet<Subject>,
}

/// A pod that requests a sidecar by its label and is not marked as injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UninjectedPod {
    /// Whether it has a sidecar anyway, written by hand.
    pub has_sidecar: bool,
    /// Whether it is the mirror of a static pod.
    pub is_mirror: bool,
    /// Whether it has ended, or is being deleted.
    pub has_ended: bool,
}

/// The labelled namespaces, and the bindings with the operator's name.
#[async_trait]
pub trait Namespaces: Send + Sync + 'static {
    /// Returns a feed of the namespaces that are labelled for injection. They are cluster-scoped:
    /// the `namespace` of their [`ObjectRef`] is empty.
    fn labelled(&self) -> Feed<Object<()>>;

    /// Returns a feed of the service accounts that are labelled for the sidecar's role, in all
    /// namespaces.
    fn accounts(&self) -> Feed<Object<()>>;

    /// Returns a feed of the bindings with the operator's name, in all namespaces.
    fn bindings(&self) -> Feed<Object<Binding>>;

    /// Returns a feed of the pods that request a sidecar by their label and are not marked as
    /// injected, in all namespaces.
    fn uninjected_pods(&self) -> Feed<Object<UninjectedPod>>;

    /// Returns the current binding of a namespace; `None` if it does not exist.
    async fn binding(&self, namespace: &str) -> Result<Option<Object<Binding>>, StoreError>;

    /// Creates the binding, with the sidecar's role. `Conflict` if it exists.
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

    /// Deletes the binding if it still has this uid and version. `Conflict` if it has not,
    /// `NotFound` if it does not exist.
    async fn delete_binding(&self, current: &Object<Binding>) -> Result<(), StoreError>;
}
