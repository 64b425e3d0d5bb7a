//! What was seen of labelled namespaces, of the service accounts that are labelled in them, of the
//! bindings whose name is ours, and of pods without the sidecar that they ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::listed::Listed;
use super::{Key, View};
use crate::operator::missing;
use crate::operator::trouble::Kind;
use crate::protocol::time::Moment;
use crate::store::fleet::{FeedEvent, Object, ObjectRef};
use crate::store::namespaces::{Binding, Subject, UninjectedPod};

#[derive(Debug, Default)]
pub(in crate::operator) struct Labelled {
    namespaces: Listed<()>,
    accounts: Listed<()>,
    bindings: Listed<Binding>,
    /// Those that have no sidecar; of others nothing is kept.
    without_sidecar: Listed<UninjectedPod>,
    /// Whether pods of a namespace that lost its label have the sidecar, and when that was answered.
    sidecars: BTreeMap<Arc<str>, (bool, Moment)>,
}

impl Labelled {
    /// Whether a namespace is labelled, and not being deleted.
    pub(in crate::operator) fn is_labelled(&self, namespace: &Arc<str>) -> bool {
        let seen = self.namespaces.get(&place_of_namespace(namespace));
        seen.is_some_and(|seen| !seen.is_deleted)
    }

    /// Whether a namespace that is labelled is being deleted.
    pub(in crate::operator) fn is_ending(&self, namespace: &Arc<str>) -> bool {
        let seen = self.namespaces.get(&place_of_namespace(namespace));
        seen.is_some_and(|seen| seen.is_deleted)
    }

    /// The labelled accounts of a namespace.
    pub(in crate::operator) fn accounts_of(&self, namespace: &Arc<str>) -> BTreeSet<Subject> {
        let accounts = self.accounts.of(namespace).filter(|seen| !seen.is_deleted);
        let names = accounts.map(|seen| seen.object_ref.name.clone());
        names.map(Subject::Account).collect()
    }

    /// The bindings of our name.
    pub(in crate::operator) fn bindings(&self) -> impl Iterator<Item = &Arc<Object<Binding>>> {
        self.bindings.all()
    }

    /// The binding of a namespace.
    pub(in crate::operator) fn binding_of(
        &self,
        namespace: &Arc<str>,
    ) -> Option<&Arc<Object<Binding>>> {
        self.bindings.of(namespace).next()
    }

    /// Whether pods of a namespace had the sidecar when that was last looked at, and when it was.
    pub(in crate::operator) fn sidecars_of(&self, namespace: &Arc<str>) -> Option<(bool, Moment)> {
        self.sidecars.get(namespace).copied()
    }

    /// Takes note of whether pods of a namespace have the sidecar.
    pub(in crate::operator) fn note_sidecars(
        &mut self,
        namespace: Arc<str>,
        are_there: bool,
        received: Moment,
    ) {
        self.sidecars.insert(namespace, (are_there, received));
    }

    /// A pod that asks for a sidecar and has none.
    pub(in crate::operator) fn without_sidecar(
        &self,
        object_ref: &ObjectRef,
    ) -> Option<&Object<UninjectedPod>> {
        self.without_sidecar.get(object_ref).map(|seen| &**seen)
    }

    /// All of them.
    pub(in crate::operator) fn all_without_sidecar(
        &self,
    ) -> impl Iterator<Item = &Object<UninjectedPod>> {
        self.without_sidecar.all().map(|seen| &**seen)
    }

    /// Whether everything that a feed is about was told at least once.
    pub(in crate::operator) const fn has_all(&self, kind: Kind) -> bool {
        match kind {
            Kind::Namespace => self.namespaces.is_complete(),
            Kind::Account => self.accounts.is_complete(),
            Kind::Binding => self.bindings.is_complete(),
            Kind::UninjectedPod => self.without_sidecar.is_complete(),
            Kind::Lock | Kind::Session | Kind::Pod => true,
        }
    }
}

fn place_of_namespace(name: &Arc<str>) -> ObjectRef {
    ObjectRef {
        namespace: "".into(),
        name: name.clone(),
    }
}

impl View {
    /// What was seen of labelled namespaces.
    pub(in crate::operator) const fn labelled(&self) -> &Labelled {
        &self.labelled
    }

    /// The same, to take note of something.
    pub(in crate::operator) const fn labelled_mut(&mut self) -> &mut Labelled {
        &mut self.labelled
    }

