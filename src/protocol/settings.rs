//! What people set in a lock's spec, or did to its object. The protocol reads it and never writes it.

use std::sync::Arc;
use std::time::Duration;

use super::ids::{GrantId, LeaseId};

/// What people set for one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How long the object is kept while it is free and idle; the operator's own setting unless
    /// said.
    pub retain: Option<Duration>,
    /// Held longer than this it is marked as long-held; the operator's own setting unless said.
    pub long_held: Option<Duration>,
    /// Somebody's wish that a grant ends.
    pub release_request: Option<Arc<ReleaseRequest>>,
    /// The object was deleted and is only kept by a finalizer. It vanishes with the write that takes
    /// the finalizer away, and a grant on it would end without a record.
    pub is_being_deleted: bool,
}

impl Settings {
    /// What somebody asks of the app that this grant serves. Force is not asked of anybody.
    #[must_use]
    pub fn asked_of(&self, grant: &GrantId) -> Option<&Arc<ReleaseRequest>> {
        let request = self.release_request.as_ref();
        request.filter(|request| request.mode == ReleaseMode::Ask && request.names(grant))
    }
}

/// A person's wish that a grant ends, on the record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReleaseRequest {
    /// The grant to end, as the person wrote it.
    pub lease: Arc<str>,
    /// How it is meant.
    pub mode: ReleaseMode,
    /// Why, in words.
    pub reason: Arc<str>,
    /// Who asks; the API server vouches for it.
    pub actor: Arc<str>,
}

/// How a release request is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseMode {
    /// The app is told and decides.
    Ask,
    /// The grant ends.
    Force,
}

impl ReleaseRequest {
    /// Whether it is about this grant. An app's lease id, which its log may show, names the grant
    /// that it is of.
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
