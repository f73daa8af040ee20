"""The steps between the tensors of the two naming conventions, besides their names.

A `Change` is a row: the step to GGUF's tensor, the step back to Hugging Face's, and what follows
from them for a model that is run or divided. Files of families name the changes as
`families/groups.py` lists them. `families/fusions.py` defines the tensors that contain several
parts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from weightctl.families.modules import Change, Form, at_layer, shape_of
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.integers import AsIntegers
from weightctl.weights.steps.numbers import (
    AsFloat32,
    Doubled,
    Exp,
    Log,
    Multiplied,
    MultipliedRows,
    Plus,
)
from weightctl.weights.steps.reshaped import (
    Chained,
    InShape,
    JoinedHeads,
    JoinedRows,
    Reshaped,
    SplitHeads,
    SplitRows,
    WithAxis,
    WithoutAxis,
)
from weightctl.weights.steps.rows import FirstRowAfter, RowOrder, RowRange, RowsFrom, ZerosBefore
from weightctl.weights.steps.transposed import ColumnOrder, Transposed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.families.config_keys import Config, Fields, NamingConvention
    from weightctl.families.modules import TensorNames
    from weightctl.weights.derived import ReadableTensor, Step

    _ToOrder: TypeAlias = Callable[[Any], Sequence[int]]


# Orders: for each row of a new tensor, its number in the old one (`new = old[order]`).


@lru_cache(maxsize=64)  # a model uses two in all of its layers
def interleaved_order(heads: int, head_dim: int, rotated: int | None = None) -> tuple[int, ...]:
    """Return the order from the half-split to the interleaved rows of a projection.

    RoPE rotates elements in pairs. In GGUF the rows of a pair are neighbors; in Hugging Face's
    naming convention, the first rows of all pairs of a head precede the second ones. Only the first
    `rotated` rows of each head form pairs (default: all); the others keep their places.
    """
    rotated = head_dim if rotated is None else rotated
    half = rotated // 2
    return tuple(
        head * head_dim + (row % 2 * half + row // 2 if row < rotated else row)
        for head in range(heads)
        for row in range(head_dim)
    )


@lru_cache(maxsize=64)
def half_split_order(heads: int, head_dim: int, rotated: int | None = None) -> tuple[int, ...]:
    """Return the order from the interleaved to the half-split rows of a projection."""
    return invert(interleaved_order(heads, head_dim, rotated))


@lru_cache(maxsize=64)
def alternate(rows: int, parts: int = 2) -> tuple[int, ...]:
    """Return the order that interleaves `parts` parts of `rows` rows each, row by row.

    The old tensor has the parts one after the other.
    """
    return tuple(part * rows + row for row in range(rows) for part in range(parts))


@lru_cache(maxsize=64)
def group_heads(groups: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the order that puts the rows of all parts together for each group of heads.

    The old tensor has the parts one after the other. `sizes` are the rows of each part in a group:
    `(head_dim,) * 3` if each head has its queries, keys and values together.
    """
    starts = [groups * sum(sizes[:part]) for part in range(len(sizes))]
    return tuple(
        start + group * size + row
        for group in range(groups)
        for start, size in zip(starts, sizes, strict=True)
        for row in range(size)
    )


def order_by_kv_head(config: Any) -> tuple[int, ...]:
    """Return the order by KV heads: the key and the value of each follow its query heads."""
    group = config.heads // config.kv_heads
    return group_heads(config.kv_heads, tuple(config.head_dim * count for count in (group, 1, 1)))


@lru_cache(maxsize=64)
def tile_heads(keys: int, group: int, size: int, before: int) -> tuple[int, ...]:
    """Return the order that puts the first head of each key head first, then the second ones.

    The old tensor has the heads that share a key head one after the other: `keys` times `group`
    heads of `size` elements, after `before` other elements.
    """
    tiled = (
        before + (key * group + number) * size + element
        for number in range(group)
        for key in range(keys)
        for element in range(size)
    )
    return (*range(before), *tiled)


def tile_delta_heads(
    config: Any, *, is_of_values: bool = False, has_keys: bool = False
) -> tuple[int, ...]:
    """Return GGUF's order of the heads of a gated delta net, or of their values.

    If `has_keys`, queries and keys precede them. Source: llama.cpp's `conversion/qwen.py`.
    """
    keys = config.delta_key_heads
    return tile_heads(
        keys,
        config.delta_heads // keys,
        config.delta_value_size if is_of_values else 1,
        2 * keys * config.delta_key_size if has_keys else 0,
    )


@lru_cache(maxsize=64)
def _invert(order: tuple[int, ...]) -> tuple[int, ...]:
    places = [0] * len(order)
    for place, row in enumerate(order):
        places[row] = place
    return tuple(places)


def invert(order: Sequence[int]) -> tuple[int, ...]:
    """Return the inverse of an order."""
    return _invert(tuple(order))


