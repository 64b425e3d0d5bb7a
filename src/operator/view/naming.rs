//! Which locks name a session, as their holder's or a waiter's.

use std::collections::{BTreeMap, BTreeSet};

use crate::store::fleet::ObjectRef;

#[derive(Debug, Default)]
pub(super) struct Naming(BTreeMap<ObjectRef, BTreeSet<ObjectRef>>);

impl Naming {
    /// A lock that named some sessions names others now. Gives those that nothing names any more.
    pub(super) fn change(
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

    pub(super) fn is_named(&self, session: &ObjectRef) -> bool {
        self.0.contains_key(session)
    }

    pub(super) fn locks_of(&self, session: &ObjectRef) -> impl Iterator<Item = &ObjectRef> {
        self.0.get(session).into_iter().flatten()
    }
}
