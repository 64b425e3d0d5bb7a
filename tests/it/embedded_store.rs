//! The embedded store: the contract on a file and in memory, and its own property, the data
//! directory.

mod bounds;
mod directory;
mod fleet;
mod leftovers;

use std::sync::Arc;

use leasehold::protocol::ids::Resource;
use leasehold::protocol::token::Revision;
use leasehold::store::embedded::EmbeddedStore;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::contract::{Adapter, Newer, Part, Party};

/// The first revision of stores under test.
const FIRST: Revision = Revision(1_000);

/// A store under test, and its directory if it has one.
struct Embedded {
    store: EmbeddedStore,
    a: Party,
    b: Party,
    _directory: Option<TempDir>,
}

impl Embedded {
    fn on_disk() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(directory.path(), FIRST).unwrap();
        Self::new(store, Some(directory))
    }

    fn in_memory() -> Self {
        Self::new(EmbeddedStore::in_memory(FIRST).unwrap(), None)
    }

    fn new(store: EmbeddedStore, directory: Option<TempDir>) -> Self {
        let party = |name: &str| {
            let (locks, sessions) = (Arc::new(store.clone()), Arc::new(store.clone()));
            Party::new(name, name, locks, sessions)
        };
        let (a, b) = (party("a"), party("b"));
        Self {
            store,
            a,
            b,
            _directory: directory,
        }
    }
}

impl Adapter for Embedded {
    fn a(&self) -> &Party {
        &self.a
    }

    fn b(&self) -> &Party {
        &self.b
    }

    async fn delete_lock(&self, resource: &Resource) {
        self.store.delete_lock(resource).await.unwrap();
    }

    async fn delete_held_lock(&self, resource: &Resource) {
        self.delete_lock(resource).await;
    }
}

impl Newer for Embedded {
    async fn add_unknown_fields(&self, resource: &Resource) {
        let edit = |lock: &mut Value| {
            lock["new"] = json!(1);
            lock["grant"]["new"] = json!(1);
            lock["grant"]["holder"]["new"] = json!(1);
            lock["waiters"][0]["new"] = json!(1);
            lock["incidents"] = json!([{"at": 0, "kind": "Newer", "token": 1, "ownerId": "o",
                "pod": "p", "actor": "x", "reason": "y", "new": 1}]);
        };
        let edited = self.store.edit_lock_document(resource, edit).await;
        edited.unwrap();
    }

    async fn part(&self, resource: &Resource, part: Part) -> Value {
        let lock = self.store.edit_lock_document(resource, |_| {}).await;
        let lock = lock.unwrap();
        match part {
            Part::Lock => lock,
            Part::Holder => lock["grant"]["holder"].clone(),
            Part::Grant => lock["grant"].clone(),
            Part::Waiter => lock["waiters"][0].clone(),
            Part::Incidents => lock["incidents"].clone(),
        }
    }
}

mod on_disk {
    use super::Embedded;

    crate::contract::every_fact!(Embedded::on_disk());
    crate::contract::every_fact!(
        Embedded::on_disk();
        fields_of_a_newer_version_survive_every_write,
        fields_of_a_newer_version_survive_a_join,
    );
}

mod in_memory {
    use super::Embedded;

    crate::contract::every_fact!(Embedded::in_memory());
    crate::contract::every_fact!(
        Embedded::in_memory();
        fields_of_a_newer_version_survive_every_write,
        fields_of_a_newer_version_survive_a_join,
    );
}
