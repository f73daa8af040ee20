"""Where values begin that `load_state_dict` is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from each import each
from runs import run
from small_modules import Scale, Stack, random_values, refusal
from weightctl.dtype import DType
from weightctl.errors import StateDictError
from weightctl.graph import Weight
from weightctl.nn import Module
from weightctl.weights import Buffer

Array = np.ndarray[Any, Any]


class Empty(Module):
    """One weight without elements."""

    def __init__(self) -> None:
        self.weight = Weight("weight", DType.float32, (0, 4))


def off_by_one(count: int, dtype: type = np.float32) -> Array:
    """Zeros that start one byte behind a multiple of 64."""
    memory = np.zeros(count * np.dtype(dtype).itemsize + 128, np.uint8)
    start = -memory.ctypes.data % 64 + 1
    return memory[start : start + count * np.dtype(dtype).itemsize].view(dtype)


def test_an_unaligned_array_is_copied_when_a_graph_runs() -> None:
    value = off_by_one(4)
    value[:] = (1, 2, 3, 4)
    scale = Scale()
    scale.load_state_dict({"weight": value})
    assert run(scale, np.ones((1, 4), np.float32)).tolist() == [[1, 2, 3, 4]]


def test_an_unaligned_array_is_an_error_where_an_alignment_is_asked_for() -> None:
    said = refusal(Scale(), {"weight": off_by_one(4)}, weight_alignment=4)
    assert "`weight` is not aligned: its memory address is not a multiple of 4 bytes" in said
    assert "leave `weight_alignment` out" in said


def test_weight_alignment_overrides_that_of_dtypes_and_is_set_on_all_weights() -> None:
    stack = Stack(1)
    given = random_values(stack)
    given["head.weight"] = off_by_one(4)
    stack.load_state_dict(given, weight_alignment=1)
    assert {weight.align for weight in stack.raw_state_dict().values()} == {1}


def test_weight_alignment_may_be_stricter_than_dtypes() -> None:
    value = off_by_one(8)[3:]
    said = refusal(Scale(5), {"weight": value}, weight_alignment=64)
    assert "is not aligned: its memory address is not a multiple of 64 bytes" in said


def test_a_weight_has_an_alignment_of_its_own() -> None:
    scale = Scale(8)
    scale.weight.align = 64
    aligned = scale.state_dict()["weight"]
    scale.load_state_dict({"weight": aligned})
    half = Scale(4)
    half.weight.align = 64
    half.load_state_dict({"weight": np.asarray(aligned)[4:]})
    assert half.weight.align == 64


@each("alignment", [0, -4, 3])
def test_an_alignment_is_a_power_of_two(alignment: int) -> None:
    said = refusal(Scale(), random_values(Scale()), weight_alignment=alignment)
    assert f"weight_alignment {alignment} is not a power of two up to" in said


def test_an_empty_value_starts_anywhere() -> None:
    module = Empty()
    module.load_state_dict({"weight": np.zeros((0, 4), np.float32)})
    module.load_state_dict({"weight": Buffer.from_numpy(np.zeros((0, 4), np.float32))})


@each("alignment", ["4", 4.0, True])
def test_an_alignment_is_a_whole_number(alignment: Any) -> None:
    with pytest.raises(
        StateDictError, match=f"weight_alignment {alignment!r} is not a power of two up to"
    ):
        Scale().load_state_dict({}, weight_alignment=alignment, strict=False)
