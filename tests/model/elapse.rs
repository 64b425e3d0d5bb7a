//! Time elapses: every moment in the world moves into the past, on its own node's clock.
//!
//! The protocol's values are rebuilt with the moved moments. What lies too far back to matter is cut off, so that
//! states that cannot behave differently are one state.

use std::time::Duration;

use leasehold::protocol::lease::Lease;
use leasehold::protocol::observed::Observed;
use leasehold::protocol::session::KeepAlive;
use leasehold::protocol::time::Moment;

use crate::node::{LockClient, Node};
use crate::rules::Rules;

/// Far longer than any share of the TTL.
const LONG_AGO: Duration = Duration::from_secs(1000);

impl Node {
    /// This much real time elapses.
    pub(crate) fn elapse(&mut self, real: Duration, rules: &Rules) {
        let (now, by) = (self.clock.now(), self.clock.counts(real));
        let back = |moment: Moment| earlier(moment, by).max(earlier(now, LONG_AGO));
        for app in &mut self.apps {
            app.believes_until = app.believes_until.map(back).filter(|until| *until > now);
        }
        self.promised = self.promised.map(back).filter(|until| *until > now);
        if let Some(live) = &mut self.live {
            live.first_sent = live.first_sent.map(back);
            live.keep = live.keep.map(|keep| {
                let sent = earlier(keep.valid_until(), rules.ttl.holder_share());
                KeepAlive::begun(back(sent), rules.ttl)
            });
        }
        for client in &mut self.clients {
            client.elapse(now, back, rules);
        }
    }
}

impl LockClient {
    fn elapse(&mut self, now: Moment, back: impl Fn(Moment) -> Moment, rules: &Rules) {
        if let Some(want) = &mut self.want {
            want.asked = back(want.asked);
        }
        if let Some(lease) = &mut self.lease {
            *lease = told_at(lease, back(lease.told_until()), back(lease.gives_up_at()));
        }
        let ripe = earlier(now, rules.ttl.challenger_share());
        for rival in &mut self.rivals {
            let since = back(rival.observed.since()).max(ripe);
            rival.observed = Observed::join(None, rival.sight, since);
        }
    }
}

fn told_at(lease: &Lease, told: Moment, gives_up: Moment) -> Lease {
    let start = Moment::default();
    let mut moved = Lease::new(lease.id.clone(), lease.token, start);
    moved
        .tell(start, start, gives_up.since(start), told)
        .expect("what was told lies after the boot");
    moved
}

fn earlier(moment: Moment, by: Duration) -> Moment {
    Moment::since_boot(moment.since(Moment::since_boot(by)))
}
