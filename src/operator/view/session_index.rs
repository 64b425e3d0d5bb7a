//! The locks whose holder or waiters name each session.

use std::collections::{BTreeMap, BTreeSet};

use crate::store::fleet::ObjectRef;

#[derive(Debug, Default)]
pub(super) struct SessionIndex(BTreeMap<ObjectRef, BTreeSet<ObjectRef>>);

impl SessionIndex {
    /// Replaces the sessions that a lock names. Returns those that no lock names any more.
    pub(super) fn update(
        &mut self,
        lock: &ObjectRef,
        before: impl Iterator<Item = ObjectRef>,
        now: impl Iterator<Item = ObjectRef>,
    ) -> Vec<ObjectRef> {
        let now: BTreeSet<ObjectRef> = now.collect();
        let gone: Vec<ObjectRef> = before.filter(|session| !now.contains(session)).collect();
        for session in now {
            self.0.entry(session).or_default().insert(lock.clone());
        }
        gone.into_iter()
            .filter(|session| {
                let Some(locks) = self.0.get_mut(session) else {
                    return false;
                };
                locks.remove(lock);
                let is_unnamed = locks.is_empty();
                if is_unnamed {
                    self.0.remove(session);
                }
                is_unnamed
            })
            .collect()
    }

    pub(super) fn is_referenced(&self, session: &ObjectRef) -> bool {
        self.0.contains_key(session)
    }

    pub(super) fn locks_of(&self, session: &ObjectRef) -> impl Iterator<Item = &ObjectRef> {
        self.0.get(session).into_iter().flatten()
    }
}
