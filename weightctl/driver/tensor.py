"""Arrays, under the documented import path `driver.tensor`."""

from __future__ import annotations

from weightctl.driver import Tensor
from weightctl.weights.dlpack import DLPackArray

__all__ = ["DLPackArray", "Tensor"]
