//! Sessions and grants together with their pods.
//!
//! Every pod of the namespace can read ids, and without policies any pod can write them. Only the
//! pod's uid is proven, by the token of the pod that wrote it. So a session belongs to a pod only
//! if both name and uid match. A grant belongs to it only if its id matches, too: the pod whose uid
//! is in a grant may end it at any time, even if the grant names another session. Agents outside of pods have
//! an empty uid, which proves nothing: RBAC limits their users.

use std::sync::Arc;

use super::ids::{GrantId, SessionId};
use super::lock::{Claim, Grant};
use super::queue::Waiter;
use super::session::{Claimant, Session};

/// A session of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey {
    /// The session's name.
    pub id: SessionId,
    /// The uid of the pod that it belongs to.
    pub pod_uid: Arc<str>,
}

/// A grant, or the queue entry that becomes one, of a session of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantKey {
    /// The grant's id.
    pub id: GrantId,
    /// The session and pod that it belongs to.
    pub session: SessionKey,
}

impl Session {
    /// Returns the session's name and its pod.
    #[must_use]
    pub fn key(&self) -> SessionKey {
        SessionKey {
            id: self.id.clone(),
            pod_uid: self.pod.uid.clone(),
        }
    }
}

impl Claimant {
    /// Returns the session that it names, for the pod that it names.
    #[must_use]
    pub fn key(&self) -> SessionKey {
        SessionKey {
            id: self.session.clone(),
            pod_uid: self.pod.uid.clone(),
        }
    }

    /// Returns the key of the grant that it holds under this id.
    fn key_of(&self, grant: &GrantId) -> GrantKey {
        GrantKey {
            id: grant.clone(),
            session: self.key(),
        }
    }
}

impl Grant {
    /// Returns the grant's id and its holder.
    #[must_use]
    pub fn key(&self) -> GrantKey {
        self.holder.key_of(&self.id)
    }
}

impl Claim {
    /// Returns the id of the claimed grant, and its claimant.
    #[must_use]
    pub fn key(&self) -> GrantKey {
        self.claimant.key_of(&self.grant)
    }
}

impl Waiter {
    /// Returns the id that the grant will have, and its waiter.
    #[must_use]
    pub fn key(&self) -> GrantKey {
        self.claimant.key_of(&self.grant)
    }
}
