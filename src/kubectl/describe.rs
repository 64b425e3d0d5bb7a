//! Everything about one lock, in words.

use std::fmt::Write as _;

use super::format::human::human;
use super::freeing;
use super::session_health::{Health, since};
use super::timeline::Entry;
use super::words::{self, about, who};
use super::world::{LockSeen, World};
use crate::crd::lock::{DistributedLockStatus, Holder, LeaseRecord};
use crate::text::escape;

/// The description of a lock, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description(Vec<Item>);

/// A part of a description.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A name and a value.
    Fact(&'static str, String),
    /// A name and several lines, at least one.
    Section(&'static str, Vec<String>),
}

impl Description {
    /// Returns its parts, in their order.
    #[must_use]
    pub fn items(&self) -> &[Item] {
        &self.0
    }

    /// Returns the description as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        for item in &self.0 {
            match item {
                Item::Fact(name, value) => {
                    let _ = writeln!(out, "{:<16} {value}", format!("{name}:"));
                }
                Item::Section(name, lines) => {
                    let _ = writeln!(out, "{name}:");
                    for line in lines {
                        let _ = writeln!(out, "  {line}");
                    }
                }
            }
        }
        out
    }

    fn line(&mut self, name: &'static str, value: impl Into<String>) {
        self.0.push(Item::Fact(name, value.into()));
    }

    fn section(&mut self, name: &'static str, lines: impl IntoIterator<Item = String>) {
        let lines: Vec<_> = lines.into_iter().collect();
        if !lines.is_empty() {
            self.0.push(Item::Section(name, lines));
        }
    }
}

/// Describes a lock. `entries` is what happened to it; if its Events are not among that, `no_events` is the reason.
#[must_use]
pub fn describe(
    world: &World,
    lock: &LockSeen,
    entries: &[Entry],
    no_events: Option<&str>,
) -> Description {
    let mut out = Description::default();
    out.line("Name", lock.name.as_str());
    out.line("Namespace", lock.namespace.as_str());
    out.line("Resource", escape(&lock.spec.resource));
    match &lock.status {
        Err(error) => out.line("State", format!("unreadable: {}", escape(error))),
        Ok(status) => {
            if let (Some(holder), Some(lease)) = (&status.holder, &status.lease) {
                held(&mut out, world, lock, (status, holder, lease));
            } else {
                out.line("State", "free");
                out.line("Last token", status.token.to_string());
            }
        }
    }
    settings(&mut out, world, lock);
    if let Ok(status) = &lock.status {
        queue(&mut out, world, lock, status);
    }
    out.section("History", history(entries, world));
    if let Some(why) = no_events {
        out.line("Events", format!("unknown: {why}"));
    }
    out.line("Operator", words::operator(&world.operator));
    out.section(
        "What frees it",
        freeing::ways(world, lock)
            .into_iter()
            .map(|way| format!("- {way}")),
    );
    out
}

fn held(
    out: &mut Description,
    world: &World,
    lock: &LockSeen,
    (status, holder, lease): (&DistributedLockStatus, &Holder, &LeaseRecord),
) {
    let kept = if lease.kept {
        "; kept by its pod while no app uses it"
    } else {
        ""
    };
    let held_for = about(&lease.acquired_at, world.now);
    out.line(
        "State",
        format!(
            "held by {}, for {held_for}{kept}",
            who(&holder.owner_id, &holder.pod)
        ),
    );
    out.line("Fencing token", status.token.to_string());
    out.line("Grant", escape(&lease.id));
    out.line(
        "Acquired at",
        format!(
            "{} (by the clock of the holder's node)",
            escape(&lease.acquired_at)
        ),
    );
    out.line(
        "Pod",
        words::pod(world, &lock.namespace, &holder.pod, &holder.pod_uid),
    );
    let health = Health::of_holder(world, &lock.namespace, holder);
    out.line(
        "Session",
        format!("{}: {}", escape(&holder.session), words::health(&health)),
    );
    if !holder.metadata.is_empty() {
        let pairs = holder.metadata.iter();
        let pairs: Vec<_> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
        out.line("Metadata", escape(&pairs.join(", ")));
    }
}

fn settings(out: &mut Description, world: &World, lock: &LockSeen) {
    if let Some(request) = &lock.spec.release_request {
        let status = lock.status.as_ref().ok();
        let grant = status
            .and_then(|status| status.lease.as_ref())
            .map(|lease| lease.id.as_str());
        let is_current = request.lease_id.split('.').next() == grant;
        let about = if is_current {
            ""
        } else {
            " (for an earlier grant: without effect)"
        };
        out.line(
            "Release request",
            format!(
                "{:?} by {}: {}{about}",
                request.mode,
                escape(&request.actor),
                escape(&request.reason)
            ),
        );
    }
    if let Some(seconds) = lock.spec.long_held_seconds {
        out.line("Long held after", format!("{seconds}s"));
    }
    if let Some(seconds) = lock.spec.retain_seconds {
        out.line("Kept unused for", format!("{seconds}s"));
    }
    if let Ok(status) = &lock.status {
        for condition in &status.conditions {
            out.line(
                "Condition",
                format!(
                    "{}={}: {}",
                    condition.r#type,
                    condition.status,
                    escape(&condition.message)
                ),
            );
        }
        out.line(
            "Grants",
            format!("{}{}", status.transitions, created(world, lock)),
        );
    }
    if lock.is_being_deleted {
        out.line("Deletion", words::BEING_DELETED);
    }
}

fn created(world: &World, lock: &LockSeen) -> String {
    let created = lock.created.map(|created| human(since(created, world.now)));
    created.map_or_else(String::new, |age| {
        format!(", since its object was created {age} ago")
    })
}

fn queue(out: &mut Description, world: &World, lock: &LockSeen, status: &DistributedLockStatus) {
    out.section(
        "Queue",
        status.waiters.iter().enumerate().map(|(index, waiter)| {
            let health = Health::of(world, &lock.namespace, &waiter.session);
            let preferred = if waiter.preferred { ", preferred" } else { "" };
            format!(
                "{}. {}, for {}, session {}{preferred}",
                index + 1,
                who(&waiter.owner_id, &waiter.pod),
                about(&waiter.queued_at, world.now),
                words::health_cell(&health)
            )
        }),
    );
}

fn history(entries: &[Entry], world: &World) -> Vec<String> {
    let ages: Vec<_> = entries.iter().map(|entry| age(entry, world)).collect();
    let width = ages.iter().map(String::len).max().unwrap_or_default();
    let lines = entries.iter().zip(ages);
    let lines = lines.map(|(entry, age)| format!("{age:<width$}  {}", history_line(entry)));
    lines.collect()
}

fn age(entry: &Entry, world: &World) -> String {
    entry.at.map_or_else(
        || "unknown".to_owned(),
        |at| format!("~{} ago", human(since(at, world.now))),
    )
}

fn history_line(entry: &Entry) -> String {
    let by = if entry.actor.is_empty() {
        String::new()
    } else {
        format!(" by {}", escape(&entry.actor))
    };
    format!(
        "{} {}{by}: {}",
        entry.source,
        escape(&entry.kind),
        escape(&entry.message)
    )
}
