"""Selections of elements are NumPy's, and read only what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazy import save_file, torch
from weightctl import open_weights
from weightctl.errors import WeightctlError
from weightctl.values import parse_selection, read_selection, selection
from weightctl.weights.derived import tensor_of
from weightctl.weights.tree import source_of

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.weights.derived import ReadableTensor

SHAPE = (7, 4, 6)
TENSORS = {
    "f32": torch.arange(168, dtype=torch.float32).reshape(SHAPE),
    "bf16": torch.arange(168, dtype=torch.bfloat16).reshape(SHAPE),
    "i64": torch.arange(168).reshape(SHAPE),
    "f64": torch.arange(168, dtype=torch.float64).reshape(SHAPE) / 3,
    "bool": (torch.arange(168) % 3 == 0).reshape(SHAPE),
    "scalar": torch.tensor(5.5),
    "empty": torch.zeros(0, 3),
}


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReadableTensor]:
    path: Path = tmp_path_factory.mktemp("selections") / "model.safetensors"
    save_file(TENSORS, path)
    source = source_of(open_weights(path))
    return {name: tensor_of(source, name) for name in TENSORS}


def expected(name: str, index: Any = ...) -> Any:
    tensor = TENSORS[name]
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()[index]


@pytest.mark.parametrize("name", TENSORS)
def test_all_values_are_selected_without_an_index(
    name: str, tensors: dict[str, ReadableTensor]
) -> None:
    found = read_selection(tensors[name], parse_selection("", tensors[name].info.shape))
    wanted = expected(name)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


_ENDS = st.none() | st.integers(-9, 9)
_INDEX = st.integers(-4, 3) | st.builds(
    slice, _ENDS, _ENDS, st.none() | st.sampled_from([1, 2, -1, -3])
)


def spell(index: Any) -> str:
    if isinstance(index, int):
        return str(index)
    if index is Ellipsis:
        return "..."
    parts = ["" if each is None else str(each) for each in (index.start, index.stop, index.step)]
    return ":".join(parts if parts[2] else parts[:2])


@given(indices=st.lists(_INDEX, min_size=1, max_size=3), has_dots=st.booleans())
def test_a_selection_is_that_of_numpy(
    indices: list[Any], has_dots: bool, tensors: dict[str, ReadableTensor]
) -> None:
    given_indices = [*indices[:1], ..., *indices[1:]] if has_dots else indices
    text = ", ".join(map(spell, given_indices))
    for name in ("f32", "bf16", "i64"):
        found = read_selection(tensors[name], parse_selection(f"[{text}]", SHAPE))
        np.testing.assert_array_equal(found, expected(name, tuple(given_indices)))


def test_rows_are_read_in_parts(
    tensors: dict[str, ReadableTensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_READ", 48)
    for text, index in (("::-2", np.s_[::-2]), ("1:6, 1", np.s_[1:6, 1]), ("::3", np.s_[::3])):
        found = read_selection(tensors["f32"], parse_selection(text, SHAPE))
        np.testing.assert_array_equal(found, expected("f32", index))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7", "index 7 of `7` is out of range: axis 0 has 7 elements"),
        ("0,-5", "index -5 of `0,-5` is out of range: axis 1 has 4 elements"),
        ("0,0,0,0", "has 4 indices, but the tensor has 3 axes"),
        ("..., ...", "more than one `...`"),
        ("a", "`a` is not an index or a slice"),
        ("0::0", "`0::0` is not an index or a slice"),
        ("1:2:3:4", "not an index or a slice"),
        ("9" * 5000, "not an index or a slice"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(WeightctlError) as caught:
        parse_selection(text, SHAPE)
    assert message in caught.value.message


def test_a_selection_that_is_too_large_is_refused(
    tensors: dict[str, ReadableTensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_MOST_BYTES", 100)
    with pytest.raises(WeightctlError, match="the selection has 672 B, which is more than 100 B"):
        read_selection(tensors["f32"], parse_selection("", SHAPE))
