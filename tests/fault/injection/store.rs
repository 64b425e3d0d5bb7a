//! The API server and etcd: killed, hung, shut down, compacted, restored.

use std::path::Path;

use anyhow::Result;

use super::Undo;
use crate::harness::eventually;
use crate::history::{Op, OverriddenBy};
use crate::schedule::Kind;
use crate::world::{LIMIT, World};

/// The value that the runbook passes to `--bump-revision`.
const BUMP: u64 = 1_000_000_000;

impl World {
    pub(super) async fn inject_store_fault(&mut self, kind: Kind) -> Result<Undo> {
        let control_plane = self.cluster.control_plane();
        Ok(match kind {
            Kind::KillApiServer => {
                control_plane.kill_api_server().await?;
                Undo::StartApiServer
            }
            Kind::HangApiServer => {
                control_plane.freeze().await?;
                Undo::ThawApiServer
            }
            Kind::RestartApiServer => {
                control_plane.stop_api_server().await?;
                Undo::StartApiServer
            }
            Kind::KillEtcd => {
                control_plane.kill_etcd().await?;
                Undo::StartEtcd
            }
            Kind::HangEtcd => {
                control_plane.freeze_etcd().await?;
                Undo::ThawEtcd
            }
            Kind::RestoreEtcd => match control_plane.snapshot_etcd("backup").await {
                Ok(snapshot) => Undo::Restore(snapshot),
                Err(error) => Undo::Failed(format!("{error:#}")),
            },
            _ => match control_plane.compact_etcd().await {
                Ok(()) => Undo::Nothing("compacted".to_owned()),
                Err(error) => Undo::Failed(format!("{error:#}")),
            },
        })
    }

    /// Waits until requests succeed: the API server may recover a moment later than etcd.
    pub(super) async fn until_answered(&self) -> Result<()> {
        eventually("the API server to answer again", LIMIT, async || {
            self.namespace.all("distributedlocks").await.ok()
        })
        .await?;
        Ok(())
    }

    /// A backup may lack any grant. So of the grants that exist in the meantime only the tokens
    /// count.
    pub(super) async fn restore(&mut self, snapshot: &Path) -> Result<()> {
        let op = Op::overridden(None, OverriddenBy::Restore);
        let operation = self.admin.invoke(op.clone())?;
        let control_plane = self.cluster.control_plane();
        control_plane.restore_etcd(snapshot, Some(BUMP)).await?;
        std::fs::remove_file(snapshot)?;
        self.admin.ok(operation, op)
    }
}
