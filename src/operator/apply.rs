//! Performs a planned action: one write, one read, or one step of moving a label. It decides
//! nothing.

mod bindings;
mod labels;
mod leaders;

use std::sync::Arc;

use crate::protocol::ids::GrantId;
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::token::Revision;
use crate::store::StoreError;
use crate::store::cluster::CandidatePod;
use crate::store::fleet::{FleetStore, Object, ObjectRef, PodReport};
use crate::store::namespaces::Binding;

use super::Ports;
use super::errors;
use super::metrics::Outcome;
use super::plan::Action;

/// What an action observed.
#[derive(Debug)]
pub(super) enum Observation {
    Lock(Box<Object<Lock>>),
    NoLock(ObjectRef),
    Session(Box<Object<Session>>),
    NoSession(ObjectRef),
    /// The pod of this version of a session, if it exists.
    Pod {
        session: ObjectRef,
        version: Revision,
        report: Option<PodReport>,
    },
    /// No pod but that of this grant has the label of an election's leader.
    LabelRemoved {
        election: ObjectRef,
        grant: Option<GrantId>,
        /// Whether the pod of the grant has the label.
        is_labelled: bool,
    },
    /// The pod of this grant has the label, or no longer exists.
    LabelAdded {
        election: ObjectRef,
        grant: GrantId,
    },
    /// Which pods have the label is unknown.
    LabelUnknown(ObjectRef),
    /// The pod of the leading grant; `None` if the pod no longer exists.
    Leader {
        election: ObjectRef,
        grant: GrantId,
        pod: Option<CandidatePod>,
    },
    /// Whether any pod of this namespace has a sidecar.
    Sidecars(Arc<str>, bool),
    Binding(Box<Object<Binding>>),
    NoBinding(ObjectRef),
}

/// The result of an action.
pub(super) struct Applied {
    pub(super) outcome: Outcome,
    pub(super) observation: Option<Observation>,
    pub(super) error: Option<StoreError>,
    /// What to do if a permission is missing.
    pub(super) advice: Option<&'static str>,
}

impl Applied {
    fn done(observation: Observation) -> Self {
        Self {
            outcome: Outcome::Done,
            observation: Some(observation),
            error: None,
            advice: None,
        }
    }

    fn failed(error: StoreError) -> Self {
        Self {
            outcome: Outcome::Failed,
            observation: None,
            advice: errors::advice(&error),
            error: Some(error),
        }
    }

    /// The result after a conflict or an unknown outcome: the re-read object decides.
    fn after_reread(read: Result<Observation, StoreError>) -> Self {
        match read {
            Ok(observation) => Self {
                outcome: Outcome::Conflict,
                ..Self::done(observation)
            },
            Err(error) => Self::failed(error),
        }
    }
}

pub(super) async fn apply(ports: &Ports, action: Action) -> Applied {
    let fleet = &ports.fleet;
    match action {
        Action::Revoke { current, next } => revoke(fleet, &current, &next).await,
        // Closes the race with the holder's release and with waiters that join or leave the queue.
        Action::Write { current, next, .. } => match fleet.update_lock(&current, &next).await {
            Ok(written) => Applied::done(Observation::Lock(Box::new(written))),
            Err(error) if needs_reread(&error) => {
                Applied::after_reread(read_lock(fleet, &current.object_ref).await)
            }
            Err(error) => Applied::failed(error),
        },
        Action::ReadPod(session) => read_pod(fleet, &session).await,
        Action::ReadSession(object_ref) => match read_session(fleet, &object_ref).await {
            Ok(observation) => Applied::done(observation),
            Err(error) => Applied::failed(error),
        },
        // Closes the race with an agent that acquires the lock: only this version is deleted.
        Action::DeleteLock(current) => match fleet.delete_lock(&current).await {
            Ok(()) => Applied::done(Observation::NoLock(current.object_ref)),
            Err(error) if needs_reread(&error) => {
                Applied::after_reread(read_lock(fleet, &current.object_ref).await)
            }
            Err(error) => Applied::failed(error),
        },
        Action::DeleteSession(current) => match fleet.delete_session(&current).await {
            Ok(()) => Applied::done(Observation::NoSession(current.object_ref.clone())),
            Err(error) if needs_reread(&error) => {
                Applied::after_reread(read_session(fleet, &current.object_ref).await)
            }
            Err(error) => Applied::failed(error),
        },
        Action::CreateBinding {
            namespace,
            subjects,
        } => bindings::create(&*ports.namespaces, &namespace, &subjects).await,
        Action::UpdateBinding { current, subjects } => {
            bindings::update(&*ports.namespaces, &current, &subjects).await
        }
        Action::FindSidecars(namespace) => bindings::find_sidecars(&*ports.labels, namespace).await,
        Action::DeleteBinding(current) => bindings::delete(&*ports.namespaces, &current).await,
        Action::RemoveLabel {
            election,
            grant,
            keep,
        } => labels::remove(&*ports.labels, election, grant, keep).await,
        Action::AddLabel {
            election,
            grant,
            pod,
        } => labels::add(&*ports.labels, election, grant, &pod).await,
        Action::CheckLeader {
            election,
            current,
            grant,
            pod,
            others,
            unready_since,
        } => {
            let leader = leaders::Leader {
                election,
                current: &current,
                grant,
                pod: &pod,
            };
            leaders::check(ports, leader, &others, unready_since).await
        }
    }
}

/// Closes the race with the session's own renewal: of two writes on this version one wins.
async fn revoke(fleet: &Arc<dyn FleetStore>, current: &Object<Session>, next: &Session) -> Applied {
    match fleet.update_session(current, next).await {
        Ok(written) => Applied::done(Observation::Session(Box::new(written))),
        Err(error) if needs_reread(&error) => {
            Applied::after_reread(read_session(fleet, &current.object_ref).await)
        }
        Err(error) => Applied::failed(error),
    }
}

const fn needs_reread(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Conflict | StoreError::NotFound(_) | StoreError::Ambiguous(_)
    )
}

async fn read_lock(
    fleet: &Arc<dyn FleetStore>,
    object_ref: &ObjectRef,
) -> Result<Observation, StoreError> {
    let lock = fleet.lock(object_ref).await?;
    Ok(lock.map_or_else(
        || Observation::NoLock(object_ref.clone()),
        |lock| Observation::Lock(Box::new(lock)),
    ))
}

async fn read_session(
    fleet: &Arc<dyn FleetStore>,
    object_ref: &ObjectRef,
) -> Result<Observation, StoreError> {
    let session = fleet.session(object_ref).await?;
    Ok(session.map_or_else(
        || Observation::NoSession(object_ref.clone()),
        |session| Observation::Session(Box::new(session)),
    ))
}

async fn read_pod(fleet: &Arc<dyn FleetStore>, session: &Object<Session>) -> Applied {
    let pod = &session.stored.value.pod;
    let object_ref = ObjectRef {
        namespace: session.object_ref.namespace.clone(),
        name: pod.name.clone(),
    };
    match fleet.pod(&object_ref).await {
        Ok(report) => Applied::done(Observation::Pod {
            session: session.object_ref.clone(),
            version: session.stored.version,
            // Another pod of the same name says nothing about this session's pod.
            report: report.filter(|report| report.uid == pod.uid),
        }),
        Err(error) => Applied::failed(error),
    }
}
