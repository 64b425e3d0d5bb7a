//! Free locks as this agent last wrote them: an acquire of one needs no read.
//!
//! The lock may have changed since, so the write that acquires it must be ready for a `Conflict`.

use std::collections::BTreeMap;

use crate::protocol::ids::Resource;
use crate::protocol::lock::Lock;
use crate::protocol::object::Stored;

/// How many are kept.
const FREE_MAX: usize = 1_000;

/// The last free versions that this agent wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::agent) struct FreeLocks(BTreeMap<Resource, Stored<Lock>>);

impl FreeLocks {
    /// Records a lock as it was just written.
    pub(in crate::agent) fn observe(&mut self, stored: &Stored<Lock>) {
        let resource = &stored.value.resource;
        if stored.value.grant.is_some() {
            self.0.remove(resource);
            return;
        }
        if self.0.len() >= FREE_MAX && !self.0.contains_key(resource) {
            // The one that was not used for longest: its next acquire costs one read more.
            let oldest = self.0.iter().min_by_key(|(_, lock)| lock.version);
            if let Some(oldest) = oldest.map(|(resource, _)| resource.clone()) {
                self.0.remove(&oldest);
            }
        }
        self.0.insert(resource.clone(), stored.clone());
    }

    /// Takes the lock as it was last written, if it was free then.
    pub(in crate::agent) fn take(&mut self, resource: &Resource) -> Option<Stored<Lock>> {
        self.0.remove(resource)
    }
}
