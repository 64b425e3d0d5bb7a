//! The objects that one feed tells of, as they were seen last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::is_news;
use crate::store::fleet::{Place, Placed, Told};

#[derive(Debug)]
pub(in crate::operator) struct Listed<T> {
    there: BTreeMap<Place, Arc<Placed<T>>>,
    old: Option<BTreeSet<Place>>,
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

    pub(in crate::operator) fn get(&self, place: &Place) -> Option<&Arc<Placed<T>>> {
        self.there.get(place)
    }

    pub(in crate::operator) fn all(&self) -> impl Iterator<Item = &Arc<Placed<T>>> {
        self.there.values()
    }

    /// Those of a namespace.
    pub(in crate::operator) fn of(
        &self,
        namespace: &Arc<str>,
    ) -> impl Iterator<Item = &Arc<Placed<T>>> {
        let from = Place {
            namespace: namespace.clone(),
            name: "".into(),
        };
        let from_there = self.there.range(from..);
        from_there
            .take_while(move |(place, _)| place.namespace == *namespace)
            .map(|(_, placed)| placed)
    }

    /// Takes note of what was told; gives what may be otherwise now.
    pub(in crate::operator) fn note(&mut self, told: Told<Placed<T>>) -> Vec<Place> {
        match told {
            Told::Anew => self.old = Some(self.there.keys().cloned().collect()),
            Told::There(placed) => return self.put(*placed).into_iter().collect(),
            // It makes no sense, so nothing of it is known.
            Told::Unreadable { place, .. } | Told::Gone(place) => {
                if let Some(old) = &mut self.old {
                    old.remove(&place);
                }
                return self
                    .there
                    .remove(&place)
                    .map(|_| place)
                    .into_iter()
                    .collect();
            }
            Told::Complete => {
                let gone = self.old.take().unwrap_or_default();
                self.there.retain(|place, _| !gone.contains(place));
                self.is_complete = true;
                return gone.into_iter().collect();
            }
            Told::Interrupted(_) => {}
        }
        vec![]
    }

    fn put(&mut self, placed: Placed<T>) -> Option<Place> {
        let place = placed.place.clone();
        if let Some(old) = &mut self.old {
            old.remove(&place);
        }
        let known = self.there.get(&place).map(|known| known.stored.version);
        if !is_news(known, placed.stored.version, self.old.is_some()) {
            return None;
        }
        self.there.insert(place.clone(), Arc::new(placed));
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::token::Revision;
    use crate::store::{Original, Stored};

    fn place(namespace: &str, name: &str) -> Place {
        Place {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    fn there(place: &Place, version: u64) -> Told<Placed<()>> {
        Told::There(Box::new(Placed {
            place: place.clone(),
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
    fn object_missing_from_a_relist_is_reported_as_deleted() {
        let (a, b) = (place("n", "a"), place("n", "b"));
        let mut listed = Listed::default();
        for told in [Told::Anew, there(&a, 1), there(&b, 2)] {
            listed.note(told);
        }
        assert!(!listed.is_complete());
        assert_eq!(listed.note(Told::Complete), []);
        assert!(listed.is_complete());
        assert_eq!(listed.note(there(&b, 2)), [], "that was known");
        listed.note(Told::Anew);
        listed.note(there(&b, 2));
        assert!(listed.get(&a).is_some(), "not before all was told");
        let [gone] = &listed.note(Told::Complete)[..] else {
            panic!("one is gone");
        };
        assert_eq!(*gone, a);
        assert!(listed.get(&a).is_none() && listed.get(&b).is_some());
        assert_eq!(listed.note(Told::Gone(a)), [], "that was known, too");
        assert_eq!(listed.note(Told::Gone(b.clone())), [b]);
    }

    #[test]
    fn namespaces_with_similar_names_are_kept_apart() {
        let mut listed = Listed::default();
        for (namespace, name) in [
            ("n", "b"),
            ("n", "a"),
            ("m", "x"),
            ("n-1", "y"),
            ("n1", "z"),
        ] {
            listed.note(there(&place(namespace, name), 1));
        }
        let names: Vec<&str> = listed.of(&"n".into()).map(|one| &*one.place.name).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
