//! The objects and the times in the unit tests.

use std::time::Duration;

use crate::clock::Now;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::Revision;
use crate::store::fleet::{Object, ObjectRef};
use crate::store::{Original, Stored};

pub(super) fn at(seconds: u64) -> Moment {
    Moment::since_boot(Duration::from_secs(seconds))
}

pub(super) fn now(seconds: u64) -> Now {
    Now {
        moment: at(seconds),
        wall: WallTime(0),
    }
}

pub(super) fn object_ref(namespace: &str, name: &str) -> ObjectRef {
    ObjectRef {
        namespace: namespace.into(),
        name: name.into(),
    }
}

pub(super) fn object<T>(namespace: &str, name: &str, version: u64, value: T) -> Object<T> {
    Object {
        object_ref: object_ref(namespace, name),
        uid: "u".into(),
        is_deleted: false,
        is_misnamed: false,
        set_at: None,
        stored: Stored {
            value,
            version: Revision(version),
            original: Original::new(()),
        },
    }
}
