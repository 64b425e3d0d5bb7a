//! The operator's ports on the fake cluster.

use std::collections::BTreeSet;
use std::io;

use async_trait::async_trait;
use futures::StreamExt as _;
use leasehold::operator::{AuditLog, Leadership};
use leasehold::store::cluster::{CandidatePod, Candidates, Event, EventStore, PodLabels};
use leasehold::store::fleet::{Feed, ObjectVersion, PodReport};

use super::*;

/// Begins with the existing objects.
pub(super) fn feed<'a, T: Clone + Send + 'static>(
    there: impl Iterator<Item = &'a T>,
) -> (mpsc::UnboundedSender<FeedEvent<T>>, Feed<T>) {
    let (tell, feed) = silent();
    let there = there.map(|object| FeedEvent::Applied(Box::new(object.clone())));
    let begun = [FeedEvent::ListStarted].into_iter().chain(there);
    for begun in begun.chain([FeedEvent::ListDone]) {
        let _told = tell.send(begun);
    }
    (tell, feed)
}

fn silent<T: Send + 'static>() -> (mpsc::UnboundedSender<FeedEvent<T>>, Feed<T>) {
    let (tell, told) = mpsc::unbounded_channel();
    let told = futures::stream::unfold(told, |mut told| async {
        let next = told.recv().await?;
        Some((next, told))
    });
    (tell, told.boxed())
}

#[async_trait]
impl FleetStore for Cluster {
    fn locks(&self) -> Feed<Object<Lock>> {
        let mut inside = self.inside();
        if inside.broken.contains(&Part::Locks) {
            let (tell, told) = silent();
            inside.tell_locks = Some(tell);
            return told;
        }
        let (tell, told) = feed(inside.locks.values());
        inside.tell_locks = Some(tell);
        told
    }

    fn sessions(&self) -> Feed<Object<Session>> {
        let mut inside = self.inside();
        let (tell, told) = feed(inside.sessions.values());
        inside.tell_sessions = Some(tell);
        told
    }

    fn ended_pods(&self) -> Feed<PodReport> {
        let told = futures::stream::iter([FeedEvent::ListStarted, FeedEvent::ListDone]);
        told.chain(futures::stream::pending()).boxed()
    }

    fn nodes(&self) -> Feed<NodeReport> {
        let mut inside = self.inside();
        let (tell, told) = silent();
        let first = if inside.broken.contains(&Part::Nodes) {
            FeedEvent::Interrupted(StoreError::Denied("nodes is forbidden".into()))
        } else {
            FeedEvent::ListDone
        };
        for event in [FeedEvent::ListStarted, first] {
            let _told = tell.send(event);
        }
        inside.tell_nodes = Some(tell);
        told
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(Revision(self.inside().revision))
    }

    async fn lock(&self, place: &ObjectRef) -> Result<Option<Object<Lock>>, StoreError> {
        Ok(self.inside().locks.get(place).cloned())
    }

    async fn session(&self, place: &ObjectRef) -> Result<Option<Object<Session>>, StoreError> {
        Ok(self.inside().sessions.get(place).cloned())
    }

    async fn pod(&self, _place: &ObjectRef) -> Result<Option<PodReport>, StoreError> {
        Ok(None)
    }

    async fn update_lock(
        &self,
        current: &Object<Lock>,
        next: &Lock,
    ) -> Result<Object<Lock>, StoreError> {
        let mut inside = self.inside();
        if inside.locks[&current.object_ref].stored.version != current.stored.version {
            return Err(StoreError::Conflict);
        }
        inside.try_write()?;
        Ok(inside.put_lock(&current.object_ref.name, next.clone()))
    }

    async fn update_session(
        &self,
        current: &Object<Session>,
        next: &Session,
    ) -> Result<Object<Session>, StoreError> {
        let mut inside = self.inside();
        if inside.sessions[&current.object_ref].stored.version != current.stored.version {
            return Err(StoreError::Conflict);
        }
        inside.try_write()?;
        Ok(inside.put_session(next.clone()))
    }

