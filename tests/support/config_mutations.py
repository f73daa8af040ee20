"""Changed keys of config.json, and what a converted model and transformers compute of them.

Each key is changed in turn. Where the logits of transformers change, those of the GGUF file must
change alike, or the model must be refused.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from family_cases import CASES, for_transformers, model_class, run_transformers
from lazy import torch
from runs import executed
from weightctl import convert, open_weights
from weightctl.errors import WeightctlError
from weightctl.families import recognize
from weightctl.nn.models import build_network

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from family_cases import FamilyCheckpoint

__all__ = ["MutatedKeys", "mutate_keys"]

TOKENS = [7, 3, 60, 21, 9, 33, 14, 5, 41, 24, 19, 77]
# Keys that all models have in transformers, and that a config need not state.
USUAL = {"is_causal": False, "is_decoder": True, "tie_word_embeddings": True}
ACTIVATIONS = ("relu", "gelu", "silu")
# Keys that name the model, and no part of its computation.
NAMES = {"model_type", "architectures", "transformers_version", "dtype", "torch_dtype"}
# transformers applies this initialization to weights that it has loaded.
INITIAL = {"rescale_prenorm_residual"}
# The logits of these changes are the same within rounding.
LEAST_CHANGE, MOST_DIFFERENCE = 1e-3, 2e-3


@dataclass(frozen=True)
class MutatedKeys:
    """The keys whose changes transformers computes otherwise, by what weightctl does of them.

    `recast` are those that decide whether a model makes embeddings or predicts tokens, and so its
    family: the GGUF file of the other family has another kind of output.
    """

    alike: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    recast: list[str] = field(default_factory=list[str])
    otherwise: list[str] = field(default_factory=list[str])


def mutate_keys(made: FamilyCheckpoint, directory: Path) -> MutatedKeys:
    """Change each key of a checkpoint's config, and return what its conversion does of it."""
    name = made.case.id
    document = json.loads((made.path / "config.json").read_text())
    expected = run_theirs(name, made.path, directory / "theirs")
    assert expected is not None
    found = MutatedKeys()
    for key, changed in list_mutations(document):
        folder = directory / f"{key}.changed"
        folder.mkdir()
        for file in made.path.iterdir():
            if file.name != "config.json" and not file.is_dir():
                os.link(file, folder / file.name)
        (folder / "config.json").write_text(json.dumps(changed))
        theirs = run_theirs(name, folder, directory / f"{key}.theirs")
        if theirs is None or np.abs(theirs - expected).max() < LEAST_CHANGE:
            continue
        try:
            ours = run_converted(folder, directory / "model.gguf")
        except WeightctlError:
            found.refused.append(key)
            continue
        if ours.shape != theirs.shape:
            found.recast.append(key)
            continue
        difference = float(np.abs(ours - theirs).max())
        if difference < MOST_DIFFERENCE * max(1.0, float(np.abs(theirs).max())):
            found.alike.append(key)
        else:
            found.otherwise.append(f"{key}: the logits differ by {difference:.3g}")
    return found


def change_value(key: str, value: Any) -> Any:
    """Return another value of the same kind; None if there is none."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1 if value < 2 else value * 2
    if isinstance(value, float):
        return value * 1.5 + 0.125
    if value in ACTIVATIONS or "act" in key:
        return next(each for each in ACTIVATIONS if each != value)
    return None


def list_mutations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield configs in each of which one key, also of an inner object, has another value."""
    for key, value in {**USUAL, **document}.items():
        if key in NAMES | INITIAL:
            continue
        if isinstance(value, dict):
            for inner, old in value.items():
                new = change_value(inner, old)
                if new is not None:
                    yield f"{key}.{inner}", {**document, key: {**value, inner: new}}
            continue
        new = value if key not in document else change_value(key, value)
        if new is not None:
            yield key, {**document, key: new}


def run_theirs(name: str, path: Path, into: Path) -> NDArray[np.float32] | None:
    """Return the logits of transformers; None if it refuses the config or lacks weights for it."""
    try:
        model, loaded = model_class(CASES[name]).from_pretrained(
            for_transformers(CASES[name], path, into), dtype=torch.float32,
            attn_implementation="eager", output_loading_info=True,
        )  # fmt: skip
    except Exception:  # noqa: BLE001  # a config that makes no model
        return None
    if any(loaded[kind] for kind in ("missing_keys", "mismatched_keys", "unexpected_keys")):
        return None
    try:
        return run_transformers(model.eval(), TOKENS)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
        return None


def run_converted(path: Path, into: Path) -> NDArray[np.float32]:
    """Return the logits of the GGUF file that a directory becomes."""
    convert(path, into, to="gguf", dtype="f32", force=True)
    found = recognize(open_weights(into))
    found.check()
    network = build_network(found)
    given = [np.array([TOKENS])]
    given += [np.ones((1, len(TOKENS)), np.int64)] * (len(network.INPUTS) - 1)
    (output,) = executed(network.graph(), *given, weights=found.weights)
    return np.asarray(output[0])
