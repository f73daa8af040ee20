"""Any changed file gives a result or an error of weightctl, and no other error."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build import F16, F32, Q8_0, Gguf, Tensor, index_of, safetensors_of
from each import few_or_many
from weightctl import open_weights
from weightctl.errors import WeightctlError
from weightctl.formats import FORMATS
from weightctl.plan.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

    from hypothesis.strategies import SearchStrategy

Changes = list[tuple[str, int, bytes]]
EXAMPLES = settings(deadline=None, derandomize=True, database=None)

TENSORS = [
    Tensor("blk.0.attn_q.weight", (2, 32), Q8_0, bytes(68)),
    Tensor("norm", (4,), F32, bytes(16)),
    Tensor("scalar", (), F16, bytes(2)),
]
VALUES = {
    "general.alignment": ("u32", 32),
    "tokens": ("array[string]", ["a", "bc", ""]),
    "deep": ("array[array[array[i16]]]", [[[1, 2], [3]], [[]]]),
    "rate": ("f32", 0.5),
    "flags": ("array[bool]", [True, False]),
    "safetensors.note": ("string", "a note"),
}
TYPED = {
    "general.alignment": {"type": "u32", "value": 32},
    "rate": {"type": "f32", "value": 0.5},
    "tokens": {"type": "array[string]", "value": ["a", "\udcff"]},
    "deep": {"type": "array[array[u8]]", "value": [[1], []]},
}
SOUND = {
    "v1.gguf": Gguf(1).file(TENSORS, VALUES),
    "v2.gguf": Gguf(2).file(TENSORS, VALUES),
    "v3.gguf": Gguf(3).file(TENSORS, VALUES),
    "big-endian.gguf": Gguf(3, ">").file(TENSORS, VALUES),
    "plain.safetensors": safetensors_of(
        {"b.weight": ("F64", (2, 2), bytes(32)), "a.4": ("F4", (4,), bytes(2))}, {"b.tied": "a.4"}
    ),
    "typed.safetensors": safetensors_of(
        {"a": ("BF16", (2,), bytes(4))}, {"gguf": json.dumps(TYPED), "format": "pt"}
    ),
    "model.safetensors.index.json": index_of(
        {"a": "part.safetensors", "b": "part.safetensors"}, {"total_size": 8, "c": "a"}
    ),
}
changes: SearchStrategy[Changes] = st.lists(
    st.tuples(
        st.sampled_from(["insert", "cut", "end", "replace", "replace", "replace"]),
        st.integers(0, 700),
        st.one_of(
            st.binary(min_size=1, max_size=9),
            st.sampled_from(
                [b"\0", b"\xff" * 8, b"[", b'"', b"9" * 30, b"-", b"1e999", b"\\ud800"]
            ),
        ),
    ),
    max_size=4,
)


def changed(raw: bytes, changes: Changes) -> bytes:
    """Replace, remove or insert bytes at offsets, which are taken modulo the length."""
    made = bytearray(raw)
    for change, place, content in changes:
        at = place % (len(made) + 1)
        if change == "insert":
            made[at:at] = content
        elif change == "end":
            del made[at:]
        else:
            made[at : at + len(content)] = content if change == "replace" else b""
    return bytes(made)


def use(path: Path) -> None:
    """Use a checkpoint in all ways except for writing it."""
    weights = open_weights(path)
    for value in weights.metadata.values():
        repr(list(value.content) if value.type.startswith("array") else value.content)
    for format_name in FORMATS:
        with suppress(WeightctlError):
            Plan.copy(weights, format_name).layouts()
    for name in weights.header.tensors:
        with suppress(WeightctlError):
            weights[name].data().to_numpy()


def test_every_format_has_a_file_to_change() -> None:
    # The files for PyTorch are in tests/formats/pytorch.
    assert {name.rpartition(".")[2] for name in SOUND} >= set(FORMATS) - {"pytorch"}


@pytest.mark.parametrize("name", SOUND)
@few_or_many("count", 50, 250)
def test_a_changed_file_gives_a_result_or_an_error_of_ours(
    name: str, count: int, tmp_path: Path
) -> None:
    path = tmp_path / name
    (tmp_path / "part.safetensors").write_bytes(
        safetensors_of({"a": ("U8", (4,), bytes(4)), "b": ("U8", (4,), bytes(4))})
    )
    path.write_bytes(SOUND[name])
    assert open_weights(path).header.tensors

    @settings(EXAMPLES, max_examples=count)
    @given(changes)
    def holds(drawn: Changes) -> None:
        path.write_bytes(changed(SOUND[name], drawn))
        with suppress(WeightctlError):
            use(path)

    holds()


@pytest.mark.parametrize("name", SOUND)
def test_a_file_cut_anywhere_gives_a_result_or_an_error_of_ours(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    for length in range(len(SOUND[name])):
        path.write_bytes(SOUND[name][:length])
        with suppress(WeightctlError):
            use(path)


@pytest.mark.parametrize("head", [b"", b"GGUF\3\0\0\0", b"GGUF\0\0\0\3", b"GGUF\1\0\0\0", b"{"])
@few_or_many("count", 50, 250)
def test_any_bytes_give_a_result_or_an_error_of_ours(
    head: bytes, count: int, tmp_path: Path
) -> None:
    path = tmp_path / "any"

    @settings(EXAMPLES, max_examples=count)
    @given(st.binary(max_size=200))
    def holds(rest: bytes) -> None:
        content = head + rest
        path.write_bytes(len(content).to_bytes(8, "little") + content if head == b"{" else content)
        with suppress(WeightctlError):
            use(path)

    holds()
