"""What tests need that run on a graphics processor: a mark, which also tells why they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lazy import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def on_a_gpu(test: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a test that needs a graphics processor."""
    reason = "torch finds no graphics processor"
    skipped = pytest.mark.skipif(not torch.cuda.is_available(), reason=reason)(test)
    marked: Callable[..., Any] = pytest.mark.cuda(skipped)
    return marked
