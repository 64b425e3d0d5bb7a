//! Clocks that jump. Clocks with a wrong rate have it for the whole run (`world`).

use anyhow::Result;

use super::Undo;
use crate::history::Op;
use crate::schedule::Schedule;
use crate::world::World;

impl World {
    /// No decision depends on the wall clock, so it may jump anywhere.
    pub(super) fn leap_walls(&mut self, schedule: &mut Schedule) -> Result<Undo> {
        let seconds = if schedule.is(50) { -7_000 } else { 90_000 };
        let mut told = Vec::new();
        for pod in &mut self.pods {
            if let Some(clock) = &mut pod.clock {
                told.extend(clock.leap_wall(seconds)?);
            }
        }
        Ok(Undo::Nothing(told.join(", ")))
    }

    /// A sidecar's clock jumps forward. The clock of its apps, which is the history's, does not. So
    /// the sidecar releases leases that its apps still believe in. Until it has noticed, only its
    /// tokens count.
    pub(super) fn leap_clocks(&mut self, schedule: &mut Schedule) -> Result<Undo> {
        let seconds = schedule.between(2_000, 20_000).as_secs();
        for pod in &mut self.pods {
            let op = Op::clock_leaps(pod.sidecar_name());
            if let Some(clock) = pod.clock.as_mut().filter(|clock| clock.may_leap()) {
                let operation = self.admin.invoke(op.clone())?;
                clock.leap(seconds)?;
                return Ok(Undo::Settled(operation, op));
            }
        }
        Ok(Undo::Missed("no clock may leap".to_owned()))
    }
}
