"""What tests need that run on a graphics processor: a mark, which also tells why they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


def on_a_gpu(test: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a test that needs a graphics processor."""
    # A text is evaluated when the test runs, and only then torch is imported.
    condition = "not __import__('torch').cuda.is_available()"
    skipped = pytest.mark.skipif(condition, reason="torch finds no graphics processor")(test)
    marked: Callable[..., Any] = pytest.mark.cuda(skipped)
    return marked
