"""The generator of tiny checkpoints makes whole models of every family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import tiny
from each import each
from weightctl import open_weights
from weightctl.families import FAMILIES, recognize
from weightctl.families.modules import shape_of
from weightctl.families.steps import INT32
from weightctl.verify import Request, Subject, verify_request

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from numpy.typing import NDArray

    from weightctl.families.config_keys import Config
    from weightctl.families.modules import TensorNames


def make_zeros(_: object, names: TensorNames, config: Config) -> NDArray[Any]:
    dtype = np.int32 if names.change is INT32 else np.float32
    return np.zeros(shape_of(names, config), dtype)


@each("family", FAMILIES)
def test_a_tiny_checkpoint_is_the_whole_model_of_its_config(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To draw the values of all families would take seconds.
    monkeypatch.setattr(tiny, "_draw", make_zeros)
    case = next(name for name, stated in tiny.read_cases().items() if stated["family"] == family)
    made = tiny.make(case)
    made.check()
    assert made.family is FAMILIES[family].load()
    assert not made.unexpected
    assert not made.beside


@each("name", ["model", "model.gguf"])
def test_a_tiny_checkpoint_is_written_in_the_convention_of_its_suffix(
    name: str, tmp_path: Path
) -> None:
    written = recognize(open_weights(tiny.write(tmp_path / name, "qwen2", num_hidden_layers=1)))
    written.check()
    assert written.config.layers == 1
    assert (written.convention == "gguf") == name.endswith("gguf")


def test_a_fault_is_named(tmp_path: Path) -> None:
    whole, path = tiny.write(tmp_path / "whole", "qwen2"), tmp_path / "model"
    tiny.write(path, "qwen2", fault="zeroed")
    report = verify_request(Request(subject=Subject(path), reference=Subject(whole)), ["values"])
    (problem,) = report.problems
    assert problem.cause is not None
    assert problem.cause.name == "zeroed"
