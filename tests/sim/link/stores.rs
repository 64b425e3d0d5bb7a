//! The ports of an agent over a link.

use std::time::Duration;

use async_trait::async_trait;
use leasehold::protocol::ids::{Resource, SessionId};
use leasehold::protocol::lock::Lock;
use leasehold::protocol::queue::Waiter;
use leasehold::protocol::session::{RevokeReason, Session};
use leasehold::protocol::token::Revision;
use leasehold::store::{
    LockAtRevision, LockStore, LockWatch, Page, SessionStore, StoreError, Stored,
};

use super::{Link, at_once};

impl Link {
    /// Records the stored lock after a write, in the same step.
    pub(super) fn written(
        &self,
        answer: Result<Stored<Lock>, StoreError>,
    ) -> Result<Stored<Lock>, StoreError> {
        if let Ok(stored) = &answer {
            let resource = &stored.value.resource;
            self.world()
                .stored(&self.0.who, resource, Some(&stored.value));
        }
        answer
    }

    /// A session's own agent wrote it.
    fn session_written(&self, session: &Session, sent: Duration) {
        let now = self.world().now();
        let mut records = self.world().records();
        records.sessions.written(session, sent, now);
    }

    /// Another process revoked a session.
    pub(super) fn session_revoked(&self, session: &Session) {
        let now = self.world().now();
        let verdict = self.world().records().sessions.revoked(session, now);
        self.world().judge(&self.0.who, verdict);
        let reason = session.revoked.as_ref().map(|revoked| &revoked.reason);
        if reason == Some(&RevokeReason::PodEnded) {
            self.world().judge_early_reclaim(&self.0.who, session);
        }
    }
}

#[async_trait]
impl LockStore for Link {
    async fn get(&self, resource: &Resource) -> Result<Option<Stored<Lock>>, StoreError> {
        let resource = resource.clone();
        self.call("get lock", false, move |link| {
            at_once(LockStore::get(link.world().store(), &resource))
        })
        .await
    }

    async fn get_with_revision(&self, resource: &Resource) -> Result<LockAtRevision, StoreError> {
        let resource = resource.clone();
        let looked = self.call("look", false, move |link| {
            at_once(link.world().store().get_with_revision(&resource))
        });
        let looked = looked.await?;
        self.lists(looked.revision);
        Ok(looked)
    }

    async fn list_held_by(&self, session: &SessionId) -> Result<Page<Lock>, StoreError> {
        let session = session.clone();
        let listed = self.call("list held", false, move |link| {
            at_once(link.world().store().list_held_by(&session))
        });
        let listed = listed.await?;
        self.lists(listed.revision);
        Ok(listed)
    }

    async fn watch(&self, session: &SessionId, after: Revision) -> Result<LockWatch, StoreError> {
        let session = session.clone();
        let opened = self.call("watch", false, move |link| {
            at_once(link.world().store().watch(&session, after))
        });
        Ok(self.carry(opened.await?))
    }

    async fn list(&self, limit: u32, next: Option<&str>) -> Result<Page<Lock>, StoreError> {
        let next = next.map(str::to_owned);
        let listed = self.call("list", false, move |link| {
            at_once(link.world().store().list(limit, next.as_deref()))
        });
        let listed = listed.await?;
        self.lists(listed.revision);
        Ok(listed)
    }

    async fn create(&self, resource: &Resource) -> Result<Stored<Lock>, StoreError> {
        let resource = resource.clone();
        self.call("create lock", true, move |link| {
            link.written(at_once(LockStore::create(link.world().store(), &resource)))
        })
        .await
    }

    async fn update(
        &self,
        current: &Stored<Lock>,
        next: &Lock,
    ) -> Result<Stored<Lock>, StoreError> {
        let (current, next, listed) = (current.clone(), next.clone(), self.listed());
        self.call("update lock", true, move |link| {
            link.may_write_lock(&next)?;
            let ended = link.ended_by(&next);
            let store = link.world().store();
            let answer = at_once(LockStore::update(store, &current, &next));
            if answer.is_ok() {
                link.judge_end(&next, ended);
                link.judge_token(&current.value, &next, listed);
            }
            link.written(answer)
        })
        .await
    }

    async fn join(
        &self,
        current: &Stored<Lock>,
        waiter: &Waiter,
    ) -> Result<Stored<Lock>, StoreError> {
        let (current, waiter) = (current.clone(), waiter.clone());
        self.call("join", true, move |link| {
            link.written(at_once(link.world().store().join(&current, &waiter)))
        })
        .await
    }
}

#[async_trait]
impl SessionStore for Link {
    async fn get(&self, id: &SessionId) -> Result<Option<Stored<Session>>, StoreError> {
        let id = id.clone();
        self.call("get session", false, move |link| {
            at_once(SessionStore::get(link.world().store(), &id))
        })
        .await
    }

    async fn create(&self, session: &Session) -> Result<Stored<Session>, StoreError> {
        let (session, sent) = (session.clone(), self.world().now());
        self.call("create session", true, move |link| {
            let answer = at_once(SessionStore::create(link.world().store(), &session));
            if answer.is_ok() {
                link.session_written(&session, sent);
            }
            answer
        })
        .await
    }

    async fn update(
        &self,
        current: &Stored<Session>,
        next: &Session,
    ) -> Result<Stored<Session>, StoreError> {
        let (current, next, sent) = (current.clone(), next.clone(), self.world().now());
        let name = if next.revoked.is_some() {
            "revoke"
        } else {
            "renew"
        };
        self.call(name, true, move |link| {
            link.may_write_session(&next)?;
            let store = link.world().store();
            let answer = at_once(SessionStore::update(store, &current, &next));
            if answer.is_ok() && *next.pod.name == *link.0.who {
                link.session_written(&next, sent);
            } else if answer.is_ok() {
                link.world().count("session revoked by another");
                link.world()
                    .note(&link.0.who, format_args!("revoked {}", next.id));
                link.session_revoked(&next);
            }
            answer
        })
        .await
    }
}
