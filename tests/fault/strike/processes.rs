//! Processes that are killed or stopped: sidecars, apps, whole pods, replicas of the operator.

use std::time::Duration;

use anyhow::Result;

use super::Remedy;
use crate::harness::now;
use crate::schedule::{Kind, Schedule};
use crate::world::World;

/// How long to look for an app that has a write in its hands.
const LOOKS: Duration = Duration::from_secs(5);

/// So many of a hundred pods that are struck are one that most probably has a lock.
const WITH_A_LOCK: u32 = 75;

impl World {
    pub(super) fn strike_process(&mut self, kind: Kind, schedule: &mut Schedule) -> Result<Remedy> {
        let anyone = schedule.pick(self.seats.len());
        let seat = self.who_has_a_lock(schedule).unwrap_or(anyone);
        match kind {
            Kind::HangSidecar if self.seats[seat].sidecar().is_some() => {
                self.seats[seat].freeze_sidecar()?;
                Ok(Remedy::ThawSidecar(seat))
            }
            Kind::KillApp => {
                let (seat, app) = self.last_writer().unwrap_or((seat, 0));
                if self.seats[seat].kill_app(app)? {
                    return Ok(Remedy::StartApp { seat, app });
                }
                Ok(Remedy::Missed(format!("app {app} of {seat} is dead")))
            }
            Kind::KillSidecar | Kind::ForgetSidecar if self.seats[seat].kill_sidecar()? => {
                let knowing = kind == Kind::KillSidecar && self.seats[seat].keeps_time();
                Ok(Remedy::StartSidecar { seat, knowing })
            }
            _ => Ok(Remedy::Missed(format!("the sidecar of {seat} is dead"))),
        }
    }

    /// Whose app wrote last most probably has a lock now. It is not always the one.
    pub(super) fn who_has_a_lock(&self, schedule: &mut Schedule) -> Option<usize> {
        let (seat, _) = self.last_writer()?;
        schedule.is(WITH_A_LOCK).then_some(seat)
    }

    pub(super) fn strike_operator(
        &mut self,
        kind: Kind,
        schedule: &mut Schedule,
    ) -> Result<Remedy> {
        let number = schedule.pick(self.operators.len());
        let seat = &mut self.operators[number];
        let Some(operator) = seat.running.take() else {
            return Ok(Remedy::Missed(format!("operator {number} is dead")));
        };
        operator.must_run()?;
        if kind == Kind::KillOperator {
            operator.kill9()?;
            return Ok(Remedy::StartOperator(number));
        }
        operator.freeze()?;
        seat.running = Some(operator);
        Ok(Remedy::ThawOperator(number))
    }

    /// Stops an app between its decision to write and the sending, alone or with its pod. When it goes on, what
    /// it sends is stale, and it cannot know.
    pub(super) async fn strike_who_writes(&mut self, kind: Kind) -> Result<Remedy> {
        let (seat, app) = self.stop_who_writes().await?;
        if kind == Kind::HangApp {
            return Ok(Remedy::ThawApp { seat, app });
        }
        for other in 0..self.seats[seat].apps.len() {
            self.seats[seat].freeze_app(other)?;
        }
        self.seats[seat].freeze_sidecar()?;
        Ok(Remedy::ThawPod(seat))
    }

    async fn stop_who_writes(&mut self) -> Result<(usize, usize)> {
        let ends = now().after(LOOKS);
        while now() < ends {
            for (number, seat) in self.seats.iter_mut().enumerate() {
                for app in 0..seat.apps.len() {
                    if !seat.apps[app].has_write_in_hand() {
                        continue;
                    }
                    seat.freeze_app(app)?;
                    // It may have been sent between the look and the signal.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    if seat.apps[app].has_write_in_hand() {
                        return Ok((number, app));
                    }
                    seat.thaw_app(app)?;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Nobody has a lock: then whoever had one last.
        let (seat, app) = self.last_writer().unwrap_or_default();
        self.seats[seat].freeze_app(app)?;
        Ok((seat, app))
    }

    pub(super) fn thaw_app(&mut self, seat: usize, app: usize) -> Result<()> {
        self.seats[seat].thaw_app(app)
    }

    /// The apps go first: what they have in hand is sent before anybody tells them anything.
    pub(super) fn thaw_pod(&mut self, seat: usize) -> Result<()> {
        for app in 0..self.seats[seat].apps.len() {
            self.seats[seat].thaw_app(app)?;
        }
        self.seats[seat].thaw_sidecar()
    }

    pub(super) fn thaw_operator(&mut self, number: usize) -> Result<()> {
        match &self.operators[number].running {
            Some(operator) => operator.thaw(),
            None => Ok(()),
        }
    }
}
