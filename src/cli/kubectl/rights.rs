//! Which rights the commands need, for their help.

/// For locks and sessions.
pub(super) const READ: &str = "Rights: get, list and watch on distributedlocks and locksessions. The ClusterRole \
    leasehold-view has them, and Kubernetes' own view contains it. Without locksessions, whether a holder lives is shown \
    as unknown.";

/// For one lock.
pub(super) const WAIT: &str = "Rights: get, list and watch on distributedlocks. The ClusterRole leasehold-view has them, \
    and Kubernetes' own view contains it.";

/// For sessions, and the operator's.
pub(super) const VERSION: &str = "Rights: list on locksessions; for the operator, list on distributedlocks in all \
    namespaces. The ClusterRole leasehold-view has both. What is missing is shown as unknown.";

/// For locks, sessions, and the pods of their holders.
pub(super) const READ_PODS: &str = "Rights: get and list on distributedlocks and locksessions. The ClusterRole \
    leasehold-view has them, and Kubernetes' own view contains it. Without get on pods and nodes, and list on \
    distributedlocks in all namespaces (to find the operator), these are shown as unknown.";

/// For locks and their Events.
pub(super) const READ_EVENTS: &str = "Rights: get on distributedlocks, list on events. Kubernetes' own ClusterRole view \
    has them.";

/// For the page.
pub(super) const PAGE: &str = "Rights: list and watch on distributedlocks and locksessions, as for list; for one lock those \
    of describe, and for a release those of release. What is missing is named on the page.";

/// For release requests.
pub(super) const RELEASE: &str = "Rights: get, list, watch, patch and force-release on distributedlocks: the ClusterRole \
    leasehold-lock-admin. To see also the holder's session and pod: Kubernetes' own view.";

/// For a lock of the user's own.
pub(super) const HOLD: &str = "Rights: those of a sidecar, in the ClusterRole leasehold-sidecar. Bind it to your user with a \
    RoleBinding in the namespace. Exit codes: those of leasehold exec.";

/// For a guard of an object.
pub(super) const FENCE: &str = "Rights: get and patch on the object, get and create on distributedlocks; in the whole cluster, \
    get on validatingadmissionpolicies, and get, create and patch on validatingadmissionpolicybindings. Kubernetes' own \
    cluster-admin has them.";

/// For what needs no cluster.
pub(super) const NONE: &str = "Rights: none. It sends no request.";
