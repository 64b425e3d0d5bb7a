//! The objects that one feed tells of, as they were seen last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::is_news;
use crate::store::fleet::{FeedEvent, Object, ObjectRef};

#[derive(Debug)]
pub(in crate::operator) struct Listed<T> {
    there: BTreeMap<ObjectRef, Arc<Object<T>>>,
    old: Option<BTreeSet<ObjectRef>>,
    is_complete: bool,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self {
            there: BTreeMap::new(),
            old: None,
            is_complete: false,
        }
    }
}

impl<T> Listed<T> {
    /// Whether everything was told at least once.
    pub(in crate::operator) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(in crate::operator) fn get(&self, object_ref: &ObjectRef) -> Option<&Arc<Object<T>>> {
        self.there.get(object_ref)
    }

    pub(in crate::operator) fn all(&self) -> impl Iterator<Item = &Arc<Object<T>>> {
        self.there.values()
    }

    /// Those of a namespace.
    pub(in crate::operator) fn of(
        &self,
        namespace: &Arc<str>,
    ) -> impl Iterator<Item = &Arc<Object<T>>> {
        let from = ObjectRef {
            namespace: namespace.clone(),
            name: "".into(),
        };
        let from_there = self.there.range(from..);
        from_there
            .take_while(move |(object_ref, _)| object_ref.namespace == *namespace)
            .map(|(_, placed)| placed)
    }

    /// Takes note of what was told; gives what may be otherwise now.
    pub(in crate::operator) fn note(&mut self, told: FeedEvent<Object<T>>) -> Vec<ObjectRef> {
        match told {
            FeedEvent::ListStarted => self.old = Some(self.there.keys().cloned().collect()),
            FeedEvent::Applied(placed) => return self.put(*placed).into_iter().collect(),
            // It makes no sense, so nothing of it is known.
            FeedEvent::Unreadable { object_ref, .. } | FeedEvent::Deleted(object_ref) => {
                if let Some(old) = &mut self.old {
                    old.remove(&object_ref);
                }
                return self
                    .there
                    .remove(&object_ref)
                    .map(|_| object_ref)
                    .into_iter()
                    .collect();
            }
            FeedEvent::ListDone => {
                let gone = self.old.take().unwrap_or_default();
                self.there
                    .retain(|object_ref, _| !gone.contains(object_ref));
                self.is_complete = true;
                return gone.into_iter().collect();
            }
            FeedEvent::Interrupted(_) => {}
        }
        vec![]
    }

    fn put(&mut self, placed: Object<T>) -> Option<ObjectRef> {
        let object_ref = placed.object_ref.clone();
        if let Some(old) = &mut self.old {
            old.remove(&object_ref);
        }
        let known = self
            .there
            .get(&object_ref)
            .map(|known| known.stored.version);
        if !is_news(known, placed.stored.version, self.old.is_some()) {
            return None;
        }
        self.there.insert(object_ref.clone(), Arc::new(placed));
        Some(object_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::token::Revision;
    use crate::store::{Original, Stored};

    fn object_ref(namespace: &str, name: &str) -> ObjectRef {
        ObjectRef {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    fn there(object_ref: &ObjectRef, version: u64) -> FeedEvent<Object<()>> {
        FeedEvent::Applied(Box::new(Object {
            object_ref: object_ref.clone(),
            uid: "u".into(),
            is_deleted: false,
            is_misnamed: false,
            set_at: None,
            stored: Stored {
                value: (),
                version: Revision(version),
                original: Original::new(()),
            },
        }))
    }

    #[test]
    fn what_a_listing_leaves_out_is_gone_and_named() {
        let (a, b) = (object_ref("n", "a"), object_ref("n", "b"));
        let mut listed = Listed::default();
        for told in [FeedEvent::ListStarted, there(&a, 1), there(&b, 2)] {
            listed.note(told);
        }
        assert!(!listed.is_complete());
        assert_eq!(listed.note(FeedEvent::ListDone), []);
        assert!(listed.is_complete());
        assert_eq!(listed.note(there(&b, 2)), [], "that was known");
        listed.note(FeedEvent::ListStarted);
        listed.note(there(&b, 2));
        assert!(listed.get(&a).is_some(), "not before all was told");
        let [gone] = &listed.note(FeedEvent::ListDone)[..] else {
            panic!("one is gone");
        };
        assert_eq!(*gone, a);
        assert!(listed.get(&a).is_none() && listed.get(&b).is_some());
        assert_eq!(
            listed.note(FeedEvent::Deleted(a)),
            [],
            "that was known, too"
        );
        assert_eq!(listed.note(FeedEvent::Deleted(b.clone())), [b]);
    }

    #[test]
    fn those_of_a_namespace_are_told_from_others_of_a_similar_name() {
        let mut listed = Listed::default();
        for (namespace, name) in [
            ("n", "b"),
            ("n", "a"),
            ("m", "x"),
            ("n-1", "y"),
            ("n1", "z"),
        ] {
            listed.note(there(&object_ref(namespace, name), 1));
        }
        let names: Vec<&str> = listed
            .of(&"n".into())
            .map(|one| &*one.object_ref.name)
            .collect();
        assert_eq!(names, ["a", "b"]);
    }
}
