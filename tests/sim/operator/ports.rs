//! The operator's other ports: audit lines and Events are recorded; labels and namespaces do not exist.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures::StreamExt as _;
use leasehold::agent::Agent;
use leasehold::operator::{AuditLog, Leadership};
use leasehold::protocol::election::ElectionName;
use leasehold::protocol::ids::GrantId;
use leasehold::protocol::lock::Lock;
use leasehold::store::StoreError;
use leasehold::store::cluster::{
    CandidatePod, Candidates, Event, EventStore, PodIdentity, PodLabels,
};
use leasehold::store::fleet::{Feed, FeedEvent, Object, ObjectRef};
use leasehold::store::namespaces::{Binding, Namespaces, Subject, UninjectedPod};
use tokio::sync::watch;

use crate::world::World;

/// All ports except the fleet.
pub(super) struct Outside {
    world: World,
    notes: Mutex<BTreeSet<ObjectRef>>,
}

impl Outside {
    pub(super) fn new(world: &World) -> Self {
        Self {
            world: world.clone(),
            notes: Mutex::default(),
        }
    }

    fn notes(&self) -> std::sync::MutexGuard<'_, BTreeSet<ObjectRef>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl EventStore for Outside {
    async fn list_own(&self) -> Result<BTreeSet<ObjectRef>, StoreError> {
        Ok(self.notes().clone())
    }

    async fn write(&self, note: &Event) -> Result<(), StoreError> {
        self.notes().insert(ObjectRef {
            namespace: note.object_ref.namespace.clone(),
            name: note.name.clone(),
        });
        Ok(())
    }
}

#[async_trait]
impl AuditLog for Outside {
    async fn write(&self, line: &str) -> io::Result<()> {
        let verdict = self.world.records().incidents.told(line);
        self.world.count("audit line");
        self.world.judge("audit", verdict);
        Ok(())
    }
}

fn not_here<T>() -> Result<T, StoreError> {
    Err(StoreError::Denied("not here".into()))
}

#[async_trait]
impl Candidates for Outside {
    async fn pod(
        &self,
        _pod: &PodIdentity,
        _election: &str,
    ) -> Result<Option<CandidatePod>, StoreError> {
        not_here()
    }

    async fn request_resignation(
        &self,
        _current: &Object<Lock>,
        _grant: &GrantId,
        _reason: &str,
    ) -> Result<(), StoreError> {
        not_here()
    }
}

#[async_trait]
impl PodLabels for Outside {
    async fn list_pods(
        &self,
        _namespace: &str,
        _key: &str,
    ) -> Result<Vec<PodIdentity>, StoreError> {
        Ok(Vec::new())
    }

    async fn add(&self, _pod: &PodIdentity, _key: &str) -> Result<(), StoreError> {
        not_here()
    }

    async fn remove(&self, _pod: &PodIdentity, _key: &str) -> Result<(), StoreError> {
        not_here()
    }
}

fn nothing<T: Send + 'static>() -> Feed<T> {
    let told = futures::stream::iter([FeedEvent::ListStarted, FeedEvent::ListDone]);
    told.chain(futures::stream::pending()).boxed()
}

#[async_trait]
impl Namespaces for Outside {
    fn labelled(&self) -> Feed<Object<()>> {
        nothing()
    }

    fn accounts(&self) -> Feed<Object<()>> {
        nothing()
    }

    fn bindings(&self) -> Feed<Object<Binding>> {
        nothing()
    }

    fn uninjected_pods(&self) -> Feed<Object<UninjectedPod>> {
        nothing()
    }

    async fn binding(&self, _namespace: &str) -> Result<Option<Object<Binding>>, StoreError> {
        Ok(None)
    }

    async fn create_binding(
        &self,
        _namespace: &str,
        _subjects: &BTreeSet<Subject>,
    ) -> Result<Object<Binding>, StoreError> {
        not_here()
    }

    async fn update_binding(
        &self,
        _current: &Object<Binding>,
        _subjects: &BTreeSet<Subject>,
    ) -> Result<Object<Binding>, StoreError> {
        not_here()
    }

    async fn delete_binding(&self, _current: &Object<Binding>) -> Result<(), StoreError> {
        not_here()
    }
}

/// Leads while its agent leads.
pub(super) struct Elected {
    world: World,
    who: Arc<str>,
    agent: Agent,
    election: ElectionName,
    stands: watch::Sender<bool>,
}

impl Elected {
    pub(super) fn new(
        (world, who): (&World, &Arc<str>),
        agent: &Agent,
        election: &ElectionName,
        stands: watch::Sender<bool>,
    ) -> Self {
        Self {
            world: world.clone(),
            who: who.clone(),
            agent: agent.clone(),
            election: election.clone(),
            stands,
        }
    }
}

#[async_trait]
impl Leadership for Elected {
    fn leads(&self) -> bool {
        let leads = self.agent.leads(&self.election);
        if leads {
            self.world.acts_as_leader(&self.who);
        }
        leads
    }

    async fn changed(&self) {
        self.agent.elections_changed().await;
    }

    fn set_eligible(&self, is_fit: bool) {
        self.stands
            .send_if_modified(|stands| std::mem::replace(stands, is_fit) != is_fit);
    }
}
