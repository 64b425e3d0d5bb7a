//! What happens to leases when the agent stops.

use std::time::Duration;

use crate::protocol::ids::LeaseId;

use super::config::OnTerm;
use super::core::effect::Input;
use super::core::leases::EndedBy;
use super::core::{CALL_LIMIT, Core};
use super::driver::Driver;
use super::release::end;

/// How long an agent that stops without delay waits for what it may have to release.
const RESUMED_AT_THE_END: Duration = Duration::from_secs(3);

/// How long a stopping agent waits for the store to take its releases.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Stops the agent; held leases end as `on_term` says.
pub(super) async fn shut_down(driver: &Driver, on_term: OnTerm) {
    drain(driver);
    resume_before_the_end(driver, on_term).await;
    // What waits for an old promise is known only now.
    if on_term == OnTerm::AppsEnded {
        driver.with_core(Core::release_held_back);
    }
    // Nobody comes back for them.
    driver.with_core(|core, cx| core.leases(cx).release_all_warm());
    if on_term == OnTerm::Wait {
        wait_for_leases_to_end(driver).await;
    }
    release_at_the_end(driver, on_term).await;
    if on_term == OnTerm::ReleaseNow && leave_promised(driver) {
        stop_renewing(driver).await;
    } else {
        driver.request(Input::EndSession).await;
        forget_for_good(driver);
        driver.stop.cancel();
    }
    driver.tasks.close();
}

/// Refuses new leases from now on.
fn drain(driver: &Driver) {
    driver.feed(Input::Drain);
    {
        let state = driver.state();
        state.elections.wake_streams();
    }
    driver.streams_changed.notify_waiters();
}

/// An agent that stops before it knows what it holds finds out first: then it can release it.
async fn resume_before_the_end(driver: &Driver, on_term: OnTerm) {
    let limit = match on_term {
        OnTerm::Wait => driver.state().core.promised_until().since(driver.now()),
        OnTerm::ReleaseNow | OnTerm::AppsEnded => RESUMED_AT_THE_END,
    };
    let until = driver.now().after(limit);
    loop {
        let ended = driver.something_ended.notified();
        // Looked at in each round: it holds also where something ends all the time.
        if !driver.state().core.is_resuming() || driver.now() >= until {
            return;
        }
        tokio::select! {
            biased;
            () = ended => {}
            () = driver.sleep_until(until) => {}
        }
    }
}

/// A stopped agent has nothing left that could continue, unless it never knew what it had.
fn forget_for_good(driver: &Driver) {
    let mut state = driver.state();
    if !state.core.is_resuming() {
        state.journal.close();
    }
}

/// Waits until every lease was released or the deadline that its app was told has passed.
async fn wait_for_leases_to_end(driver: &Driver) {
    loop {
        let ended = driver.something_ended.notified();
        let told = {
            let state = driver.state();
            let held = state.core.own.leases();
            let told = held.map(|held| held.lease.told_until());
            told.chain([state.core.promised_until()]).max()
        };
        let Some(told) = told.filter(|told| driver.now() < *told) else {
            return;
        };
        tokio::select! {
            biased;
            () = ended => {}
            () = driver.sleep_until(told) => {}
        }
    }
}

/// Releases what is still held, but for promised leases where those are left, and waits (a few
/// seconds at most) for the store to confirm that, and for the attempts in flight to end. All releases
/// are started before any is waited for: the kubelet does not wait for them one after the other.
async fn release_at_the_end(driver: &Driver, on_term: OnTerm) {
    let leaves_promised = on_term == OnTerm::ReleaseNow;
    let until = driver.now().after(LAST_WORDS);
    loop {
        let ended = driver.something_ended.notified();
        let leases: Vec<LeaseId> = {
            let state = driver.state();
            let leases = state.core.own.leases();
            leases.map(|held| held.lease.id.clone()).collect()
        };
        for lease in &leases {
            // What waits for it waits for the agent's load to fall.
            let _ended = end(driver, lease, EndedBy::Agent { leaves_promised });
        }
        let (load, left) = {
            let state = driver.state();
            (state.core.load(), state.core.left_at_stop())
        };
        if load == 0 || (leaves_promised && load == left) {
            return;
        }
        tokio::select! {
            // The bound first: it holds also where something ends all the time.
            biased;
            () = driver.sleep_until(until) => return,
            () = ended => {}
        }
    }
}

/// Leaves promised leases to their session and to the file: nothing that happens from here on ends one,
/// least of all the connections that the end of this process closes. False when there are none.
fn leave_promised(driver: &Driver) -> bool {
    {
        let mut state = driver.state();
        // An unfinished resumption may still bring leases: they are on file, and stay there.
        state.has_left = state.core.left_at_stop() > 0 || state.core.is_resuming();
        if !state.has_left {
            return false;
        }
        tracing::info!(
            leases = state.core.own.len(),
            "leaving leases to the next process"
        );
        state.elections.wake_streams();
    }
    driver.streams_changed.notify_waiters();
    true
}

/// Stops everything, but no renewal in flight: the next process can resume the session only at the
/// version that is on file.
async fn stop_renewing(driver: &Driver) {
    // A bound for the worst case: without the renewal's answer the next process resumes nothing.
    let stopped = driver.request(Input::StopRenewing);
    let _in_time = tokio::time::timeout(CALL_LIMIT, stopped).await;
    driver.stop.cancel();
}
