//! What goes wrong only because somebody asked for it: `leasehold dev --fault-api`.

use crate::protocol::ids::LeaseId;
use crate::protocol::lease::Loss;

use super::{Agent, LeaseError};

impl Agent {
    /// Loses a lease before the deadline that its app was told, as when a person ended its grant.
    ///
    /// # Errors
    /// [`LeaseError`] when there is no such lease (any more).
    pub fn lose(&self, lease: &LeaseId) -> Result<(), LeaseError> {
        self.lease(lease, self.now())?;
        self.with_leases(|leases| leases.lose(lease, Loss::GrantGone));
        Ok(())
    }
}
