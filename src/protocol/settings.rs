//! What users set in a lock's spec, or did to its object. The protocol reads it and never writes
//! it.

use std::sync::Arc;
use std::time::Duration;

use super::ids::{GrantId, LeaseId};

/// What users set for one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How long the object is kept while it is free and idle (default: the operator's setting).
    pub retain: Option<Duration>,
    /// A grant older than this is marked as long-held (default: the operator's setting).
    pub long_held: Option<Duration>,
    /// A person's request that a grant ends.
    pub release_request: Option<Arc<ReleaseRequest>>,
    /// The object was deleted and only a finalizer keeps it. It disappears with the write that
    /// removes the finalizer, and a grant on it would end without a record.
    pub is_being_deleted: bool,
}

impl Settings {
    /// Returns the request to the app that holds this grant. A forced release is not a request to
    /// the app.
    #[must_use]
    pub fn asked_of(&self, grant: &GrantId) -> Option<&Arc<ReleaseRequest>> {
        let request = self.release_request.as_ref();
        request.filter(|request| request.mode == ReleaseMode::Ask && request.names(grant))
    }
}

/// A person's request that a grant ends, which is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReleaseRequest {
    /// The grant to end: a grant id or a lease id.
    pub lease: Arc<str>,
    /// Whether the app decides.
    pub mode: ReleaseMode,
    /// The reason, as text.
    pub reason: Arc<str>,
    /// The user; an admission policy checks it.
    pub actor: Arc<str>,
}

/// Whether the app decides about a release request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseMode {
    /// The app is notified and decides.
    Ask,
    /// The operator ends the grant.
    Force,
}

impl ReleaseRequest {
    /// Returns whether it is about this grant. A lease id, which an app's log may show, names its
    /// grant, too.
    #[must_use]
    pub fn names(&self, grant: &GrantId) -> bool {
        *self.lease == *grant.as_str()
            || LeaseId::from(&*self.lease).grant().as_ref() == Some(grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(lease: &str, mode: ReleaseMode) -> ReleaseRequest {
        ReleaseRequest {
            lease: lease.into(),
            mode,
            reason: "test".into(),
            actor: "me".into(),
        }
    }

    #[test]
    fn release_request_names_a_grant_by_its_id_or_a_lease_id() {
        for (lease, names) in [
            ("g1", true),
            ("g1.0", true),
            ("g1.12", true),
            ("g", false),
            ("g12", false),
            ("", false),
        ] {
            let request = request(lease, ReleaseMode::Ask);
            assert_eq!(request.names(&GrantId::from("g1")), names, "{lease}");
        }
    }

    #[test]
    fn only_a_request_of_mode_ask_for_its_grant_reaches_the_app() {
        for (lease, mode, asks) in [
            ("g1", ReleaseMode::Ask, true),
            ("g2", ReleaseMode::Ask, false),
            ("g1", ReleaseMode::Force, false),
        ] {
            let settings = Settings {
                release_request: Some(Arc::new(request(lease, mode))),
                ..Settings::default()
            };
            let asked = settings.asked_of(&GrantId::from("g1"));
            assert_eq!(asked.is_some(), asks, "{lease} {mode:?}");
        }
    }
}
