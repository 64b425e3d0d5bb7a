//! What a session is made of, and its object in the store.
//!
//! A session's name is never used again, so its creation may be tried until it is known to be there.

use crate::agent::{Agent, Backoff, CALL_LIMIT};
use crate::protocol::ids::SessionId;
use crate::protocol::session::{RenewalFailures, Session};
use crate::store::{StoreError, Stored, within};

impl Agent {
    /// A session that nobody has seen yet, under a name of its own.
    pub(super) fn new_session(&self) -> Session {
        let config = &self.0.config;
        let nonce = config.random.uuid().simple().to_string();
        // An object name has at most 253 bytes; a pod's name may use them all.
        let pod: String = config.pod.name.chars().take(230).collect();
        Session {
            id: SessionId::from(format!(
                "{}-{}",
                pod.trim_end_matches(['-', '.']),
                &nonce[..12]
            )),
            pod: config.pod.clone(),
            ttl: config.session_ttl,
            agent_version: env!("CARGO_PKG_VERSION").into(),
            renewals: 0,
            renewed_at: None,
            failures: RenewalFailures::default(),
            revoked: None,
        }
    }

    /// Creates the session object. After an answer that does not say what happened, the same
    /// name is read and tried again: nobody else uses it.
    pub(super) async fn create_session(
        &self,
        session: &Session,
    ) -> Result<Stored<Session>, StoreError> {
        let mut backoff = Backoff::of_a_call(self.now());
        loop {
            let error = match within(CALL_LIMIT, self.0.sessions.create(session)).await {
                Ok(stored) => return Ok(stored),
                Err(error) => error,
            };
            if matches!(error, StoreError::Conflict | StoreError::Ambiguous(_)) {
                let read = within(CALL_LIMIT, self.0.sessions.get(&session.id)).await;
                if let Ok(Some(stored)) = read {
                    return Ok(stored);
                }
            } else if !error.is_transient() {
                return Err(error);
            }
            if !self.pause(&mut backoff).await {
                return Err(error);
            }
        }
    }
}
