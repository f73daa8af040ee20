"""Tensors that are computed from others, whole and in any byte ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrays import weights_of
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.formats.open.opening import open_weights
from weightctl.plan.cast import cast
from weightctl.plan.plan import Plan
from weightctl.split import Cut, Part, part_shape
from weightctl.weights.derived import Derived, DerivedTensor, tensor_of
from weightctl.weights.info import Origin, TensorInfo
from weightctl.weights.steps.numbers import AsFloat32, Constant, Plus, UnitRows
from weightctl.weights.steps.rows import RowOrder, RowRange, StackedEntry
from weightctl.weights.steps.sliced import Sliced, read_part, runs, unfit
from weightctl.weights.steps.stacked import Stacked
from weightctl.weights.steps.transposed import Transposed
from weightctl.weights.tree import Checkpoint
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.dtype import Encoding
    from weightctl.weights.derived import ReadableTensor, Step

    Array = np.ndarray[Any, Any]


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
    (UnitRows(), ["a"], A / np.sqrt(np.square(A).sum(-1, keepdims=True))),
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
@settings(max_examples=40)
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
    wide = np.arange(20 * 150, dtype=np.uint16).view(np.float16).reshape(20, 150)
    source = weights_of({"w": wide}).source
    tensor = DerivedTensor("t", Transposed(), [tensor_of(source, "w")])
    expected = np.ascontiguousarray(wide.T).tobytes()
    for count in (2, 40, 80, 4000):
        pieces = range(0, len(expected), count)
        read = b"".join(bytes_of(tensor, at, min(at + count, len(expected))) for at in pieces)
        assert read == expected


# Parts of tensors, compared with NumPy's selection of the same values and blocks.


# The elements of the arrays are blocks of bytes.
KINDS: dict[str, Any] = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "Q8_0": np.dtype("V34")}
PAGE = 4096


class InMemory:
    """A tensor whose blocks are the entries of an array; `read` has the ranges that were read."""

    def __init__(self, blocks: Array, encoding: Encoding) -> None:
        *rows, last = blocks.shape
        self.info = TensorInfo("w", (*rows, last * encoding.block), encoding)
        self.origin = Origin((self.info,), ())
        self.raw = blocks.tobytes()
        self.read: list[tuple[int, int]] = []

    def read_into(self, start: int, buffer: memoryview, /) -> None:
        self.read.append((start, start + buffer.nbytes))
        buffer[:] = self.raw[start : start + buffer.nbytes]

    def file_range(self) -> None:
        return None


def random_blocks(shape: tuple[int, ...], kind: str) -> Array:
    dtype = np.dtype(KINDS[kind])
    raw = np.random.default_rng(5).bytes(int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(raw, dtype).reshape(shape)


def picked(blocks: Array, part: Part, block: int) -> Array:
    for cut in part:
        unit = block if cut.axis == blocks.ndim - 1 else 1
        indices = [np.arange(start // unit, stop // unit) for start, stop in cut.ranges]
        blocks = blocks.take(np.concatenate(indices), cut.axis)
    return blocks


@st.composite
def cut_tensors(draw: st.DrawFn) -> tuple[InMemory, Part, bytes]:
    """Draw a tensor, a part of it, and the bytes of the part."""
    kind = draw(st.sampled_from([*KINDS]))
    encoding = ENCODINGS[kind]
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    cuts: list[Cut] = []
    for axis, size in enumerate(shape):
        ends = sorted(draw(st.sets(st.integers(0, size), max_size=4)))
        unit = encoding.block if axis == len(shape) - 1 else 1
        ranges = [(start * unit, stop * unit)
                  for start, stop in zip(ends[::2], ends[1::2], strict=False)]  # fmt: skip
        is_cut: bool = draw(st.booleans())
        if ranges and is_cut:
            cuts.append(Cut(axis, tuple(ranges)))
    part = tuple(draw(st.permutations(cuts)))
    blocks = random_blocks(shape, kind)
    return InMemory(blocks, encoding), part, picked(blocks, part, encoding.block).tobytes()


def read(tensor: Any, start: int, stop: int) -> bytes:
    buffer = bytearray(stop - start)
    tensor.read_into(start, memoryview(buffer))
    return bytes(buffer)


@given(cut_tensors())
def test_a_part_has_the_bytes_that_numpy_picks(drawn: tuple[InMemory, Part, bytes]) -> None:
    tensor, part, expected = drawn
    made = DerivedTensor("part", Sliced(part), [tensor])
    assert made.info.encoding == tensor.info.encoding
    assert made.info.nbytes == len(expected)
    assert read(made, 0, len(expected)) == expected


@given(cut_tensors(), st.data())
def test_any_run_of_a_part_is_that_run_of_its_bytes(
    drawn: tuple[InMemory, Part, bytes], data: Any
) -> None:
    tensor, part, expected = drawn
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    assert read(DerivedTensor("part", Sliced(part), [tensor]), start, stop) == expected[start:stop]


@given(cut_tensors(), st.data())
def test_the_runs_of_a_part_are_its_bytes_in_order_and_none_is_twice(
    drawn: tuple[InMemory, Part, bytes], data: Any
) -> None:
    tensor, part, expected = drawn
    start = data.draw(st.integers(0, len(expected)))
    found = [*runs(tensor.info, part, start)]
    assert b"".join(tensor.raw[at : at + size] for at, size in found) == expected[start:]
    assert all(size > 0 for _, size in found) or not part


def test_rows_are_one_run_and_are_read_at_once() -> None:
    tensor = InMemory(random_blocks((64, 8), "F32"), ENCODINGS["F32"])
    part = (Cut(0, ((16, 48),)),)
    assert [*runs(tensor.info, part)] == [(16 * 32, 32 * 32)]
    read(DerivedTensor("part", Sliced(part), [tensor]), 0, 32 * 32)
    assert tensor.read == [(16 * 32, 48 * 32)]


def test_experts_that_stand_apart_are_read_apart_and_nothing_between_them() -> None:
    tensor = InMemory(random_blocks((6, 2048), "F32"), ENCODINGS["F32"])
    part = (Cut(0, ((0, 1), (4, 6))),)
    read(DerivedTensor("part", Sliced(part), [tensor]), 0, 3 * 8192)
    assert tensor.read == [(0, 8192), (4 * 8192, 6 * 8192)]


def test_pieces_on_neighboring_pages_are_read_together() -> None:
    tensor = InMemory(random_blocks((64, 512), "F32"), ENCODINGS["F32"])
    part = (Cut(1, ((0, 256),)),)
    expected = picked(np.frombuffer(tensor.raw, np.float32).reshape(64, 512), part, 1).tobytes()
    assert read(DerivedTensor("part", Sliced(part), [tensor]), 0, len(expected)) == expected
    assert tensor.read == [(0, 64 * 2048 - 1024)]


def test_pieces_with_a_page_or_more_between_them_are_read_apart() -> None:
    tensor = InMemory(random_blocks((4, 2048), "F32"), ENCODINGS["F32"])
    read(DerivedTensor("part", Sliced((Cut(1, ((0, 1024),)),)), [tensor]), 0, 4 * PAGE)
    assert tensor.read == [(row * 2 * PAGE, row * 2 * PAGE + PAGE) for row in range(4)]


def test_not_much_is_held_for_pieces_that_are_read_together() -> None:
    tensor = InMemory(random_blocks((4096, 256), "F32"), ENCODINGS["F32"])
    part = (Cut(1, ((0, 128),)),)
    read(DerivedTensor("part", Sliced(part), [tensor]), 0, 4096 * 512)
    assert len(tensor.read) > 1
    assert max(stop - start for start, stop in tensor.read) <= 1 << 20


def test_only_the_run_that_is_asked_for_is_read() -> None:
    tensor = InMemory(random_blocks((64, 512), "F32"), ENCODINGS["F32"])
    made = DerivedTensor("part", Sliced((Cut(1, ((256, 512),)),)), [tensor])
    read(made, 3 * 1024 + 4, 3 * 1024 + 12)
    assert tensor.read == [(3 * 2048 + 1024 + 4, 3 * 2048 + 1024 + 12)]


def test_a_part_without_cuts_is_the_whole() -> None:
    info = TensorInfo("w", (), ENCODINGS["F32"])
    assert [*runs(info, ())] == [(0, 4)]
    got = bytearray(2)
    read_part(info, (), lambda at, out: out.__setitem__(slice(None), b"wxyz"[at : at + len(out)]),
              1, memoryview(got))  # fmt: skip
    assert bytes(got) == b"xy"


def test_a_part_of_no_columns_at_all_has_no_bytes() -> None:
    info = TensorInfo("w", (4, 0), ENCODINGS["F32"])
    assert [*runs(info, (Cut(0, ((1, 3),)),))] == []


def test_parts_of_parts_are_parts() -> None:
    blocks = random_blocks((8, 6), "BF16")
    tensor = InMemory(blocks, ENCODINGS["BF16"])
    rows = DerivedTensor("rows", Sliced((Cut(0, ((1, 3), (4, 8))),)), [tensor])
    made = DerivedTensor("both", Sliced((Cut(0, ((1, 4),)), Cut(1, ((2, 5),)))), [rows])
    expected = blocks[[2, 4, 5]][:, 2:5].tobytes()
    assert read(made, 0, len(expected)) == expected
    assert made.origin.steps == (
        "1 to 3, 4 to 8 of axis 0",
        "1 to 4 of axis 0 and 2 to 5 of axis 1",
    )


REFUSED = [
    ("F32", (4, 6), Cut(2, ((0, 1),)), "it has no axis 2"),
    ("F32", (4, 6), Cut(0, ((2, 5),)), "axis 0 has 4 elements, which do not include 2 to 5"),
    (
        "F32",
        (4, 6),
        Cut(0, ((0, 1), (3, 3))),
        ("axis 0 has 4 elements, which do not include 0 to 1 and 3 to 3"),
    ),
    ("F32", (), Cut(0, ((0, 1),)), "it has no axis 0"),
    ("Q8_0", (4, 64), Cut(1, ((0, 40),)), "0 to 40 of axis 1 would split blocks of 32 elements"),
    ("Q8_0", (3, 48, 1), Cut(0, ((0, 1),)), "its rows are not whole blocks of 32 elements"),
]


@pytest.mark.parametrize(("kind", "shape", "cut", "says"), REFUSED)
def test_what_is_not_a_part_of_a_tensor_says_why(
    kind: str, shape: tuple[int, ...], cut: Cut, says: str
) -> None:
    tensor = InMemory(random_blocks((1,), kind), ENCODINGS[kind])
    tensor.info = TensorInfo("w", shape, ENCODINGS[kind])
    assert unfit(tensor.info, (cut,)) == says
    with pytest.raises(ConversionError) as refusal:
        DerivedTensor("part", Sliced((cut,)), [tensor])
    assert refusal.value.message == (
        f"`w`, stored as {kind} of shape {list(shape)}, cannot be split: {says}"
    )


@given(cut_tensors())
def test_what_is_a_part_is_found_to_be_one(drawn: tuple[InMemory, Part, bytes]) -> None:
    tensor, part, _ = drawn
    assert unfit(tensor.info, part) == ""
    assert Sliced(part).infer([tensor.info])[0] == part_shape(tensor.info.shape, part)
