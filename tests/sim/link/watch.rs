//! A watch over a link: events are late but in order, stall for a while, and end in every way that
//! is possible for a watch.

use std::time::Duration;

use futures::StreamExt as _;
use leasehold::store::{LockEvent, LockWatch, StoreError};
use tokio::sync::mpsc;

use super::{Link, Quality};
use crate::network::Way;

type Event = Result<LockEvent, StoreError>;

/// The end of a watch that its client does not close.
enum End {
    /// The store ends it, as it does periodically.
    Closed,
    /// With an error, after which the client relists.
    Failed(StoreError),
    /// It does not end, and delivers nothing more.
    Silent,
}

impl Link {
    /// Forwards the events of a watch to the process, until either side ends it.
    pub(super) fn carry(&self, events: LockWatch) -> LockWatch {
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(self.clone().carry_on(events, tell));
        let told = futures::stream::unfold(told, |mut told| async {
            let next = told.recv().await?;
            Some((next, told))
        });
        told.boxed()
    }

    async fn carry_on(self, mut events: LockWatch, tell: mpsc::UnboundedSender<Event>) {
        let over = tokio::time::sleep(self.watch_lives());
        tokio::pin!(over);
        loop {
            let event = tokio::select! {
                biased;
                () = tell.closed() => return,
                () = &mut over => return self.end_watch(&tell).await,
                event = events.next() => event,
            };
            let Some(event) = event else { return };
            tokio::time::sleep(self.watch_delay()).await;
            self.0.network.passes(Way::FromStore, true).await;
            if tell.send(event).is_err() {
                return;
            }
        }
    }

    async fn end_watch(&self, tell: &mpsc::UnboundedSender<Event>) {
        let error = match self.draw_end() {
            End::Closed => return self.world().count("watch closed"),
            End::Silent => {
                self.world().count("watch silent");
                return tell.closed().await;
            }
            End::Failed(error) => error,
        };
        self.world().count(match &error {
            StoreError::WatchExpired(_) => "watch expired",
            _ => "watch failed",
        });
        let _heard = tell.send(Err(error));
    }

    fn draw_end(&self) -> End {
        match self.random().u8(..4) {
            0 => End::Closed,
            1 => End::Failed(StoreError::WatchExpired("compacted".into())),
            2 if self.quality() != Quality::Good => End::Silent,
            _ => End::Failed(StoreError::Unavailable("the connection broke".into())),
        }
    }

    pub(super) fn watch_lives(&self) -> Duration {
        let longest = match self.quality() {
            Quality::Good => 60_000,
            Quality::Slow => 20_000,
            Quality::Bad => 5_000,
        };
        Duration::from_millis(self.random().u64(..longest))
    }

    /// Returns the delay of an event. It is mostly zero; sometimes the watch stalls, and later
    /// events wait.
    pub(super) fn watch_delay(&self) -> Duration {
        let quality = self.quality();
        let mut random = self.random();
        let is_stalled = quality != Quality::Good && random.u8(..20) == 0;
        let delay = Duration::from_millis(random.u64(..=5));
        if is_stalled {
            drop(random);
            self.world().count("watch stalled");
            return delay + self.world().setup().ttl.get().mul_f64(self.random().f64());
        }
        delay
    }
}
