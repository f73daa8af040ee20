"""What holds for every format in the table."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from copying import FRAMEWORK, contents, copied, held, spoken
from strategies import INTERPRETED, metadata, tensors
from weightctl.dtype import Encoding
from weightctl.formats import FORMATS, format_module
from weightctl.weights import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from weightctl.weights.metadata import Value

Tensors = dict[str, tuple[Encoding, tuple[int, ...], bytes]]
EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


def fit(name: str) -> list[Encoding]:
    """Return the encodings that a format holds."""
    unfit = format_module(name).unfit
    return [e for e in INTERPRETED if not unfit([TensorInfo("a", (e.block,), e)])]


def without_framework(values: Mapping[str, Value]) -> dict[str, object]:
    return {key: value for key, value in spoken(values).items() if (key, value) != FRAMEWORK}


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_reads_back_equal(name: str, folder: Path) -> None:
    @EXAMPLES
    @given(tensors(fit(name)), metadata())
    def holds(drawn: Tensors, values: dict[str, Value]) -> None:
        weights = held(drawn, values)
        back = copied(weights, folder / f"any{FORMATS[name].suffix}")
        assert back.header.format == name
        assert contents(back) == contents(weights)
        assert list(back.header.tensors) == list(drawn)
        assert without_framework(back.metadata) == without_framework(values)

    holds()


@pytest.mark.parametrize("way", list(product(FORMATS, FORMATS)), ids=" ".join)
def test_a_way_through_two_formats_and_back_loses_nothing(
    way: tuple[str, str], folder: Path
) -> None:
    shared = [encoding for encoding in fit(way[0]) if encoding in fit(way[1])]

    @EXAMPLES
    @given(tensors(shared), metadata())
    def holds(drawn: Tensors, values: dict[str, Value]) -> None:
        first = weights = held(drawn, values)
        for number, name in enumerate((*way, way[0])):
            weights = copied(weights, folder / f"{number}{FORMATS[name].suffix}")
        assert contents(weights) == contents(first)
        assert without_framework(weights.metadata) == without_framework(values)

    holds()


@pytest.mark.parametrize("name", FORMATS)
def test_every_encoding_it_holds_reads_back_equal(name: str, tmp_path: Path) -> None:
    weights = held(
        {
            e.name: (e, (2, e.block), bytes(range(1, 251))[: e.size] * 2)
            if e.size < 250
            else (e, (1, e.block), bytes(e.size))
            for e in fit(name)
        }
    )
    assert contents(copied(weights, tmp_path / f"a{FORMATS[name].suffix}")) == contents(weights)
