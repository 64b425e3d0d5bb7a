//! The right of sidecars in labelled namespaces: one binding in each, to the sidecar's role.
//!
//! It is made as soon as a namespace is labelled, and outlives the label until the last session and the
//! last pod with a sidecar there are gone: who runs one goes on, and has a session only at times. What somebody else made under its name is left alone. Nothing is
//! written where all is as it should be.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::time::Moment;
use crate::store::fleet::Object;
use crate::store::namespaces::{Binding, Subject};

use super::plan::{Action, Rules, Step};
use super::trouble::Kind;
use super::view::View;

/// To whom the sidecar's role is given in labelled namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindSidecars {
    /// To nobody: somebody else makes the bindings.
    #[default]
    None,
    /// To all service accounts of the namespace.
    Namespace,
    /// To the service accounts that are labelled for it.
    ServiceAccount,
}

impl BindSidecars {
    /// What has to be watched for it.
    #[must_use]
    pub(super) const fn watches(self, kind: Kind) -> bool {
        match kind {
            Kind::Namespace | Kind::Binding => !matches!(self, Self::None),
            Kind::Account => matches!(self, Self::ServiceAccount),
            Kind::Lock | Kind::Session | Kind::Pod | Kind::UninjectedPod => false,
        }
    }
}

/// What is to be done about the binding of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Todo {
    Create(BTreeSet<Subject>),
    Update(BTreeSet<Subject>),
    Delete,
    /// Delete it, if no pod has a sidecar.
    Retire,
    Nothing,
}

/// For how long it counts that no pod has a sidecar. None gets one where there is no label.
const NONE_COUNTS: Duration = Duration::from_secs(5);
/// How often it is looked whether any is left.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// What is to be done about the binding of a namespace, by what was seen of it.
pub(super) fn step(view: &View, rules: &Rules, namespace: &Arc<str>, now: Moment) -> Step {
    let watched = Kind::ALL
        .into_iter()
        .filter(|kind| rules.bind_sidecars.watches(*kind));
    let mut needed = watched.chain([Kind::Session]);
    let knows_all = needed.all(|kind| view.has_all(kind));
    if rules.bind_sidecars == BindSidecars::None || !knows_all {
        return Step::default();
    }
    let seen = view.labelled();
    // It takes its bindings along, and no new ones.
    if seen.is_ending(namespace) {
        return Step::default();
    }
    let found = seen.binding_of(namespace);
    // It goes when its finalizers do.
    if found.is_some_and(|found| found.is_deleted) {
        return Step::default();
    }
    let wanted = seen
        .is_labelled(namespace)
        .then(|| match rules.bind_sidecars {
            BindSidecars::ServiceAccount => seen.accounts_of(namespace),
            BindSidecars::Namespace | BindSidecars::None => [Subject::AllAccounts].into(),
        });
    let value = found.map(|found| &found.stored.value);
    let todo = decide(value, wanted, view.has_session_in(namespace));
    match (todo, found) {
        (Todo::Create(subjects), _) => Step::act(Action::CreateBinding {
            namespace: namespace.clone(),
            subjects,
        }),
        (Todo::Update(subjects), Some(current)) => Step::act(Action::UpdateBinding {
            current: current.clone(),
            subjects,
        }),
        (Todo::Delete, Some(current)) => Step::act(Action::DeleteBinding(current.clone())),
        (Todo::Retire, Some(current)) => match seen.sidecars_of(namespace) {
            Some((false, at)) if now < at.after(NONE_COUNTS) => {
                Step::act(Action::DeleteBinding(current.clone()))
            }
            Some((true, at)) if now < at.after(LOOK_EVERY) => Step::at(at.after(LOOK_EVERY)),
            _ => Step::act(Action::LookForSidecars(namespace.clone())),
        },
        (Todo::Update(_) | Todo::Delete | Todo::Retire | Todo::Nothing, _) => Step::default(),
    }
}

/// `wanted` are those who should be bound; none where the namespace is not labelled.
fn decide(found: Option<&Binding>, wanted: Option<BTreeSet<Subject>>, is_in_use: bool) -> Todo {
    match (found, wanted) {
        (Some(found), _) if !found.is_ours => Todo::Nothing,
        (None, Some(wanted)) if !wanted.is_empty() => Todo::Create(wanted),
        // What a binding gives cannot be changed, so it is made anew.
        (Some(found), Some(wanted)) if !found.binds_role || wanted.is_empty() => Todo::Delete,
        (Some(found), Some(wanted)) if found.subjects != wanted => Todo::Update(wanted),
        (Some(_), None) if !is_in_use => Todo::Retire,
        (None | Some(_), _) => Todo::Nothing,
    }
}

/// The bindings of our name in labelled namespaces that somebody else made.
pub(super) fn foreign<'a>(
    view: &'a View,
    rules: &'a Rules,
) -> impl Iterator<Item = &'a Arc<Object<Binding>>> {
    let bindings = view.labelled().bindings();
    let bindings = bindings.filter(|_| rules.bind_sidecars != BindSidecars::None);
    bindings.filter(|found| is_foreign(view, found))
}

/// The one of a namespace, if it is such a one.
pub(super) fn foreign_in<'a>(
    view: &'a View,
    rules: &Rules,
    namespace: &Arc<str>,
) -> Option<&'a Arc<Object<Binding>>> {
    let found = view.labelled().binding_of(namespace);
    let found = found.filter(|_| rules.bind_sidecars != BindSidecars::None);
    found.filter(|found| is_foreign(view, found))
}

fn is_foreign(view: &View, found: &Object<Binding>) -> bool {
    !found.stored.value.is_ours && view.labelled().is_labelled(&found.object_ref.namespace)
}

#[cfg(test)]
mod tests;
