"""An output that stands where a run would put a new one, and what must become of it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from outcomes import KINDS, leftovers, random_weights, standing
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from outcomes import Kind

EACH_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
OLD = b"what was there before"


def old_output(kind: Kind, place: Path, tensors: int) -> None:
    """Write what a model of so many small tensors gives."""
    save(*kind.plan(random_weights(tensors, 8, seed=1), place))


@contextmanager
def untouched(place: Path) -> Generator[None, None, None]:
    """Hold what is done meanwhile to leaving the same files at the place, and nothing temporary."""
    before = standing(place)
    yield
    assert standing(place) == before
    assert leftovers(place) == []
