//! The rotator's ports in memory, with injectable faults.

use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use futures::StreamExt as _;
use leasehold::protocol::token::Revision;
use leasehold::store::certificates::{CertificateStore, Changes, TlsFiles, TrustStore};
use leasehold::store::{Original, StoreError, Stored};
use tokio::sync::broadcast;

/// A fault of the next write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is applied, and the answer is lost.
    LostAnswer,
    /// It is not applied, and the answer is lost.
    LostRequest,
    /// The right to write is missing.
    Denied,
}

/// The Secret and the configuration of one cluster.
#[derive(Clone)]
pub(crate) struct World(Arc<Shared>);

struct Shared {
    inside: Mutex<Inside>,
    changed: broadcast::Sender<()>,
}

#[derive(Default)]
pub(crate) struct Inside {
    revision: u64,
    pub(crate) secret: Option<(u64, TlsFiles)>,
    pub(crate) bundles: Option<(u64, Vec<Vec<u8>>)>,
    /// The fault of writes to the Secret.
    pub(crate) fault: Option<Fault>,
    /// All files that the Secret ever contained.
    pub(crate) past: Vec<TlsFiles>,
    pub(crate) secret_writes: usize,
    pub(crate) trust_writes: usize,
    /// Writes to the configuration are refused.
    pub(crate) trust_denied: bool,
}

impl World {
    /// A world with a configuration of this many webhooks that trust no authority.
    pub(crate) fn new(webhooks: usize) -> Self {
        let inside = Inside {
            bundles: Some((0, vec![Vec::new(); webhooks])),
            ..Inside::default()
        };
        Self(Arc::new(Shared {
            inside: Mutex::new(inside),
            changed: broadcast::channel(16).0,
        }))
    }

    pub(crate) fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.inside.lock().unwrap()
    }

    /// Changes the stored objects without the rotators.
    pub(crate) fn edit(&self, with: impl FnOnce(&mut Inside)) {
        let mut inside = self.inside();
        inside.revision += 1;
        with(&mut inside);
        let revision = inside.revision;
        if let Some((version, _)) = &mut inside.secret {
            *version = revision;
        }
        if let Some((version, _)) = &mut inside.bundles {
            *version = revision;
        }
        drop(inside);
        self.tell();
    }

    fn tell(&self) {
        let _nobody_listens = self.0.changed.send(());
    }

    fn changes(&self) -> Changes {
        let told = self.0.changed.subscribe();
        let told = futures::stream::unfold(told, |mut told| async {
            let _next_or_missed_some = told.recv().await;
            Some(((), told))
        });
        told.boxed()
    }

    fn write_secret(&self, at: Option<u64>, files: &TlsFiles) -> Result<(), StoreError> {
        let mut inside = self.inside();
        inside.secret_writes += 1;
        let unclear = || StoreError::Ambiguous("no answer".to_owned());
        let fault = inside.fault.take();
        match fault {
            Some(Fault::LostRequest) => return Err(unclear()),
            Some(Fault::Denied) => {
                inside.fault = Some(Fault::Denied);
                return Err(StoreError::Denied("secrets is forbidden".to_owned()));
            }
            _ => {}
        }
        if inside.secret.as_ref().map(|(version, _)| *version) != at {
            return Err(StoreError::Conflict);
        }
        inside.revision += 1;
        inside.secret = Some((inside.revision, files.clone()));
        inside.past.push(files.clone());
        drop(inside);
        self.tell();
        match fault {
            Some(Fault::LostAnswer) => Err(unclear()),
            _ => Ok(()),
        }
    }
}

fn stored<T: Clone>(found: Option<&(u64, T)>) -> Option<Stored<T>> {
    found.map(|(version, value)| Stored {
        value: value.clone(),
        version: Revision(*version),
        original: Original::new(()),
    })
}

#[async_trait]
impl CertificateStore for World {
    async fn get(&self) -> Result<Option<Stored<TlsFiles>>, StoreError> {
        // Other tasks run between a read and the write that is based on it.
        tokio::task::yield_now().await;
        Ok(stored(self.inside().secret.as_ref()))
    }

    async fn create(&self, files: &TlsFiles) -> Result<(), StoreError> {
        tokio::task::yield_now().await;
        self.write_secret(None, files)
    }

    async fn update(&self, current: &Stored<TlsFiles>, next: &TlsFiles) -> Result<(), StoreError> {
        tokio::task::yield_now().await;
        self.write_secret(Some(current.version.0), next)
    }

    fn changes(&self) -> Changes {
        Self::changes(self)
    }
}

#[async_trait]
impl TrustStore for World {
    async fn get(&self) -> Result<Option<Stored<Vec<Vec<u8>>>>, StoreError> {
        tokio::task::yield_now().await;
        Ok(stored(self.inside().bundles.as_ref()))
    }

    async fn update(
        &self,
        current: &Stored<Vec<Vec<u8>>>,
        next: &[Option<Vec<u8>>],
    ) -> Result<(), StoreError> {
        tokio::task::yield_now().await;
        let mut inside = self.inside();
        if inside.trust_denied {
            let refused = "mutatingwebhookconfigurations is forbidden";
            return Err(StoreError::Denied(refused.to_owned()));
        }
        if next.iter().all(Option::is_none) {
            return Ok(());
        }
        inside.trust_writes += 1;
        inside.revision += 1;
        let revision = inside.revision;
        let Some((version, bundles)) = &mut inside.bundles else {
            return Err(StoreError::NotFound("no configuration".to_owned()));
        };
        if *version != current.version.0 {
            return Err(StoreError::Conflict);
        }
        *version = revision;
        for (bundle, next) in bundles.iter_mut().zip(next) {
            if let Some(next) = next {
                bundle.clone_from(next);
            }
        }
        drop(inside);
        self.tell();
        Ok(())
    }

    fn changes(&self) -> Changes {
        Self::changes(self)
    }
}
