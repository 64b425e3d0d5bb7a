//! A line that meets errors: whose waiting they end, and how long the others go on.

use std::time::Duration;

use crate::agent::acquire::Delivery;
use crate::agent::bid::Bid;
use crate::agent::line::Front;
use crate::agent::{AcquireError, Agent};
use crate::store::StoreError;

use super::Pursuit;

/// How long a line without a place in the queue goes on while the store does not answer.
const TROUBLE_LIMIT: Duration = Duration::from_secs(5);

impl Agent {
    /// A round failed. Who has a place in the queue goes on: it may outlive the trouble. Others
    /// are told soon, as a try is.
    pub(super) async fn meet_trouble(
        &self,
        front: &Front,
        error: AcquireError,
        pursuit: &mut Pursuit,
    ) {
        let resource = &front.request.resource;
        let now = self.now();
        let since = *pursuit.trouble_since.get_or_insert(now);
        let session = pursuit.bid.as_ref().and_then(Bid::session);
        let is_over = session.is_some_and(|id| self.session_deadline(id).is_none());
        if is_over || error == AcquireError::GrantEnded {
            self.abandon_bid(pursuit);
        }
        let lasted = now.since(since);
        let trouble = Trouble {
            has_place: pursuit.has_place,
            is_too_long: lasted >= TROUBLE_LIMIT,
            outlasts_sessions: lasted >= self.0.config.session_ttl.get(),
        };
        match whom_it_ends(&error, trouble) {
            Ends::First => {
                let caller = self.state().take_caller(resource, front.ticket);
                if let Some(deliver) = caller.and_then(|caller| caller.deliver) {
                    drop(deliver.send(Delivery::refused(self, error)));
                }
                return;
            }
            Ends::All => return self.refuse_all(resource, &error),
            Ends::Nobody => {
                if let AcquireError::Store(_) = error {
                    self.note_last(resource, Err(error));
                }
            }
        }
        // Whatever was believed of the lock is read again.
        pursuit.read_at = now;
        let longest = self.0.config.session_ttl.get() / 10;
        let until = self.back_off(pursuit, longest);
        self.rest(resource, front, until).await;
    }
}

/// Whose waiting a failed round ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// The next round may succeed.
    Nobody,
    /// What was refused are the first caller's own words.
    First,
    /// It would be refused to everybody.
    All,
}

/// How long nothing but errors came, and what is at stake.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    /// Whether there is a place in the queue to lose.
    has_place: bool,
    /// For longer than who has none waits for an answer.
    is_too_long: bool,
    /// For longer than a session lives that cannot be renewed.
    outlasts_sessions: bool,
}

fn whom_it_ends(error: &AcquireError, trouble: Trouble) -> Ends {
    match error {
        // Another session is begun, or another place taken; if that fails, its error says why.
        AcquireError::SessionLost | AcquireError::GrantEnded => Ends::Nobody,
        AcquireError::Store(error)
            if error.is_transient() && (trouble.has_place || !trouble.is_too_long) =>
        {
            Ends::Nobody
        }
        // An API server that starts answers before it has read the roles, and forbids what was
        // allowed a moment ago. A place in the queue was come by with the rights that are missing.
        AcquireError::Store(StoreError::Denied(_) | StoreError::Unauthenticated(_))
            if trouble.has_place && !trouble.outlasts_sessions =>
        {
            Ends::Nobody
        }
        AcquireError::Store(StoreError::Invalid(_) | StoreError::DeniedByPolicy(_)) => Ends::First,
        _ => Ends::All,
    }
}
