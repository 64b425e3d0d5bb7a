//! The tree of pods, their sessions and their locks.

use std::fmt::Write as _;

use std::collections::BTreeMap;

use super::queue_chain::Waits;
use super::session_health::Health;
use super::words::{about, health_cell, ordinal};
use super::world::{LockSeen, World};
use crate::text::escape;

/// A holder or waiter, by namespace, pod and session.
type Party<'a> = (&'a str, &'a str, &'a str);

/// Returns the tree of all pods that hold or wait for a lock, or of one.
#[must_use]
pub fn text(world: &World, pod: Option<&str>, namespaces: bool) -> String {
    let waits = Waits::of_locks(&world.locks);
    let mut out = String::new();
    for ((namespace, name, session), held) in parties(&world.locks) {
        if pod.is_some_and(|pod| pod != name) {
            continue;
        }
        let place = if namespaces {
            format!("{namespace}/")
        } else {
            String::new()
        };
        let health = health_cell(&Health::of(world, namespace, session));
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{place}{}  session {} ({health})",
            escape(name),
            escape(session)
        );
        let mut lines: Vec<_> = held.iter().map(|lock| held_line(world, lock)).collect();
        lines.extend(waits.of_session(namespace, session).iter().map(|wait| {
            format!(
                "waits for {}, {} in the queue",
                escape(&wait.lock.spec.resource),
                ordinal(wait.position)
            )
        }));
        let last = lines.len().saturating_sub(1);
        for (index, line) in lines.iter().enumerate() {
            let branch = if index == last { "└─" } else { "├─" };
            let _ = writeln!(out, "{branch} {line}");
        }
    }
    out
}

/// Returns all holders and waiters, with the locks that each holds.
fn parties(locks: &[LockSeen]) -> BTreeMap<Party<'_>, Vec<&LockSeen>> {
    let mut parties: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for lock in locks {
        let Ok(status) = &lock.status else { continue };
        let namespace = lock.namespace.as_str();
        if let Some(holder) = &status.holder {
            let party = (namespace, holder.pod.as_str(), holder.session.as_str());
            parties.entry(party).or_default().push(lock);
        }
        for waiter in &status.waiters {
            parties
                .entry((namespace, &waiter.pod, &waiter.session))
                .or_default();
        }
    }
    parties
}

fn held_line(world: &World, lock: &LockSeen) -> String {
    let resource = escape(&lock.spec.resource);
    let status = lock.status.as_ref().ok();
    let since = status.and_then(|status| status.lease.as_ref());
    let since = since.map_or_else(String::new, |lease| {
        format!(", for {}", about(&lease.acquired_at, world.now))
    });
    let waiting = status.map_or(0, |status| status.waiters.len());
    let waiting = if waiting == 0 {
        String::new()
    } else {
        format!(", {waiting} waiting")
    };
    format!("holds {resource}{since}{waiting}")
}
