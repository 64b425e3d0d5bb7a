//! The progress of a feed's lists, and which versions of its objects count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::protocol::token::Revision;
use crate::store::fleet::ObjectRef;

#[derive(Debug, Default)]
pub(super) struct Listing {
    /// The known objects that the list in progress did not deliver so far; `None` between lists.
    unlisted: Option<BTreeSet<ObjectRef>>,
    is_complete: bool,
}

impl Listing {
    /// Begins a list of a feed with these known objects.
    pub(super) fn start(&mut self, known: impl Iterator<Item = ObjectRef>) {
        self.unlisted = Some(known.collect());
    }

    /// Records that the feed delivered an object.
    pub(super) fn deliver(&mut self, object_ref: &ObjectRef) {
        if let Some(unlisted) = &mut self.unlisted {
            unlisted.remove(object_ref);
        }
    }

    /// Ends a list. Returns the known objects that it did not deliver: they were deleted.
    pub(super) fn finish(&mut self) -> BTreeSet<ObjectRef> {
        self.is_complete = true;
        self.unlisted.take().unwrap_or_default()
    }

    /// Returns whether a list is in progress.
    pub(super) const fn is_running(&self) -> bool {
        self.unlisted.is_some()
    }

    /// Returns whether all objects were listed at least once.
    pub(super) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns whether a version has to replace the known one. Answers and events come in any
    /// order, so only a newer version does; but a list of a restored store has older ones.
    pub(super) fn replaces(&self, known: Option<Revision>, version: Revision) -> bool {
        known.is_none_or(|known| version > known || (self.is_running() && version != known))
    }
}

/// Returns the objects of a namespace.
pub(super) fn in_namespace<'a, T>(
    objects: &'a BTreeMap<ObjectRef, T>,
    namespace: &Arc<str>,
) -> impl Iterator<Item = (&'a ObjectRef, &'a T)> {
    let from = ObjectRef {
        namespace: namespace.clone(),
        name: "".into(),
    };
    let objects = objects.range(from..);
    objects.take_while(move |(object_ref, _)| object_ref.namespace == *namespace)
}
