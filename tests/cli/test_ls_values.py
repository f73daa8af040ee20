"""Values in a checkpoint that are not tensors are listed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


class Unknown:
    """Of a module that nobody else has."""

    def __init__(self) -> None:
        self.rate = 0.5
        self.kernel = torch.ones(2, 3)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[Any], Path]:
    def save(root: Any) -> Path:
        torch.save(root, tmp_path / "a.pt")
        return tmp_path / "a.pt"

    return save


def test_values_stand_in_the_tree(weightctl: Run, saved: Callable[[Any], Path]) -> None:
    root = {"w": torch.ones(2), "epoch": 3, "args": {"lr": 0.1, "betas": (0.9, 0.99), "seed": None}}
    done = weightctl("ls", saved(root))
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == [
        "1 tensor, 4 values, 2 parameters, 8 B, 32.00 bits per weight",
        "file 1.53 kB, F32",
        "",
        "w        2  F32    8 B",
        "epoch       int         3",
        "args",
        "  lr        float       0.1",
        "  betas     tuple       [0.9, 0.99]",
        "  seed      None",
    ]


def test_an_object_of_an_unknown_class_is_named(
    weightctl: Run, saved: Callable[[Any], Path]
) -> None:
    done = weightctl("ls", saved({"a": Unknown()}))
    name = f"{Unknown.__module__}.Unknown"
    assert f"note: an object of a class that weightctl does not import: {name}" in done.stderr
    assert done.stdout.splitlines()[4:] == [
        f"a         1 tensor  object  24 B  {name}",
        "  kernel       2x3  F32     24 B",
        "  rate              float         0.5",
    ]


def test_groups_that_differ_in_a_value_are_shown_apart(
    weightctl: Run, saved: Callable[[Any], Path]
) -> None:
    done = weightctl("ls", saved({"groups": [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.2}]}))
    assert [line.split() for line in done.stdout.splitlines()[4:]] == [
        ["groups"], ["[0-1].lr", "x2", "float", "0.1"], ["2.lr", "float", "0.2"],
    ]  # fmt: skip


def test_json_has_the_values(weightctl: Run, saved: Callable[[Any], Path]) -> None:
    root = {"epoch": 3, "name": "größe", "sizes": [1, 2], "dtype": torch.float16, "none": None}
    found = json.loads(weightctl("ls", saved(root), "--json").stdout)["values"]
    assert found == [
        {"name": "epoch", "kind": "int", "value": 3},
        {"name": "name", "kind": "str", "value": "größe"},
        {"name": "sizes", "kind": "list", "value": [1, 2]},
        {"name": "dtype", "kind": "torch.dtype", "value": "torch.float16"},
        {"name": "none", "kind": "None", "value": None},
    ]


def test_patterns_choose_values_too(weightctl: Run, saved: Callable[[Any], Path]) -> None:
    root = {"model": {"w": torch.ones(2)}, "args": {"lr": 0.1, "model": "x"}}
    done = weightctl("ls", saved(root), "--include", "args.*")
    assert [line.split()[0] for line in done.stdout.splitlines()[4:]] == ["args", "lr", "model"]


def test_a_bare_tensor_has_no_name(weightctl: Run, saved: Callable[[Any], Path]) -> None:
    assert "(unnamed)  2x3  F32  24 B" in weightctl("ls", saved(torch.ones(2, 3))).stdout


def test_a_value_cannot_move_the_cursor(weightctl: Run, saved: Callable[[Any], Path]) -> None:
    done = weightctl("ls", saved({"a": "\x1b[2Jboo\n"}))
    assert "\x1b" not in done.stdout
    assert r"\x1b[2Jboo\n" in done.stdout


@pytest.fixture
def lightning(saved: Callable[[Any], Path]) -> Path:
    epochs = {f"metric{number}": {"best": number, "last": 0.5} for number in range(30)}
    return saved({
        "state_dict": {"w": torch.ones(2)},
        "pytorch-lightning_version": "2.1.0",
        "loops": {"fit_loop": {"total": 3, "current": 2}},
        "hyper_parameters": epochs,
        "args": {"lr": 0.1, "seed": None},
    })  # fmt: skip


def test_long_branches_of_values_fold_into_one_line(weightctl: Run, lightning: Path) -> None:
    done = weightctl("ls", lightning)
    assert [" ".join(line.split()) for line in done.stdout.splitlines()[4:]] == [
        "state_dict.w 2 F32 8 B",
        "pytorch-lightning_version str 2.1.0",
        "loops 2 values",
        "hyper_parameters 60 values",
        "args",
        "lr float 0.1",
        "seed None",
    ]
    assert done.stderr == "note: 62 values folded; --values lists them\n"


def test_all_values_are_shown_where_they_are_asked_for(weightctl: Run, lightning: Path) -> None:
    done = weightctl("ls", lightning, "--values")
    assert done.stderr == ""
    assert sum("best" in line for line in done.stdout.splitlines()) == 30
    assert "folded" not in weightctl("ls", lightning, "--quiet").stderr
    assert len(json.loads(weightctl("ls", lightning, "--json").stdout)["values"]) == 65


@pytest.mark.parametrize("option", ["--flat", "--meta", "--scan"])
def test_values_go_with_the_tree_only(weightctl: Run, lightning: Path, option: str) -> None:
    done = weightctl("ls", lightning, "--values", option)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hint: " in done.stderr
