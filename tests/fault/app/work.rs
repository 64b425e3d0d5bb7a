//! What an app does while it has a lock: it writes while it believes, and asks for more time in between.

use std::time::Duration;

use anyhow::Result;

use super::calls::Renewed;
use super::{App, Held};
use crate::history::Op;
use crate::journal::now_ns;

/// What became of the intention to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It was sent, and not refused.
    Yes,
    /// It was refused as stale: the app believes in its lease no more.
    Refused,
    /// The app may not write any more.
    No,
}

impl App {
    /// Works under a lease until it had enough or believes no more.
    pub(super) async fn work(&mut self, mut held: Held) -> Result<()> {
        let enough = now_ns() + self.how_long() * 1_000_000;
        while now_ns() < enough {
            if !held.is_believed() && !self.ask_until_told(&mut held).await? {
                return Ok(());
            }
            if now_ns() >= held.renew_at && self.renew(&mut held).await? == Renewed::Lost {
                return Ok(());
            }
            if self.write_if_believed(&held).await? == Written::Refused {
                break;
            }
        }
        self.release(&held.lease).await
    }

    /// Writes once and rests a little, if it may.
    pub(super) async fn write_if_believed(&mut self, held: &Held) -> Result<Written> {
        if !held.is_believed() {
            return Ok(Written::No);
        }
        let in_hand = self.in_hand();
        if self.write(held, in_hand).await? {
            self.pause(5, 60).await;
            return Ok(Written::Yes);
        }
        self.journal.info(Op::believes_end(&held.lease))?;
        Ok(Written::Refused)
    }

    /// Most work is short, some is not.
    pub(super) fn how_long(&mut self) -> u64 {
        match self.dice.u32(0..40) {
            0..=25 => self.dice.u64(10..200),
            26..=34 => self.dice.u64(200..1_500),
            35..=38 => self.dice.u64(1_500..6_000),
            _ => self.dice.u64(6_000..15_000),
        }
    }

    /// How long a write is under way inside the app.
    pub(super) fn in_hand(&mut self) -> Duration {
        Duration::from_millis(match self.dice.u32(0..20) {
            0 => self.dice.u64(200..1_500),
            _ => self.dice.u64(2..30),
        })
    }
}
