//! The operator's port over a link. Its feeds are late, end early and relist.

use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use leasehold::protocol::ids::Resource;
use leasehold::protocol::lock::Lock;
use leasehold::protocol::session::Session;
use leasehold::protocol::token::Revision;
use leasehold::store::StoreError;
use leasehold::store::embedded::EmbeddedStore;
use leasehold::store::fleet::{
    Feed, FeedEvent, FleetStore, Object, ObjectRef, ObjectVersion, PodReport,
};
use tokio::sync::mpsc;

use super::{Link, at_once};
use crate::network::Way;

impl Link {
    /// Forwards a feed with a delay, and reopens it each time it ends.
    fn follow<T: Send + 'static>(&self, open: fn(&EmbeddedStore) -> Feed<T>) -> Feed<T> {
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(self.clone().follow_on(open, tell));
        let told = futures::stream::unfold(told, |mut told| async {
            let next = told.recv().await?;
            Some((next, told))
        });
        told.boxed()
    }

    async fn follow_on<T: Send + 'static>(
        self,
        open: fn(&EmbeddedStore) -> Feed<T>,
        tell: mpsc::UnboundedSender<FeedEvent<T>>,
    ) {
        loop {
            let mut feed = open(self.world().store());
            let mut is_complete = false;
            let over = tokio::time::sleep(self.watch_lives());
            tokio::pin!(over);
            loop {
                let told = tokio::select! {
                    biased;
                    () = tell.closed() => return,
                    () = &mut over => break,
                    told = feed.next() => told,
                };
                let Some(told) = told else { break };
                // Existing objects arrive immediately; changes are delayed.
                is_complete |= matches!(told, FeedEvent::ListDone);
                if is_complete {
                    tokio::time::sleep(self.watch_delay()).await;
                }
                self.0.network.passes(Way::FromStore, true).await;
                if tell.send(told).is_err() {
                    return;
                }
            }
            self.world().count("feed broke off");
            let broken = StoreError::Unavailable("the connection broke".into());
            if tell.send(FeedEvent::Interrupted(broken)).is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

#[async_trait]
impl FleetStore for Link {
    fn locks(&self) -> Feed<Object<Lock>> {
        self.follow(EmbeddedStore::locks)
    }

    fn sessions(&self) -> Feed<Object<Session>> {
        self.follow(<EmbeddedStore as FleetStore>::sessions)
    }

    fn ended_pods(&self) -> Feed<PodReport> {
        self.follow(EmbeddedStore::ended_pods)
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.call("ask revision", false, |link| {
            at_once(link.world().store().revision())
        })
        .await
    }

    async fn lock(&self, place: &ObjectRef) -> Result<Option<Object<Lock>>, StoreError> {
        let place = place.clone();
        self.call("see lock", false, move |link| {
            at_once(link.world().store().lock(&place))
        })
        .await
    }

    async fn session(&self, place: &ObjectRef) -> Result<Option<Object<Session>>, StoreError> {
        let place = place.clone();
        self.call("see session", false, move |link| {
            at_once(link.world().store().session(&place))
        })
        .await
    }

    async fn pod(&self, place: &ObjectRef) -> Result<Option<PodReport>, StoreError> {
        let place = place.clone();
        self.call("see pod", false, move |link| {
            at_once(link.world().store().pod(&place))
        })
        .await
    }

    async fn update_lock(
        &self,
        current: &Object<Lock>,
        next: &Lock,
    ) -> Result<Object<Lock>, StoreError> {
        let (current, next) = (current.clone(), next.clone());
        self.call("operator: write lock", true, move |link| {
            let ended = link.ended_by(&next);
            let answer = at_once(link.world().store().update_lock(&current, &next));
            if let Ok(placed) = &answer {
                let lock = &placed.stored.value;
                link.judge_end(lock, ended);
                link.world().stored(&link.0.who, &lock.resource, Some(lock));
                link.world().count("operator wrote a lock");
            }
            answer
        })
        .await
    }

    async fn update_session(
        &self,
        current: &Object<Session>,
        next: &Session,
    ) -> Result<Object<Session>, StoreError> {
        let (current, next) = (current.clone(), next.clone());
        self.call("operator: revoke", true, move |link| {
            let answer = at_once(link.world().store().update_session(&current, &next));
            if answer.is_ok() {
                link.world().count("operator revoked a session");
                link.world()
                    .note(&link.0.who, format_args!("revoked {}", next.id));
                link.session_revoked(&next);
            }
            answer
        })
        .await
    }

    async fn delete_lock(&self, current: &ObjectVersion) -> Result<(), StoreError> {
        let current = current.clone();
        self.call("operator: delete lock", true, move |link| {
            let store = link.world().store();
            at_once(FleetStore::delete_lock(store, &current))?;
            link.world().count("operator deleted a lock");
            let resource = Resource::parse(&current.object_ref.name).unwrap();
            link.world().stored(&link.0.who, &resource, None);
            Ok(())
        })
        .await
    }

    async fn delete_session(&self, current: &Object<Session>) -> Result<(), StoreError> {
        let current = current.clone();
        self.call("operator: delete session", true, move |link| {
            let store = link.world().store();
            at_once(FleetStore::delete_session(store, &current))?;
            link.world().count("operator deleted a session");
            let now = link.world().now();
            let id = &current.stored.value.id;
            link.world().records().sessions.gone(id, now);
            Ok(())
        })
        .await
    }
}
