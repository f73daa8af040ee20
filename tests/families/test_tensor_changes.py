"""Every change of a tensor between the conventions is undone by its inverse."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from arrays import weights_of
from each import each
from weightctl.errors import ConversionError
from weightctl.families.changes import (
    MINUS_EXP,
    PLUS_ONE,
    TRANSPOSED,
    LeadingRows,
    RopeRows,
    Rows,
    ScaledQueries,
    Squeezed,
    TurnedHeads,
)
from weightctl.families.decoder import DecoderConfig
from weightctl.families.reshapes import AS_COLUMN, GroupRows, InTurn
from weightctl.families.row_orders import alternate, group_heads, invert
from weightctl.families.scaled_weights import ScaledBy, ScaledRuns
from weightctl.families.tiled_heads import Columns
from weightctl.weights.derived import DerivedTensor, tensor_of
from weightctl.weights.steps.numbers import Plus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.families.changes import Change
    from weightctl.weights.derived import Step

CONFIG: Any = SimpleNamespace(
    heads=6, kv_heads=2, head_dim=4, rope_dimensions=4,
    delta_heads=6, delta_key_heads=2, delta_key_size=1, delta_value_size=4,
)  # fmt: skip
SIZES: Any = {
    "vocabulary": 8, "context": 8, "hidden": 8, "layers": 1, "heads": 2, "kv_heads": 2,
    "head_dim": 4, "intermediate": 8, "norm_epsilon": 1e-6,
}  # fmt: skip
CHANGES: dict[str, tuple[Change, tuple[int, ...], tuple[int, ...]]] = {
    "rows for rotation": (RopeRows("heads"), (24, 3), (24, 3)),
    "rows by head": (Rows(lambda config: group_heads(config.heads, (4,))), (24, 3), (24, 3)),
    "transposed": (TRANSPOSED, (24, 3), (3, 24)),
    "plus one": (PLUS_ONE, (24,), (24,)),
    "minus exp": (MINUS_EXP, (24,), (24,)),
    "as a column": (AS_COLUMN, (24,), (24, 1)),
    "a row for each group": (GroupRows("heads"), (24,), (6, 4)),
    "minus exp as a column": (InTurn(MINUS_EXP, AS_COLUMN), (24,), (24, 1)),
    "squeezed": (Squeezed(1), (24, 1, 3), (24, 3)),
    "squeezed row": (Squeezed(0), (1, 24), (24,)),
    "heads apart": (TurnedHeads(), (24, 3), (6, 4, 3)),
    "heads turned": (TurnedHeads(is_transposed=True), (24, 3), (6, 3, 4)),
    "columns of heads": (Columns(), (3, 24), (3, 24)),
    "leading rows": (LeadingRows(lambda _: 2), (24, 3), (22, 3)),
}


def done(step: Step, array: NDArray[Any]) -> NDArray[Any]:
    tree = weights_of({"x": array})
    made = DerivedTensor("y", step, [tensor_of(tree.source, "x")])
    raw = bytearray(made.info.nbytes)
    # In two parts, as a writer asks for them.
    half = len(raw) // 8 * 4
    made.read_into(0, memoryview(raw)[:half])
    made.read_into(half, memoryview(raw)[half:])
    return np.frombuffer(raw, array.dtype).reshape(made.info.shape)


@each("name", CHANGES)
def test_a_change_to_gguf_is_undone_on_the_way_back(name: str) -> None:
    change, shape, in_gguf = CHANGES[name]
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 64
    if name == "leading rows":
        array[:2] = 0
    to_gguf, to_hugging_face = change.to_gguf(CONFIG), change.to_hugging_face(CONFIG)
    assert to_gguf is not None
    assert to_hugging_face is not None
    there = done(to_gguf, array)
    assert there.shape == in_gguf
    back = done(to_hugging_face, there)
    assert back.shape == shape
    assert np.allclose(back, array, atol=1e-6)


@each("is_norm", [False, True])
def test_weights_of_queries_get_a_scale_that_llama_cpp_does_not_take(is_norm: bool) -> None:
    change = ScaledQueries(lambda fields: fields["head_dim"], is_norm)
    array = np.array([-0.5, 0, 2], np.float32)
    config: Any = DecoderConfig(**SIZES, query_scalar=16)
    step = change.to_gguf(config)
    assert step is not None
    assert done(step, array).tolist() == ((array + is_norm) * 0.5).tolist()
    assert str(step) == ("+1, times 0.5" if is_norm else "times 0.5")
    config = replace(config, query_scalar=4)
    assert change.to_gguf(config) == (Plus(1.0) if is_norm else None)
    assert change.to_hugging_face(config) == (Plus(-1.0) if is_norm else None)


def test_rates_of_state_spaces_are_negative_exponentials() -> None:
    found = done(MINUS_EXP.to_gguf(CONFIG), np.array([0, 1, 2], np.float32))
    assert np.allclose(found, [-1, -np.e, -(np.e**2)])


def test_weights_are_multiplied_by_factors_that_the_config_then_lacks() -> None:
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    by_row = np.array([2, 2, 0.5, 3], np.float32)[:, None]
    scaled = ScaledRuns(lambda _: [(2, 2.0), (1, 0.5), (1, 3.0)])
    step = scaled.to_gguf(CONFIG)
    assert step is not None
    assert done(step, array).tolist() == (array * by_row).tolist()
    assert str(step) == "rows times 2, 0.5, 3"
    for change in (scaled, ScaledBy(lambda _: 2.0)):
        assert change.to_hugging_face(CONFIG) is None
    assert ScaledBy(lambda _: 1.0).to_gguf(CONFIG) is None
    with pytest.raises(ConversionError, match="4 rows are expected"):
        done(step, array[:3])


def test_the_matrix_of_each_head_is_turned() -> None:
    array = np.arange(72, dtype=np.float32).reshape(24, 3)
    found = done(TurnedHeads(is_transposed=True).to_gguf(CONFIG), array)
    assert (found == array.reshape(6, 4, 3).swapaxes(1, 2)).all()


def test_the_first_head_of_each_key_head_comes_first_in_gguf() -> None:
    array = np.arange(72, dtype=np.float32).reshape(3, 24)
    found = done(Columns().to_gguf(CONFIG), array)
    heads = array.reshape(3, 6, 4)[:, [0, 3, 1, 4, 2, 5]]
    assert (found == heads.reshape(3, 24)).all()


def test_parts_that_take_turns() -> None:
    assert alternate(3) == (0, 3, 1, 4, 2, 5)
    assert invert(alternate(3)) == (0, 2, 4, 1, 3, 5)


def test_queries_keys_and_values_of_each_head_together() -> None:
    # Two heads of one row each, and two rows of queries for each of keys and values.
    assert group_heads(2, (1, 1, 1)) == (0, 2, 4, 1, 3, 5)
    assert group_heads(2, (2, 1, 1)) == (0, 1, 4, 6, 2, 3, 5, 7)


@each("change", [Squeezed(1), TurnedHeads()], ids=["squeezed", "heads"])
def test_a_tensor_of_another_shape_is_refused_by_name(change: Change) -> None:
    with pytest.raises(ConversionError, match=r"`x` has shape \[5, 3\]"):
        done(change.to_gguf(CONFIG), np.zeros((5, 3), np.float32))
