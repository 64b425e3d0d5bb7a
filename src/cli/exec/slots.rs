//! The locks that an exec may run under: the one of `--lock`, or any of the slots of `--concurrency`.

use crate::protocol::ids::{InvalidResource, Resource};

/// The most slots. A waiter is in the queue of each.
pub(super) const SLOTS_MAX: i64 = 32;

/// A lock, one of which is enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) resource: Resource,
    /// Its number, from 1; none without `--concurrency`.
    pub(super) number: Option<u8>,
}

/// Returns the slots of a lock.
///
/// # Errors
/// If the lock's name is too long for a suffix.
pub(super) fn slots(lock: &Resource, count: Option<u8>) -> Result<Vec<Slot>, InvalidResource> {
    let Some(count) = count else {
        return Ok(vec![Slot {
            resource: lock.clone(),
            number: None,
        }]);
    };
    let slot = |number| {
        let resource = Resource::parse(&format!("{lock}/slot-{number}"))?;
        Ok(Slot {
            resource,
            number: Some(number),
        })
    };
    (1..=count).map(slot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_is_a_lock_of_its_own() {
        let lock = Resource::parse("import").unwrap();
        let names = |count| {
            let slots = slots(&lock, count).unwrap().into_iter();
            slots
                .map(|slot| slot.resource.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(None), ["import"]);
        assert_eq!(names(Some(2)), ["import/slot-1", "import/slot-2"]);
        let longest = Resource::parse(&"x".repeat(512)).unwrap();
        assert!(slots(&longest, None).is_ok());
        assert!(slots(&longest, Some(1)).is_err());
    }
}