    async fn delete_lock(&self, _current: &ObjectVersion) -> Result<(), StoreError> {
        Err(StoreError::Denied("not here".into()))
    }

    async fn delete_session(&self, _current: &Object<Session>) -> Result<(), StoreError> {
        Err(StoreError::Denied("not here".into()))
    }
}

#[async_trait]
impl EventStore for Cluster {
    async fn list_own(&self) -> Result<BTreeSet<ObjectRef>, StoreError> {
        let inside = self.inside();
        match &inside.notes_fail {
            Some(error) => Err(error.clone()),
            None => Ok(inside.notes.clone()),
        }
    }

    async fn write(&self, note: &Event) -> Result<(), StoreError> {
        let mut inside = self.inside();
        inside.notes_written += 1;
        inside.notes.insert(ObjectRef {
            namespace: note.object_ref.namespace.clone(),
            name: note.name.clone(),
        });
        Ok(())
    }
}

#[async_trait]
impl PodLabels for Cluster {
    async fn list_pods(&self, namespace: &str, key: &str) -> Result<Vec<PodIdentity>, StoreError> {
        if key == "leasehold.dev/injected" {
            return Ok(self.inside().injected_in(namespace));
        }
        assert_eq!((namespace, key), ("n", "leasehold.dev/leader-jobs"));
        Ok(self.inside().labelled.clone())
    }

    async fn add(&self, pod: &PodIdentity, _key: &str) -> Result<(), StoreError> {
        let mut inside = self.inside();
        inside.try_write()?;
        inside.labelled.push(pod.clone());
        Ok(())
    }

    async fn remove(&self, pod: &PodIdentity, _key: &str) -> Result<(), StoreError> {
        let mut inside = self.inside();
        inside.try_write()?;
        inside.labelled.retain(|labelled| labelled != pod);
        Ok(())
    }
}

#[async_trait]
impl Candidates for Cluster {
    async fn pod(
        &self,
        pod: &PodIdentity,
        election: &str,
    ) -> Result<Option<CandidatePod>, StoreError> {
        assert_eq!(election, "jobs");
        let unready = self.inside().unready.get(&*pod.object_ref.name).copied();
        Ok(Some(CandidatePod {
            elects_always: true,
            unready_since: unready.map(Into::into),
            is_deleted: false,
        }))
    }

    async fn request_resignation(
        &self,
        current: &Object<Lock>,
        grant: &GrantId,
        reason: &str,
    ) -> Result<(), StoreError> {
        let mut inside = self.inside();
        if inside.locks[&current.object_ref].stored.version != current.stored.version {
            return Err(StoreError::Conflict);
        }
        inside.try_write()?;
        inside
            .asked_to_resign
            .push((grant.clone(), reason.to_owned()));
        let mut asked = current.stored.value.clone();
        asked.settings.release_request = Some(Arc::new(ReleaseRequest {
            lease: grant.as_str().into(),
            mode: ReleaseMode::Ask,
            reason: reason.into(),
            actor: "operator".into(),
        }));
        inside.put_lock(&current.object_ref.name, asked);
        Ok(())
    }
}

#[async_trait]
impl AuditLog for Cluster {
    async fn write(&self, line: &str) -> io::Result<()> {
        let mut inside = self.inside();
        if inside.broken.contains(&Part::Audit) {
            return Err(io::Error::other("no room"));
        }
        inside.lines.push(serde_json::from_str(line)?);
        Ok(())
    }
}

#[async_trait]
impl Leadership for Cluster {
    fn leads(&self) -> bool {
        let mut inside = self.inside();
        inside.asked_whether_it_leads += 1;
        inside.leads
    }

    async fn changed(&self) {
        self.leads_changed.notified().await;
    }

    fn set_eligible(&self, is_fit: bool) {
        self.inside().stands = is_fit;
    }
}
