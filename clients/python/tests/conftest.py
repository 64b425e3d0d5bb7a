"""What the tests share."""

from collections.abc import Iterator

import pytest

from sidecar import Sidecar, serving


@pytest.fixture
def sidecar() -> Iterator[Sidecar]:
    """A sidecar that grants each lock."""
    with serving() as sidecar:
        yield sidecar
