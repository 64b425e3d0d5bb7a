//! Does what was decided: one write or one question, or one step of moving a label. It decides
//! nothing.

mod bindings;
mod labels;
mod leaders;

use std::sync::Arc;

use crate::protocol::ids::GrantId;
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::token::Revision;
use crate::seeded::{self, Bug};
use crate::store::StoreError;
use crate::store::cluster::CandidatePod;
use crate::store::fleet::{FleetStore, Object, ObjectRef, PodReport};
use crate::store::namespaces::Binding;

use super::Ports;
use super::metrics::Outcome;
use super::plan::Action;
use super::trouble;

/// What an action showed.
#[derive(Debug)]
pub(super) enum Shown {
    Lock(Box<Object<Lock>>),
    NoLock(ObjectRef),
    Session(Box<Object<Session>>),
    NoSession(ObjectRef),
    /// The pod of this version of a session, if there is one.
    Pod {
        session: ObjectRef,
        version: Revision,
        report: Option<PodReport>,
    },
    /// Nobody but the pod of this grant has the label of an election's leader.
    LabelTaken {
        election: ObjectRef,
        grant: Option<GrantId>,
        /// Whether that one has it.
        is_given: bool,
    },
    /// The pod of this grant has it, or is gone.
    LabelGiven {
        election: ObjectRef,
        grant: GrantId,
    },
    /// Who has it is not known.
    LabelUnclear(ObjectRef),
    /// The pod of this grant, which leads; none where the pod is gone.
    Leader {
        election: ObjectRef,
        grant: GrantId,
        pod: Option<CandidatePod>,
    },
    /// Whether any pod of this namespace has the sidecar.
    Sidecars(Arc<str>, bool),
    Binding(Box<Object<Binding>>),
    NoBinding(ObjectRef),
}

/// What came of an action.
pub(super) struct Applied {
    pub(super) outcome: Outcome,
    pub(super) shown: Option<Shown>,
    pub(super) error: Option<StoreError>,
    /// What to do where a right is missing.
    pub(super) advice: Option<&'static str>,
}

impl Applied {
    fn done(shown: Shown) -> Self {
        Self {
            outcome: Outcome::Done,
            shown: Some(shown),
            error: None,
            advice: None,
        }
    }

    fn failed(error: StoreError) -> Self {
        Self {
            outcome: Outcome::Failed,
            shown: None,
            advice: trouble::advice(&error),
            error: Some(error),
        }
    }

    /// Another write came first, or this one's answer says nothing: what there is now decides.
    fn after_looking(looked: Result<Shown, StoreError>) -> Self {
        match looked {
            Ok(shown) => Self {
                outcome: Outcome::Conflict,
                ..Self::done(shown)
            },
            Err(error) => Self::failed(error),
        }
    }
}

pub(super) async fn apply(ports: &Ports, action: Action) -> Applied {
    let fleet = &ports.fleet;
    match action {
        Action::Revoke { current, next } => revoke(fleet, &current, &next).await,
        // Closes the race with the holder's release and with whoever joins or leaves the queue.
        Action::Write { current, next, .. } => match fleet.update_lock(&current, &next).await {
            Ok(written) => Applied::done(Shown::Lock(Box::new(written))),
            Err(error) if needs_a_look(&error) => {
                Applied::after_looking(look_at_lock(fleet, &current.object_ref).await)
            }
            Err(error) => Applied::failed(error),
        },
        Action::LookAtPod(session) => look_at_pod(fleet, &session).await,
        Action::LookForSession(object_ref) => match look_at_session(fleet, &object_ref).await {
            Ok(shown) => Applied::done(shown),
            Err(error) => Applied::failed(error),
        },
        // Closes the race with whoever takes the lock just now: it is deleted at this version only.
        Action::DeleteLock(current) => match fleet.delete_lock(&current).await {
            Ok(()) => Applied::done(Shown::NoLock(current.object_ref)),
            Err(error) if needs_a_look(&error) => {
                Applied::after_looking(look_at_lock(fleet, &current.object_ref).await)
            }
            Err(error) => Applied::failed(error),
        },
        Action::DeleteSession(current) => match fleet.delete_session(&current).await {
            Ok(()) => Applied::done(Shown::NoSession(current.object_ref.clone())),
            Err(error) if needs_a_look(&error) => {
                Applied::after_looking(look_at_session(fleet, &current.object_ref).await)
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
        Action::LookForSidecars(namespace) => {
            bindings::look_for_sidecars(&*ports.labels, namespace).await
        }
        Action::DeleteBinding(current) => bindings::delete(&*ports.namespaces, &current).await,
        Action::TakeLabel {
            election,
            grant,
            keep,
        } => labels::take(&*ports.labels, election, grant, keep).await,
        Action::GiveLabel {
            election,
            grant,
            pod,
        } => labels::give(&*ports.labels, election, grant, &pod).await,
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

/// Closes the race with the session's own renewal: both write on this version, one wins.
async fn revoke(fleet: &Arc<dyn FleetStore>, current: &Object<Session>, next: &Session) -> Applied {
    match fleet.update_session(current, next).await {
        Ok(written) => Applied::done(Shown::Session(Box::new(written))),
        Err(StoreError::Conflict) if seeded::has(Bug::OperatorRevokesAnyVersion) => {
            Applied::after_looking(revoke_any_version(fleet, &current.object_ref, next).await)
        }
        Err(error) if needs_a_look(&error) => {
            Applied::after_looking(look_at_session(fleet, &current.object_ref).await)
        }
        Err(error) => Applied::failed(error),
    }
}

const fn needs_a_look(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Conflict | StoreError::NotFound(_) | StoreError::Ambiguous(_)
    )
}

async fn look_at_lock(
    fleet: &Arc<dyn FleetStore>,
    object_ref: &ObjectRef,
) -> Result<Shown, StoreError> {
    let lock = fleet.lock(object_ref).await?;
    Ok(lock.map_or_else(
        || Shown::NoLock(object_ref.clone()),
        |lock| Shown::Lock(Box::new(lock)),
    ))
}

async fn look_at_session(
    fleet: &Arc<dyn FleetStore>,
    object_ref: &ObjectRef,
) -> Result<Shown, StoreError> {
    let session = fleet.session(object_ref).await?;
    Ok(session.map_or_else(
        || Shown::NoSession(object_ref.clone()),
        |session| Shown::Session(Box::new(session)),
    ))
}

/// What `Bug::OperatorRevokesAnyVersion` does.
async fn revoke_any_version(
    fleet: &Arc<dyn FleetStore>,
    object_ref: &ObjectRef,
    next: &Session,
) -> Result<Shown, StoreError> {
    if let Some(found) = fleet.session(object_ref).await?
        && let Some(revocation) = next.revoked.clone()
        && let Some(revoked) = found.stored.value.revoked(revocation)
    {
        fleet.update_session(&found, &revoked).await?;
    }
    look_at_session(fleet, object_ref).await
}

async fn look_at_pod(fleet: &Arc<dyn FleetStore>, session: &Object<Session>) -> Applied {
    let pod = &session.stored.value.pod;
    let object_ref = ObjectRef {
        namespace: session.object_ref.namespace.clone(),
        name: pod.name.clone(),
    };
    match fleet.pod(&object_ref).await {
        Ok(report) => Applied::done(Shown::Pod {
            session: session.object_ref.clone(),
            version: session.stored.version,
            // Another pod of the same name says nothing of this one.
            report: report.filter(|report| report.uid == pod.uid),
        }),
        Err(error) => Applied::failed(error),
    }
}
