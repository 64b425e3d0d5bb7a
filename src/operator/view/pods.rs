//! The pods that their kubelets have reported as ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::operator::pod::has_ended;
use crate::store::fleet::{FeedEvent, ObjectRef, PodReport};

/// A pod, by its namespace and uid.
pub(super) type PodId = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
pub(super) struct EndedPods {
    by_place: BTreeMap<ObjectRef, PodId>,
    ended: BTreeSet<PodId>,
    unlisted: Option<BTreeSet<ObjectRef>>,
    pub(super) is_complete: bool,
}

impl EndedPods {
    pub(super) fn contains(&self, pod: &PodId) -> bool {
        self.ended.contains(pod)
    }

    /// Applies an event of the feed. Returns the pod if it has ended.
    pub(super) fn apply(&mut self, event: FeedEvent<PodReport>) -> Option<PodId> {
        match event {
            FeedEvent::ListStarted => self.unlisted = Some(self.by_place.keys().cloned().collect()),
            FeedEvent::Applied(pod) => {
                if let Some(unlisted) = &mut self.unlisted {
                    unlisted.remove(&pod.object_ref);
                }
                return self.apply_report(&pod);
            }
            FeedEvent::Unreadable { object_ref, .. } | FeedEvent::Deleted(object_ref) => {
                self.forget(&object_ref);
            }
            FeedEvent::ListDone => {
                for object_ref in self.unlisted.take().unwrap_or_default() {
                    self.forget(&object_ref);
                }
                self.is_complete = true;
            }
            FeedEvent::Interrupted(_) => {}
        }
        None
    }

    /// Applies a report. Returns the pod if it has ended. A new report replaces the earlier one:
    /// containers of a pod that is being deleted may start again.
    pub(super) fn apply_report(&mut self, pod: &PodReport) -> Option<PodId> {
        self.forget(&pod.object_ref);
        if !has_ended(pod) {
            return None;
        }
        let id = (pod.object_ref.namespace.clone(), pod.uid.clone());
        self.by_place.insert(pod.object_ref.clone(), id.clone());
        self.ended.insert(id.clone());
        Some(id)
    }

    fn forget(&mut self, object_ref: &ObjectRef) {
        if let Some(id) = self.by_place.remove(object_ref) {
            self.ended.remove(&id);
        }
    }
}
