//! What is reported of pods. It lives beside the objects: no revision is consumed by it, and no backup
//! has it.

use std::collections::BTreeMap;

use super::{Tellers, begun};
use crate::store::fleet::{Feed, Place, PodReport, Told};

#[derive(Default)]
pub(in crate::store::embedded) struct Pods {
    reports: BTreeMap<Place, PodReport>,
    tellers: Tellers<PodReport>,
}

impl Pods {
    pub(super) fn report_of(&self, place: &Place) -> Option<PodReport> {
        self.reports.get(place).cloned()
    }

    /// Those that ended.
    pub(super) fn feed(&mut self) -> Feed<PodReport> {
        let ended = self.reports.values().filter(|pod| pod.is_terminal);
        let there = ended.map(|pod| Told::There(Box::new(pod.clone())));
        begun(there.collect(), self.tellers.follow())
    }

    pub(in crate::store::embedded) fn report(&mut self, pod: PodReport) {
        let had_ended = self.forget_silently(&pod.place);
        if pod.is_terminal {
            self.tellers.tell(&Told::There(Box::new(pod.clone())));
        } else if had_ended {
            self.tellers.tell(&Told::Gone(pod.place.clone()));
        }
        self.reports.insert(pod.place.clone(), pod);
    }

    pub(in crate::store::embedded) fn forget(&mut self, place: &Place) {
        if self.forget_silently(place) {
            self.tellers.tell(&Told::Gone(place.clone()));
        }
    }

    /// Whether it was among those that ended.
    fn forget_silently(&mut self, place: &Place) -> bool {
        let before = self.reports.remove(place);
        before.is_some_and(|pod| pod.is_terminal)
    }
}
