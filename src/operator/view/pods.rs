//! The pods that their kubelets reported as ended.

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
    old: Option<BTreeSet<ObjectRef>>,
    pub(super) is_complete: bool,
}

impl EndedPods {
    pub(super) fn has(&self, pod: &PodId) -> bool {
        self.ended.contains(pod)
    }

    /// Takes note of what a feed told; gives the pod that ended by it.
    pub(super) fn note(&mut self, told: FeedEvent<PodReport>) -> Option<PodId> {
        match told {
            FeedEvent::ListStarted => self.old = Some(self.by_place.keys().cloned().collect()),
            FeedEvent::Applied(pod) => {
                if let Some(old) = &mut self.old {
                    old.remove(&pod.object_ref);
                }
                return self.note_report(&pod);
            }
            FeedEvent::Unreadable { object_ref, .. } | FeedEvent::Deleted(object_ref) => {
                self.forget(&object_ref)
            }
            FeedEvent::ListDone => {
                for object_ref in self.old.take().unwrap_or_default() {
                    self.forget(&object_ref);
                }
                self.is_complete = true;
            }
            FeedEvent::Interrupted(_) => {}
        }
        None
    }

    /// Takes note of a report, however it was heard; gives the pod if it ended. What was reported
    /// before does not count beside it: containers of a pod that is being deleted may start again.
    pub(super) fn note_report(&mut self, pod: &PodReport) -> Option<PodId> {
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
