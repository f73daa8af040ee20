"""Types that transformers lacks, each as a type of transformers that computes the same.

A checkpoint of such a type is written from one of the other type, and read as one.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import safetensors.numpy as stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Document = Mapping[str, Any]
    Tensors = Mapping[str, NDArray[Any]]

__all__ = ["STAND_INS", "StandIn"]


_TENSORS, _METADATA = "model.safetensors", {"format": "pt"}


class StandIn(NamedTuple):
    """The type of transformers that computes what a type does: its `model_type`.

    `config` returns the config.json of the other type for that of the type. `tensors` returns the
    tensors of the type for those of the other, and `back` the other way round; both get the type's
    config.json.
    """

    model_type: str
    class_name: str
    config: Callable[[Document], Document]
    tensors: Callable[[Tensors, Document], Tensors] = lambda tensors, _: tensors
    back: Callable[[Tensors, Document], Tensors] = lambda tensors, _: tensors

    def write(self, directory: Path, document: Document) -> None:
        """Make a checkpoint of the type of one of the other type, in place."""
        path = directory / _TENSORS
        given = stored.load_file(path)
        stored.save_file(dict(self.tensors(given, document)), path, _METADATA)
        (directory / "config.json").write_text(json.dumps(document))

    def read(self, directory: Path, into: Path) -> Path:
        """Return a checkpoint of the other type, made of one of the type."""
        shutil.copytree(directory, into)
        document = json.loads((directory / "config.json").read_text())
        given = stored.load_file(directory / _TENSORS)
        stored.save_file(dict(self.back(given, document)), into / _TENSORS, _METADATA)
        (into / "config.json").write_text(json.dumps(self.config(document)))
        return into


def _minicpm(document: Document) -> Document:
    own = ("scale_emb", "scale_depth", "dim_model_base")
    hidden, layers = document["hidden_size"], document["num_hidden_layers"]
    heads = document["num_attention_heads"]
    return {key: value for key, value in document.items() if key not in own} | {
        "model_type": "granite",
        "embedding_multiplier": document["scale_emb"],
        "residual_multiplier": document["scale_depth"] / layers**0.5,
        "logits_scaling": hidden / document["dim_model_base"],
        "attention_multiplier": (hidden // heads) ** -0.5,
    }


STAND_INS: Mapping[str, StandIn] = {
    "minicpm": StandIn("granite", "MiniCPMForCausalLM", _minicpm),
}
