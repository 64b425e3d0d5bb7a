//! The observed labelled namespaces, their labelled service accounts, the bindings with the
//! operator's name, and pods without the sidecar that they request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::object_cache::ObjectCache;
use super::{Key, View};
use crate::operator::errors::FeedKind;
use crate::operator::uninjected;
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
    pub(in crate::operator) fn set_sidecars(
        &mut self,
        namespace: Arc<str>,
        are_there: bool,
        received: Moment,
    ) {
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
    pub(in crate::operator) const fn is_listed(&self, kind: FeedKind) -> bool {
        match kind {
            FeedKind::Namespace => self.namespaces.is_complete(),
            FeedKind::Account => self.accounts.is_complete(),
            FeedKind::Binding => self.bindings.is_complete(),
            FeedKind::UninjectedPod => self.without_sidecar.is_complete(),
            FeedKind::Lock | FeedKind::Session | FeedKind::Pod => true,
        }
    }
}

fn namespace_ref(name: &Arc<str>) -> ObjectRef {
    ObjectRef {
        namespace: "".into(),
        name: name.clone(),
    }
}

impl View {
    /// Returns the labelled namespaces.
    pub(in crate::operator) const fn labelled(&self) -> &LabelledNamespaces {
        &self.labelled
    }

    /// Returns the labelled namespaces, to be updated.
    pub(in crate::operator) const fn labelled_mut(&mut self) -> &mut LabelledNamespaces {
        &mut self.labelled
    }

    /// Returns the namespaces that may need a plan for their binding.
    pub(super) fn bound_namespaces(&self) -> impl Iterator<Item = Key> {
        let namespaces = self.labelled.namespaces.all();
        let namespaces = namespaces.map(|seen| seen.object_ref.name.clone());
        let bound = self.labelled.bindings.all();
        let bound = bound.map(|seen| seen.object_ref.namespace.clone());
        namespaces.chain(bound).map(Key::Binding)
    }

    /// Returns the keys of pods that request a sidecar and have none.
    pub(super) fn pods_without_sidecar(&self) -> impl Iterator<Item = Key> {
        let pods = self.labelled.all_without_sidecar();
        pods.map(|pod| Key::UninjectedPod(pod.object_ref.clone()))
    }

    /// Observes a labelled namespace.
    pub(in crate::operator) fn observe_namespace(&mut self, event: FeedEvent<Object<()>>) {
        let is_all = matches!(event, FeedEvent::ListDone);
        let changed = self.labelled.namespaces.apply(event);
        for namespace in changed.iter().map(|object_ref| &object_ref.name) {
            let pods = self.labelled.without_sidecar.of(namespace);
            let pods = pods.map(|pod| Key::UninjectedPod(pod.object_ref.clone()));
            self.changed.extend(pods);
        }
        self.requeue_bindings(
            is_all,
            changed.into_iter().map(|object_ref| object_ref.name),
        );
    }

    /// Observes a labelled service account.
    pub(in crate::operator) fn observe_account(&mut self, event: FeedEvent<Object<()>>) {
        let is_all = matches!(event, FeedEvent::ListDone);
        let changed = self.labelled.accounts.apply(event);
        self.requeue_bindings(
            is_all,
            changed.into_iter().map(|object_ref| object_ref.namespace),
        );
    }

    /// Observes a binding, from a feed or an answer.
    pub(in crate::operator) fn observe_binding(&mut self, event: FeedEvent<Object<Binding>>) {
        let is_all = matches!(event, FeedEvent::ListDone);
        let changed = self.labelled.bindings.apply(event);
        for object_ref in &changed {
            if self.labelled.binding_of(&object_ref.namespace).is_none() {
                self.labelled.sidecars.remove(&object_ref.namespace);
            }
        }
        self.requeue_bindings(
            is_all,
            changed.into_iter().map(|object_ref| object_ref.namespace),
        );
    }

    /// Observes a pod that requests a sidecar.
    pub(in crate::operator) fn observe_uninjected_pod(
        &mut self,
        event: FeedEvent<Object<UninjectedPod>>,
    ) {
        let event = match event {
            FeedEvent::Applied(pod) if !uninjected::lacks_sidecar(pod.stored.value) => {
                FeedEvent::Deleted(pod.object_ref)
            }
            event => event,
        };
        let changed = self.labelled.without_sidecar.apply(event);
        self.changed
            .extend(changed.into_iter().map(Key::UninjectedPod));
    }

    /// Queues bindings. No binding is planned before everything was listed, so the end of a list
    /// queues all.
    fn requeue_bindings(&mut self, all: bool, these: impl Iterator<Item = Arc<str>>) {
        self.changed.extend(these.map(Key::Binding));
        if all {
            let all: Vec<Key> = self.bound_namespaces().collect();
            self.changed.extend(all);
        }
    }

    /// Returns whether a namespace has a session. An unreadable session counts.
    pub(in crate::operator) fn has_session_in(&self, namespace: &Arc<str>) -> bool {
        let mut unreadable = self.unreadable_sessions();
        self.sessions_in.contains_key(namespace)
            || unreadable.any(|object_ref| object_ref.namespace == *namespace)
    }

    /// Counts a new session of a namespace.
    pub(super) fn count_session(&mut self, namespace: &Arc<str>) {
        *self.sessions_in.entry(namespace.clone()).or_default() += 1;
    }

    /// Counts a deleted session of a namespace.
    pub(super) fn count_session_gone(&mut self, namespace: &Arc<str>) {
        if let Some(count) = self.sessions_in.get_mut(namespace) {
            *count -= 1;
            if *count == 0 {
                self.sessions_in.remove(namespace);
            }
        }
    }

    /// Queues the binding of a namespace after its last session ended.
    pub(super) fn requeue_binding_of(&mut self, namespace: &Arc<str>) {
        let is_bound = self.labelled.binding_of(namespace).is_some();
        if is_bound && !self.sessions_in.contains_key(namespace) {
            self.changed.push(Key::Binding(namespace.clone()));
        }
    }
}
