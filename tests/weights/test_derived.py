"""Tensors that are computed from others, whole and in any byte ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrays import weights_of
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.formats.open.opening import open_weights
from weightctl.plan.cast import cast
from weightctl.plan.plan import Plan
from weightctl.weights.derived import Derived, DerivedTensor, tensor_of
from weightctl.weights.steps.numbers import AsFloat32, Constant, Plus
from weightctl.weights.steps.rows import RowOrder, RowRange, StackedEntry
from weightctl.weights.steps.stacked import Stacked
from weightctl.weights.steps.transposed import Transposed
from weightctl.weights.tree import Checkpoint
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.weights.derived import ReadableTensor, Step

A = np.random.default_rng(7).normal(size=(12, 5)).astype(np.float32)
B = np.random.default_rng(8).normal(size=(12, 5)).astype(np.float32)
C = np.random.default_rng(9).normal(size=(3, 4, 5)).astype(np.float32)
SHUFFLED = (3, 1, 0, 2, 7, 6, 5, 4, 8, 11, 10, 9)
NUMBERS = np.arange(7, dtype=np.float32)
SOURCE = weights_of({"a": A, "b": B, "c": C, "half": A.astype(np.float16)}).source

# a step, its inputs, and its result
MADE: list[tuple[Step, list[str], NDArray[Any]]] = [
    (RowOrder(SHUFFLED), ["a"], A[list(SHUFFLED)]),
    (RowRange(2, 9), ["a"], A[2:9]),
    (StackedEntry(1), ["c"], C[1]),
    (Stacked("experts", 2), ["a", "b"], np.stack([A, B])),
    (Stacked("parts", 2, 1), ["a", "b"], np.stack([A, B], 1)),
    (Stacked("parts", 2, 2), ["a", "b"], np.stack([A, B], 2)),
    (AsFloat32(), ["half"], A.astype(np.float16).astype(np.float32)),
    (Plus(1.0), ["half"], A.astype(np.float16).astype(np.float32) + 1),
    (Plus(-1.0), ["a"], A - 1),
    (Transposed(), ["a"], A.T),
    (Transposed(), ["half"], A.T.astype(np.float16)),
    (Constant(NUMBERS, "of the config"), [], NUMBERS),
]
IDS = [f"{type(step).__name__}-{'-'.join(names)}" for step, names, _ in MADE]


def made(step: Step, names: list[str]) -> ReadableTensor:
    return DerivedTensor("made", step, [tensor_of(SOURCE, name) for name in names])


def bytes_of(tensor: ReadableTensor, start: int = 0, stop: int | None = None) -> bytes:
    buffer = bytearray((tensor.info.nbytes if stop is None else stop) - start)
    tensor.read_into(start, memoryview(buffer))
    return bytes(buffer)


@pytest.mark.parametrize(("step", "names", "expected"), MADE, ids=IDS)
def test_a_step_makes_the_whole_tensor(
    step: Step, names: list[str], expected: NDArray[Any]
) -> None:
    tensor = made(step, names)
    assert tensor.info.shape == expected.shape
    assert bytes_of(tensor) == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize(("step", "names"), [line[:2] for line in MADE], ids=IDS)
@given(data=st.data())
def test_any_run_is_that_part_of_the_whole(step: Step, names: list[str], data: Any) -> None:
    tensor = made(step, names)
    size = tensor.info.encoding.size
    start = data.draw(st.integers(0, tensor.info.size))
    stop = data.draw(st.integers(start, tensor.info.size))
    whole = bytes_of(tensor)
    assert bytes_of(tensor, start * size, stop * size) == whole[start * size : stop * size]


def test_steps_follow_one_another_and_all_are_reported() -> None:
    entry = DerivedTensor("entry", StackedEntry(2), [tensor_of(SOURCE, "c")])
    tensor = DerivedTensor("made", Transposed(), [DerivedTensor("rows", RowRange(1, 3), [entry])])
    assert bytes_of(tensor) == np.ascontiguousarray(C[2][1:3].T).tobytes()
    assert [source.name for source in tensor.origin.sources] == ["c"]
    assert tensor.origin.steps == ("one entry of a stack", "rows 1 to 3", "transposed")


@pytest.mark.parametrize(
    ("step", "names"),
    [
        (RowOrder((1, 0)), ["a"]),
        (RowRange(3, 13), ["a"]),
        (StackedEntry(3), ["c"]),
        (Stacked(), ["a", "c"]),
        (Stacked(), ["a", "half"]),
        (Stacked(axis=3), ["a", "a"]),
        (Transposed(), ["c"]),
    ],
    ids=str,
)
def test_a_step_that_cannot_be_is_refused_with_the_tensors_name(
    step: Step, names: list[str]
) -> None:
    with pytest.raises(ConversionError, match=rf"`{names[-1]}`"):
        made(step, names)


def test_blocks_move_as_bytes_and_are_never_decoded(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).normal(size=(8, 64)).astype(np.float32)
    plan = cast(Plan.copy(weights_of({"x.weight": numbers}), "gguf"), ENCODINGS["Q8_0"])
    save(plan, tmp_path / "x.gguf")
    tensor = tensor_of(open_weights(tmp_path / "x.gguf").source, "x.weight")
    order = (7, 6, 5, 4, 3, 2, 1, 0)
    moved = DerivedTensor("x", RowOrder(order), [tensor])
    assert moved.info.encoding.name == "Q8_0"
    rows = np.frombuffer(bytes_of(tensor), np.uint8).reshape(8, -1)
    assert bytes_of(moved) == rows[list(order)].tobytes()
    with pytest.raises(ConversionError, match="cannot be transposed"):
        DerivedTensor("x", Transposed(), [tensor])


def test_a_tree_of_made_tensors_lists_saves_and_gives_data_like_any(tmp_path: Path) -> None:
    tensors = {"t.weight": made(Transposed(), ["a"]), "same": tensor_of(SOURCE, "b")}
    tree = Checkpoint(Derived(SOURCE, tensors, {}))
    assert (tree.t.weight.data().to_numpy() == A.T).all()
    assert tree.header.origins["t.weight"].steps == ("transposed",)
    plan = cast(Plan.copy(tree, "safetensors"), ENCODINGS["F16"])
    save(plan, tmp_path / "out.safetensors", memory=4_000_000)
    found = open_weights(tmp_path / "out.safetensors")
    assert (found.t.weight.data().to_numpy() == A.T.astype(np.float16)).all()
    assert (found["same"].data().to_numpy() == B.astype(np.float16)).all()


def test_a_large_matrix_is_turned_in_narrow_bands_as_well_as_in_wide_ones() -> None:
    wide = np.arange(40 * 300, dtype=np.uint16).view(np.float16).reshape(40, 300)
    source = weights_of({"w": wide}).source
    tensor = DerivedTensor("t", Transposed(), [tensor_of(source, "w")])
    expected = np.ascontiguousarray(wide.T).tobytes()
    for count in (2, 80, 160, 8000):
        pieces = range(0, len(expected), count)
        read = b"".join(bytes_of(tensor, at, min(at + count, len(expected))) for at in pieces)
        assert read == expected
