"""A checkpoint as a model of a family that is known: its config, and its weights by our names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from weightctl.archs import ARCHS
from weightctl.archs.config_file import read_config
from weightctl.archs.configs import MODEL_TYPE, from_gguf, from_hugging_face
from weightctl.archs.kinds import shown
from weightctl.archs.model import ARCHITECTURE
from weightctl.dtype import DType
from weightctl.errors import ArchitectureError
from weightctl.logical import is_buffer
from weightctl.registry import load
from weightctl.weights.tree import Weights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.archs.arch import Arch
    from weightctl.archs.keys import Config, Dialect
    from weightctl.archs.network import Network
    from weightctl.dtype import Encoding
    from weightctl.graph.weight import Weight

__all__ = ["Checkpoint", "recognize"]

# Of thousands nobody reads more; a file may claim any number of them.
_MOST_NAMED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model as a checkpoint has it.

    `dialect` says whose names its tensors have. `weights` has the tensors by the names of our
    modules, and can be an engine's registry. `missing` are those that the config asks for and
    `unexpected` those that no part of the model is known to have, as the checkpoint calls them.
    """

    arch: Arch
    dialect: Dialect
    config: Config
    weights: Mapping[str, Weights]
    missing: list[str]
    unexpected: list[str]

    def __repr__(self) -> str:
        found = f"{len(self.weights)} weights of {self.arch.name}, {self.dialect} names"
        counts = {"missing": len(self.missing), "unexpected": len(self.unexpected)}
        wrong = "".join(f", {count} {what}" for what, count in counts.items() if count)
        return f"<Checkpoint: {found}{wrong}>"

    def module(self, dtype: DType = DType.float32) -> Network:
        """Return the whole model, computing in `dtype`, each weight as the checkpoint stores it.

        Raises `ArchitectureError` that names all tensors that are missing, unexpected, of another
        shape than the config says, or no floating-point numbers.
        """
        problems = [f"`{name}` is missing" for name in self.missing]
        problems += [f"`{name}` is of no part of {self.arch.name}" for name in self.unexpected]
        network: Network = load(self.arch.module)(self.config, dtype)
        for name, weight in network.raw_state_dict().items():
            node = self.weights.get(name)
            problem = None if node is None else _configure(weight, node)
            if problem:
                problems.append(problem)
        if problems:
            raise self._error(problems)
        return network

    def _error(self, problems: list[str]) -> ArchitectureError:
        more = len(problems) - _MOST_NAMED
        named = [*problems[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]
        return ArchitectureError(
            f"the checkpoint is no whole {self.arch.name} of its config: {'; '.join(named)}",
            hint="is the config that of this checkpoint, and is no part of it left out?",
        )


def recognize(weights: Weights, config: Mapping[str, Any] | None = None) -> Checkpoint:
    """Return the model that a checkpoint is of; no tensor is read.

    GGUF's metadata say what it is; elsewhere `config` does, or the config.json beside the files.
    Raises `ArchitectureError` where it is of no family that is known, or its config is missing or
    not sound.
    """
    _require_tree(weights)
    metadata, tensors = weights.metadata, weights.header.tensors
    if config is None and ARCHITECTURE in metadata:
        where = _place(weights)
        arch = _of_name(metadata[ARCHITECTURE].content, where)
        made = from_gguf(arch, metadata, tensors, where)
        return _matched(weights, arch, "gguf", made, where)
    where, document = read_config(weights.header) if config is None else _given(config)
    arch = _of_type(document, where)
    made = from_hugging_face(arch, document, where)
    return _matched(weights, arch, "hugging_face", made, where)


def _require_tree(weights: object) -> None:
    if not isinstance(weights, Weights):
        raise ArchitectureError(
            f"{shown(weights)} is no tree of weights", hint="`open_weights(path)` gives one"
        )


def _given(config: object) -> tuple[str, Mapping[str, Any]]:
    where = "the config"
    if not isinstance(config, Mapping):
        raise ArchitectureError(
            f"{where} is {shown(config)}, and no mapping",
            hint="give the content of a config.json as a dictionary",
        )
    return where, dict(cast("Mapping[str, Any]", config))


def _place(weights: Weights) -> str:
    return weights.header.files[0] if weights.header.files else "the metadata"


def _of_name(name: object, where: str) -> Arch:
    if not isinstance(name, str) or name not in ARCHS:
        raise _unknown(f"`{ARCHITECTURE}`", name, where, ARCHS)
    arch: Arch = load(ARCHS[name])
    return arch


def _of_type(document: Mapping[str, Any], where: str) -> Arch:
    found = document.get(MODEL_TYPE)
    known: dict[str, Arch] = {}
    for reference in ARCHS.values():
        arch: Arch = load(reference)
        known |= dict.fromkeys(arch.model_types, arch)
    if not isinstance(found, str) or found not in known:
        raise _unknown(f"`{MODEL_TYPE}`", found, where, known)
    return known[found]


def _unknown(key: str, found: object, where: str, known: Iterable[str]) -> ArchitectureError:
    says = f"says that {key} is {shown(found)}, a family that weightctl does not know"
    if found is None:
        says = f"has no {key}"
    return ArchitectureError(f"{where} {says}", hint=f"known are {', '.join(known)}")


def _matched(
    weights: Weights, arch: Arch, dialect: Dialect, config: Config, where: str
) -> Checkpoint:
    """Match the tensors of a checkpoint with those that a model of this config has."""
    header = weights.header
    if config.layers > len(header.tensors):
        raise ArchitectureError(
            f"{where} says that the model has {config.layers} layers, and there are "
            f"{len(header.tensors)} tensors",
            hint="is it the config of this checkpoint?",
        )

    def plain(name: str) -> str:
        return arch.plain(name) if dialect == "hugging_face" else name

    stored = dict(weights.items())
    by_plain: dict[str, str] = {}
    for name in stored:
        by_plain.setdefault(plain(name), name)
    nodes: dict[str, Weights] = {}
    missing: list[str] = []
    used: set[str] = set()
    for tensor in arch.tensors(config):
        wanted = tensor.name(dialect)
        if wanted is None:
            missing.append(tensor.module)
            continue
        found = wanted if wanted in stored else by_plain.get(plain(wanted))
        if found is None:
            missing.append(wanted)
            continue
        nodes[tensor.module] = stored[found]
        used.add(found)
    copies = {plain(tensor.name(dialect) or "") for tensor in arch.copies(config)}
    unexpected = [
        name
        for name in stored
        if name not in used
        and plain(name) not in copies
        and not arch.is_beside(plain(name))
        and not is_buffer(stored[name].info)
    ]
    return Checkpoint(
        arch=arch,
        dialect=dialect,
        config=config,
        weights=nodes,
        missing=missing,
        unexpected=unexpected,
    )


def _configure(weight: Weight, node: Weights) -> str:
    """Make a weight what a checkpoint stores; return what is wrong where that cannot be."""
    info, shape = node.info, weight.original_dtype_and_shape[1]
    encoding: Encoding = info.encoding
    if shape != info.shape:
        return f"`{node.name}` is of shape {list(info.shape)}, where {shape.text} belongs"
    if encoding.quantization is not None:
        weight.configure(DType.float32, shape, encoding.quantization)
    elif encoding.dtype is not None and encoding.dtype.is_float:
        weight.configure(encoding.dtype, shape)
    else:
        return f"`{node.name}` is of {encoding}, which is no encoding of a model's weights"
    return ""
