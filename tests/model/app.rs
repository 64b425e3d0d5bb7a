//! The app's side: asking, being told, believing, ending; with the agent's [`Tenure`] and
//! [`Lease`] in between.

use leasehold::protocol::ids::GrantId;
use leasehold::protocol::lease::{Lease, Loss, Tenure};
use leasehold::protocol::time::Moment;
use std::time::Duration;

use crate::bugs::Bug;
use crate::ledger::{Flaw, Ledger};
use crate::node::{Call, Node, View, Want};
use crate::rules::Rules;
use crate::store::Write;

impl Node {
    /// Whether the app may ask for the lock: it holds nothing and waits for nothing.
    pub(crate) fn can_ask(&self, lock: usize, now: Moment, rules: &Rules) -> bool {
        let desk = &self.desks[lock];
        let usable = self.live.is_some() || self.sessions_begun < rules.sessions_each;
        let idle = desk.want.is_none() && desk.lease.is_none() && !self.believes(lock, now);
        self.is_up() && usable && idle && self.apps[lock].tries_left > 0
    }

    /// The app asks. A grant that outlived its last lease serves this one at once.
    pub(crate) fn ask(
        &mut self,
        lock: usize,
        waits: bool,
        now: Moment,
        rules: &Rules,
        ledger: &mut Ledger,
    ) -> Result<(), Flaw> {
        self.apps[lock].tries_left -= 1;
        if self.is_valid(now) && !self.desks[lock].spent {
            let desk = &mut self.desks[lock];
            if let Some(lease) = desk.tenure.as_mut().and_then(|tenure| tenure.serve(now)) {
                desk.leaving = None;
                return self.tell_first(lock, lease, now, now, rules, ledger);
            }
        }
        let grant = self.name_grant();
        let desk = &mut self.desks[lock];
        desk.want = Some(Want {
            grant,
            asked: now,
            waits,
        });
        // What is known may be long past; a stale view would only cost a failed write.
        desk.must_read |= desk.view == View::Unknown;
        Ok(())
    }

    pub(crate) fn name_grant(&mut self) -> GrantId {
        self.grants_named += 1;
        let boot = self.clock.now().elapsed_since_boot().as_secs();
        GrantId::from(format!("g{}-{}", boot / 1_000_000, self.grants_named))
    }

    /// Whether asking again would let the app act for longer.
    pub(crate) fn can_be_told_more(&self, lock: usize, now: Moment, rules: &Rules) -> bool {
        let Some((lease, keep)) = self.desks[lock].lease.as_ref().zip(self.keep()) else {
            return false;
        };
        let more = keep.valid_until().min(now.after(app_ttl(rules)));
        // Nobody asks for one that has ended.
        let is_asked_for = self.is_up() && !self.desks[lock].outlived;
        is_asked_for && lease.lost(now, keep.valid_until()).is_none() && more > lease.told_until()
    }

    /// The app asks again and is told.
    pub(crate) fn tell_again(
        &mut self,
        lock: usize,
        now: Moment,
        rules: &Rules,
    ) -> Result<(), Flaw> {
        let until = self.keep().expect("was just looked at").valid_until();
        let lease = self.desks[lock].lease.as_mut().expect("a live lease");
        let told = lease.tell(now, now, app_ttl(rules), until);
        let told = told.expect("a lease that is not lost");
        self.apps[lock].believe(now.after(told.valid_for));
        if told.until <= now {
            return Err(Flaw::ToldTooLate);
        }
        Ok(())
    }

