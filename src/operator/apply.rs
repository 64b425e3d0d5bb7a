//! Performs a planned action: one write, one read, or one step of moving a label. It decides
//! nothing.

mod applied;
mod bindings;
mod fleet;
mod labels;
mod leaders;

use super::action::Action;
use super::ports::Ports;

pub(super) use self::applied::Applied;

/// Performs an action.
pub(super) async fn apply(ports: &Ports, action: Action) -> Applied {
    let fleet = &*ports.fleet;
    let (namespaces, labels) = (&*ports.namespaces, &*ports.labels);
    match action {
        Action::Revoke { current, next } => fleet::revoke(fleet, &current, &next).await,
        Action::Write { current, next, .. } => fleet::write(fleet, &current, &next).await,
        Action::ReadPod(session) => Applied::read(fleet::read_pod(fleet, &session).await),
        Action::ReadSession(session) => Applied::read(fleet::read_session(fleet, &session).await),
        Action::DeleteLock(current) => fleet::delete_lock(fleet, &current).await,
        Action::DeleteSession(current) => fleet::delete_session(fleet, &current).await,
        Action::CreateBinding {
            namespace,
            subjects,
        } => bindings::create(namespaces, &namespace, &subjects).await,
        Action::UpdateBinding { current, subjects } => {
            bindings::update(namespaces, &current, &subjects).await
        }
        Action::FindSidecars(namespace) => bindings::find_sidecars(labels, namespace).await,
        Action::DeleteBinding(current) => bindings::delete(namespaces, &current).await,
        Action::RemoveLabel {
            election,
            grant,
            keep,
        } => labels::remove(labels, election, grant, keep).await,
        Action::AddLabel {
            election,
            grant,
            pod,
        } => labels::add(labels, election, grant, &pod).await,
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
