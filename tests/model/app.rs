//! The app's side: it asks, is answered, acts and ends its leases; the agent's [`Tenure`] and [`Lease`] are in
//! between.

use leasehold::protocol::ids::GrantId;
use leasehold::protocol::lease::{Lease, Loss, Tenure};
use leasehold::protocol::time::Moment;
use std::time::Duration;

use crate::bugs::Bug;
use crate::lock_history::{LockHistory, Violation};
use crate::node::{Call, Node, View, Want};
use crate::rules::Rules;
use crate::store::Write;

impl Node {
    /// Whether the app may ask for the lock: it holds nothing and waits for nothing.
    pub(crate) fn can_ask(&self, lock: usize, now: Moment, rules: &Rules) -> bool {
        let client = &self.clients[lock];
        let usable = self.live.is_some() || self.sessions_begun < rules.sessions_each;
        let idle = client.want.is_none() && client.lease.is_none() && !self.believes(lock, now);
        self.is_up() && usable && idle && self.apps[lock].tries_left > 0
    }

    /// The app asks. A grant that outlived its last lease serves this one at once.
    pub(crate) fn ask(
        &mut self,
        lock: usize,
        waits: bool,
        now: Moment,
        rules: &Rules,
        history: &mut LockHistory,
    ) -> Result<(), Violation> {
        self.apps[lock].tries_left -= 1;
        if self.is_valid(now) && !self.clients[lock].spent {
            let client = &mut self.clients[lock];
            if let Some(lease) = client.tenure.as_mut().and_then(|tenure| tenure.serve(now)) {
                client.leaving = None;
                return self.tell_first(lock, lease, now, now, rules, history);
            }
        }
        let grant = self.name_grant();
        let client = &mut self.clients[lock];
        client.want = Some(Want {
            grant,
            asked: now,
            waits,
        });
        // The view may be outdated; a stale view only costs a failed write.
        client.must_read |= client.view == View::Unknown;
        Ok(())
    }

    pub(crate) fn name_grant(&mut self) -> GrantId {
        self.grants_named += 1;
        let boot = self.clock.now().elapsed_since_boot().as_secs();
        GrantId::from(format!("g{}-{}", boot / 1_000_000, self.grants_named))
    }

    /// Whether asking again would let the app act for longer.
    pub(crate) fn can_be_told_more(&self, lock: usize, now: Moment, rules: &Rules) -> bool {
        let Some((lease, keep)) = self.clients[lock].lease.as_ref().zip(self.keep()) else {
            return false;
        };
        let more = keep.valid_until().min(now.after(app_ttl(rules)));
        self.is_up() && lease.lost(now, keep.valid_until()).is_none() && more > lease.told_until()
    }

    /// The app asks again and is answered.
    pub(crate) fn tell_again(
        &mut self,
        lock: usize,
        now: Moment,
        rules: &Rules,
    ) -> Result<(), Violation> {
        let until = self.keep().expect("was just looked at").valid_until();
        let lease = self.clients[lock].lease.as_mut().expect("a live lease");
        let told = lease.tell(now, now, app_ttl(rules), until);
        let told = told.expect("a lease that is not lost");
        self.apps[lock].believe(now.after(told.valid_for));
        if told.until <= now {
            return Err(Violation::ToldTooLate);
        }
        Ok(())
    }

    /// Every app that can be promised more asks again.
    pub(crate) fn tell_all_again(&mut self, now: Moment, rules: &Rules) -> Result<(), Violation> {
        for lock in 0..self.clients.len() {
            if self.can_be_told_more(lock, now, rules) {
                self.tell_again(lock, now, rules)?;
            }
        }
        Ok(())
    }

    fn tell_first(
        &mut self,
        lock: usize,
        mut lease: Lease,
        asked: Moment,
        now: Moment,
        rules: &Rules,
        history: &mut LockHistory,
    ) -> Result<(), Violation> {
        let until = self.keep().expect("only the valid serve").valid_until();
        let client = &mut self.clients[lock];
        let grant = client
            .tenure
            .as_ref()
            .expect("a lease has a tenure")
            .grant();
        let base = client.known().expect("a tenure was read").1.token;
        match lease.tell(asked, now, app_ttl(rules), until) {
            Err(_) => client.leaving = Some(grant.clone()),
            Ok(told) => {
                let counted_from = match rules.bug {
                    Some(Bug::AppCountsFromAnswer) => now,
                    _ => asked,
                };
                let given = history.give(grant, base, lease.token);
                client.lease = Some(lease);
                self.apps[lock].believe(counted_from.after(told.valid_for));
                given?;
                if told.until <= now {
                    return Err(Violation::ToldTooLate);
                }
            }
        }
        Ok(())
    }

