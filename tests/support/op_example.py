"""What the table of op examples is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from weightctl.graph.types import TensorType

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Example:
    """One run of an op: its inputs, its attributes, and what NumPy (or torch) says comes out.

    `tolerance` is both the absolute and the relative one; 0 asks for equal bits.
    """

    op: str
    inputs: tuple[Array, ...]
    expected: Array | tuple[Array, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tolerance: float = 0.0


@dataclass(frozen=True)
class Inferred:
    """Types that an op takes, with symbolic dimensions, and the types that it says come out."""

    op: str
    inputs: tuple[TensorType, ...]
    expected: TensorType | tuple[TensorType, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Refused:
    """Types that an op does not take, and a part of the error that says so."""

    op: str
    inputs: tuple[TensorType, ...]
    says: str
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
