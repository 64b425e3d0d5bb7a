//! Clocks that leap. Those that run too fast or too slow do so all the time (`world`).

use anyhow::Result;

use super::Remedy;
use crate::history::Op;
use crate::schedule::Schedule;
use crate::world::World;

impl World {
    /// The wall clock decides nothing, so it may go anywhere.
    pub(super) fn leap_walls(&mut self, schedule: &mut Schedule) -> Result<Remedy> {
        let seconds = if schedule.is(50) { -7_000 } else { 90_000 };
        let mut told = Vec::new();
        for seat in &mut self.seats {
            if let Some(clock) = &mut seat.clock {
                told.extend(clock.leap_wall(seconds)?);
            }
        }
        Ok(Remedy::Nothing(told.join(", ")))
    }

    /// The clock that a sidecar counts on leaps forth, and its apps', which is the history's, does not. It gives
    /// up what they still believe in, so until it has seen that, only tokens count for what it serves.
    pub(super) fn leap_clocks(&mut self, schedule: &mut Schedule) -> Result<Remedy> {
        let seconds = schedule.between(2_000, 20_000).as_secs();
        for seat in &mut self.seats {
            let op = Op::clock_leaps(seat.sidecar_name());
            if let Some(clock) = seat.clock.as_mut().filter(|clock| clock.may_leap()) {
                let operation = self.people.invoke(op.clone())?;
                clock.leap(seconds)?;
                return Ok(Remedy::Settled(operation, op));
            }
        }
        Ok(Remedy::Missed("no clock may leap".to_owned()))
    }
}
