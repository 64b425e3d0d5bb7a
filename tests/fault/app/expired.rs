//! An app past its deadline: it stops writing, and listens until it is notified of what became of
//! its lease. The run checks that the notification arrives in time; the app listens for longer than
//! that.

use std::time::Duration;

use anyhow::Result;

use super::calls::Renewed;
use super::hold::{Heard, Stream};
use super::{App, Held};
use crate::history::Op;
use crate::recorder::now_ns;

/// How long an app listens.
const LISTENS_FOR: Duration = Duration::from_secs(10);
/// The poll interval of an app without a stream.
const BETWEEN: Duration = Duration::from_millis(100);

impl App {
    /// Polls until it is notified. Returns `false` if its lease is over, or if it stopped waiting.
    pub(super) async fn ask_until_notified(&mut self, held: &mut Held) -> Result<bool> {
        let ends = self.record_expiry(held)?;
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

    /// The same with a stream of events.
    pub(super) async fn listen_until_notified(
        &mut self,
        held: &mut Held,
        stream: &mut Stream,
    ) -> Result<bool> {
        let ends = self.record_expiry(held)?;
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

    fn record_expiry(&mut self, held: &Held) -> Result<u64> {
        self.recorder.info(Op::believes_end(&held.lease))?;
        Ok(now_ns() + u64::try_from(LISTENS_FOR.as_nanos())?)
    }
}