    /// Brings the agent's own state in line with what it last read of the lock.
    pub(crate) fn settle(
        &mut self,
        lock: usize,
        now: Moment,
        rules: &Rules,
        history: &mut LockHistory,
    ) -> Result<(), Violation> {
        let client = &mut self.clients[lock];
        let stored = match &client.view {
            View::Unknown => return Ok(()),
            View::Missing => {
                client.leaving = None;
                client.drop_tenure();
                return Ok(());
            }
            View::Known(known) => known.clone(),
        };
        let waits = |grant: &GrantId| stored.1.waiters.entries().iter().any(|w| w.grant == *grant);
        let gone = |grant: &GrantId| !stored.1.names_grant(grant) && !waits(grant);
        if client.leaving.as_ref().is_some_and(gone) {
            client.leaving = None;
        }
        if client
            .tenure
            .as_ref()
            .is_some_and(|tenure| !stored.1.names_grant(tenure.grant()))
        {
            client.drop_tenure();
        }
        let valid = self.live.as_ref().and_then(|live| live.keep);
        let Some(session) = self.session_id().cloned() else {
            return Ok(());
        };
        if valid.is_some_and(|keep| keep.is_valid(now)) && !self.must_raise(&stored, rules) {
            let client = &mut self.clients[lock];
            if let Some(want) = client
                .want
                .take_if(|want| stored.1.names_grant(&want.grant))
            {
                let mut tenure = Tenure::new(want.grant, stored.1.token);
                let lease = tenure.serve(now).expect("a new grant serves");
                client.tenure = Some(tenure);
                client.spent = false;
                self.tell_first(lock, lease, want.asked, now, rules, history)?;
            }
        }
        // No caller waits for these any more: they were granted by a write that was thought lost.
        let held = stored
            .1
            .grant
            .as_ref()
            .filter(|grant| grant.holder.session == session);
        let mut waiters = stored.1.waiters.entries().iter();
        let queued = waiters.find(|w| w.claimant.session == session);
        let mine = held
            .map(|grant| &grant.id)
            .into_iter()
            .chain(queued.map(|w| &w.grant));
        let client = &mut self.clients[lock];
        for grant in mine {
            if client.leaving.is_none() && !client.knows(grant) {
                client.leaving = Some(grant.clone());
            }
        }
        Ok(())
    }

    /// The app ends its lease. A running agent receives that at once.
    pub(crate) fn end(&mut self, lock: usize) {
        self.apps[lock].believes_until = None;
        if self.is_up() {
            self.give_up(lock);
        }
    }

    /// Whether the agent releases the lease of an app that stayed silent.
    pub(crate) fn can_give_up(&self, lock: usize, now: Moment) -> bool {
        let lost = self.clients[lock].lease.as_ref().zip(self.keep());
        self.is_up()
            && lost.and_then(|(lease, keep)| lease.lost(now, keep.valid_until()))
                == Some(Loss::AppSilent)
    }

    /// The lease is over; its grant will be released.
    pub(crate) fn give_up(&mut self, lock: usize) {
        let client = &mut self.clients[lock];
        if client.lease.take().is_some() {
            client.leaving = client.tenure.as_ref().map(|tenure| tenure.grant().clone());
        }
    }

    /// The app hangs up while it waits.
    pub(crate) fn hang_up(&mut self, lock: usize) {
        let client = &mut self.clients[lock];
        let want = client.want.take().expect("only a waiter hangs up");
        if self.live.is_some() {
            client.leaving.get_or_insert(want.grant);
            client.must_read = true;
        }
    }

    /// The session is over, and all its leases. Writes under way continue.
    pub(crate) fn session_over(&mut self, rules: &Rules) -> Option<Write> {
        let live = self.live.take()?;
        let hopeless = self.sessions_begun >= rules.sessions_each;
        for lock in 0..self.clients.len() {
            let renamed = self.clients[lock].want.take().filter(|_| !hopeless);
            let renamed = renamed.map(|want| Want {
                grant: self.name_grant(),
                ..want
            });
            let client = &mut self.clients[lock];
            client.want = renamed;
            client.leaving = None;
            client.drop_tenure();
            client.must_read |= client.view != View::Unknown;
        }
        match live.call {
            Some(Call::Sent(write)) => Some(write),
            Some(Call::Answered { .. }) | None => None,
        }
    }
}

/// How long a silent app may go on.
pub(crate) fn app_ttl(rules: &Rules) -> Duration {
    Duration::from_secs(rules.app_ttl_seconds)
}
