//! An administrator's changes of objects, with all rights, and around the policies.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Undo, is_refused};
use crate::history::{Op, OverriddenBy};
use crate::schedule::{Kind, Schedule};
use crate::world::World;

/// How often the administrator retries after a conflict.
const TRIES: usize = 5;

/// Returns the id of the grant in a lock.
fn grant_of(lock: &Value) -> Option<String> {
    lock["status"]["lease"]["id"].as_str().map(str::to_owned)
}

impl World {
    pub(super) async fn inject_object_fault(
        &mut self,
        kind: Kind,
        schedule: &mut Schedule,
    ) -> Result<Undo> {
        if kind == Kind::RewriteStorage {
            return self.rewrite_storage().await;
        }
        let locks = match self.namespace.all("distributedlocks").await {
            Ok(locks) => locks,
            Err(error) => return Ok(Undo::Missed(format!("{error:#}"))),
        };
        let held = locks.iter().filter(|lock| grant_of(lock).is_some());
        let held: Vec<_> = held.collect();
        let Some(lock) = held.get(schedule.pick(held.len().max(1))) else {
            return Ok(Undo::Missed("no lock is held".to_owned()));
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

    /// Ends the grant by hand and deletes the lock, as the deletion policy advises. Another pod may
    /// acquire the lock in between: then the policy refuses, and the deletion is not retried.
    async fn delete_lock(&mut self, name: &str) -> Result<Undo> {
        if !self.end_by_hand(name, OverriddenBy::Delete).await? {
            return Ok(Undo::Missed(format!("{name} changes too fast")));
        }
        let deleted = self.namespace.kubectl(&["delete", "dlock", name]).await?;
        Ok(Undo::none(format!("{name} is deleted"), deleted.success))
    }

    /// The object that the store removed contains the ended grant.
    async fn lose_lock(&mut self, name: &str) -> Result<Undo> {
        let by = OverriddenBy::Delete;
        let op = Op::overridden(Some(name), by);
        let operation = self.admin.invoke(op.clone())?;
        let key = format!("distributedlocks/{}/{name}", self.namespace.name);
        match self.cluster.control_plane().take_from_etcd(&key).await {
            Ok(Some(lost)) => {
                let ended = Op::ended(name, grant_of(&lost).into_iter().collect(), by);
                self.admin.ok(operation, ended)?;
                Ok(Undo::Nothing(format!("{name} is lost")))
            }
            Ok(None) => {
                self.admin.fail(operation, op)?;
                Ok(Undo::Missed(format!("{name} was not there")))
            }
            Err(error) => {
                self.admin.unknown(operation, op)?;
                Ok(Undo::Missed(format!("{error:#}")))
            }
        }
    }

    async fn wipe(&mut self, name: &str) -> Result<Undo> {
        let is_done = self.end_by_hand(name, OverriddenBy::Wipe).await?;
        Ok(Undo::none(format!("{name} is wiped"), is_done))
    }

    /// Frees a lock by hand, unless it changes between the read and the write. So the ended grant
    /// is known.
    async fn end_by_hand(&mut self, name: &str, by: OverriddenBy) -> Result<bool> {
        for _ in 0..TRIES {
            let Ok(Some(lock)) = self.namespace.lock(name).await else {
                return Ok(false);
            };
            let Some(grant) = grant_of(&lock) else {
                return Ok(false);
            };
            let op = Op::ended(name, vec![grant], by);
            let operation = self.admin.invoke(op.clone())?;
            let free = json!({"metadata": {"resourceVersion": lock["metadata"]["resourceVersion"]},
                "status": {"holder": null, "lease": null, "waiters": null}});
            let path = format!("distributedlocks/{name}/status");
            match self.namespace.patch(&path, &free).await {
                Ok(_) => {
                    self.admin.ok(operation, op)?;
                    return Ok(true);
                }
                Err(error) => self.not_done(operation, op, &error)?,
            }
        }
        Ok(false)
    }

    /// A refused write had no effect. After any other failure the outcome is unknown.
    fn not_done(&mut self, operation: u64, op: Op, error: &anyhow::Error) -> Result<()> {
        if is_refused(error) {
            return self.admin.fail(operation, op);
        }
        self.admin.unknown(operation, op)
    }

    /// Edits of the permitted fields end no grant, so they are no override.
    async fn edit(&mut self, name: &str) -> Result<Undo> {
        let change = json!({"status": {"waiters": null,
            "lease": {"acquiredAt": "0001-01-01T00:00:00.000000Z"}}});
        let path = format!("distributedlocks/{name}/status");
        let edited = self.namespace.patch(&path, &change).await;
        let settings = json!({"spec": {"retainSeconds": 60, "longHeldSeconds": 1}});
        let path = format!("distributedlocks/{name}");
        let set = self.namespace.patch(&path, &settings).await;
        let is_done = edited.is_ok() && set.is_ok();
        Ok(Undo::none(format!("{name} is edited"), is_done))
    }

    /// The operator executes the request when it observes it, and ends only the grant that is
    /// named.
    async fn force(&mut self, name: &str, lock: &Value) -> Result<Undo> {
        let grant = grant_of(lock).context("a held lock")?;
        let request = json!({"spec": {"releaseRequest": {"mode": "Force", "actor": "admin",
            "leaseId": grant, "reason": "it is in the way"}}});
        let op = Op::ended(name, vec![grant], OverriddenBy::Force);
        let operation = self.admin.invoke(op.clone())?;
        let path = format!("distributedlocks/{name}");
        match self.namespace.patch(&path, &request).await {
            Ok(_) => Ok(Undo::Settled(operation, op)),
            Err(error) => {
                self.not_done(operation, op, &error)?;
                Ok(Undo::Missed(format!("{name}: {error:#}")))
            }
        }
    }

    /// To other clients a deleted session expires only after its TTL, so exclusion is not
    /// overridden.
    async fn delete_session(&mut self, lock: &Value) -> Result<Undo> {
        let session = lock["status"]["holder"]["session"].as_str();
        let session = session.context("a holder has a session")?;
        let command = ["delete", "locksession", session];
        let deleted = self.namespace.kubectl(&command).await?;
        Ok(Undo::none(format!("{session} is deleted"), deleted.success))
    }

    /// A storage migration writes each object back as it was read. Such a write changes nothing in
    /// the store, so each object also gets an annotation.
    async fn rewrite_storage(&mut self) -> Result<Undo> {
        let mut written = 0;
        for kind in ["distributedlocks", "locksessions"] {
            let objects = match self.namespace.all(kind).await {
                Ok(objects) => objects,
                Err(error) => return Ok(Undo::Failed(format!("{error:#}"))),
            };
            for object in objects {
                let name = object["metadata"]["name"].as_str().context("a name")?;
                let path = format!("{kind}/{name}");
                let put = self.namespace.put(&path, &object).await;
                let change = json!({"metadata": {"annotations":
                    {"example.org/migrated": object["metadata"]["resourceVersion"]}}});
                let touched = self.namespace.patch(&path, &change).await;
                // A concurrent writer wins, as with a migration.
                written += usize::from(put.is_ok()) + usize::from(touched.is_ok());
            }
        }
        Ok(Undo::none(format!("{written} writes"), written > 0))
    }
}
