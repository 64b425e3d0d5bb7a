"""Locks for apps on Kubernetes, held by the Leasehold sidecar of the app's pod.

import leasehold

with leasehold.lock("billing", wait=60) as lease:
    for invoice in invoices:
        lease.check()                      # raises LockLost
        requests.post(url, json=invoice, headers=lease.headers)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ._api import Holder
from ._elect import Election
from ._hooks import Hooks
from ._lease import Lease
from ._lock import Lock
from ._version import __version__
from .client import Client
from .errors import LeaseholdError, LockHeld, LockLost, Refused, Unavailable

__all__ = [
    "Client",
    "Election",
    "Holder",
    "Hooks",
    "Lease",
    "LeaseholdError",
    "Lock",
    "LockHeld",
    "LockLost",
    "Refused",
    "Unavailable",
    "__version__",
    "elect",
    "lead",
    "lock",
]

_client: Client | None = None


def lock(
    resource: str,
    *,
    wait: float | None = None,
    ttl: int | None = None,
    owner_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Lock:
    """`Client.lock` of the sidecar that LEASEHOLD_URL names."""
    return _default().lock(resource, wait=wait, ttl=ttl, owner_id=owner_id, metadata=metadata)


def lead(
    election: str,
    *,
    owner_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
    preferred: bool = False,
) -> Lock:
    """`Client.lead` of the sidecar that LEASEHOLD_URL names."""
    return _default().lead(election, owner_id=owner_id, metadata=metadata, preferred=preferred)


def elect(
    election: str,
    leader: Callable[[Lease], None] | None = None,
    *,
    owner_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
    preferred: bool = False,
) -> Election:
    """`Client.elect` of the sidecar that LEASEHOLD_URL names."""
    return _default().elect(
        election, leader, owner_id=owner_id, metadata=metadata, preferred=preferred
    )


def _default() -> Client:
    global _client
    if _client is None:
        _client = Client()
    return _client
