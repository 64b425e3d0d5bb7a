//! Processes that are killed or stopped: sidecars, apps, whole pods, and replicas of the operator.

use std::time::Duration;

use anyhow::Result;

use super::Undo;
use crate::harness::now;
use crate::schedule::{Kind, Schedule};
use crate::world::World;

/// How long to search for an app with a pending write.
const LOOKS: Duration = Duration::from_secs(5);

/// The percentage of faults that affect a pod that probably holds a lock.
const WITH_A_LOCK: u32 = 75;

impl World {
    pub(super) fn inject_process_fault(
        &mut self,
        kind: Kind,
        schedule: &mut Schedule,
    ) -> Result<Undo> {
        let anyone = schedule.pick(self.pods.len());
        let pod = self.probable_holder(schedule).unwrap_or(anyone);
        match kind {
            Kind::HangSidecar if self.pods[pod].sidecar().is_some() => {
                self.pods[pod].freeze_sidecar()?;
                Ok(Undo::ThawSidecar(pod))
            }
            Kind::KillApp => {
                let (pod, app) = self.last_writer().unwrap_or((pod, 0));
                if self.pods[pod].kill_app(app)? {
                    return Ok(Undo::StartApp { pod, app });
                }
                Ok(Undo::Missed(format!("app {app} of {pod} does not run")))
            }
            Kind::KillSidecar | Kind::ForgetSidecar if self.pods[pod].kill_sidecar()? => {
                let knowing = kind == Kind::KillSidecar && self.pods[pod].keeps_time();
                Ok(Undo::StartSidecar { pod, knowing })
            }
            _ => Ok(Undo::Missed(format!("the sidecar of {pod} does not run"))),
        }
    }

    /// Returns the pod of the last writer, which probably holds a lock now. It is not always
    /// chosen.
    pub(super) fn probable_holder(&self, schedule: &mut Schedule) -> Option<usize> {
        let (pod, _) = self.last_writer()?;
        schedule.is(WITH_A_LOCK).then_some(pod)
    }

    pub(super) fn inject_operator_fault(
        &mut self,
        kind: Kind,
        schedule: &mut Schedule,
    ) -> Result<Undo> {
        let number = schedule.pick(self.operators.len());
        let replica = &mut self.operators[number];
        let Some(operator) = replica.running.take() else {
            return Ok(Undo::Missed(format!("operator {number} does not run")));
        };
        operator.must_run()?;
        if kind == Kind::KillOperator {
            operator.kill9()?;
            return Ok(Undo::StartOperator(number));
        }
        operator.freeze()?;
        replica.running = Some(operator);
        Ok(Undo::ThawOperator(number))
    }

    /// Stops an app between its decision to write and the request, alone or with its pod. When it
    /// continues, the write is stale, and the app cannot know that.
    pub(super) async fn inject_during_write(&mut self, kind: Kind) -> Result<Undo> {
        let (pod, app) = self.freeze_writing_app().await?;
        if kind == Kind::HangApp {
            return Ok(Undo::ThawApp { pod, app });
        }
        for other in 0..self.pods[pod].apps.len() {
            self.pods[pod].freeze_app(other)?;
        }
        self.pods[pod].freeze_sidecar()?;
        Ok(Undo::ThawPod(pod))
    }

    async fn freeze_writing_app(&mut self) -> Result<(usize, usize)> {
        let ends = now().after(LOOKS);
        while now() < ends {
            for (number, pod) in self.pods.iter_mut().enumerate() {
                for app in 0..pod.apps.len() {
                    if !pod.apps[app].has_write_in_hand() {
                        continue;
                    }
                    pod.freeze_app(app)?;
                    // The write may have been sent between the read and the signal.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    if pod.apps[app].has_write_in_hand() {
                        return Ok((number, app));
                    }
                    pod.thaw_app(app)?;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // No app holds a lock, so use the last writer.
        let (pod, app) = self.last_writer().unwrap_or_default();
        self.pods[pod].freeze_app(app)?;
        Ok((pod, app))
    }

    pub(super) fn thaw_app(&mut self, pod: usize, app: usize) -> Result<()> {
        self.pods[pod].thaw_app(app)
    }

    /// The apps continue first, so they send pending writes before they can be notified.
    pub(super) fn thaw_pod(&mut self, pod: usize) -> Result<()> {
        for app in 0..self.pods[pod].apps.len() {
            self.pods[pod].thaw_app(app)?;
        }
        self.pods[pod].thaw_sidecar()
    }

    pub(super) fn thaw_operator(&mut self, number: usize) -> Result<()> {
        match &self.operators[number].running {
            Some(operator) => operator.thaw(),
            None => Ok(()),
        }
    }
}
