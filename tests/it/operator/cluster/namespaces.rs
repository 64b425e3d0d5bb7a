//! Labelled namespaces, with their accounts and bindings.

use std::collections::BTreeSet;

use async_trait::async_trait;
use leasehold::store::fleet::Feed;
use leasehold::store::namespaces::{Binding, Namespaces, Subject, UninjectedPod};

use super::ports::feed;
use super::*;

/// The objects of namespaces, and the feeds of them.
#[derive(Default)]
pub(super) struct Tenancy {
    labelled: BTreeMap<ObjectRef, Object<()>>,
    accounts: BTreeMap<ObjectRef, Object<()>>,
    bindings: BTreeMap<ObjectRef, Object<Binding>>,
    asking_pods: BTreeMap<ObjectRef, Object<UninjectedPod>>,
    injected: Vec<ObjectRef>,
    tell_asking_pods: Option<Teller<UninjectedPod>>,
    tell_labelled: Option<Teller<()>>,
    tell_accounts: Option<Teller<()>>,
    tell_bindings: Option<Teller<Binding>>,
}

fn in_namespace(namespace: &str, name: &str) -> ObjectRef {
    ObjectRef {
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn binding_of(namespace: &str) -> ObjectRef {
    in_namespace(namespace, "leasehold-sidecar")
}

fn tell<T: Clone>(teller: Option<&Teller<T>>, told: FeedEvent<Object<T>>) {
    if let Some(teller) = teller {
        let _told = teller.send(told);
    }
}

impl Inside {
    /// Returns the pods of a namespace that have a sidecar.
    pub(super) fn injected_in(&self, namespace: &str) -> Vec<PodIdentity> {
        let injected = self.tenancy.injected.iter();
        let there = injected.filter(|place| *place.namespace == *namespace);
        let pods = there.map(|place| PodIdentity {
            object_ref: place.clone(),
            uid: "u".into(),
        });
        pods.collect()
    }

    fn put_binding(&mut self, namespace: &str, binding: Binding) -> Object<Binding> {
        self.revision += 1;
        let place = binding_of(namespace);
        let binding = placed(&place, binding, self.revision);
        let tenancy = &mut self.tenancy;
        tenancy.bindings.insert(place, binding.clone());
        let told = FeedEvent::Applied(Box::new(binding.clone()));
        tell(tenancy.tell_bindings.as_ref(), told);
        binding
    }
}

impl Cluster {
    /// Sets or removes the label of a namespace.
    pub(crate) fn label(&self, namespace: &str, is_labelled: bool) {
        let mut inside = self.inside();
        inside.revision += 1;
        let place = in_namespace("", namespace);
        let placed = placed(&place, (), inside.revision);
        let tenancy = &mut inside.tenancy;
        let told = if is_labelled {
            tenancy.labelled.insert(place, placed.clone());
            FeedEvent::Applied(Box::new(placed))
        } else {
            tenancy.labelled.remove(&place);
            FeedEvent::Deleted(place)
        };
        tell(tenancy.tell_labelled.as_ref(), told);
    }

    /// Labels a service account for the sidecar's role.
    pub(crate) fn label_account(&self, namespace: &str, account: &str) {
        let mut inside = self.inside();
        inside.revision += 1;
        let place = in_namespace(namespace, account);
        let placed = placed(&place, (), inside.revision);
        let tenancy = &mut inside.tenancy;
        tenancy.accounts.insert(place, placed.clone());
        let told = FeedEvent::Applied(Box::new(placed));
        tell(tenancy.tell_accounts.as_ref(), told);
    }

    /// Creates a pod that requests a sidecar and gets none.
    pub(crate) fn make_without_sidecar(&self, namespace: &str, pod: &str) {
        let mut inside = self.inside();
        inside.revision += 1;
        let place = in_namespace(namespace, pod);
        let placed = placed(&place, UninjectedPod::default(), inside.revision);
        let tenancy = &mut inside.tenancy;
        tenancy.asking_pods.insert(place, placed.clone());
        let told = FeedEvent::Applied(Box::new(placed));
        tell(tenancy.tell_asking_pods.as_ref(), told);
    }

    /// Creates a pod with a sidecar.
    pub(crate) fn inject(&self, namespace: &str, pod: &str) {
        let place = in_namespace(namespace, pod);
        self.inside().tenancy.injected.push(place);
    }

    /// Removes all pods with a sidecar.
    pub(crate) fn end_injected(&self) {
        self.inside().tenancy.injected.clear();
    }

    /// Writes the binding of a namespace by hand.
    pub(crate) fn edit_binding(&self, namespace: &str, binding: Binding) {
        self.inside().put_binding(namespace, binding);
    }

    /// Returns the binding of a namespace.
    pub(crate) fn binding(&self, namespace: &str) -> Option<Binding> {
        let inside = self.inside();
        let found = inside.tenancy.bindings.get(&binding_of(namespace))?;
        Some(found.stored.value.clone())
    }

    /// Deletes the last session of the only namespace with sessions.
    pub(crate) fn end_sessions(&self) {
        let mut inside = self.inside();
        let gone = std::mem::take(&mut inside.sessions);
        for place in gone.into_keys() {
            tell(inside.tell_sessions.as_ref(), FeedEvent::Deleted(place));
        }
    }
}

#[async_trait]
impl Namespaces for Cluster {
    fn labelled(&self) -> Feed<Object<()>> {
        let mut inside = self.inside();
        let (tell, told) = feed(inside.tenancy.labelled.values());
        inside.tenancy.tell_labelled = Some(tell);
        told
    }

    fn accounts(&self) -> Feed<Object<()>> {
        let mut inside = self.inside();
        let (tell, told) = feed(inside.tenancy.accounts.values());
        inside.tenancy.tell_accounts = Some(tell);
        told
    }

    fn bindings(&self) -> Feed<Object<Binding>> {
        let mut inside = self.inside();
        let (tell, told) = feed(inside.tenancy.bindings.values());
        inside.tenancy.tell_bindings = Some(tell);
        told
    }

    fn uninjected_pods(&self) -> Feed<Object<UninjectedPod>> {
        let mut inside = self.inside();
        let (tell, told) = feed(inside.tenancy.asking_pods.values());
        inside.tenancy.tell_asking_pods = Some(tell);
        told
    }

    async fn binding(&self, namespace: &str) -> Result<Option<Object<Binding>>, StoreError> {
        let inside = self.inside();
        Ok(inside.tenancy.bindings.get(&binding_of(namespace)).cloned())
    }

    async fn create_binding(
        &self,
        namespace: &str,
        subjects: &BTreeSet<Subject>,
    ) -> Result<Object<Binding>, StoreError> {
        let mut inside = self.inside();
        inside.try_write()?;
        if inside.tenancy.bindings.contains_key(&binding_of(namespace)) {
            return Err(StoreError::Conflict);
        }
        let made = Binding {
            is_ours: true,
            binds_role: true,
            subjects: subjects.clone(),
        };
        Ok(inside.put_binding(namespace, made))
    }

    async fn update_binding(
        &self,
        current: &Object<Binding>,
        subjects: &BTreeSet<Subject>,
    ) -> Result<Object<Binding>, StoreError> {
        let mut inside = self.inside();
        inside.try_write()?;
        if inside.tenancy.bindings[&current.object_ref].stored.version != current.stored.version {
            return Err(StoreError::Conflict);
        }
        let changed = Binding {
            subjects: subjects.clone(),
            ..current.stored.value.clone()
        };
        Ok(inside.put_binding(&current.object_ref.namespace, changed))
    }

    async fn delete_binding(&self, current: &Object<Binding>) -> Result<(), StoreError> {
        let mut inside = self.inside();
        inside.try_write()?;
        let tenancy = &mut inside.tenancy;
        if tenancy.bindings[&current.object_ref].stored.version != current.stored.version {
            return Err(StoreError::Conflict);
        }
        tenancy.bindings.remove(&current.object_ref);
        let told = FeedEvent::Deleted(current.object_ref.clone());
        tell(tenancy.tell_bindings.as_ref(), told);
        Ok(())
    }
}
