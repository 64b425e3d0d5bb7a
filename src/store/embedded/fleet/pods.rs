//! What is reported of pods. It lives beside the objects: no revision is consumed by it, and no backup
//! has it.

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

    /// Those that ended.
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

    /// Whether it was among those that ended.
    fn remove_report(&mut self, object_ref: &ObjectRef) -> bool {
        let before = self.reports.remove(object_ref);
        before.is_some_and(|pod| pod.is_terminal)
    }
}
