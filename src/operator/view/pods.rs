//! The pods that their kubelets have reported as ended.
//!
//! It is strict, because an early take-over depends on it. A pod that was only deleted, or that
//! another component marked as ended, may still run on an unreachable node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::listing::Listing;
use crate::store::fleet::{ContainerReport, FeedEvent, ObjectRef, PodReport};

/// A pod, by its namespace and uid.
pub(super) type PodId = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
pub(super) struct EndedPods {
    by_place: BTreeMap<ObjectRef, PodId>,
    ended: BTreeSet<PodId>,
    pub(super) listing: Listing,
}

impl EndedPods {
    pub(super) fn contains(&self, pod: &PodId) -> bool {
        self.ended.contains(pod)
    }

    /// Applies an event of the feed. Returns the pod if it has ended.
    pub(super) fn apply(&mut self, event: FeedEvent<PodReport>) -> Option<PodId> {
        match event {
            FeedEvent::ListStarted => self.listing.start(self.by_place.keys().cloned()),
            FeedEvent::Applied(pod) => {
                self.listing.deliver(&pod.object_ref);
                return self.apply_report(&pod);
            }
            FeedEvent::Unreadable { object_ref, .. } | FeedEvent::Deleted(object_ref) => {
                self.forget(&object_ref);
            }
            FeedEvent::ListDone => {
                for object_ref in self.listing.finish() {
                    self.forget(&object_ref);
                }
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

/// Returns whether the kubelet reports that all containers have terminated and will not be
/// restarted.
fn has_ended(pod: &PodReport) -> bool {
    let stays_ended = pod.is_terminal || pod.is_deleted;
    let all_reported = pod.declared > 0 && pod.containers.len() >= pod.declared;
    let mut containers = pod.containers.iter();
    stays_ended
        && !pod.is_presumed
        && all_reported
        && containers.all(|container| *container == ContainerReport::Terminated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ContainerReport::{Alive, Terminated, Unknown};

    fn ended() -> PodReport {
        PodReport {
            object_ref: ObjectRef {
                namespace: "n".into(),
                name: "p".into(),
            },
            uid: "u".into(),
            is_terminal: true,
            is_deleted: false,
            is_presumed: false,
            declared: 2,
            containers: vec![Terminated, Terminated],
        }
    }

    #[test]
    fn pod_has_ended_only_after_all_its_containers_ended_for_good() {
        let with = |containers: &[ContainerReport]| PodReport {
            containers: containers.to_vec(),
            ..ended()
        };
        let deleted = PodReport {
            is_terminal: false,
            is_deleted: true,
            ..ended()
        };
        let restarting = PodReport {
            is_terminal: false,
            ..ended()
        };
        let presumed = PodReport {
            is_presumed: true,
            ..ended()
        };
        let never_ran = PodReport {
            declared: 0,
            ..with(&[])
        };
        let table = [
            ("ended", ended(), true),
            ("deleted, and all ended", deleted, true),
            ("between two runs of its containers", restarting, false),
            ("given up by a controller", presumed, false),
            ("one runs", with(&[Terminated, Alive]), false),
            ("one state is unknown", with(&[Terminated, Unknown]), false),
            ("one is not reported", with(&[Terminated]), false),
            ("none is reported", with(&[]), false),
            ("it has none", never_ran, false),
        ];
        for (what, pod, expected) in table {
            assert_eq!(has_ended(&pod), expected, "{what}");
        }
    }
}