# Changes of values. A `factor` of 1 makes no step.


def plus(value: float, field: str = "norm_offset") -> Change:
    """The weight of a norm that Hugging Face's convention stores minus `value`, and GGUF as it is.

    Norms add the value that the config states in `field`.
    """
    return Change(
        lambda _: Plus(value), lambda _: Plus(-value), runs_as=None, stated=(field, value, 0.0)
    )


# The same tensor in both conventions. For factors that only the config of Hugging Face's convention
# states: GGUF's tensors contain them, and a config of GGUF has factors of 1.
_SAME = Change(lambda _: None, lambda _: None, runs_as=None)
PLUS_ONE = plus(1.0)
# The rates of a state space model.
MINUS_EXP = Change(lambda _: Exp(-1), lambda _: Log(-1))
EXP = Change(lambda _: Exp(), lambda _: Log())
# A table of integers.
INT32 = Change(lambda _: AsIntegers("I32"), lambda _: AsIntegers("I64"))
# The tokens that a draft model can predict: less their place in the list in Hugging Face's
# convention.
TOKEN_OFFSETS = Change(lambda _: AsIntegers("I64", 1), lambda _: AsIntegers("I64", -1))


def scaled_by(factor: Callable[[Any], float]) -> Change:
    """A weight that GGUF stores multiplied by `factor(config)`."""

    def to_gguf(config: Any) -> Step | None:
        found = factor(config)
        return None if found == 1 else Multiplied(found)

    return replace(_SAME, to_gguf=to_gguf)


def scaled_by_field(field: str) -> Change:
    """Return the change of a weight that GGUF stores multiplied by a field of the config."""
    return scaled_by(attrgetter(field))


def _rest_of_logit_scale(config: Any) -> float:
    return float(config.logit_scale / config.embedding_scale) if config.tied else 1.0


# The norm before a tied output. The output is the embedding with its factor, so that the rest of
# the factor of the logits is in the norm.
REST_OF_LOGIT_SCALE = replace(scaled_by(_rest_of_logit_scale), is_of_biases=True)


def scaled_runs(runs: Callable[[Any], Sequence[tuple[int, float]]]) -> Change:
    """A matrix whose runs of rows GGUF stores multiplied by factors.

    `runs(config)` has the number of rows and the factor of each run.
    """

    def to_gguf(config: Any) -> Step | None:
        found = tuple(runs(config))
        return None if all(factor == 1 for _, factor in found) else MultipliedRows(found)

    return replace(_SAME, to_gguf=to_gguf)


def scaled_queries(llama_cpp: Callable[[Fields], int], *, is_norm: bool = False) -> Change:
    """A weight that multiplies queries, and that contains their scale in GGUF, which has no key.

    Attention scores are divided by the square root of `query_scalar` in the config, and in
    llama.cpp by the square root of `llama_cpp(fields)`. The weight of a norm (`is_norm`) also has
    1 more in GGUF.
    """
    usual = PLUS_ONE if is_norm else _SAME

    def to_gguf(config: Any) -> Step | None:
        scalar = llama_cpp({name: getattr(config, name) for name in config.__dataclass_fields__})
        if scalar == config.query_scalar:
            return usual.to_gguf(config)
        return Multiplied(math.sqrt(scalar / config.query_scalar), 1.0 if is_norm else 0.0)

    return replace(usual, to_gguf=to_gguf)


def halved_by_layer(every: str, layer: int = 0) -> Change:
    """A weight that GGUF stores halved once more after each run of layers, for RWKV.

    `every` is the config field with the number of layers in a run, 0 for none, in both conventions.
    """

    def double(sign: int, config: Any) -> Step | None:
        run = getattr(config, every)
        times = layer // run if run else 0
        return Doubled(sign * times) if times else None

    return Change(
        partial(double, -1), partial(double, 1), runs_as="gguf", at=partial(halved_by_layer, every)
    )


# Changes of the order of rows or columns, and of their number.


def rope_rows(heads: str, layer: int = 0) -> Change:
    """The rows of a query or key projection that RoPE rotates in pairs.

    Those of a head are half-split in Hugging Face's convention, and interleaved in GGUF. Attention
    computes with both orders. `heads` is the config field with the number of heads in a layer:
    `heads` or `kv_heads`. A bias is reordered as rows of one element.
    """

    def reorder(find_order: Callable[..., tuple[int, ...]], how: str, config: Any) -> Step:
        count = at_layer(config, heads, layer)
        text = f"rows of {count} {'heads' if count > 1 else 'head'} reordered for {how} RoPE"
        return RowOrder(find_order(count, config.head_dim, config.rope_dimensions), text)

    return Change(
        partial(reorder, interleaved_order, "interleaved"),
        partial(reorder, half_split_order, "half-split"),
        runs_as=None,
        is_of_rows=True,
        stated=("rope_interleaved", False, True),
        at=partial(rope_rows, heads),
    )


