//! The ends of a pod's processes: killed between two steps, or stopped with a grace period.

use std::time::Duration;

use leasehold::agent::OnTerm;
use leasehold::store::embedded::NAMESPACE;
use leasehold::store::fleet::{ContainerReport, ObjectRef, PodReport};

use super::{Pod, Sidecar};

impl Pod {
    /// The sidecar crashes between two of its steps.
    pub(crate) fn kill_sidecar(&self) {
        let Some(sidecar) = self.parts().sidecar.take() else {
            return;
        };
        sidecar.pauses.crash();
        sidecar.link.kill();
        sidecar.crashed.cancel();
        self.0.disk.take_away();
    }

    /// Stops the sidecar, which serves until it has ended. It is killed if that takes longer than
    /// `grace`.
    pub(crate) async fn stop_sidecar(&self, on_term: OnTerm, grace: Duration) {
        let Some(sidecar) = self.sidecar() else {
            return;
        };
        let agent = sidecar.agent.clone();
        let stops = async move { agent.shut_down(on_term).await };
        let stopped = tokio::spawn(sidecar.pauses.pause().hold(stops));
        let stopped = tokio::time::timeout(grace, stopped).await;
        if !self.is_running(&sidecar) {
            return self.world().count("sidecar crashed while it stopped");
        }
        let what = match stopped {
            Ok(Ok(())) if self.disk().has_file() => "sidecar stopped, promised leases left",
            Ok(Ok(())) if self.world().holds(self.name()) => {
                "sidecar stopped, its lock left behind"
            }
            Ok(Ok(())) => "sidecar stopped in good order",
            Ok(Err(crashed)) => {
                let crashed = format!("a task that stopped an agent crashed: {crashed}");
                return self.world().judge(self.name(), Err(crashed));
            }
            Err(_elapsed) => "sidecar killed while it stopped",
        };
        self.world().count(what);
        self.world().note(self.name(), what);
        if !self.disk().has_file() {
            self.disk().put_away();
        }
        self.kill_sidecar();
    }

    /// Returns whether this process is the running one.
    fn is_running(&self, sidecar: &Sidecar) -> bool {
        let running = self.sidecar();
        running.is_some_and(|running| running.link.is(&sidecar.link))
    }

    /// Crashes the apps.
    pub(crate) fn kill_apps(&self) {
        for app in std::mem::take(&mut self.parts().apps) {
            app.abort();
        }
        self.world().apps_crashed(self.name());
    }

    /// Ends the whole pod permanently.
    pub(crate) fn end(&self) {
        self.kill_apps();
        self.kill_sidecar();
        self.parts().is_over = true;
        self.world().ended(self.name());
    }

    /// Deletes the pod. Mostly its apps end before its sidecar is stopped. With a short grace
    /// period, or one that a hook uses up, they continue for `apps_run_on`.
    pub(crate) async fn end_in_good_order(&self, grace: Duration, apps_run_on: Option<Duration>) {
        self.parts().is_over = true;
        if apps_run_on.is_none() {
            self.kill_apps();
        }
        self.stop_sidecar(OnTerm::ReleaseNow, grace).await;
        tokio::time::sleep(apps_run_on.unwrap_or_default()).await;
        self.end();
    }

    /// Returns the kubelet's report of its end.
    pub(crate) fn report(&self) -> PodReport {
        PodReport {
            object_ref: ObjectRef {
                namespace: NAMESPACE.into(),
                name: self.0.name.clone(),
            },
            uid: format!("uid-of-{}", self.0.name).into(),
            is_terminal: true,
            is_deleted: false,
            is_presumed: false,
            declared: 2,
            containers: vec![ContainerReport::Terminated; 2],
        }
    }

    /// Returns a report that does not mean the end of the pod: failed by a controller, lost, being
    /// deleted, or between two runs of its containers.
    pub(crate) fn report_of_no_end(&self, kind: u8) -> PodReport {
        let ended = self.report();
        let with = |second| vec![ContainerReport::Terminated, second];
        match kind % 4 {
            0 => PodReport {
                is_presumed: true,
                ..ended
            },
            1 => PodReport {
                containers: with(ContainerReport::Unknown),
                ..ended
            },
            2 => PodReport {
                is_terminal: false,
                is_deleted: true,
                containers: with(ContainerReport::Alive),
                ..ended
            },
            _ => PodReport {
                is_terminal: false,
                ..ended
            },
        }
    }
}
