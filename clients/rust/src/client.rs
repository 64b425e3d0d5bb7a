//! What an app uses.

use std::collections::BTreeMap;
use std::env;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::acquire::{Acquisition, Wanted};
use crate::elect::Election;
use crate::engine;
use crate::error::Error;
use crate::lease::Lease;
use crate::renewal::Renewal;
use crate::wire::{InvalidAddress, Sidecar};

/// The sidecar's own bound for a wait by a connection.
const LONGEST_WAIT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
const DEFAULT_ADDRESS: &str = "http://127.0.0.1:7373";

/// A sidecar, or `leasehold dev`. One is enough for a process; its clones are the same one.
#[derive(Clone)]
pub struct Client {
    sidecar: Sidecar,
}

impl Client {
    /// Returns a client of the sidecar that `LEASEHOLD_URL` names. An injected pod has this
    /// variable; default: `http://127.0.0.1:7373`.
    pub fn from_env() -> Result<Self, InvalidAddress> {
        let address = env::var("LEASEHOLD_URL")
            .ok()
            .filter(|address| !address.is_empty());
        Self::new(address.as_deref().unwrap_or(DEFAULT_ADDRESS))
    }

    /// Returns a client of the sidecar at `http://HOST:PORT` or `unix:///PATH`.
    pub fn new(address: &str) -> Result<Self, InvalidAddress> {
        Ok(Self {
            sidecar: Sidecar::new(address)?,
        })
    }

    /// Returns a lock to acquire: what is locked has 1 to 512 bytes of text.
    pub fn lock(&self, resource: impl Into<String>) -> Lock {
        self.wanted(Wanted {
            name: resource.into(),
            ..Wanted::default()
        })
    }

    /// Returns the lead of an election, to acquire like a lock. The election's name is a DNS label
    /// of at most 56 characters.
    pub fn lead(&self, election: impl Into<String>) -> Lock {
        self.wanted(Wanted {
            name: election.into(),
            is_lead: true,
            ..Wanted::default()
        })
    }

    /// Runs for an election in the background, term after term.
    ///
    /// `leader` is called in a thread of the election in each term. It does the leader's work, and
    /// must return when [`Lease::check`] fails, and soon after [`Lease::release_requested`] or
    /// [`Election::is_stopping`]. Then the process steps down, and is a candidate again. For work in
    /// an async runtime, call [`lead`](Client::lead) in a loop instead.
    pub fn elect(
        &self,
        election: impl Into<String>,
        leader: impl FnMut(&Lease, &Election) + Send + 'static,
    ) -> Election {
        Election::start(self.lead(election), leader)
    }

    fn wanted(&self, wanted: Wanted) -> Lock {
        Lock {
            sidecar: self.sidecar.clone(),
            wanted,
        }
    }
}

/// A lock to acquire, and how.
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    sidecar: Sidecar,
    wanted: Wanted,
}

impl Lock {
    /// Limits for how long it is waited for while it is held, rounded up to seconds; default:
    /// without a limit. Zero is one attempt. More than seven days are without a limit.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wanted.wait = Some(limit).filter(|limit| *limit <= LONGEST_WAIT);
        self
    }

    /// Holds it by renewals: it is free after this silence, rounded up to seconds, and its lease
    /// survives a restart of the sidecar. Default: by a connection, and it is free when the process
    /// ends. A lead is always held by a connection.
    pub fn ttl(mut self, silence: Duration) -> Self {
        self.wanted.ttl = Some(silence);
        self
    }

    /// Sets the holder's name that others see; default: the pod's name.
    pub fn owner_id(mut self, name: impl Into<String>) -> Self {
        self.wanted.owner_id = Some(name.into());
        self
    }

    /// Sets what is shown with the holder.
    pub fn metadata(mut self, metadata: BTreeMap<String, String>) -> Self {
        self.wanted.metadata = metadata;
        self
    }

    /// As a candidate, gets the lead before those that are not preferred. It does nothing for a lock.
    pub fn preferred(mut self) -> Self {
        self.wanted.is_preferred = true;
        self
    }

    /// Acquires it. Dropping the future leaves nothing held. It works in every runtime.
    pub async fn acquire(self) -> Result<Lease, Error> {
        self.start().result.await.unwrap_or_else(|_| Err(left()))
    }

    /// [`acquire`](Lock::acquire) for code without a runtime. It panics inside of one.
    pub fn acquire_blocking(self) -> Result<Lease, Error> {
        self.start()
            .result
            .blocking_recv()
            .unwrap_or_else(|_| Err(left()))
    }

    /// Runs work while it holds the lock, and releases the lock afterwards.
    ///
    /// When the lock is lost, the work's future is dropped, and this returns [`Error::Lost`]. It
    /// also does if the loss is noticed only at the end.
    pub async fn run<T, E: From<Error>>(
        self,
        work: impl AsyncFnOnce(&Lease) -> Result<T, E>,
    ) -> Result<T, E> {
        let lease = self.acquire().await?;
        let result = tokio::select! {
            biased;
            lost = lease.lost() => return Err(lost.into()),
            result = work(&lease) => result,
        };
        let released = lease.release().await;
        // The work's own error says more.
        let value = result?;
        released?;
        Ok(value)
    }

    /// Begins to acquire it.
    pub(crate) fn start(self) -> Pending {
        let (mut sender, result) = oneshot::channel();
        let (leave, left) = oneshot::channel::<()>();
        let Self { sidecar, wanted } = self;
        engine::spawn(async move {
            let mut renewal = wanted.ttl.filter(|_| !wanted.is_lead).map(Renewal::new);
            let mut acquisition = Acquisition::new(sidecar, wanted);
            tokio::select! {
                acquired = acquisition.run(&mut renewal) => {
                    // If the caller has left, this drops the lease.
                    let _left = sender.send(acquired);
                }
                () = sender.closed() => {}
                Ok(()) = left => {}
            }
        });
        Pending { result, leave }
    }
}

impl IntoFuture for Lock {
    type Output = Result<Lease, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// An acquisition under way.
pub(crate) struct Pending {
    pub(crate) result: oneshot::Receiver<Result<Lease, Error>>,
    /// Sending to it ends the acquisition.
    pub(crate) leave: oneshot::Sender<()>,
}

fn left() -> Error {
    Error::Unavailable {
        code: "left".into(),
        detail: "the acquisition was ended".into(),
    }
}