    /// Every app that can be told more asks again.
    pub(crate) fn tell_all_again(&mut self, now: Moment, rules: &Rules) -> Result<(), Flaw> {
        for lock in 0..self.desks.len() {
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
        ledger: &mut Ledger,
    ) -> Result<(), Flaw> {
        let until = self.keep().expect("only the valid serve").valid_until();
        let desk = &mut self.desks[lock];
        let grant = desk.tenure.as_ref().expect("a lease has a tenure").grant();
        let base = desk.known().expect("a tenure was read").1.token;
        match lease.tell(asked, now, app_ttl(rules), until) {
            Err(_) => desk.leaving = Some(grant.clone()),
            Ok(told) => {
                let counted_from = match rules.bug {
                    Some(Bug::AppCountsFromAnswer) => now,
                    _ => asked,
                };
                let given = ledger.give(grant, base, lease.token);
                desk.lease = Some(lease);
                self.apps[lock].believe(counted_from.after(told.valid_for));
                given?;
                if told.until <= now {
                    return Err(Flaw::ToldTooLate);
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
        ledger: &mut Ledger,
    ) -> Result<(), Flaw> {
        let desk = &mut self.desks[lock];
        let stored = match &desk.view {
            View::Unknown => return Ok(()),
            View::Missing => {
                desk.leaving = None;
                desk.drop_tenure();
                return Ok(());
            }
            View::Known(known) => known.clone(),
        };
        let waits = |grant: &GrantId| stored.1.waiters.entries().iter().any(|w| w.grant == *grant);
        let gone = |grant: &GrantId| !stored.1.names_grant(grant) && !waits(grant);
        if desk.leaving.as_ref().is_some_and(gone) {
            desk.leaving = None;
        }
        if desk
            .tenure
            .as_ref()
            .is_some_and(|tenure| !stored.1.names_grant(tenure.grant()))
        {
            desk.drop_tenure();
        }
        let valid = self.live.as_ref().and_then(|live| live.keep);
        let Some(session) = self.session_id().cloned() else {
            return Ok(());
        };
        if valid.is_some_and(|keep| keep.is_valid(now)) && !self.must_raise(&stored, rules) {
            let desk = &mut self.desks[lock];
            if let Some(want) = desk.want.take_if(|want| stored.1.names_grant(&want.grant)) {
                let mut tenure = Tenure::new(want.grant, stored.1.token);
                let lease = tenure.serve(now).expect("a new grant serves");
                desk.tenure = Some(tenure);
                desk.spent = false;
                self.tell_first(lock, lease, want.asked, now, rules, ledger)?;
            }
        }
        // Nobody awaits these any more: given by a write that was thought lost.
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
        let desk = &mut self.desks[lock];
        for grant in mine {
            if desk.leaving.is_none() && !desk.knows(grant) {
                desk.leaving = Some(grant.clone());
            }
        }
        Ok(())
    }

    /// The app ends its lease, or repeats that of an earlier one. The agent, where it is up, is told at
    /// once.
    pub(crate) fn end(&mut self, lock: usize) {
        if !self.desks[lock].outlived {
            self.apps[lock].believes_until = None;
        }
        if self.is_up() {
            self.give_up(lock);
        }
    }

    /// Whether the agent gives up on an app that stayed silent.
    pub(crate) fn can_give_up(&self, lock: usize, now: Moment) -> bool {
        let lost = self.desks[lock].lease.as_ref().zip(self.keep());
        self.is_up()
            && lost.and_then(|(lease, keep)| lease.lost(now, keep.valid_until()))
                == Some(Loss::AppSilent)
    }

    /// The lease is over; its grant will be released.
    pub(crate) fn give_up(&mut self, lock: usize) {
        let desk = &mut self.desks[lock];
        desk.outlived = false;
        if desk.lease.take().is_some() {
            desk.leaving = desk.tenure.as_ref().map(|tenure| tenure.grant().clone());
        }
    }

    /// The app hangs up while it waits.
    pub(crate) fn hang_up(&mut self, lock: usize) {
        let desk = &mut self.desks[lock];
        let want = desk.want.take().expect("only who waits hangs up");
        if self.live.is_some() {
            desk.leaving.get_or_insert(want.grant);
            desk.must_read = true;
        }
    }

    /// The session is over, and with it all that hung on it. What was on its way stays so.
    pub(crate) fn session_over(&mut self, rules: &Rules) -> Option<Write> {
        let live = self.live.take()?;
        let hopeless = self.sessions_begun >= rules.sessions_each;
        for lock in 0..self.desks.len() {
            let renamed = self.desks[lock].want.take().filter(|_| !hopeless);
            let renamed = renamed.map(|want| Want {
                grant: self.name_grant(),
                ..want
            });
            let desk = &mut self.desks[lock];
            desk.want = renamed;
            desk.leaving = None;
            desk.drop_tenure();
            desk.must_read |= desk.view != View::Unknown;
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
