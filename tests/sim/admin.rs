//! An administrator's changes of objects: deletes or wipes locks, requests their release, deletes
//! sessions and restores backups.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use leasehold::protocol::ids::Resource;
use leasehold::protocol::lock::Lock;
use leasehold::protocol::settings::{ReleaseMode, ReleaseRequest, Settings};
use leasehold::store::embedded::Backup;

use crate::history::OverriddenBy;
use crate::link::at_once;
use crate::setup::Control;
use crate::world::World;

/// The number that the runbook adds to the revision of a restored store.
const BUMP: u64 = 1_000_000_000;
/// The name of the administrator in the trace.
const WHO: &str = "admin";

/// Makes one random change.
pub(crate) fn act(world: &World, random: &mut Rng) {
    let resources = &world.setup().resources;
    let resource = &resources[random.usize(..resources.len())];
    let may_begin_anew = !world.setup().counts_nanoseconds();
    match random.u8(..6) {
        0 if may_begin_anew => delete_lock(world, resource),
        1 if may_begin_anew => wipe(world, resource),
        2 | 3 => delete_session(world, random),
        4 if !world.setup().operators.is_empty() => {
            force(world, resource);
        }
        _ => ask(world, resource, ReleaseMode::Ask),
    }
}

pub(crate) fn delete_lock(world: &World, resource: &Resource) {
    if at_once(world.store().delete_lock(resource)).is_ok() {
        world.count("lock deleted by a person");
        world.overridden(resource, OverriddenBy::Delete);
        world.stored(WHO, resource, None);
    }
}

/// Removes the status: the lock looks as if it had never been held.
fn wipe(world: &World, resource: &Resource) {
    if as_stored(world, resource).is_none() {
        return;
    }
    let unheld = Lock::unheld(resource.clone());
    if at_once(world.store().put_lock(&unheld)).is_ok() {
        world.count("status wiped by a person");
        world.overridden(resource, OverriddenBy::Wipe);
        world.records().invariants.wiped(resource);
        world.stored(WHO, resource, Some(&unheld));
    }
}

/// The holder is notified by a renewal. Other agents may take over its locks after the session has
/// been missing for long enough.
fn delete_session(world: &World, random: &mut Rng) {
    let sessions = at_once(world.store().sessions()).unwrap_or_default();
    let alive: Vec<_> = (sessions.iter().filter(|session| session.revoked.is_none())).collect();
    if alive.is_empty() {
        return;
    }
    let id = &alive[random.usize(..alive.len())].id;
    if at_once(world.store().delete_session(id)).is_ok() {
        world.count("session deleted by a person");
        world.note(WHO, format_args!("deleted {id}"));
        let now = world.now();
        world.records().sessions.gone(id, now);
    }
}

/// Forces the release of the current grant.
pub(crate) fn force(world: &World, resource: &Resource) {
    ask(world, resource, ReleaseMode::Force);
}

/// Requests the release of the current grant.
fn ask(world: &World, resource: &Resource, mode: ReleaseMode) {
    let Some(lock) = as_stored(world, resource) else {
        return;
    };
    let Some(grant) = &lock.grant else { return };
    let request = ReleaseRequest {
        lease: grant.id.as_str().into(),
        mode,
        reason: "maintenance".into(),
        actor: "jane".into(),
    };
    let asked = Lock {
        settings: Settings {
            release_request: Some(Arc::new(request)),
            ..lock.settings.clone()
        },
        ..lock
    };
    if at_once(world.store().put_lock(&asked)).is_ok() {
        world.count(match mode {
            ReleaseMode::Ask => "release asked for by a person",
            ReleaseMode::Force => "release forced by a person",
        });
        if mode == ReleaseMode::Force {
            world.overridden(resource, OverriddenBy::Force);
        }
        world.stored(WHO, resource, Some(&asked));
    }
}

fn as_stored(world: &World, resource: &Resource) -> Option<Lock> {
    world.records().invariants.lock(resource).cloned()
}

/// A backup of the store.
pub(crate) struct Copy {
    backup: Backup,
    /// How many backups had been restored before.
    restores: u64,
    locks: BTreeMap<Resource, Lock>,
}

impl Copy {
    pub(crate) fn of(world: &World) -> Self {
        let backup = at_once(world.store().backup()).expect("a store in memory");
        let records = world.records();
        let locks = records.invariants.locks();
        let locks = locks.map(|lock| (lock.resource.clone(), lock.clone()));
        Self {
            backup,
            restores: records.restores,
            locks: locks.collect(),
        }
    }

    /// Restores it as the runbook describes: the revision is raised above the results of earlier
    /// restores, too.
    pub(crate) fn restore(&self, world: &World) {
        let since = world.records().restores - self.restores;
        let bump = match world.setup().control {
            Control::Bump => BUMP,
            _ => BUMP * (1 + since),
        };
        if at_once(world.store().restore(&self.backup, bump)).is_ok() {
            if since > 0 {
                world.count("backup of before another restore restored");
            }
            world.count("backup restored with the bump");
            world.note(WHO, "restored a backup, with the bump");
            world.restored(&self.locks);
        }
    }
}
