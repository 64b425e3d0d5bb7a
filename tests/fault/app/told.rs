//! What an app does whose time is over: it writes no more, and listens until it is told what became of its lease.
//! That it is told in time is checked; how long it would listen is longer than that may take.

use std::time::Duration;

use anyhow::Result;

use super::calls::Renewed;
use super::hold::{Heard, Stream};
use super::{App, Held};
use crate::history::Op;
use crate::journal::now_ns;

/// How long it listens.
const LISTENS: Duration = Duration::from_secs(10);
/// How often it asks who has to ask.
const BETWEEN: Duration = Duration::from_millis(100);

impl App {
    /// Asks until it is told; `false` if it has its lease no more, or gave up.
    pub(super) async fn ask_until_told(&mut self, held: &mut Held) -> Result<bool> {
        let ends = self.time_is_up(held)?;
        while now_ns() < ends {
            match self.renew(held).await? {
                Renewed::Lost => return Ok(false),
                Renewed::Yes if held.is_believed() => return Ok(true),
                _ => tokio::time::sleep(BETWEEN).await,
            }
        }
        self.release(&held.lease).await?;
        Ok(false)
    }

    /// The same by a stream of events.
    pub(super) async fn listen_until_told(
        &mut self,
        held: &mut Held,
        stream: &mut Stream,
    ) -> Result<bool> {
        let ends = self.time_is_up(held)?;
        while now_ns() < ends {
            match self.listen(held, stream)? {
                Heard::Lost => return Ok(false),
                Heard::Nothing if held.is_believed() => return Ok(true),
                Heard::Nothing => tokio::time::sleep(BETWEEN / 10).await,
                Heard::End => break,
            }
        }
        self.release(&held.lease).await?;
        Ok(false)
    }

    fn time_is_up(&mut self, held: &Held) -> Result<u64> {
        self.journal.info(Op::believes_end(&held.lease))?;
        Ok(now_ns() + u64::try_from(LISTENS.as_nanos())?)
    }
}
