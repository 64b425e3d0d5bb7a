//! The pods that their kubelets reported as ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::operator::pod::has_ended;
use crate::store::fleet::{Place, PodReport, Told};

/// A pod, by its namespace and uid.
pub(super) type PodId = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
pub(super) struct EndedPods {
    by_place: BTreeMap<Place, PodId>,
    ended: BTreeSet<PodId>,
    old: Option<BTreeSet<Place>>,
    pub(super) is_complete: bool,
}

impl EndedPods {
    pub(super) fn has(&self, pod: &PodId) -> bool {
        self.ended.contains(pod)
    }

    /// Takes note of what a feed told; gives the pod that ended by it.
    pub(super) fn note(&mut self, told: Told<PodReport>) -> Option<PodId> {
        match told {
            Told::Anew => self.old = Some(self.by_place.keys().cloned().collect()),
            Told::There(pod) => {
                if let Some(old) = &mut self.old {
                    old.remove(&pod.place);
                }
                return self.note_report(&pod);
            }
            Told::Unreadable { place, .. } | Told::Gone(place) => self.forget(&place),
            Told::Complete => {
                for place in self.old.take().unwrap_or_default() {
                    self.forget(&place);
                }
                self.is_complete = true;
            }
            Told::Interrupted(_) => {}
        }
        None
    }

    /// Takes note of a report, however it was heard; gives the pod if it ended. What was reported
    /// before does not count beside it: containers of a pod that is being deleted may start again.
    pub(super) fn note_report(&mut self, pod: &PodReport) -> Option<PodId> {
        self.forget(&pod.place);
        if !has_ended(pod) {
            return None;
        }
        let id = (pod.place.namespace.clone(), pod.uid.clone());
        self.by_place.insert(pod.place.clone(), id.clone());
        self.ended.insert(id.clone());
        Some(id)
    }

    fn forget(&mut self, place: &Place) {
        if let Some(id) = self.by_place.remove(place) {
            self.ended.remove(&id);
        }
    }
}
