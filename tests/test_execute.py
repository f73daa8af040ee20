"""The executor gives the same bytes however it cuts the work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from oracles import ggml_quantize
from weightctl import Plan, WeightData, Weights
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.execute import execute
from weightctl.transforms.cast import cast

if TYPE_CHECKING:
    from weightctl.codecs.loss import Loss
    from weightctl.plan import Item

RANDOM = np.random.default_rng(3)
ROWS = RANDOM.standard_normal((14, 1024), np.float32)


def plan_for(rows: np.ndarray, encoding: str) -> Plan:
    weights = Weights.from_data({"weight": WeightData.from_numpy(rows, "weight")})
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


@pytest.mark.parametrize("encoding", ["Q5_0", "Q4_K"])
def test_importance_weights_the_search_as_in_ggml(encoding: str) -> None:
    importance = RANDOM.uniform(0.1, 9, ROWS.shape[1]).astype(np.float32)
    plan = plan_for(ROWS, encoding)
    item: Item = replace(plan.items[0], importance=importance)
    weighted = run(plan.with_items((item,)), memory=1)
    assert weighted == ggml_quantize(encoding, ROWS, importance).tobytes()
    assert weighted != run(plan)


def test_pieces_come_in_the_order_asked_for() -> None:
    tensors = {
        name: WeightData.from_numpy(np.full((64, 64), number, np.float32), name)
        for number, name in enumerate("abc")
    }
    plan = Plan.copy(Weights.from_data(tensors), "gguf")
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


def test_large_numbers_that_fit_are_no_error() -> None:
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