def rope_halves(heads: str, layer: int = 0) -> Change:
    """The rows of such a projection that Hugging Face's convention has interleaved.

    In GGUF they are half-split: llama.cpp divides RoPE into sections in this order only.
    """
    rows = rope_rows(heads, layer)
    return replace(
        rows,
        to_gguf=rows.to_hugging_face,
        to_hugging_face=rows.to_gguf,
        stated=("rope_interleaved", True, False),
        at=partial(rope_halves, heads),
    )


def reorder_rows(order: _ToOrder, text: str = "rows in another order") -> Change:
    """Rows in another order: `order(config)` has GGUF's row for each of Hugging Face's rows.

    `text` describes the change to users.
    """
    return Change(
        lambda config: RowOrder(invert(order(config)), text),
        lambda config: RowOrder(tuple(order(config)), text),
        runs_as="gguf",
        is_of_rows=True,
        order=order,
    )


# In Hugging Face's convention, each head has the rows of its queries, keys and values together.
BY_HEAD = reorder_rows(
    lambda config: group_heads(config.heads, (config.head_dim,) * 3),
    "queries, keys and values by head",
)

_find_tiled = partial(tile_delta_heads, is_of_values=True)
_TILED = "heads in another order"
# The columns are the values of the heads of a gated delta net.
TILED_COLUMNS = Change(
    lambda config: ColumnOrder(_find_tiled(config), _TILED),
    lambda config: ColumnOrder(invert(_find_tiled(config)), _TILED),
    order=_find_tiled,
)


def leading_rows(count: Callable[[Any], int]) -> Change:
    """A table whose first `count(config)` rows are never looked up, so that GGUF leaves them out.

    On the way back they are zeros.
    """
    return Change(
        lambda config: RowsFrom(count(config)),
        lambda config: ZerosBefore(count(config)),
        runs_as="gguf",
    )


# The last of the rows before that of the first position is for padding.
PADDING_ROWS = leading_rows(lambda config: config.padding + 1)


def padded_table(count: str) -> Change:
    """A table with rows for the first tokens; the others use the row of token 0.

    GGUF has a row for every token. `count` is the config field with the number of rows in Hugging
    Face's convention. llama.cpp's converter adds zeros in place of the row of token 0.

    Source: transformers' `Gemma3nTextModel.get_per_layer_inputs`.
    """

    def to_gguf(config: Any) -> Step | None:
        missing = config.vocabulary - getattr(config, count)
        return FirstRowAfter(missing) if missing > 0 else None

    def to_hugging_face(config: Any) -> Step | None:
        rows = getattr(config, count)
        return RowRange(0, rows) if rows < config.vocabulary else None

    return Change(to_gguf, to_hugging_face, runs_as="gguf")


# Changes of the shape.

# A vector that GGUF stores as a matrix with one column.
AS_COLUMN = Change(lambda _: WithAxis(1), lambda _: WithoutAxis(1))
# A scalar that GGUF stores as a vector of one element, which its line describes.
AS_SCALAR = Change(lambda _: Reshaped((1,)), lambda _: Reshaped(()), runs_as="gguf")


def squeeze(axis: int) -> Change:
    """A tensor in which GGUF leaves out a dimension of 1, `axis` of Hugging Face's shape."""
    return Change(lambda _: WithoutAxis(axis), lambda _: WithAxis(axis), has_sizes_of_config=True)


def squeeze_all(axis: int) -> Change:
    """A tensor that only Hugging Face's convention has with a dimension of 1, not our modules."""
    return replace(squeeze(axis), runs_as="gguf", has_sizes_of_config=False)


def extra_axes(
    gguf: tuple[int, ...], hugging_face: tuple[int, ...], values: Change = _SAME
) -> Change:
    """A tensor that both conventions store with dimensions of 1 that our modules do not have.

    The dimensions are inserted into the shape of our modules. GGUF files may have more or fewer of
    them before the others, which mean nothing to ggml. `values` is the change of the values.
    """
    return replace(values, runs_as="module", axes={"gguf": gguf, "hugging_face": hugging_face})


def leading_axes(count: int) -> Change:
    """A tensor that both conventions store with some dimensions of 1 before the others."""
    return extra_axes((0,) * count, (0,) * count)


def group_rows(groups: str) -> Change:
    """A vector that GGUF stores as a matrix with a row for each group of elements.

    `groups` is the config field with the number of groups.
    """
    return Change(
        lambda config: SplitRows(getattr(config, groups)),
        lambda _: JoinedRows(),
        gguf_extents=(groups,),
    )


