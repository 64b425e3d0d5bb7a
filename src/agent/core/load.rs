//! How much the agent has to do, as its bounds, its stop and the idle session count it.

use crate::protocol::time::Moment;

use super::Core;

/// Returns how many leases, callers and releases there are. The bound on leases counts them.
pub(in crate::agent) fn load(core: &Core) -> usize {
    core.own.len() + core.acquiring.len() + core.releases.len()
}

/// Returns how many of them remain if only promised leases do: these, and the grants that are not
/// released before an earlier process' promises have passed.
pub(in crate::agent) fn left_at_stop(core: &Core) -> usize {
    core.own.len() + core.releases.held_back()
}

/// Returns since when nothing needs the session; `None` if a lease, a warm grant, a caller or a release
/// does.
pub(in crate::agent) fn idle_since(core: &Core) -> Option<Moment> {
    let is_idle = load(core) == 0 && core.own.warm_len() == 0;
    is_idle.then_some(core.own.idle_since.max(core.acquiring.idle_since))
}
