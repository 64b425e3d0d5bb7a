//! Faults of a pod's processes: they crash, pause, are stopped, and end permanently.

use leasehold::agent::OnTerm;

use super::{Faults, GRACE, LONGEST};
use crate::pod::Pod;

impl Faults {
    pub(super) fn kill_sidecar(&mut self, pod: &Pod) {
        if pod.sidecar().is_none() {
            return;
        }
        let state = if !pod.keeps_state() {
            "sidecar crashed without state"
        } else if self.random.u8(..5) == 0 {
            pod.disk().lose();
            "sidecar crashed and lost its state"
        } else {
            "sidecar crashed with state"
        };
        self.world.count(state);
        self.world.note(pod.name(), state);
        pod.kill_sidecar();
        let pod = pod.clone();
        self.later(1.0, move || start_again(&pod));
    }

    /// A rollout or a manual restart: the process exits gracefully if it can, and another one
    /// replaces it.
    pub(super) fn terminate_sidecar(&mut self, pod: &Pod) {
        let is_stopping = |pod: &Pod| pod.sidecar().is_none_or(|it| it.agent.is_draining());
        if is_stopping(pod) {
            return;
        }
        let grace = self.up_to(self.ttl().mul_f64(GRACE));
        let away = self.up_to(self.ttl() / 2);
        let on_term = if self.random.bool() {
            OnTerm::Wait
        } else {
            OnTerm::ReleaseNow
        };
        self.world
            .note(pod.name(), format_args!("sidecar has {grace:?} to stop"));
        let pod = pod.clone();
        tokio::spawn(async move {
            pod.stop_sidecar(on_term, grace).await;
            tokio::time::sleep(away).await;
            start_again(&pod);
        });
    }

    pub(super) fn stop_sidecar(&mut self, pod: &Pod) {
        let Some(sidecar) = pod.sidecar() else { return };
        let lasts = self.up_to(self.ttl().mul_f64(LONGEST));
        let (now, pod) = (self.world.now(), pod.clone());
        pod.world().note(
            pod.name(),
            format_args!("sidecar stands still for {lasts:?}"),
        );
        let had = pod.world().holds(pod.name());
        sidecar.pauses.begin(now, now + lasts);
        tokio::spawn(async move {
            tokio::time::sleep(lasts).await;
            let Some(stood) = sidecar.pauses.end(pod.world().now()) else {
                return;
            };
            pod.world().note(pod.name(), "sidecar goes on");
            if had && stood > pod.world().setup().ttl.get() {
                pod.world()
                    .count("sidecar that held stood still past its TTL");
            }
        });
    }

    pub(super) fn stop_apps(&mut self, pod: &Pod) {
        let lasts = self.up_to(self.ttl().mul_f64(LONGEST));
        let (now, pod) = (self.world.now(), pod.clone());
        let believed = pod.world().records().invariants.believes_until(pod.name());
        pod.world()
            .note(pod.name(), format_args!("apps stand still for {lasts:?}"));
        let container = pod.container();
        container.begin(now, now + lasts);
        tokio::spawn(async move {
            tokio::time::sleep(lasts).await;
            let now = pod.world().now();
            if container.end(now).is_none() {
                return;
            }
            pod.world().note(pod.name(), "apps go on");
            if believed.is_some_and(|until| until < now) {
                pod.world().count("apps stood still past their deadline");
            }
        });
    }

    pub(super) fn kill_apps(&mut self, pod: &Pod) {
        if pod.is_over() {
            return;
        }
        self.world.count("apps crashed");
        self.world.note(pod.name(), "apps crashed");
        pod.kill_apps();
        let pod = pod.clone();
        self.later(1.0, move || pod.start_apps());
    }

    /// Reports a state of a running pod that does not mean that it ended.
    pub(super) fn report_of_no_end(&mut self, pod: &Pod) {
        if pod.is_over() {
            return;
        }
        self.world
            .note(pod.name(), "is reported as if it had ended");
        if self.world.holds(pod.name()) && !self.replicas.is_empty() {
            self.world.count("holder's pod presumed ended");
        }
        let report = pod.report_of_no_end(self.random.u8(..));
        self.world.store().report_pod(report);
    }

    /// Ends a pod. At least two pods remain.
    pub(super) fn end(&mut self, pod: &Pod) {
        let alive = self.pods.iter().filter(|pod| !pod.is_over()).count();
        if alive <= 2 || pod.is_over() {
            return;
        }
        if self.random.bool() {
            return self.delete_pod(pod);
        }
        let is_reported = self.random.bool();
        self.world.count(if is_reported {
            "pod ended and was reported"
        } else {
            "pod ended in silence"
        });
        self.world.note(pod.name(), "ended");
        pod.end();
        if is_reported {
            self.world.store().report_pod(pod.report());
        }
    }

    /// Deletes a pod. The kubelet reports the end when it has happened.
    fn delete_pod(&mut self, pod: &Pod) {
        let grace = self.up_to(self.ttl().mul_f64(GRACE));
        let run_on = self.up_to(self.ttl() / 2);
        let apps_run_on = self.random.bool().then_some(run_on);
        self.world.count("pod deleted");
        self.world
            .note(pod.name(), format_args!("is deleted, and has {grace:?}"));
        let pod = pod.clone();
        tokio::spawn(async move {
            pod.end_in_good_order(grace, apps_run_on).await;
            pod.world().store().report_pod(pod.report());
        });
    }
}

fn start_again(pod: &Pod) {
    pod.world().note(pod.name(), "sidecar started");
    pod.start_sidecar();
}
