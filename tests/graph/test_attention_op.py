from __future__ import annotations

from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from each import each
from lazy import torch
from runs import run
from weightctl.errors import GraphError
from weightctl.graph import ops

Array = np.ndarray[Any, Any]

INF = np.float64(np.inf)
# `ops.attention` is the function of the same name.
attention: Any = import_module("weightctl.graph.ops.attention")


def reference(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    sinks: Array | None = None,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
) -> Array:
    """The formula, one query of one head at a time, in float64."""
    batch, heads, seq, dim = query.shape
    group, keys = heads // key.shape[1], key.shape[2]
    result = np.zeros((batch, heads, seq, value.shape[3]))
    if mask is not None:
        mask = np.broadcast_to(mask, (batch, heads, seq, keys))
    for b, h, s in np.ndindex(batch, heads, seq):
        position = s + keys - seq
        scores = np.full(keys, -INF)
        for k in range(keys):
            if (causal and k > position) or (window is not None and position - k >= window):
                continue
            score = float(query[b, h, s].astype(float) @ key[b, h // group, k].astype(float))
            score *= dim**-0.5 if scale is None else scale
            if softcap is not None:
                score = softcap * np.tanh(score / softcap)
            if mask is not None and mask.dtype == bool:
                score = score if mask[b, h, s, k] else -INF
            elif mask is not None:
                score += float(mask[b, h, s, k])
            scores[k] = score
        if scores.max() > -INF:
            extra = -INF if sinks is None else float(sinks[h])
            largest = max(scores.max(), extra)
            shares = np.exp(scores - largest)
            total = shares.sum() + np.exp(extra - largest)
            result[b, h, s] = shares / total @ value[b, h // group].astype(float)
    return result


def made(
    *, heads: int = 4, kv_heads: int = 2, seq: int = 5, keys: int = 5, value_dim: int = 8
) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(heads + 10 * seq + 100 * keys)
    shapes = [(2, heads, seq, 8), (2, kv_heads, keys, 8), (2, kv_heads, keys, value_dim)]
    query, key, value = (random.standard_normal(shape, np.float32) for shape in shapes)
    return query, key, value


RANDOM = np.random.default_rng(3)
BIASES = RANDOM.standard_normal((2, 4, 5, 5), np.float32)
HIDDEN = np.where(RANDOM.random((2, 1, 5, 5)) < 0.5, np.float32(0), np.float32(-np.inf))
HIDDEN[0, :, 2] = -np.inf
MASKS = {
    "none": None,
    "keys": np.array([[[[True, True, False, True, False]]]]),
    "padding": np.array([True, True, True, False, False] * 2).reshape(2, 1, 1, 5),
    "pairs": RANDOM.random((5, 5)) < 0.6,
    "heads": RANDOM.random((1, 4, 5, 5)) < 0.6,
    "one for all": np.array(True),
    "biases of keys": np.linspace(-1, 1, 5, dtype=np.float32),
    "queries": np.array([True, False, True, True, False]).reshape(5, 1),
    "biases": BIASES,
    "hidden": HIDDEN,
}


@each("softcap", [None, 1.5])
@each("causal", [False, True])
@each("window", [None, 1, 3])
@each("mask", MASKS)
def test_attention_is_the_formula(
    mask: str, window: int | None, softcap: float | None, *, causal: bool
) -> None:
    options: dict[str, Any] = {"causal": causal, "window": window, "softcap": softcap}
    chosen = MASKS[mask]
    arrays = made() if chosen is None else (*made(), chosen)
    found = run(lambda *values: ops.attention(*values, **options), *arrays)
    np.testing.assert_allclose(found, reference(*arrays, **options), atol=2e-6)


@each("softcap", [None, 1.5])
@each("window", [None, 2, 9])
@each("seq, keys", [(1, 6), (3, 6), (6, 6), (6, 3)])
def test_the_last_query_stands_at_the_last_key(
    seq: int, keys: int, window: int | None, softcap: float | None
) -> None:
    options: dict[str, Any] = {"causal": True, "window": window, "softcap": softcap}
    arrays = made(seq=seq, keys=keys)
    found = run(
        lambda *values: ops.attention(*values, **options),
        *arrays,
        shapes=[("batch", 4, "seq", 8), ("batch", 2, "keys", 8), ("batch", 2, "keys", 8)],
    )
    np.testing.assert_allclose(found, reference(*arrays, **options), atol=2e-6)


@each("softcap", [None, 1.5])
@each("hidden", [False, -np.inf])
def test_a_query_that_sees_no_key_gets_zeros(hidden: float, softcap: float | None) -> None:
    kind = bool if hidden is False else np.float32
    mask = np.full((5, 5), hidden, kind)
    mask[0] = True if kind is bool else 0.0
    found = run(lambda *values: ops.attention(*values, softcap=softcap), *made(), mask)
    assert not np.isnan(found).any()
    assert (found[:, :, 1:] == 0).all()
    assert (found[:, :, 0] != 0).all()


@each("kv_heads", [1, 2, 4])
def test_heads_of_keys_serve_consecutive_heads_of_queries(kv_heads: int) -> None:
    arrays = made(kv_heads=kv_heads, value_dim=3)
    found = run(ops.attention, *arrays)
    np.testing.assert_allclose(found, reference(*arrays), atol=2e-6)


def test_the_scale_may_be_given() -> None:
    found = run(lambda *values: ops.attention(*values, scale=0.7), *made())
    np.testing.assert_allclose(found, reference(*made(), scale=0.7), atol=2e-6)


@each("scale", [0.0, -0.7])
def test_a_scale_may_be_zero_or_turn_the_scores_round(scale: float) -> None:
    found = run(lambda *values: ops.attention(*values, causal=True, scale=scale), *made())
    np.testing.assert_allclose(found, reference(*made(), causal=True, scale=scale), atol=2e-6)


@each("option", ["scale", "softcap"])
@each("given", [np.nan, np.inf, -np.inf])
def test_a_scale_and_a_softcap_are_finite(option: str, given: float) -> None:
    options: dict[str, Any] = {option: given}
    with pytest.raises(GraphError, match=option):
        run(lambda *values: ops.attention(*values, **options), *made())


@each("softcap", [None, 30.0])
@each("kind", [np.float16, ml_dtypes.bfloat16])
def test_sums_of_small_floats_are_in_float32(kind: Any, softcap: float | None) -> None:
    query, key, value = (array.astype(kind) for array in made(seq=2, keys=1500))
    # All scores are equal, so that 1500 numbers near 1 are averaged: in bfloat16 the sum of them,
    # and that of their shares, would stop growing at 256.
    query[:], value[:] = 0, value * kind(0.01) + kind(1)
    found = run(lambda *values: ops.attention(*values, softcap=softcap), query, key, value)
    exact = reference(query, key, value)
    # The shares may be rounded, as they are by torch's kernels.
    np.testing.assert_allclose(
        found.astype(float), exact, rtol=2 * float(ml_dtypes.finfo(kind).eps)
    )


@each("kind", [np.float16, ml_dtypes.bfloat16])
def test_only_the_result_of_capped_small_floats_is_rounded(kind: Any) -> None:
    query, key, value = (array.astype(kind) for array in made())
    query, value = query * kind(4), np.abs(value)
    found = run(lambda *values: ops.attention(*values, softcap=50.0), query, key, value)
    exact = reference(query, key, value, softcap=50.0)
    half_a_step = float(ml_dtypes.finfo(kind).eps) / 2
    np.testing.assert_allclose(found.astype(float), exact, rtol=half_a_step * 1.01)


def test_attention_is_torchs_own_bit_for_bit_where_torch_has_it() -> None:
    query, key, value = (torch.tensor(array) for array in made(kv_heads=4))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    found = run(lambda *values: ops.attention(*values, causal=True), *made(kv_heads=4))
    np.testing.assert_array_equal(found, expected.numpy())


SINKS = np.array([0.5, -3.0, 200.0, -np.inf], np.float32)


@each("softcap", [None, 1.5])
@each("window", [None, 3])
@each("mask", ["none", "pairs", "hidden"])
def test_a_sink_takes_a_share_of_the_softmax_and_adds_nothing(
    mask: str, window: int | None, softcap: float | None
) -> None:
    options: dict[str, Any] = {"causal": True, "window": window, "softcap": softcap}
    chosen = MASKS[mask]
    arrays = made() if chosen is None else (*made(), chosen)
    found = run(
        lambda *values: ops.attention(*values[:-1], sinks=values[-1], **options), *arrays, SINKS
    )
    expected = reference(*arrays, sinks=SINKS, **options)
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_sinks_and_scores_of_any_size_do_not_overflow() -> None:
    query, key, value = made()
    for sinks in (np.full(4, 3e38, np.float32), np.full(4, -3e38, np.float32)):
        found = run(lambda *v: ops.attention(*v[:3], sinks=v[3]), query * 1e4, key, value, sinks)
        np.testing.assert_allclose(
            found, reference(query * 1e4, key, value, sinks=sinks), atol=1e-4
        )


@each("kind", [np.float16, ml_dtypes.bfloat16])
def test_sinks_may_be_float32_beside_small_floats(kind: Any) -> None:
    query, key, value = (array.astype(kind) for array in made())
    found = run(lambda *v: ops.attention(*v[:3], sinks=v[3]), query, key, np.abs(value), SINKS)
    exact = reference(query, key, np.abs(value), sinks=SINKS)
    np.testing.assert_allclose(
        found.astype(float), exact, rtol=float(ml_dtypes.finfo(kind).eps), atol=1e-7
    )


@each("kind", [np.float16, ml_dtypes.bfloat16])
def test_sinks_may_be_small_floats_beside_float32(kind: Any) -> None:
    sinks = SINKS.astype(kind)
    found = run(lambda *v: ops.attention(*v[:3], sinks=v[3]), *made(), sinks)
    expected = reference(*made(), sinks=sinks.astype(np.float32))
    np.testing.assert_allclose(found, expected, atol=2e-6)


@each("sinks", [np.zeros(2, np.float32), np.zeros((4, 1), np.float32), np.arange(4)])
def test_sinks_are_a_score_for_each_query_head(sinks: Array) -> None:
    with pytest.raises(GraphError, match="cannot be used with 4 query heads"):
        run(lambda *values: ops.attention(*values[:3], sinks=values[3]), *made(), sinks)


@each("has_sinks", [False, True])
@each("causal", [False, True])
def test_windows_and_sinks_need_no_mask_of_all_pairs(
    has_sinks: bool, causal: bool, monkeypatch: Any
) -> None:
    seq, window = 1500, 20
    arrays = [*made(seq=seq, keys=seq, kv_heads=1), *([SINKS] if has_sinks else [])]
    tensors = [torch.from_numpy(each) for each in arrays]
    sizes: list[int] = []
    make = attention._make_mask

    def watch(*given: Any, **options: Any) -> Any:
        mask = make(*given, **options)
        sizes.append(mask.numel())
        return mask

    monkeypatch.setattr(attention, "_make_mask", watch)
    options: dict[str, Any] = {"causal": causal, "window": window, "softcap": None, "scale": None}
    found = attention.lower_attention(*tensors, **options, has_sinks=has_sinks)
    assert sum(sizes) < seq * seq / (2 if causal else 1)
    # A query deep inside sees its window, whose first key is that of the part before.
    start = 700
    last = start + 1 if causal else seq
    part = [arrays[0][:, :, start : start + 1], *(each[:, :, :last] for each in arrays[1:3])]
    seen = np.arange(last) > start - window
    sinks = SINKS if has_sinks else None
    np.testing.assert_allclose(
        found.numpy()[:, :, start : start + 1], reference(*part, seen, sinks=sinks), atol=2e-6
    )


@each("window", [None, 1, 4, 30])
@each("keys", [3, 9, 12])
@each("mask", ["", "rows", "columns", "heads"])
@each("softcap, has_sinks", [(None, False), (2.0, False), (None, True)])
@each("causal", [False, True])
def test_queries_in_parts_give_the_same(
    window: int | None,
    keys: int,
    mask: str,
    softcap: float | None,
    has_sinks: bool,
    causal: bool,
    monkeypatch: Any,
) -> None:
    random = np.random.default_rng(keys)
    masks = {
        "rows": random.random((1, 1, 9, 1)) < 0.7,
        "columns": random.standard_normal(keys).astype(np.float32),
        "heads": random.standard_normal((4, 9, keys)).astype(np.float32),
    }
    inputs = [*made(seq=9, keys=keys), *([masks[mask]] if mask else [])]
    options: dict[str, Any] = {"causal": causal, "window": window, "softcap": softcap}
    expected = reference(*inputs, **options, sinks=SINKS if has_sinks else None)
    monkeypatch.setattr(attention, "_MOST_SCORES", 2 * keys)
    tensors = [torch.from_numpy(each) for each in [*inputs, *([SINKS] if has_sinks else [])]]
    found = attention.lower_attention(*tensors, **options, scale=None, has_sinks=has_sinks)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