def rows_as_vector(rows: str) -> Change:
    """A matrix with a row for each query head, which GGUF stores as a vector, row after row.

    `rows` is the config field with the number of rows.
    """
    return Change(
        lambda _: JoinedRows(),
        lambda config: SplitRows(getattr(config, rows)),
        gguf_extents=("queries",),
    )


def turn_heads(heads: str = "heads", *, is_transposed: bool = False) -> Change:
    """A projection that GGUF stores head by head, along a new first dimension.

    Hugging Face's convention stores one matrix with the rows of all heads, one head after the
    other. GGUF stores `[heads, rows, inputs]`, or `[heads, inputs, rows]` if `is_transposed`.
    `heads` is the config field with the number of heads.
    """
    return Change(
        lambda config: SplitHeads(getattr(config, heads), is_transposed),
        lambda _: JoinedHeads(is_transposed),
        gguf_extents=("each_head",),
    )


# A matrix that Hugging Face stores as (inputs, outputs), as GPT-2's `Conv1D` does, and GGUF as
# (outputs, inputs). A `Linear` computes with both forms.
TRANSPOSED = Change(
    lambda _: Transposed(),
    lambda _: Transposed(),
    runs_as=None,
    stated=("transposed", True, False),
    is_turned=True,
)
# The same where our modules only compute with GGUF's form.
TURNED = replace(TRANSPOSED, runs_as="gguf", stated=None)


def turned_each(count: str) -> Change:
    """Matrices as `TURNED`, which are stored one after the other along the first axis.

    `count` is the config field with their number.
    """

    def turn(config: Any) -> Step:
        return Chained((JoinedHeads(), SplitHeads(getattr(config, count), is_transposed=True)))

    return replace(TURNED, to_gguf=turn, to_hugging_face=turn)


def _split_channels(config: Any) -> Step:
    hidden, channels, side = config.hidden, config.channels, config.patch_size
    return Chained((
        Reshaped((hidden * side * side, channels)),
        SplitHeads(hidden, is_transposed=True),
        Reshaped((hidden, channels, side, side)),
    ))  # fmt: skip


def _join_channels(config: Any) -> Step:
    hidden, channels, side = config.hidden, config.channels, config.patch_size
    return Chained((
        Reshaped((hidden, channels, side * side)),
        JoinedHeads(is_transposed=True),
        Reshaped((hidden, side * side * channels)),
    ))  # fmt: skip


# A projection of patches that Hugging Face's convention stores as a matrix, whose inputs are the
# pixels of a patch, each with its channels. GGUF has a convolution, `[hidden, channels, patch_size,
# patch_size]`, which the line describes.
PATCH_ROWS = Change(_split_channels, _join_channels, runs_as="gguf")


def in_turn(first: Change, second: Change) -> Change:
    """Two changes of values or shapes: GGUF's tensor has the first one, then the second one."""

    def join(*steps: Step | None) -> Step:
        return Chained(tuple(step for step in steps if step is not None))

    return Change(
        lambda config: join(first.to_gguf(config), second.to_gguf(config)),
        lambda config: join(second.to_hugging_face(config), first.to_hugging_face(config)),
    )


# Conversion of tensors between these forms.


def module_form(names: TensorNames, convention: NamingConvention) -> Form:
    """Return the form of a tensor in our modules.

    `convention` is that of the model's checkpoint.
    """
    return (None if names.change is None else names.change.runs_as) or convention


def convert_form(
    names: TensorNames, tensor: ReadableTensor, config: Config, form: Form, wanted: Form
) -> ReadableTensor:
    """Return a tensor in the form `wanted`.

    The tensor is returned unchanged if the forms are the same. Raises `ConversionError` if its
    shape does not fit the change between the forms.
    """
    change = names.change
    if change is None or form == wanted:
        return tensor
    steps = [step for step in _list_steps(names, change, config, form, wanted) if step is not None]
    if steps and not change.is_of_rows and tensor.info.encoding.block > 1:
        tensor = DerivedTensor(names.module, AsFloat32(), [tensor])
    for step in steps:
        tensor = DerivedTensor(names.module, step, [tensor])
    return tensor


def _list_steps(
    names: TensorNames, change: Change, config: Config, form: Form, wanted: Form
) -> list[Step | None]:
    if change.at is not None:
        change = change.at(names.layer)
    if change.axes is None:
        if change.has_sizes_of_config and wanted == "hugging_face":
            return [InShape(shape_of(names, config))]
        return [change.to_gguf(config) if wanted == "gguf" else change.to_hugging_face(config)]
    own = shape_of(names, config)
    return [
        InShape(own),
        change.to_hugging_face(config) if form == "gguf" else None,
        change.to_gguf(config) if wanted == "gguf" else None,
        None if wanted == "module" else InShape(_insert_axes(own, change.axes[wanted])),
    ]


def _insert_axes(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    found = list(shape)
    for axis in axes:
        found.insert(axis, 1)
    return tuple(found)
