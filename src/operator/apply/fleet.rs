//! Writes and reads locks, sessions and pods. Each write is a compare-and-swap.

use super::applied::Applied;
use crate::operator::observation::{Observation, event_of};
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::store::StoreError;
use crate::store::fleet::{FleetStore, Object, ObjectRef, ObjectVersion};

/// Closes the race with the session's own renewal: of two writes on this version one wins.
pub(super) async fn revoke(
    fleet: &dyn FleetStore,
    current: &Object<Session>,
    next: &Session,
) -> Applied {
    let object_ref = &current.object_ref;
    let written = fleet.update_session(current, next).await;
    let written = written.map(|written| Observation::Session(event_of(object_ref, Some(written))));
    Applied::written(written, read_session(fleet, object_ref)).await
}

/// Closes the race with the holder's release and with waiters that join or leave the queue.
pub(super) async fn write(fleet: &dyn FleetStore, current: &Object<Lock>, next: &Lock) -> Applied {
    let object_ref = &current.object_ref;
    let written = fleet.update_lock(current, next).await;
    let written = written.map(|written| Observation::Lock(event_of(object_ref, Some(written))));
    Applied::written(written, read_lock(fleet, object_ref)).await
}

/// Closes the race with an agent that acquires the lock: only this version is deleted.
pub(super) async fn delete_lock(fleet: &dyn FleetStore, current: &ObjectVersion) -> Applied {
    let object_ref = &current.object_ref;
    let deleted = fleet.delete_lock(current).await;
    let deleted = deleted.map(|()| Observation::Lock(event_of(object_ref, None)));
    Applied::written(deleted, read_lock(fleet, object_ref)).await
}

pub(super) async fn delete_session(fleet: &dyn FleetStore, current: &Object<Session>) -> Applied {
    let object_ref = &current.object_ref;
    let deleted = fleet.delete_session(current).await;
    let deleted = deleted.map(|()| Observation::Session(event_of(object_ref, None)));
    Applied::written(deleted, read_session(fleet, object_ref)).await
}

pub(super) async fn read_lock(
    fleet: &dyn FleetStore,
    object_ref: &ObjectRef,
) -> Result<Observation, StoreError> {
    let lock = fleet.lock(object_ref).await?;
    Ok(Observation::Lock(event_of(object_ref, lock)))
}

pub(super) async fn read_session(
    fleet: &dyn FleetStore,
    object_ref: &ObjectRef,
) -> Result<Observation, StoreError> {
    let session = fleet.session(object_ref).await?;
    Ok(Observation::Session(event_of(object_ref, session)))
}

pub(super) async fn read_pod(
    fleet: &dyn FleetStore,
    session: &Object<Session>,
) -> Result<Observation, StoreError> {
    let pod = &session.stored.value.pod;
    let object_ref = ObjectRef {
        namespace: session.object_ref.namespace.clone(),
        name: pod.name.clone(),
    };
    let report = fleet.pod(&object_ref).await?;
    Ok(Observation::PodOfSession {
        session: session.object_ref.clone(),
        version: session.stored.version,
        // Another pod of the same name says nothing about this session's pod.
        report: report.filter(|report| report.uid == pod.uid),
    })
}
