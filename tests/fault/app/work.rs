//! The work of an app under a lock: it writes while it believes in its lease, and renews in
//! between.

use std::time::Duration;

use anyhow::Result;

use super::calls::Renewed;
use super::{App, Held};
use crate::history::Op;
use crate::recorder::now_ns;

/// The result of one action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// It was sent and not refused.
    Yes,
    /// It was refused as stale: the app stops believing in its lease.
    Refused,
    /// It may still happen, and this token must not be used after it. The lock has to be acquired
    /// again.
    Unknown,
    /// The app may no longer act.
    No,
}

impl Done {
    /// Returns whether the lease is to be released afterwards.
    pub(super) const fn is_the_last(self) -> bool {
        matches!(self, Self::Refused | Self::Unknown)
    }
}

impl App {
    /// Works under a lease until the work is done or the app stops believing in the lease.
    pub(super) async fn work(&mut self, mut held: Held) -> Result<()> {
        let enough = now_ns() + self.how_long() * 1_000_000;
        while now_ns() < enough {
            if !held.is_believed() && !self.ask_until_notified(&mut held).await? {
                return Ok(());
            }
            if now_ns() >= held.renew_at && self.renew(&mut held).await? == Renewed::Lost {
                return Ok(());
            }
            if self.act_if_believed(&held).await?.is_the_last() {
                break;
            }
        }
        self.record_expiry_if_any(&held)?;
        self.release(&held.lease).await
    }

    /// The last action may have taken longer than the lease. The app notices that only now and
    /// releases. It does not listen.
    pub(super) fn record_expiry_if_any(&mut self, held: &Held) -> Result<()> {
        if held.is_believed() {
            return Ok(());
        }
        self.recorder.info(Op::believes_end(&held.lease))
    }

    /// Does one action and pauses, if the app may act.
    pub(super) async fn act_if_believed(&mut self, held: &Held) -> Result<Done> {
        if !held.is_believed() {
            return Ok(Done::No);
        }
        let in_hand = self.in_hand();
        let done = match self.dice.u32(0..10) {
            0 => self.read(&held.resource).await?,
            1..=3 => self.append(held, in_hand).await?,
            _ => self.write(held, in_hand).await?,
        };
        if done.is_the_last() {
            self.recorder.info(Op::believes_end(&held.lease))?;
        } else {
            self.pause(5, 60).await;
        }
        Ok(done)
    }

    /// Returns the duration of the work, in milliseconds. Most work is short, some is not.
    pub(super) fn how_long(&mut self) -> u64 {
        if self.config.works_long {
            return self.dice.u64(10_000..20_000);
        }
        match self.dice.u32(0..40) {
            0..=25 => self.dice.u64(10..200),
            26..=34 => self.dice.u64(200..1_500),
            35..=38 => self.dice.u64(1_500..6_000),
            _ => self.dice.u64(6_000..15_000),
        }
    }

    /// Returns how long a write is pending inside the app.
    pub(super) fn in_hand(&mut self) -> Duration {
        Duration::from_millis(match self.dice.u32(0..20) {
            0 => self.dice.u64(200..1_500),
            _ => self.dice.u64(2..30),
        })
    }
}