    /// The namespaces about whose binding there may be something to decide.
    pub(super) fn bound_namespaces(&self) -> impl Iterator<Item = Key> {
        let namespaces = self.labelled.namespaces.all();
        let namespaces = namespaces.map(|seen| seen.object_ref.name.clone());
        let bound = self.labelled.bindings.all();
        let bound = bound.map(|seen| seen.object_ref.namespace.clone());
        namespaces.chain(bound).map(Key::Binding)
    }

    /// The pods that ask for a sidecar and have none.
    pub(super) fn pods_without_sidecar(&self) -> impl Iterator<Item = Key> {
        let pods = self.labelled.all_without_sidecar();
        pods.map(|pod| Key::UninjectedPod(pod.object_ref.clone()))
    }

    /// Takes note of a labelled namespace.
    pub(in crate::operator) fn note_namespace(&mut self, told: FeedEvent<Object<()>>) {
        let is_all = matches!(told, FeedEvent::ListDone);
        let changed = self.labelled.namespaces.note(told);
        for namespace in changed.iter().map(|object_ref| &object_ref.name) {
            let pods = self.labelled.without_sidecar.of(namespace);
            let pods = pods.map(|pod| Key::UninjectedPod(pod.object_ref.clone()));
            self.changed.extend(pods);
        }
        self.look_again_at_bindings(
            is_all,
            changed.into_iter().map(|object_ref| object_ref.name),
        );
    }

    /// Takes note of a labelled service account.
    pub(in crate::operator) fn note_account(&mut self, told: FeedEvent<Object<()>>) {
        let is_all = matches!(told, FeedEvent::ListDone);
        let changed = self.labelled.accounts.note(told);
        self.look_again_at_bindings(
            is_all,
            changed.into_iter().map(|object_ref| object_ref.namespace),
        );
    }

    /// Takes note of a binding that a feed or an answer told of.
    pub(in crate::operator) fn note_binding(&mut self, told: FeedEvent<Object<Binding>>) {
        let is_all = matches!(told, FeedEvent::ListDone);
        let changed = self.labelled.bindings.note(told);
        for object_ref in &changed {
            if self.labelled.binding_of(&object_ref.namespace).is_none() {
                self.labelled.sidecars.remove(&object_ref.namespace);
            }
        }
        self.look_again_at_bindings(
            is_all,
            changed.into_iter().map(|object_ref| object_ref.namespace),
        );
    }

    /// Takes note of a pod that asks for a sidecar.
    pub(in crate::operator) fn note_asking_pod(&mut self, told: FeedEvent<Object<UninjectedPod>>) {
        let told = match told {
            FeedEvent::Applied(pod) if !missing::lacks_sidecar(pod.stored.value) => {
                FeedEvent::Deleted(pod.object_ref)
            }
            told => told,
        };
        let changed = self.labelled.without_sidecar.note(told);
        self.changed
            .extend(changed.into_iter().map(Key::UninjectedPod));
    }

    /// Nothing is decided about any before all was told.
    fn look_again_at_bindings(&mut self, all: bool, these: impl Iterator<Item = Arc<str>>) {
        self.changed.extend(these.map(Key::Binding));
        if all {
            let all: Vec<Key> = self.bound_namespaces().collect();
            self.changed.extend(all);
        }
    }

    /// Whether any session is left in a namespace: one that makes no sense may be somebody's.
    pub(in crate::operator) fn has_session_in(&self, namespace: &Arc<str>) -> bool {
        let mut unreadable = self.unreadable_sessions();
        self.sessions_in.contains_key(namespace)
            || unreadable.any(|object_ref| object_ref.namespace == *namespace)
    }

    /// A session came to a namespace.
    pub(super) fn count_session(&mut self, namespace: &Arc<str>) {
        *self.sessions_in.entry(namespace.clone()).or_default() += 1;
    }

    /// A session of a namespace is gone.
    pub(super) fn count_session_gone(&mut self, namespace: &Arc<str>) {
        if let Some(count) = self.sessions_in.get_mut(namespace) {
            *count -= 1;
            if *count == 0 {
                self.sessions_in.remove(namespace);
            }
        }
    }

    /// What waits for the last session of a namespace may be decided.
    pub(super) fn look_again_at_binding_of(&mut self, namespace: &Arc<str>) {
        let is_bound = self.labelled.binding_of(namespace).is_some();
        if is_bound && !self.sessions_in.contains_key(namespace) {
            self.changed.push(Key::Binding(namespace.clone()));
        }
    }
}
