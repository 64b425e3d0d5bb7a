//! The record of a grant's end that its holder did not ask for.
//!
//! It is written in the same write that ends the grant, so there is no end without its record.

use std::sync::Arc;

use super::ids::{GrantId, OwnerId};
use super::lock::Grant;
use super::time::WallTime;
use super::token::Token;

/// How many incidents a lock remembers.
pub const INCIDENTS_MAX: usize = 8;

/// How a grant ended that its holder did not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IncidentKind {
    /// Its session was silent for too long.
    Expired,
    /// Its pod ended.
    PodEnded,
    /// A person ended it.
    ForceReleased,
    /// A person asked for it and the app let go.
    ReleasedOnRequest,
}

/// The record of a grant's end that its holder did not ask for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Incident {
    /// When, for people.
    pub at: WallTime,
    /// What happened.
    pub kind: IncidentKind,
    /// The grant that ended; none in the record of a version that did not say.
    pub grant: Option<GrantId>,
    /// The first token of the grant that ended.
    pub token: Token,
    /// Who held it.
    pub owner: OwnerId,
    /// In which pod.
    pub pod: Arc<str>,
    /// Who ended it.
    pub actor: Arc<str>,
    /// Why, in words.
    pub reason: Arc<str>,
}

/// What each kind is called in an object.
const NAMES: [(IncidentKind, &str); 4] = [
    (IncidentKind::Expired, "Expired"),
    (IncidentKind::PodEnded, "PodEnded"),
    (IncidentKind::ForceReleased, "ForceReleased"),
    (IncidentKind::ReleasedOnRequest, "ReleasedOnRequest"),
];

impl IncidentKind {
    /// What it is called in an object.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = NAMES.iter().find(|(kind, _)| *kind == self);
        found.map_or("", |(_, name)| name)
    }

    /// The kind of that name; none for one that this version does not know.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let found = NAMES.iter().find(|(_, known)| *known == name);
        found.map(|(kind, _)| *kind)
    }
}

/// Why somebody else ends a grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ending {
    /// Now, for people.
    pub at: WallTime,
    /// What kind of end it is.
    pub kind: IncidentKind,
    /// Who ends it.
    pub actor: Arc<str>,
    /// Why, in words.
    pub reason: Arc<str>,
}

impl Ending {
    /// The record of it, for a grant with this first token.
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
