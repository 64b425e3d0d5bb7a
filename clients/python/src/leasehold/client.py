"""The sidecar that an app talks to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from ._acquire import Wanted
from ._elect import Election
from ._engine import Engine
from ._hooks import Hooks, Observer
from ._lease import Lease
from ._lock import Lock
from ._wire import Address

DEFAULT_URL = "http://127.0.0.1:7373"


class Client:
    """A sidecar, or `leasehold dev`. One is enough for a process; it may be shared by threads, by
    event loops and after a fork. Its thread starts with the first lock; hooks have one of their
    own from the first loss."""

    def __init__(self, url: str | None = None, *, hooks: Hooks | None = None) -> None:
        """`url` is `http://HOST:PORT`, or `unix:///PATH`; default: LEASEHOLD_URL, which an injected
        pod has, or http://127.0.0.1:7373. `hooks` is called for metrics and traces.

        Raises ValueError with what to correct.
        """
        url = url or os.environ.get("LEASEHOLD_URL") or DEFAULT_URL
        self._engine = Engine(Address.parse(url), Observer(hooks))

    def lock(
        self,
        resource: str,
        *,
        wait: float | None = None,
        ttl: int | None = None,
        owner_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Lock:
        """Returns a lock to acquire.

        resource: what to lock; 1 to 512 bytes of text.
        wait: seconds to wait while it is held, rounded up. Default: without a limit. 0 is one try.
        ttl: None holds the lock by a connection, and it is free when the process ends. A number (1
            to 86,400 seconds) holds it by renewals, and it is free after that silence. Such a lease
            survives a restart of the sidecar, and a process can have 10,000 instead of 512.
        owner_id, metadata: shown to other callers and in kubectl.
        """
        return Lock(self._engine, Wanted(resource, wait, owner_id, metadata, ttl))

    def lead(
        self,
        election: str,
        *,
        owner_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        preferred: bool = False,
    ) -> Lock:
        """Returns the lead of an election, to acquire like a lock: `with` waits until this process
        leads, and its end steps down.

        election: a DNS label of at most 56 characters.
        preferred: gets the lead before candidates that are not preferred.
        """
        wanted = Wanted(election, None, owner_id, metadata, is_lead=True, is_preferred=preferred)
        return Lock(self._engine, wanted)

    def elect(
        self,
        election: str,
        leader: Callable[[Lease], None] | None = None,
        *,
        owner_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        preferred: bool = False,
    ) -> Election:
        """Runs for an election in the background, term after term, until `stop`.

        leader: called in a thread of the election in each term. It does the leader's work, and must
            return when `lease.lost` is set, and soon after `lease.release_requested`. When it
            returns, the process steps down, and is a
            candidate again. Without it, ask `is_leader()`.
        """
        lead = self.lead(election, owner_id=owner_id, metadata=metadata, preferred=preferred)
        return Election(self._engine, election, lead, leader)
