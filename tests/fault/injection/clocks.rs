//! Clocks that jump. Those that run too fast or too slow do so all the time (`world`).

use anyhow::Result;

use super::Undo;
use crate::history::Op;
use crate::schedule::Schedule;
use crate::world::World;

impl World {
    /// The wall clock decides nothing, so it may go anywhere.
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

    /// The clock of a sidecar jumps forward, and that of its apps, which is the history's, does not. The sidecar
    /// releases what they still believe in, so until it has noticed, only its tokens count.
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
