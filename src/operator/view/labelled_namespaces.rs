//! The observed labelled namespaces, their labelled service accounts, the bindings with the
//! operator's name, and pods without the sidecar that they request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::object_cache::ObjectCache;
use crate::operator::key::Key;
use crate::operator::observation::FeedKind;
use crate::protocol::time::Moment;
use crate::store::fleet::{FeedEvent, Object, ObjectRef};
use crate::store::namespaces::{Binding, Subject, UninjectedPod};

#[derive(Debug, Default)]
pub(in crate::operator) struct LabelledNamespaces {
    namespaces: ObjectCache<()>,
    accounts: ObjectCache<()>,
    bindings: ObjectCache<Binding>,
    /// Only pods without a sidecar are kept.
    without_sidecar: ObjectCache<UninjectedPod>,
    /// Whether any pod of a namespace without the label has a sidecar, and when that was read.
    sidecars: BTreeMap<Arc<str>, (bool, Moment)>,
}

impl LabelledNamespaces {
    /// Returns whether a namespace is labelled and not being deleted.
    pub(in crate::operator) fn is_labelled(&self, namespace: &Arc<str>) -> bool {
        let seen = self.namespaces.get(&namespace_ref(namespace));
        seen.is_some_and(|seen| !seen.is_deleted)
    }

    /// Returns whether a labelled namespace is being deleted.
    pub(in crate::operator) fn is_terminating(&self, namespace: &Arc<str>) -> bool {
        let seen = self.namespaces.get(&namespace_ref(namespace));
        seen.is_some_and(|seen| seen.is_deleted)
    }

    /// Returns the labelled service accounts of a namespace.
    pub(in crate::operator) fn accounts_of(&self, namespace: &Arc<str>) -> BTreeSet<Subject> {
        let accounts = self.accounts.of(namespace).filter(|seen| !seen.is_deleted);
        let names = accounts.map(|seen| seen.object_ref.name.clone());
        names.map(Subject::Account).collect()
    }

    /// Returns the bindings with the operator's name.
    pub(in crate::operator) fn bindings(&self) -> impl Iterator<Item = &Arc<Object<Binding>>> {
        self.bindings.all()
    }

    /// Returns the binding of a namespace.
    pub(in crate::operator) fn binding_of(
        &self,
        namespace: &Arc<str>,
    ) -> Option<&Arc<Object<Binding>>> {
        self.bindings.of(namespace).next()
    }

    /// Returns whether pods of a namespace had a sidecar at the last read, and when it was.
    pub(in crate::operator) fn sidecars_of(&self, namespace: &Arc<str>) -> Option<(bool, Moment)> {
        self.sidecars.get(namespace).copied()
    }

    /// Records whether pods of a namespace have a sidecar.
    pub(super) fn set_sidecars(&mut self, namespace: Arc<str>, are_there: bool, received: Moment) {
        self.sidecars.insert(namespace, (are_there, received));
    }

    /// Returns a pod that requests a sidecar and has none.
    pub(in crate::operator) fn without_sidecar(
        &self,
        object_ref: &ObjectRef,
    ) -> Option<&Object<UninjectedPod>> {
        self.without_sidecar.get(object_ref).map(|seen| &**seen)
    }

    /// Returns all pods that request a sidecar and have none.
    pub(in crate::operator) fn all_without_sidecar(
        &self,
    ) -> impl Iterator<Item = &Object<UninjectedPod>> {
        self.without_sidecar.all().map(|seen| &**seen)
    }

    /// Returns whether all objects of a feed were listed at least once.
    pub(super) const fn is_listed(&self, kind: FeedKind) -> bool {
        match kind {
            FeedKind::Namespace => self.namespaces.is_complete(),
            FeedKind::Account => self.accounts.is_complete(),
            FeedKind::Binding => self.bindings.is_complete(),
            FeedKind::UninjectedPod => self.without_sidecar.is_complete(),
            FeedKind::Lock | FeedKind::Session | FeedKind::Pod | FeedKind::Node => true,
        }
    }

    /// Returns what may have to be planned.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        let pods = self.all_without_sidecar();
        let pods = pods.map(|pod| Key::UninjectedPod(pod.object_ref.clone()));
        self.bound_namespaces().map(Key::Binding).chain(pods)
    }

    /// Observes a labelled namespace. Returns what has to be planned, as all of these do.
    pub(super) fn observe_namespace(&mut self, event: FeedEvent<Object<()>>) -> Vec<Key> {
        let is_all = matches!(event, FeedEvent::ListDone);
        let namespaces = self.namespaces.apply(event);
        let mut changed = Vec::new();
        for namespace in &namespaces {
            let pods = self.without_sidecar.of(&namespace.name);
            changed.extend(pods.map(|pod| Key::UninjectedPod(pod.object_ref.clone())));
        }
        let namespaces = namespaces.into_iter().map(|object_ref| object_ref.name);
        changed.extend(self.bindings_to_plan(is_all, namespaces));
        changed
    }

    /// Observes a labelled service account.
    pub(super) fn observe_account(&mut self, event: FeedEvent<Object<()>>) -> Vec<Key> {
        let is_all = matches!(event, FeedEvent::ListDone);
        let accounts = self.accounts.apply(event).into_iter();
        self.bindings_to_plan(is_all, accounts.map(|account| account.namespace))
    }

    /// Observes a binding, from a feed or an answer.
    pub(super) fn observe_binding(&mut self, event: FeedEvent<Object<Binding>>) -> Vec<Key> {
        let is_all = matches!(event, FeedEvent::ListDone);
        let bindings = self.bindings.apply(event);
        for binding in &bindings {
            if self.binding_of(&binding.namespace).is_none() {
                self.sidecars.remove(&binding.namespace);
            }
        }
        let namespaces = bindings.into_iter().map(|binding| binding.namespace);
        self.bindings_to_plan(is_all, namespaces)
    }

    /// Observes a pod that requests a sidecar. A pod that has one, needs none or has ended does not
    /// count.
    pub(super) fn observe_uninjected_pod(
        &mut self,
        event: FeedEvent<Object<UninjectedPod>>,
    ) -> Vec<Key> {
        let needs_no_report =
            |pod: UninjectedPod| pod.has_sidecar || pod.is_mirror || pod.has_ended;
        let event = match event {
            FeedEvent::Applied(pod) if needs_no_report(pod.stored.value) => {
                FeedEvent::Deleted(pod.object_ref)
            }
            event => event,
        };
        let changed = self.without_sidecar.apply(event).into_iter();
        changed.map(Key::UninjectedPod).collect()
    }

    /// Returns the bindings of these namespaces. No binding is planned before everything was
    /// listed, so the end of a list adds all.
    fn bindings_to_plan(
        &self,
        is_all: bool,
        namespaces: impl Iterator<Item = Arc<str>>,
    ) -> Vec<Key> {
        let all = self.bound_namespaces().filter(|_| is_all);
        namespaces.chain(all).map(Key::Binding).collect()
    }

    /// Returns the namespaces that may need a plan for their binding.
    fn bound_namespaces(&self) -> impl Iterator<Item = Arc<str>> {
        let labelled = self.namespaces.all();
        let labelled = labelled.map(|seen| seen.object_ref.name.clone());
        let bound = self.bindings.all();
        labelled.chain(bound.map(|seen| seen.object_ref.namespace.clone()))
    }
}

fn namespace_ref(name: &Arc<str>) -> ObjectRef {
    ObjectRef {
        namespace: "".into(),
        name: name.clone(),
    }
}
