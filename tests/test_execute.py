"""The executor writes the same bytes, however it divides the work."""

from __future__ import annotations

from dataclasses import replace
from threading import Thread, active_count
from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import stored, weights_of
from executing import execute
from llama_cpp import ggml_quantize
from weightctl import Plan, WeightData, open_weights
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.plan.cast import cast
from weightctl.storage.base import FileRange
from weightctl.weights.from_arrays import as_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.codecs.loss import Loss
    from weightctl.plan.plan import Item

RANDOM = np.random.default_rng(3)
ROWS = RANDOM.standard_normal((14, 1024), np.float32)
# More than can be made without a thread.
LARGE = RANDOM.standard_normal((100, 1024), np.float32)


def plan_for(rows: np.ndarray, encoding: str) -> Plan:
    weights = as_checkpoint({"weight": WeightData.from_numpy(rows, "weight")})
    return cast(Plan.copy(weights, "gguf"), ENCODINGS[encoding])


def run(plan: Plan, **options: object) -> bytes:
    order = tuple(item.info for item in plan.items)
    return b"".join(bytes(piece) for _, piece in execute(plan, order, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", ["F32", "F16", "Q8_0", "Q5_0", "Q4_K"])
def test_bytes_do_not_depend_on_threads_or_memory(encoding: str) -> None:
    plan = plan_for(ROWS, encoding)
    whole = run(plan)
    assert len(whole) == ENCODINGS[encoding].nbytes(ROWS.shape)
    for threads in (1, 2, 5):
        for memory in (1, 100_000, 1 << 30):
            assert run(plan, threads=threads, memory=memory) == whole


def weighted(rows: np.ndarray, encoding: str, importance: np.ndarray) -> Plan:
    plan = plan_for(rows, encoding)
    item: Item = replace(plan.items[0], importance=importance)
    return plan.with_items((item,))


@pytest.mark.parametrize("encoding", ["Q5_0", "Q4_K"])
def test_importance_weights_the_search_as_in_ggml(encoding: str) -> None:
    importance = RANDOM.uniform(0.1, 9, (1, ROWS.shape[1])).astype(np.float32)
    made = run(weighted(ROWS, encoding, importance), memory=1)
    assert made == ggml_quantize(encoding, ROWS, importance[0]).tobytes()
    assert made != run(plan_for(ROWS, encoding))


def test_each_matrix_of_a_tensor_has_its_own_importance() -> None:
    experts = ROWS[:12].reshape(2, 2, 3, 1024)
    importance = RANDOM.uniform(0.1, 9, (4, 1024)).astype(np.float32)
    plan = weighted(experts, "Q5_0", importance)
    expected = b"".join(
        ggml_quantize("Q5_0", matrix, weights).tobytes()
        for matrix, weights in zip(experts.reshape(4, 3, 1024), importance, strict=True)
    )
    for threads in (1, 5):
        for memory in (1, 1 << 30):
            assert run(plan, threads=threads, memory=memory) == expected


def test_matrices_may_share_their_importance() -> None:
    importance = RANDOM.uniform(0.1, 9, (1, 1024)).astype(np.float32)
    experts = ROWS[:12].reshape(4, 3, 1024)
    alone = run(weighted(experts, "Q5_0", importance))
    assert alone == run(weighted(experts, "Q5_0", importance.repeat(4, axis=0)))


@pytest.mark.parametrize("shape", [(1024,), (2, 1024), (1, 512)])
def test_importance_of_another_tensor_is_refused(shape: tuple[int, ...]) -> None:
    plan = weighted(ROWS[:12].reshape(4, 3, 1024), "Q5_0", np.ones(shape, np.float32))
    with pytest.raises(ConversionError, match=r"`weight` has importance of shape .*\(4, 1024\)"):
        run(plan)


@pytest.mark.parametrize("shape", [(0, 64), (4, 0)])
def test_a_tensor_without_elements_needs_no_importance(shape: tuple[int, int]) -> None:
    importance = np.ones((1, shape[1]), np.float32)
    assert run(weighted(np.zeros(shape, np.float32), "Q8_0", importance)) == b""


def start_only(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the system refuse more threads than this, as it does without memory."""
    starts: list[Thread] = []
    real = Thread.start

    def start(thread: Thread) -> None:
        starts.append(thread)
        if len(starts) > count:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(Thread, "start", start)


def test_where_few_threads_can_start_they_do_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for(ROWS, "Q8_0")
    whole = run(plan)
    start_only(1, monkeypatch)
    assert run(plan, threads=8, memory=1 << 20) == whole


def test_where_no_thread_can_start_it_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    start_only(0, monkeypatch)
    with pytest.raises(ConversionError, match="cannot start a thread") as caught:
        run(plan_for(LARGE, "Q8_0"), threads=8)
    assert "-j 2" in caught.value.hint


def test_memory_that_there_is_not_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    plan = plan_for(LARGE, "Q8_0")
    monkeypatch.setattr(plan.source, "read_into", refuse)
    with pytest.raises(ConversionError, match="not enough memory for 8 threads") as caught:
        run(plan, threads=8)
    assert "-j 2" in caught.value.hint


def test_small_tensors_need_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {f"layers.{number}.weight": ROWS[number * 2 :][:2] for number in range(7)}
    plan = cast(Plan.copy(weights_of(arrays), "gguf"), ENCODINGS["Q8_0"])
    whole = run(plan_for(ROWS, "Q8_0"))
    start_only(0, monkeypatch)
    assert run(plan, threads=8) == whole


@pytest.mark.parametrize("threads", [1, 5])
def test_large_and_small_tensors_keep_their_order(threads: int) -> None:
    arrays = {
        f"layers.{number}.weight": LARGE if number % 40 == 7 else ROWS[number % 12 :][:2]
        for number in range(200)
    }
    plan = cast(Plan.copy(weights_of(arrays), "gguf"), ENCODINGS["Q8_0"])
    each = {id(rows): run(plan_for(rows, "Q8_0")) for rows in arrays.values()}
    assert run(plan, threads=threads) == b"".join(each[id(rows)] for rows in arrays.values())


def test_no_thread_outlives_what_was_asked_for(tmp_path: Path) -> None:
    path = stored(tmp_path / "model.safetensors", weight=LARGE)
    plan = cast(Plan.copy(open_weights(path), "gguf"), ENCODINGS["Q8_0"])
    before = active_count()
    pieces = execute(plan, tuple(item.info for item in plan.items), threads=5, memory=1 << 21)
    next(pieces)
    assert active_count() > before
    pieces.close()
    assert active_count() == before


def test_what_is_copied_is_read_piece_by_piece_or_named_as_a_range_of_its_file(
    tmp_path: Path,
) -> None:
    rows = RANDOM.standard_normal((3000, 1024), np.float32)
    path = stored(tmp_path / "model.safetensors", weight=rows)
    plan = Plan.copy(open_weights(path), "gguf")
    assert run(plan) == rows.tobytes()
    order = tuple(item.info for item in plan.items)
    (span,) = [piece for _, piece in execute(plan, order, ranges=True, task_bytes=1 << 30)]
    assert isinstance(span, FileRange)
    assert path.read_bytes()[span.offset :][: span.nbytes] == rows.tobytes()


def test_memory_and_what_is_converted_are_not_ranges_of_a_file(tmp_path: Path) -> None:
    path = stored(tmp_path / "model.safetensors", weight=ROWS)
    for plan in (
        Plan.copy(weights_of({"weight": ROWS}), "gguf"),
        cast(Plan.copy(open_weights(path), "gguf"), ENCODINGS["F16"]),
    ):
        order = tuple(item.info for item in plan.items)
        for _, piece in execute(plan, order, ranges=True):
            assert isinstance(piece, memoryview)


def test_pieces_come_in_the_order_asked_for() -> None:
    tensors = {
        name: WeightData.from_numpy(np.full((64, 64), number, np.float32), name)
        for number, name in enumerate("abc")
    }
    plan = Plan.copy(as_checkpoint(tensors), "gguf")
    infos = {item.info.name: item.info for item in plan.items}
    order = tuple(infos[name] for name in "cab")
    assert [info.name for info, _ in execute(plan, order)] == ["c", "a", "b"]


def test_the_element_that_blocks_cannot_hold_is_named() -> None:
    rows = np.zeros((600, 1024), np.float32)
    rows[599, 1000] = -np.inf
    with pytest.raises(
        ConversionError, match=rf"`weight` has -inf at element {599 * 1024 + 1000},"
    ):
        run(plan_for(rows, "Q8_0"))


@pytest.mark.parametrize("encoding", ["Q8_0", "Q5_0", "Q4_K"])
def test_a_number_too_large_for_the_scale_of_its_block_is_named(encoding: str) -> None:
    rows = np.ones((4, 256), np.float32)
    rows[2, 5] = 3e38
    with pytest.raises(ConversionError, match=rf"has 3e\+38 at element {2 * 256 + 5}"):
        run(plan_for(rows, encoding))


def test_large_numbers_that_fit_are_not_an_error() -> None:
    rows = np.ones((4, 256), np.float32)
    rows[2, 5] = 1e6
    assert len(run(plan_for(rows, "Q8_0"))) == ENCODINGS["Q8_0"].nbytes(rows.shape)


def test_overflows_are_counted_by_tensor() -> None:
    rows = np.ones((600, 1024), np.float32)
    rows[::100, 3] = 1e9
    losses: dict[str, Loss] = {}
    plan = plan_for(rows, "F16")
    order = tuple(item.info for item in plan.items)
    for _ in execute(plan, order, losses=losses):
        pass
    assert losses["weight"].overflows == 6
