//! What an app does while it has a lock: it writes while it believes, and asks for more time in between.

use std::time::Duration;

use anyhow::Result;

use super::calls::Renewed;
use super::{App, Held};
use crate::history::Op;
use crate::journal::now_ns;

impl App {
    /// Works under a lease until it had enough or believes no more.
    pub(super) async fn work(&mut self, mut held: Held) -> Result<()> {
        let enough = now_ns() + self.how_long() * 1_000_000;
        while now_ns() < enough {
            if now_ns() >= held.renew_at && self.renew(&mut held).await? == Renewed::Lost {
                return Ok(());
            }
            if !self.write_if_believed(&held).await? {
                break;
            }
        }
        self.release(&held.lease).await
    }

    /// Writes once and rests a little, if it may. False when it may not, or was refused: then it believes in its
    /// lease no more.
    pub(super) async fn write_if_believed(&mut self, held: &Held) -> Result<bool> {
        if held.is_believed() {
            let in_hand = self.in_hand();
            if self.write(held, in_hand).await? {
                self.pause(5, 60).await;
                return Ok(true);
            }
        }
        self.journal.info(Op::believes_end(&held.lease))?;
        Ok(false)
    }

    /// Most work is short, some is not.
    pub(super) fn how_long(&mut self) -> u64 {
        match self.dice.u32(0..20) {
            0..=12 => self.dice.u64(10..200),
            13..=17 => self.dice.u64(200..1_500),
            _ => self.dice.u64(1_500..6_000),
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
