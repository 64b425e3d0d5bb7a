//! Rights that are removed and restored.

use anyhow::Result;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::DeleteParams;

use super::{Undo, is_refused};
use crate::harness::eventually;
use crate::schedule::Kind;
use crate::world::{LIMIT, World};

impl World {
    pub(super) async fn inject_rights_fault(&mut self, kind: Kind) -> Result<Undo> {
        let (taken, undo) = match kind {
            Kind::TakeOperatorsRights => (
                self.cluster.take_operators_rights().await,
                Undo::GiveOperatorsRights,
            ),
            _ => (self.take_rights().await, Undo::GiveRights),
        };
        Ok(match taken {
            Err(error) if is_refused(&error) => Undo::Failed(format!("{error:#}")),
            // Without an answer, the request may have been executed, or may still be.
            _ => undo,
        })
    }

    async fn take_rights(&self) -> Result<()> {
        let client = self.namespace.client.clone();
        Api::<RoleBinding>::namespaced(client, &self.namespace.name)
            .delete("app-leasehold-sidecar", &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Restores the rights, and retries until that succeeds.
    pub(super) async fn give_rights(&self, undo: &Undo) -> Result<()> {
        eventually("rights to be restored", LIMIT, async || {
            let given = match undo {
                Undo::GiveOperatorsRights => self.cluster.give_operators_rights().await,
                _ => self.namespace.bind_sidecar_role("app").await,
            };
            given.ok()
        })
        .await
    }
}
