"""The functions of weightctl return what the commands print as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import small_checkpoints
import weightctl as api
from commands import run_command as weightctl
from weightctl.deltas import apply_patch, write_patch
from weightctl.errors import ConversionError, WeightctlError
from weightctl.text.documents import to_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_checkpoints.write_all(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_results_are_what_the_commands_print(folder: Path) -> None:
    api.merge("tiny-llama", "tiny-adapter", "tuned", dtype="f32")
    write_patch("tiny-llama", "tuned", "tuned.patch")
    calls: dict[str, Callable[[], Any]] = {
        "stat tiny-llama --rank": lambda: api.stat("tiny-llama", ranks=True),
        "stat awq --include *norm*": lambda: api.stat("awq", include="*norm*"),
        "diff small awq": lambda: api.diff("small", "awq"),
        "diff tiny-llama tuned --hash": lambda: api.diff("tiny-llama", "tuned", hashes=True),
        "diff tiny-llama tuned --values": lambda: api.diff("tiny-llama", "tuned", values=True),
        "ls training.pt --scan": lambda: api.scan("training.pt"),
        "check faulty": lambda: api.check("faulty"),
        "extract tiny-llama tuned adapter --rank 2 --force": lambda: api.extract(
            "tiny-llama", "tuned", "adapter", rank=2, force=True
        ),
        "apply tiny-llama tuned.patch restored --force": lambda: apply_patch(
            "tiny-llama", "tuned.patch", "restored", force=True
        ),
        "imatrix tiny-llama -o sums.gguf --context 64 --chunks 1 --force": lambda: api.imatrix(
            "tiny-llama", "sums.gguf", context=64, chunks=1, force=True
        ),
    }
    different = [
        line
        for line, call in calls.items()
        if json.loads(weightctl(*line.split(), "--json", cwd=folder).stdout) != to_document(call())
    ]
    assert different == []


def test_trees_and_arrays_are_compared_and_measured(folder: Path) -> None:
    assert folder.exists()
    tree = api.open_weights("tiny-llama")
    assert api.diff("tiny-llama", tree, hashes=True).differences == ()
    arrays = {"a": np.array([[1.0, 2.0]], np.float32), "b": np.array([np.nan], np.float32)}
    one, other = api.stat(arrays).tensors
    assert (one.min, one.max, other.nans) == (1.0, 2.0, 1)
    (changed,) = api.diff(arrays, arrays | {"a": arrays["a"] + 1}, values=True).differences
    assert changed.name == "a"
    assert changed.change is not None
    assert changed.change.max_difference == 1.0


def test_a_tree_is_verified(folder: Path) -> None:
    assert folder.exists()
    tree = api.open_weights("tiny-llama")
    report = api.verify(tree, against="tiny-llama", checks=["finite", "names", "values"])
    assert not report.problems
    assert not any(each.skipped for each in report.results.values())
    (problem,) = api.verify({"a": np.array([np.inf], np.float32)}, checks=["finite"]).problems
    assert problem.where == "a"
    with pytest.raises(ConversionError, match="workers read files"):
        api.verify(tree, checks=["finite"], on="threads:2")


def test_what_cannot_be_compared_is_refused(folder: Path) -> None:
    assert folder.exists()
    with pytest.raises(WeightctlError, match="cannot be used together"):
        api.diff("small", "small", hashes=True, values=True)
    with pytest.raises(WeightctlError, match="no tensor of A or B matches"):
        api.diff("small", "small", include="nothing")
    with pytest.raises(ConversionError, match="not a tree of weights"):
        api.stat(7)  # type: ignore[arg-type]  # what a caller can pass by mistake
