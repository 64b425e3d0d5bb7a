//! The last observed objects of one feed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::listing::{Listing, in_namespace};
use crate::store::fleet::{FeedEvent, Object, ObjectRef};

#[derive(Debug)]
pub(super) struct ObjectCache<T> {
    objects: BTreeMap<ObjectRef, Arc<Object<T>>>,
    listing: Listing,
}

impl<T> Default for ObjectCache<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            listing: Listing::default(),
        }
    }
}

impl<T> ObjectCache<T> {
    /// Returns whether all objects were listed at least once.
    pub(super) const fn is_complete(&self) -> bool {
        self.listing.is_complete()
    }

    pub(super) fn get(&self, object_ref: &ObjectRef) -> Option<&Arc<Object<T>>> {
        self.objects.get(object_ref)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Object<T>>> {
        self.objects.values()
    }

    /// Returns the objects of a namespace.
    pub(super) fn of(&self, namespace: &Arc<str>) -> impl Iterator<Item = &Arc<Object<T>>> {
        in_namespace(&self.objects, namespace).map(|(_, placed)| placed)
    }

    /// Applies an event. Returns the objects that may have changed.
    pub(super) fn apply(&mut self, event: FeedEvent<Object<T>>) -> Vec<ObjectRef> {
        match event {
            FeedEvent::ListStarted => self.listing.start(self.objects.keys().cloned()),
            FeedEvent::Applied(placed) => return self.put(*placed).into_iter().collect(),
            // Nothing is known of an unreadable object.
            FeedEvent::Unreadable { object_ref, .. } | FeedEvent::Deleted(object_ref) => {
                self.listing.deliver(&object_ref);
                let gone = self.objects.remove(&object_ref);
                return gone.map(|_| object_ref).into_iter().collect();
            }
            FeedEvent::ListDone => {
                let gone = self.listing.finish();
                self.objects
                    .retain(|object_ref, _| !gone.contains(object_ref));
                return gone.into_iter().collect();
            }
            FeedEvent::Interrupted(_) => {}
        }
        vec![]
    }

    fn put(&mut self, placed: Object<T>) -> Option<ObjectRef> {
        let object_ref = placed.object_ref.clone();
        self.listing.deliver(&object_ref);
        let known = self.objects.get(&object_ref);
        let known = known.map(|known| known.stored.version);
        if !self.listing.replaces(known, placed.stored.version) {
            return None;
        }
        self.objects.insert(object_ref.clone(), Arc::new(placed));
        Some(object_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::tests::{object, object_ref};

    fn objects(object_ref: &ObjectRef, version: u64) -> FeedEvent<Object<()>> {
        let (namespace, name) = (&object_ref.namespace, &object_ref.name);
        FeedEvent::Applied(Box::new(object(namespace, name, version, ())))
    }

    #[test]
    fn object_missing_from_a_relist_is_reported_as_deleted() {
        let (a, b) = (object_ref("n", "a"), object_ref("n", "b"));
        let mut listed = ObjectCache::default();
        for event in [FeedEvent::ListStarted, objects(&a, 1), objects(&b, 2)] {
            listed.apply(event);
        }
        assert!(!listed.is_complete());
        assert_eq!(listed.apply(FeedEvent::ListDone), []);
        assert!(listed.is_complete());
        assert_eq!(listed.apply(objects(&b, 2)), [], "already known");
        listed.apply(FeedEvent::ListStarted);
        listed.apply(objects(&b, 2));
        assert!(listed.get(&a).is_some(), "not before the list is complete");
        let [gone] = &listed.apply(FeedEvent::ListDone)[..] else {
            panic!("one object was deleted");
        };
        assert_eq!(*gone, a);
        assert!(listed.get(&a).is_none() && listed.get(&b).is_some());
        assert_eq!(
            listed.apply(FeedEvent::Deleted(a)),
            [],
            "already known, too"
        );
        assert_eq!(listed.apply(FeedEvent::Deleted(b.clone())), [b]);
    }

    #[test]
    fn namespaces_with_similar_names_are_kept_apart() {
        let mut listed = ObjectCache::default();
        for (namespace, name) in [
            ("n", "b"),
            ("n", "a"),
            ("m", "x"),
            ("n-1", "y"),
            ("n1", "z"),
        ] {
            listed.apply(objects(&object_ref(namespace, name), 1));
        }
        let names: Vec<&str> = listed
            .of(&"n".into())
            .map(|one| &*one.object_ref.name)
            .collect();
        assert_eq!(names, ["a", "b"]);
    }
}
