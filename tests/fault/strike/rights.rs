//! Rights that are taken away from who uses them, and given back.

use anyhow::Result;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::DeleteParams;

use super::Remedy;
use crate::schedule::Kind;
use crate::world::World;

impl World {
    pub(super) async fn strike_rights(&mut self, kind: Kind) -> Result<Remedy> {
        if kind == Kind::TakeOperatorsRights {
            self.cluster.take_operators_rights().await?;
            return Ok(Remedy::GiveOperatorsRights);
        }
        let client = self.namespace.client.clone();
        Api::<RoleBinding>::namespaced(client, &self.namespace.name)
            .delete("app-leasehold-sidecar", &DeleteParams::default())
            .await?;
        Ok(Remedy::GiveRights)
    }
}
