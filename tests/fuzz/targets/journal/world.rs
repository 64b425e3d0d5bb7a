//! The state that a crashed process left: a store with a session that holds locks, and the records
//! of its journal.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::agent::{
    AcquireError, AcquireRequest, Acquired, Agent, Config, Journal, LeaseView, Life, Memory, Past,
};
use leasehold::protocol::ids::{LeaseId, Resource, SessionId};
use leasehold::protocol::lock::Lock;
use leasehold::protocol::session::PodRef;
use leasehold::protocol::token::{LEASES_PER_GRANT, Revision, Token};
use leasehold::store::embedded::EmbeddedStore;
use leasehold::store::{LockStore, SessionStore};
use tokio::runtime::Runtime;

use crate::paused_clock::PausedClock;

/// The session TTL: no returned validity is longer.
pub(super) const TTL: Duration = Duration::from_secs(15);
/// A lease with a TTL, one held by a connection, and a released one.
const RESOURCES: [&str; 3] = [FIRST, "election:jobs", "released"];
pub(super) const FIRST: &str = "kept";

pub(super) struct World {
    store: EmbeddedStore,
    /// The tokens of the leases, in the order of the resources.
    pub(super) tokens: Vec<Token>,
    /// The placeholders with their values.
    words: Vec<(String, String)>,
    records: Vec<Vec<u8>>,
}

/// A journal in memory.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<Vec<u8>>>>);

impl Journal for Paper {
    fn append(&mut self, record: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().push(record.to_vec());
        Ok(())
    }

    fn replace(
        &mut self,
        records: &mut dyn Iterator<Item = io::Result<Vec<u8>>>,
    ) -> io::Result<()> {
        let records = records.collect::<io::Result<_>>()?;
        *self.0.lock().unwrap() = records;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        let records = self.0.lock().unwrap();
        records.iter().map(|record| record.len() as u64).sum()
    }

    fn void(&mut self) -> io::Result<()> {
        self.0.lock().unwrap().clear();
        Ok(())
    }

    fn set_aside(&mut self) -> io::Result<PathBuf> {
        self.void()?;
        Ok(PathBuf::from("aside"))
    }
}

pub(super) fn runtime() -> Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.unwrap()
}

pub(super) async fn acquire(
    agent: &Agent,
    resource: &str,
    wait: Duration,
) -> Result<Acquired, AcquireError> {
    let request = AcquireRequest {
        resource: Resource::parse(resource).unwrap(),
        owner: "app".into(),
        life: Life::Ttl(Duration::from_secs(60)),
        metadata: BTreeMap::new(),
        wait,
        preferred: false,
        keep: Duration::ZERO,
        request_id: None,
    };
    agent.acquire(request, agent.now()).await
}

impl World {
    /// The runtime stops with all its pending tasks, as in a crashed process.
    pub(super) fn left_behind() -> Self {
        let mut world = Self {
            store: EmbeddedStore::in_memory(Revision(1_000)).unwrap(),
            tokens: Vec::new(),
            words: Vec::new(),
            records: Vec::new(),
        };
        runtime().block_on(world.live());
        world
    }

    async fn live(&mut self) {
        let paper = Paper::default();
        let agent = self.agent(paper.clone(), Past::Nothing);
        for (place, resource) in RESOURCES.into_iter().enumerate() {
            let Ok(Acquired::Granted { lease, .. }) =
                acquire(&agent, resource, Duration::ZERO).await
            else {
                panic!("{resource} is not granted");
            };
            let grant = lease.lease.grant().unwrap();
            self.words
                .push((format!("$GRANT{place}"), grant.to_string()));
            self.words
                .push((format!("\"$TOKEN{place}\""), lease.token.to_string()));
            self.tokens.push(lease.token);
        }
        let released = LeaseId::of(&self.words[4].1.as_str().into(), 0);
        agent.release(&released).await.expect("it is released");
        let held = self.lock(FIRST).await.unwrap();
        let session = held.grant.unwrap().holder.session;
        let stored = self.store_session(&session).await;
        self.words
            .push(("$SESSION".to_owned(), session.to_string()));
        self.words
            .push(("\"$VERSION\"".to_owned(), stored.to_string()));
        self.records = paper.0.lock().unwrap().clone();
    }

    async fn store_session(&self, session: &SessionId) -> Revision {
        let sessions: &dyn SessionStore = &self.store;
        sessions
            .get(session)
            .await
            .unwrap()
            .expect("it lives")
            .version
    }

    async fn lock(&self, resource: &str) -> Option<Lock> {
        let locks: &dyn LockStore = &self.store;
        let stored = locks.get(&Resource::parse(resource).ok()?).await.unwrap()?;
        Some(stored.value)
    }

    fn agent(&self, paper: Paper, past: Past) -> Agent {
        let pod = PodRef {
            name: "pod-a".into(),
            uid: "uid-a".into(),
            node: None,
        };
        let (locks, sessions) = (Arc::new(self.store.clone()), Arc::new(self.store.clone()));
        let memory = Memory {
            journal: Box::new(paper),
            past,
            boot_id: "boot".into(),
            namespace: "team-a".into(),
        };
        Agent::with_memory(
            Config::new(pod),
            locks,
            sessions,
            Arc::new(PausedClock::start()),
            memory,
        )
    }

    /// Starts the next process with these records.
    pub(super) fn start(&self, records: Vec<Vec<u8>>) -> Agent {
        self.agent(
            Paper(Arc::new(Mutex::new(records.clone()))),
            Past::Records(records),
        )
    }

    /// Replaces the placeholders of an input with the real values.
    pub(super) fn filled_in(&self, text: &str) -> String {
        let filled = |text: String, (name, value): &(String, String)| text.replace(name, value);
        self.words.iter().fold(text.to_owned(), filled)
    }

    /// Asserts that the store has the lease, and that its validity does not exceed the session's.
    pub(super) async fn assert_held(&self, view: &LeaseView) {
        let lock = self
            .lock(view.resource.as_str())
            .await
            .expect("its lock is there");
        let grant = lock.grant.as_ref().expect("its lock is held");
        assert_eq!(view.lease.grant().as_ref(), Some(&grant.id), "{view:?}");
        assert!(
            lock.token.covers(view.token),
            "{view:?} of a grant from {}",
            lock.token
        );
        assert!(view.valid_for <= TTL, "{view:?}");
        let number = view.token.get() - lock.token.get();
        let id = LeaseId::of(&grant.id, u16::try_from(number).unwrap());
        assert!(
            number < LEASES_PER_GRANT && view.lease == id,
            "{view:?} has the token of {id}"
        );
    }
}

/// Returns the records that the process left, and the same without the last one.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let world = World::left_behind();
    let records = world
        .records
        .iter()
        .map(|record| String::from_utf8(record.clone()).unwrap());
    let mut lines: Vec<_> = records.collect();
    for line in &mut lines {
        for (name, value) in &world.words {
            // A number is matched with the colon before it, because other numbers may begin with
            // the same digits.
            let colon = if name.starts_with('"') { ":" } else { "" };
            *line = line.replace(&format!("{colon}{value}"), &format!("{colon}{name}"));
        }
    }
    let whole = lines.join("\n").into_bytes();
    lines.pop();
    vec![whole, lines.join("\n").into_bytes()]
}
