//! The record of a grant that did not end by its holder's own decision.
//!
//! The write that ends the grant adds the record, so every such end has one.

use std::sync::Arc;

use super::ids::{GrantId, OwnerId};
use super::lock::Grant;
use super::time::WallTime;
use super::token::Token;

/// The maximum number of incidents that a lock keeps.
pub const INCIDENTS_MAX: usize = 8;

/// How the grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IncidentKind {
    /// Its session was silent for too long.
    Expired,
    /// Its pod ended.
    PodEnded,
    /// A person ended it.
    ForceReleased,
    /// The app released it at a person's request.
    ReleasedOnRequest,
}

/// The record of a grant that did not end by its holder's own decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Incident {
    /// The time. Informational.
    pub at: WallTime,
    /// How the grant ended.
    pub kind: IncidentKind,
    /// The grant that ended; `None` in records of versions that did not name it.
    pub grant: Option<GrantId>,
    /// The first token of the grant that ended.
    pub token: Token,
    /// The owner id of its holder.
    pub owner: OwnerId,
    /// The holder's pod.
    pub pod: Arc<str>,
    /// The pod or user that ended it.
    pub actor: Arc<str>,
    /// The reason, as text.
    pub reason: Arc<str>,
}

/// The name of each kind in an object.
const NAMES: [(IncidentKind, &str); 4] = [
    (IncidentKind::Expired, "Expired"),
    (IncidentKind::PodEnded, "PodEnded"),
    (IncidentKind::ForceReleased, "ForceReleased"),
    (IncidentKind::ReleasedOnRequest, "ReleasedOnRequest"),
];

impl IncidentKind {
    /// Returns its name in an object.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = NAMES.iter().find(|(kind, _)| *kind == self);
        found.map_or("", |(_, name)| name)
    }

    /// Returns the kind with this name; `None` if this version does not know it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let found = NAMES.iter().find(|(_, known)| *known == name);
        found.map(|(kind, _)| *kind)
    }
}

/// The end of a grant that is not its holder's own decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ending {
    /// The current time. Informational.
    pub at: WallTime,
    /// The kind of end.
    pub kind: IncidentKind,
    /// The pod or user that ends it.
    pub actor: Arc<str>,
    /// The reason, as text.
    pub reason: Arc<str>,
}

impl Ending {
    /// Returns the record, for a grant with this first token.
    #[must_use]
    pub fn incident(&self, grant: &Grant, token: Token) -> Incident {
        Incident {
            at: self.at,
            kind: self.kind,
            grant: Some(grant.id.clone()),
            token,
            owner: grant.holder.owner.clone(),
            pod: grant.holder.pod.name.clone(),
            actor: self.actor.clone(),
            reason: self.reason.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_known_by_its_name() {
        for (kind, name) in NAMES {
            assert_eq!(kind.name(), name);
            assert_eq!(IncidentKind::from_name(name), Some(kind));
        }
        assert_eq!(IncidentKind::from_name("Tired"), None);
    }
}
