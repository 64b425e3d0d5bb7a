//! Rights that are taken away from who uses them, and given back.

use anyhow::Result;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::DeleteParams;

use super::{Remedy, is_refused};
use crate::harness::eventually;
use crate::schedule::Kind;
use crate::world::{LIMIT, World};

impl World {
    pub(super) async fn strike_rights(&mut self, kind: Kind) -> Result<Remedy> {
        let (taken, remedy) = match kind {
            Kind::TakeOperatorsRights => (
                self.cluster.take_operators_rights().await,
                Remedy::GiveOperatorsRights,
            ),
            _ => (self.take_rights().await, Remedy::GiveRights),
        };
        Ok(match taken {
            Err(error) if is_refused(&error) => Remedy::Failed(format!("{error:#}")),
            // Without an answer it may have been done, or still be.
            _ => remedy,
        })
    }

    async fn take_rights(&self) -> Result<()> {
        let client = self.namespace.client.clone();
        Api::<RoleBinding>::namespaced(client, &self.namespace.name)
            .delete("app-leasehold-sidecar", &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Gives back what was taken, as often as it takes.
    pub(super) async fn give_rights(&self, remedy: &Remedy) -> Result<()> {
        eventually("rights to be given back", LIMIT, async || {
            let given = match remedy {
                Remedy::GiveOperatorsRights => self.cluster.give_operators_rights().await,
                _ => self.namespace.bind_sidecar_role("app").await,
            };
            given.ok()
        })
        .await
    }
}
