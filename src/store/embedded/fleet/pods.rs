//! The reports of pods. They are not objects: they consume no revision, and no backup has them.

use std::collections::BTreeMap;

use super::{Subscribers, list_then_watch};
use crate::store::fleet::{Feed, FeedEvent, ObjectRef, PodReport};

#[derive(Default)]
pub(in crate::store::embedded) struct Pods {
    reports: BTreeMap<ObjectRef, PodReport>,
    subscribers: Subscribers<PodReport>,
}

impl Pods {
    pub(super) fn report_of(&self, object_ref: &ObjectRef) -> Option<PodReport> {
        self.reports.get(object_ref).cloned()
    }

    /// Returns a feed of the pods that have ended.
    pub(super) fn feed(&mut self) -> Feed<PodReport> {
        let ended = self.reports.values().filter(|pod| pod.is_terminal);
        let there = ended.map(|pod| FeedEvent::Applied(Box::new(pod.clone())));
        list_then_watch(there.collect(), self.subscribers.subscribe())
    }

    pub(in crate::store::embedded) fn report(&mut self, pod: PodReport) {
        let had_ended = self.remove_report(&pod.object_ref);
        if pod.is_terminal {
            self.subscribers
                .publish(&FeedEvent::Applied(Box::new(pod.clone())));
        } else if had_ended {
            self.subscribers
                .publish(&FeedEvent::Deleted(pod.object_ref.clone()));
        }
        self.reports.insert(pod.object_ref.clone(), pod);
    }

    pub(in crate::store::embedded) fn forget(&mut self, object_ref: &ObjectRef) {
        if self.remove_report(object_ref) {
            self.subscribers
                .publish(&FeedEvent::Deleted(object_ref.clone()));
        }
    }

    /// Removes a report. Returns whether the pod had ended.
    fn remove_report(&mut self, object_ref: &ObjectRef) -> bool {
        let before = self.reports.remove(object_ref);
        before.is_some_and(|pod| pod.is_terminal)
    }
}
