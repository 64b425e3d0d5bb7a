//! The `RoleBinding` that gives the sidecar's role to the service accounts of a labelled namespace.
//!
//! It is created when the namespace is labelled. Without the label it stays until no session and no
//! pod with a sidecar is left, because a sidecar does not always have a session. A binding that
//! another user created under its name is not touched. Nothing is written if the binding is already
//! correct.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::operator::action::{Action, Plan};
use crate::operator::observation::FeedKind;
use crate::operator::rules::{BindSidecars, Rules};
use crate::operator::view::View;
use crate::protocol::time::Moment;
use crate::store::namespaces::{Binding, Subject};

/// What to do about the binding of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Create(BTreeSet<Subject>),
    Update(BTreeSet<Subject>),
    Delete,
    /// Delete it if no pod has a sidecar.
    Retire,
    Nothing,
}

/// How long the observation that no pod has a sidecar stays valid. Without the label no pod gets
/// one.
const NO_SIDECARS_VALID_FOR: Duration = Duration::from_secs(5);
/// How often the namespace is checked for remaining sidecars.
const SIDECARS_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Plans the binding of a namespace.
pub(super) fn plan(view: &View, rules: &Rules, namespace: &Arc<str>, now: Moment) -> Plan {
    let watched = FeedKind::ALL
        .into_iter()
        .filter(|kind| rules.bind_sidecars.watches(*kind));
    let needed = watched.chain([FeedKind::Session]);
    if rules.bind_sidecars == BindSidecars::None || !view.is_all_listed(needed) {
        return Plan::default();
    }
    let seen = view.labelled();
    // The deletion of the namespace deletes its bindings, and it accepts no new ones.
    if seen.is_terminating(namespace) {
        return Plan::default();
    }
    let found = seen.binding_of(namespace);
    // It is deleted once its finalizers are removed.
    if found.is_some_and(|found| found.is_deleted) {
        return Plan::default();
    }
    let wanted = seen
        .is_labelled(namespace)
        .then(|| match rules.bind_sidecars {
            BindSidecars::ServiceAccount => seen.accounts_of(namespace),
            BindSidecars::Namespace | BindSidecars::None => [Subject::AllAccounts].into(),
        });
    let value = found.map(|found| &found.stored.value);
    let change = decide(value, wanted, view.has_session_in(namespace));
    match (change, found) {
        (Change::Create(subjects), _) => Plan::act(Action::CreateBinding {
            namespace: namespace.clone(),
            subjects,
        }),
        (Change::Update(subjects), Some(current)) => Plan::act(Action::UpdateBinding {
            current: current.clone(),
            subjects,
        }),
        (Change::Delete, Some(current)) => Plan::act(Action::DeleteBinding(current.clone())),
        (Change::Retire, Some(current)) => match seen.sidecars_of(namespace) {
            Some((false, at)) if now < at.after(NO_SIDECARS_VALID_FOR) => {
                Plan::act(Action::DeleteBinding(current.clone()))
            }
            Some((true, at)) if now < at.after(SIDECARS_CHECK_INTERVAL) => {
                Plan::requeue_at(at.after(SIDECARS_CHECK_INTERVAL))
            }
            _ => Plan::act(Action::FindSidecars(namespace.clone())),
        },
        (Change::Update(_) | Change::Delete | Change::Retire | Change::Nothing, _) => {
            Plan::default()
        }
    }
}

/// Decides about a binding. `wanted` are its subjects; `None` if the namespace is not labelled.
fn decide(found: Option<&Binding>, wanted: Option<BTreeSet<Subject>>, is_in_use: bool) -> Change {
    match (found, wanted) {
        (Some(found), _) if !found.is_ours => Change::Nothing,
        (None, Some(wanted)) if !wanted.is_empty() => Change::Create(wanted),
        // A roleRef is immutable, so the binding has to be recreated.
        (Some(found), Some(wanted)) if !found.binds_role || wanted.is_empty() => Change::Delete,
        (Some(found), Some(wanted)) if found.subjects != wanted => Change::Update(wanted),
        (Some(_), None) if !is_in_use => Change::Retire,
        (None | Some(_), _) => Change::Nothing,
    }
}

#[cfg(test)]
mod tests;
