//! What people do to objects, with an administrator's rights, and past the policies.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Remedy;
use crate::history::{Op, OverriddenBy};
use crate::schedule::{Kind, Schedule};
use crate::world::World;

impl World {
    pub(super) async fn strike_objects(
        &mut self,
        kind: Kind,
        schedule: &mut Schedule,
    ) -> Result<Remedy> {
        if kind == Kind::RewriteStorage {
            return self.rewrite_storage().await;
        }
        let locks = match self.namespace.all("distributedlocks").await {
            Ok(locks) => locks,
            Err(error) => return Ok(Remedy::Missed(format!("{error:#}"))),
        };
        let held = locks
            .iter()
            .filter(|lock| !lock["status"]["lease"].is_null());
        let held: Vec<_> = held.collect();
        let Some(lock) = held.get(schedule.pick(held.len().max(1))) else {
            return Ok(Remedy::Missed("nobody has a lock".to_owned()));
        };
        let name = lock["metadata"]["name"].as_str().context("a name")?;
        match kind {
            Kind::DeleteLock => self.delete_lock(name).await,
            Kind::LoseLock => self.lose_lock(name).await,
            Kind::WipeStatus => self.wipe(name).await,
            Kind::EditLock => self.edit(name).await,
            Kind::ForceRelease => self.force(name, lock).await,
            _ => self.delete_session(lock).await,
        }
    }

    /// Somebody overrides what a holder may believe: from before it is tried until it is done, or for good.
    fn override_of(&mut self, name: &str, by: OverriddenBy) -> Result<(u64, Op)> {
        let op = Op::overridden(Some(name), by);
        Ok((self.people.invoke(op.clone())?, op))
    }

    /// Ends the grant by hand and deletes the lock, as the policy of deletions tells people to. Somebody may take
    /// the lock in between: then the policy refuses, and the person tries no more.
    async fn delete_lock(&mut self, name: &str) -> Result<Remedy> {
        let (operation, op) = self.override_of(name, OverriddenBy::Delete)?;
        let free = json!({"status": {"holder": null, "lease": null, "waiters": null}});
        let path = format!("distributedlocks/{name}/status");
        let _let_go_meanwhile = self.namespace.patch(&path, &free).await;
        let deleted = self.namespace.kubectl(&["delete", "dlock", name]).await?;
        self.people.ok(operation, op)?;
        Ok(Remedy::none(format!("{name} is deleted"), deleted.success))
    }

    async fn lose_lock(&mut self, name: &str) -> Result<Remedy> {
        let (operation, op) = self.override_of(name, OverriddenBy::Delete)?;
        let key = format!("distributedlocks/{}/{name}", self.namespace.name);
        let control_plane = self.cluster.control_plane();
        let lost = control_plane.remove_from_etcd(&key).await;
        self.people.ok(operation, op)?;
        // The operator may have deleted it meanwhile.
        Ok(Remedy::none(format!("{name} is lost"), lost.is_ok()))
    }

    async fn wipe(&mut self, name: &str) -> Result<Remedy> {
        let (operation, op) = self.override_of(name, OverriddenBy::Wipe)?;
        let free = json!({"status": {"holder": null, "lease": null, "waiters": null}});
        let path = format!("distributedlocks/{name}/status");
        let wiped = self.namespace.patch(&path, &free).await;
        self.people.ok(operation, op)?;
        Ok(Remedy::none(format!("{name} is wiped"), wiped.is_ok()))
    }

    /// What may be edited takes nothing from who holds the lock: no override.
    async fn edit(&mut self, name: &str) -> Result<Remedy> {
        let change = json!({"status": {"waiters": null,
            "lease": {"acquiredAt": "0001-01-01T00:00:00.000000Z"}}});
        let path = format!("distributedlocks/{name}/status");
        let edited = self.namespace.patch(&path, &change).await;
        let settings = json!({"spec": {"retainSeconds": 60, "longHeldSeconds": 1}});
        let path = format!("distributedlocks/{name}");
        let set = self.namespace.patch(&path, &settings).await;
        let is_done = edited.is_ok() && set.is_ok();
        Ok(Remedy::none(format!("{name} is edited"), is_done))
    }

    /// The operator carries it out when it sees it.
    async fn force(&mut self, name: &str, lock: &Value) -> Result<Remedy> {
        let (operation, op) = self.override_of(name, OverriddenBy::Force)?;
        let request = json!({"spec": {"releaseRequest": {"mode": "Force", "actor": "admin",
            "leaseId": lock["status"]["lease"]["id"], "reason": "it is in the way"}}});
        let path = format!("distributedlocks/{name}");
        let asked = self.namespace.patch(&path, &request).await;
        if asked.is_ok() {
            return Ok(Remedy::Settled(operation, op));
        }
        self.people.ok(operation, op)?;
        Ok(Remedy::Missed(format!("{name}: {asked:?}")))
    }

    /// A missing session is dead to others only after its TTL, so exclusion is not overridden.
    async fn delete_session(&mut self, lock: &Value) -> Result<Remedy> {
        let session = lock["status"]["holder"]["session"].as_str();
        let session = session.context("who holds a lock has a session")?;
        let command = ["delete", "locksession", session];
        let deleted = self.namespace.kubectl(&command).await?;
        Ok(Remedy::none(
            format!("{session} is deleted"),
            deleted.success,
        ))
    }

    /// A migration puts each object back as it got it. That alone changes nothing in the store, so each is
    /// also given an annotation, which does.
    async fn rewrite_storage(&mut self) -> Result<Remedy> {
        let mut written = 0;
        for kind in ["distributedlocks", "locksessions"] {
            for object in self.namespace.all(kind).await? {
                let name = object["metadata"]["name"].as_str().context("a name")?;
                let path = format!("{kind}/{name}");
                let put = self.namespace.put(&path, &object).await;
                let change = json!({"metadata": {"annotations":
                    {"example.org/migrated": object["metadata"]["resourceVersion"]}}});
                let touched = self.namespace.patch(&path, &change).await;
                // Who was quicker than we wins, as with a migration.
                written += usize::from(put.is_ok()) + usize::from(touched.is_ok());
            }
        }
        Ok(Remedy::none(format!("{written} writes"), written > 0))
    }
}
