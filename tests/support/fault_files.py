"""A checkpoint whose tensors and config are changed on the way to another file."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weightctl import Plan, WeightData, open_weights
from weightctl.families import recognize
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import MetadataValue
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.families import RecognizedModel

WEIGHTS, CONFIG = "model.safetensors", "config.json"


@dataclass
class Files:
    """A model's directory or GGUF file, in memory: what is put here is what is written.

    Tensors are asked for by the names of our modules; `where` returns the checkpoint's own.
    """

    source: Path
    model: RecognizedModel
    tensors: dict[str, WeightData]
    metadata: dict[str, MetadataValue]
    config: dict[str, Any]

    @property
    def is_gguf(self) -> bool:
        return self.model.convention == "gguf"

    @property
    def ours(self) -> Any:
        """The config as our modules read it."""
        return self.model.config

    def where(self, module: str) -> str:
        """Return what the checkpoint calls a tensor."""
        names = {each.module: each for each in self.model.family.tensors(self.model.config)}
        name = names[module].name(self.model.convention)
        # Of BERT, checkpoints leave the prefix out.
        plain = name or ""
        return plain if plain in self.tensors else plain.removeprefix(self.model.family.prefix)

    def has(self, module: str) -> bool:
        return any(each.module == module for each in self.model.family.tensors(self.model.config))

    def modules(self, prefix: str) -> list[str]:
        """Return the tensors of a part."""
        names = self.model.family.tensors(self.model.config)
        return [each.module for each in names if each.module.startswith(prefix)]

    def numbers(self, module: str) -> NDArray[Any]:
        """Return a copy of a tensor's numbers in its own dtype; of blocks, their bytes by rows."""
        return self.tensors[self.where(module)].to_numpy().copy()

    def put(self, module: str, array: NDArray[Any]) -> str:
        """Put other numbers, or blocks, in a tensor's place; return what it is called."""
        name = self.where(module)
        old = self.tensors[name]
        new = WeightData.from_numpy(array.astype(old.to_numpy().dtype), name)
        if old.quantization_encoding is not None:
            new = WeightData.of(old.info, new.data)
        self.tensors[name] = new
        return name

    def exchange(self, one: str, other: str) -> tuple[str, str]:
        """Give two tensors each other's numbers."""
        first, second = self.numbers(one), self.numbers(other)
        return self.put(one, second), self.put(other, first)

    def drop(self, module: str) -> str:
        name = self.where(module)
        del self.tensors[name]
        return name

    def stated(self, *names: str) -> dict[str, Any]:
        """Return what the config says, by those keys of these that it has.

        GGUF's are without the architecture.
        """
        if self.is_gguf:
            family = self.model.family.gguf_name
            keys = [f"{family}.{name}" for name in names]
            return {key: self.metadata[key].content for key in keys if key in self.metadata}
        stated = (self.config.get("rope_parameters") or {}) | self.config
        return {name: stated[name] for name in names if name in stated}

    def say(self, key: str, value: float) -> str:
        """Let the config say another value; return the key. In GGUF it has its type already."""
        if self.is_gguf:
            old = self.metadata[key]
            self.metadata[key] = MetadataValue(old.type, type(old.content)(value))
            return key
        for place in (self.config, self.config.get("rope_parameters")):
            if place is not None and key in place:
                place[key] = type(place[key])(value)
        return key

    def write(self, out: Path) -> Path:
        """Write the checkpoint, with all that lies beside it, where there is nothing yet."""
        if self.is_gguf:
            save(Plan.copy(as_checkpoint(self.tensors, self.metadata), "gguf"), out)
            return out
        out.mkdir()
        for beside in self.source.iterdir():
            if beside.name not in {WEIGHTS, CONFIG}:
                shutil.copy(beside, out)
        (out / CONFIG).write_text(json.dumps(self.config))
        tree = as_checkpoint(self.tensors, self.metadata)
        save(Plan.copy(tree, "safetensors"), out / WEIGHTS)
        return out


def read(source: Path) -> Files:
    """Return a checkpoint that is whole."""
    weights = open_weights(source)
    is_directory = source.is_dir()
    return Files(
        source=source,
        model=recognize(weights),
        tensors={name: node.data() for name, node in weights.items()},
        metadata=dict(weights.metadata),
        config=json.loads((source / CONFIG).read_text()) if is_directory else {},
    )
