"""Values are printed when a graph runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from weightctl.graph.ops.unary import lower_print

if TYPE_CHECKING:
    import pytest


def printed(tensor: torch.Tensor, label: str, capsys: pytest.CaptureFixture[str]) -> str:
    passed = lower_print(tensor, label=label)
    assert passed is tensor
    captured = capsys.readouterr()
    assert not captured.err
    return captured.out


def test_label_dtype_and_shape_stand_above_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    tensor = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    assert printed(tensor, "ids", capsys) == "ids: int32[2, 2]\n[[1 2]\n [3 4]]\n"


def test_without_a_label_the_dtype_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(torch.tensor(1.5), "", capsys) == "float32[]\n1.5\n"


def test_numbers_of_types_that_numpy_lacks_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        shown = printed(torch.tensor([0.5, -2]).to(dtype), "", capsys)
        assert shown == f"{str(dtype).removeprefix('torch.')}[2]\n[ 0.5 -2. ]\n"


def test_long_values_are_abridged(capsys: pytest.CaptureFixture[str]) -> None:
    assert "..." in printed(torch.zeros(100_000), "", capsys)
