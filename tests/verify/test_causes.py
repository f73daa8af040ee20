"""A change of a tensor is identified by applying it to the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from arrays import stored
from weightctl import Plan, WeightData
from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.verify import Request, Subject
from weightctl.verify.checks.values import check
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from weightctl.verify import Problem

    Arrays = dict[str, Any]

RANDOM = np.random.default_rng(8)


def layer(number: int) -> Arrays:
    """Return the weights of a layer of no known family."""
    sizes = {"q": (64, 64), "down": (64, 128)}
    return {
        f"layers.{number}.{part}.weight": RANDOM.normal(0, 0.02, shape).astype(np.float32)
        for part, shape in sizes.items()
    } | {f"layers.{number}.norm.weight": RANDOM.uniform(0.5, 1.5, 64).astype(np.float32)}


HEALTHY = {name: array for number in range(4) for name, array in layer(number).items()}
Q, DOWN, NORM = (f"layers.1.{part}.weight" for part in ("q", "down", "norm"))


def problems_of(tmp_path: Path, changes: Arrays) -> tuple[Problem, ...]:
    own = stored(tmp_path / "own.safetensors", **(HEALTHY | changes))
    reference = stored(tmp_path / "reference.safetensors", **HEALTHY)
    return check(Request(subject=Subject(own), reference=Subject(reference))).problems


def _turned(array: Any) -> Any:
    return array.T.copy()


def _zeroed(array: Any) -> Any:
    return array * 0


def _row_wiped(array: Any) -> Any:
    array[5] = 0
    return array


def _halved(array: Any) -> Any:
    return array / 2


def _a_third_larger(array: Any) -> Any:
    return array * np.float32(4 / 3)


def _one_huge(array: Any) -> Any:
    array[7, 9] = 1e12
    return array


def _negated(array: Any) -> Any:
    return -array


def _shifted(array: Any) -> Any:
    return np.roll(array, 1, 0)


def _less_one(array: Any) -> Any:
    return array - 1


def _more_one(array: Any) -> Any:
    return array + 1


def _of_layer_3(_: Any) -> Any:
    return HEALTHY["layers.3.down.weight"]


@pytest.mark.parametrize(
    ("name", "change", "cause", "text"),
    [
        (Q, _turned, "transposed", "rows and columns are swapped"),
        (Q, _zeroed, "zeroed", "all its values are 0"),
        (Q, _row_wiped, "rows_lost", "row 5 is zeros"),
        (Q, _halved, "scaled", "0.5 times"),
        (Q, _negated, "scaled", "-1 times"),
        (Q, _a_third_larger, "scaled", "1.33 times"),
        (Q, _shifted, "shifted", "after"),
        (NORM, _less_one, "norm_offset", "1 too small"),
        (NORM, _more_one, "norm_offset", "1 too large"),
        (DOWN, _of_layer_3, "layers_exchanged", "of layer 3"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_mistake_is_named(
    tmp_path: Path,
    name: str,
    change: Callable[[Any], Any],
    cause: str,
    text: str,
    dtype: type,
) -> None:
    changed = change(HEALTHY[name].copy()).astype(dtype)
    (problem,) = problems_of(tmp_path, {name: changed})
    assert problem.where == name
    assert problem.cause is not None
    assert problem.cause.name == cause
    assert text in problem.cause.text


def test_one_huge_number_is_not_a_factor_of_all(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, {Q: _one_huge(HEALTHY[Q].copy())})
    assert problem.cause is None


def test_random_numbers_have_no_cause(tmp_path: Path) -> None:
    other = RANDOM.normal(0, 0.02, (64, 64)).astype(np.float32)
    (problem,) = problems_of(tmp_path, {Q: other})
    assert problem.where == Q
    assert problem.cause is None


def test_many_tensors_with_one_cause_are_told_as_one(tmp_path: Path) -> None:
    zeros = {name: np.zeros_like(array) for name, array in HEALTHY.items()}
    (problem,) = problems_of(tmp_path, zeros)
    assert problem.cause is not None
    assert problem.text.endswith(
        "; in all, 12 tensors differ in this way: q, down, norm of layers 0 to 3"
    )


def test_a_part_that_is_wiped_is_not_a_factor_of_all(tmp_path: Path) -> None:
    data = WeightData.from_numpy(HEALTHY[DOWN], DOWN)
    kind = ENCODINGS["Q4_0"]
    raw = transcode(HEALTHY[DOWN].view(np.uint8), ENCODINGS["F32"], kind).raw.copy().reshape(-1)
    raw[90:360] = 0  # part of one row, and the next three
    blocks = WeightData.stored(data.info._replace(encoding=kind), memoryview(raw.tobytes()))
    own = tmp_path / "own.gguf"
    save(Plan.copy(as_checkpoint({DOWN: blocks}), "gguf"), own)
    reference = stored(tmp_path / "reference.safetensors", **{DOWN: HEALTHY[DOWN]})
    (problem,) = check(Request(subject=Subject(own), reference=Subject(reference))).problems
    assert problem.cause is not None
    assert problem.cause.name == "rows_lost"
