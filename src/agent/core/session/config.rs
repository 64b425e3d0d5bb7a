//! What sessions are made of.

use std::time::Duration;

use crate::agent::core::env::Env;
use crate::protocol::ids::SessionId;
use crate::protocol::session::{PodRef, RenewalFailures, Session};
use crate::protocol::time::SessionTtl;

/// What a session is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::agent) struct SessionConfig {
    /// The pod that the agent acts for.
    pub(in crate::agent) pod: PodRef,
    /// The TTL of its sessions.
    pub(in crate::agent) ttl: SessionTtl,
    /// After how long without a lease a session is ended.
    pub(in crate::agent) idle_after: Duration,
}

impl SessionConfig {
    /// Returns a session that nobody has seen yet, under a name of its own.
    pub(super) fn new_session(&self, env: &mut Env) -> Session {
        let nonce = format!("{:032x}", env.rng.id());
        // An object name has at most 253 bytes; a pod's name may use them all.
        let pod: String = self.pod.name.chars().take(230).collect();
        let pod = pod.trim_end_matches(['-', '.']);
        Session {
            id: SessionId::from(format!("{pod}-{}", &nonce[..12])),
            pod: self.pod.clone(),
            ttl: self.ttl,
            agent_version: env!("CARGO_PKG_VERSION").into(),
            renewals: 0,
            renewed_at: None,
            failures: RenewalFailures::default(),
            revoked: None,
        }
    }
}
