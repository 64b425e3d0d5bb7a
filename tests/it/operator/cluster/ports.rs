//! The operator's ports on it.

use std::collections::BTreeSet;
use std::io;

use async_trait::async_trait;
use futures::StreamExt as _;
use leasehold::operator::{AuditLog, Leadership};
use leasehold::store::cluster::{CandidatePod, Candidates, Note, Notes, PodLabels};
use leasehold::store::fleet::{Exact, Feed, PodReport};

use super::*;

/// Begins with the existing objects.
pub(super) fn feed<'a, T: Clone + Send + 'static>(
    there: impl Iterator<Item = &'a T>,
) -> (mpsc::UnboundedSender<Told<T>>, Feed<T>) {
    let (tell, feed) = silent();
    let there = there.map(|object| Told::There(Box::new(object.clone())));
    let begun = [Told::Anew].into_iter().chain(there);
    for begun in begun.chain([Told::Complete]) {
        let _told = tell.send(begun);
    }
    (tell, feed)
}

fn silent<T: Send + 'static>() -> (mpsc::UnboundedSender<Told<T>>, Feed<T>) {
    let (tell, told) = mpsc::unbounded_channel();
    let told = futures::stream::unfold(told, |mut told| async {
        let next = told.recv().await?;
        Some((next, told))
    });
    (tell, told.boxed())
}

#[async_trait]
impl FleetStore for Cluster {
    fn locks(&self) -> Feed<Placed<Lock>> {
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

    fn sessions(&self) -> Feed<Placed<Session>> {
        let mut inside = self.inside();
        let (tell, told) = feed(inside.sessions.values());
        inside.tell_sessions = Some(tell);
        told
    }

    fn ended_pods(&self) -> Feed<PodReport> {
        let told = futures::stream::iter([Told::Anew, Told::Complete]);
        told.chain(futures::stream::pending()).boxed()
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(Revision(self.inside().revision))
    }

    async fn lock(&self, place: &Place) -> Result<Option<Placed<Lock>>, StoreError> {
        Ok(self.inside().locks.get(place).cloned())
    }

    async fn session(&self, place: &Place) -> Result<Option<Placed<Session>>, StoreError> {
        Ok(self.inside().sessions.get(place).cloned())
    }

    async fn pod(&self, _place: &Place) -> Result<Option<PodReport>, StoreError> {
        Ok(None)
    }

    async fn update_lock(
        &self,
        current: &Placed<Lock>,
        next: &Lock,
    ) -> Result<Placed<Lock>, StoreError> {
        let mut inside = self.inside();
        if inside.locks[&current.place].stored.version != current.stored.version {
            return Err(StoreError::Conflict);
        }
        inside.try_write()?;
        Ok(inside.put_lock(&current.place.name, next.clone()))
    }

    async fn update_session(
        &self,
        current: &Placed<Session>,
        next: &Session,
    ) -> Result<Placed<Session>, StoreError> {
        let mut inside = self.inside();
        if inside.sessions[&current.place].stored.version != current.stored.version {
            return Err(StoreError::Conflict);
        }
        inside.try_write()?;
        Ok(inside.put_session(next.clone()))
    }

    async fn delete_lock(&self, _current: &Exact) -> Result<(), StoreError> {
        Err(StoreError::Denied("not here".into()))
    }

    async fn delete_session(&self, _current: &Placed<Session>) -> Result<(), StoreError> {
        Err(StoreError::Denied("not here".into()))
    }
}

#[async_trait]
impl Notes for Cluster {
    async fn known(&self) -> Result<BTreeSet<Place>, StoreError> {
        let inside = self.inside();
        match &inside.notes_fail {
            Some(error) => Err(error.clone()),
            None => Ok(inside.notes.clone()),
        }
    }

    async fn write(&self, note: &Note) -> Result<(), StoreError> {
        let mut inside = self.inside();
        inside.notes_written += 1;
        inside.notes.insert(Place {
            namespace: note.place.namespace.clone(),
            name: note.name.clone(),
        });
        Ok(())
    }
}

#[async_trait]
impl PodLabels for Cluster {
    async fn having(&self, namespace: &str, key: &str) -> Result<Vec<LabelledPod>, StoreError> {
        if key == "leasehold.dev/injected" {
            return Ok(self.inside().injected_in(namespace));
        }
        assert_eq!((namespace, key), ("n", "leasehold.dev/leader-jobs"));
        Ok(self.inside().labelled.clone())
    }

    async fn give(&self, pod: &LabelledPod, _key: &str) -> Result<(), StoreError> {
        let mut inside = self.inside();
        inside.try_write()?;
        inside.labelled.push(pod.clone());
        Ok(())
    }

    async fn take(&self, pod: &LabelledPod, _key: &str) -> Result<(), StoreError> {
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
        pod: &LabelledPod,
        election: &str,
    ) -> Result<Option<CandidatePod>, StoreError> {
        assert_eq!(election, "jobs");
        let unready = self.inside().unready.get(&*pod.place.name).copied();
        Ok(Some(CandidatePod {
            runs_unasked: true,
            unready_since: unready.map(Into::into),
            is_deleted: false,
        }))
    }

    async fn ask_to_resign(
        &self,
        current: &Placed<Lock>,
        grant: &GrantId,
        reason: &str,
    ) -> Result<(), StoreError> {
        let mut inside = self.inside();
        if inside.locks[&current.place].stored.version != current.stored.version {
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
        inside.put_lock(&current.place.name, asked);
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

    fn stand(&self, is_fit: bool) {
        self.inside().stands = is_fit;
    }
}
