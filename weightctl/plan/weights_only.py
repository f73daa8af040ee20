"""Selection of a model's weights, without the training state that is stored with them."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.formats.base import LEVELS_KEY
from weightctl.formats.open.index import few
from weightctl.schemes.buffers import is_optimizer_state
from weightctl.text.wording import pluralize
from weightctl.weights.derived import Derived, tensor_of
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from weightctl.weights.info import Header
    from weightctl.weights.metadata import MetadataValue

# Keys of entries that training scripts, Lightning, DeepSpeed and Megatron write.
_TRAINING = re.compile(
    r"(.*_)?optim(izer)?s?\d*((?-i:[_A-Z]).*)?|opt_state.*|(.*_)?rngs?(_.*)?|(.*_)?random_states?(_.*)?|"
    r"(.*_)?lr_?sched.*|(native_)?amp(_.*)?|callbacks|loops|hyper_?parameters|hparams(_.*)?",
    re.IGNORECASE,
)


def keep_weights(weights: Checkpoint) -> Checkpoint:
    """Return a tree with only the model's tensors, without the training state.

    Optimizer state, random number generators and other values are removed. In a PyTorch checkpoint,
    this is decided by the keys of entries; values and single numbers beside the state dict are
    removed too. If one entry contains all remaining tensors, such as Lightning's `state_dict`, its
    name is removed from their names. The metadata of other formats is kept. Raises
    `ConversionError` if no tensor is left.
    """
    header = header_of(weights)
    levels = _parse_levels(header)
    names = [*header.tensors, *header.aliases]
    containers = {name: _list_containers(name, levels) for name in names}
    kept = [name for name in names if not _is_training(header, name, containers[name])]
    kept = [*_drop_single_numbers(header, kept, containers)]
    if names and not kept:
        raise ConversionError(
            f"no tensor is left: all tensors are training state ({few(names)})",
            hint="convert without --weights-only (weights_only=True in Python)",
        )
    entry = _common_container(kept, containers)
    short = {name: name[len(entry) + 1 :] if entry else name for name in kept}
    # If the tensor of a tied name is removed, the first of its names that is kept becomes the
    # tensor.
    first: dict[str, str] = {}
    for name in kept:
        first.setdefault(header.aliases.get(name, name), name)
    tensors = {short[name]: tensor_of(source_of(weights), name) for name in first.values()}
    aliases = {
        short[name]: short[first[tensor]]
        for name, tensor in header.aliases.items()
        if name in short and first[tensor] != name
    }
    metadata = _clean_metadata(header, levels, kept, containers, entry)
    notes = tuple(_describe(header, kept, entry))
    return Checkpoint(Derived(source_of(weights), tensors, metadata, aliases, notes, leaves={}))


def _parse_levels(header: Header) -> dict[str, str]:
    if LEVELS_KEY not in header.metadata:
        return {}
    from weightctl.formats.pytorch.nesting import parse_levels

    return parse_levels(header.metadata)


def _list_containers(name: str, levels: Mapping[str, str]) -> list[str]:
    """Return the containers that a name is in, by full name, outer ones first."""
    dots = (match.start() for match in re.finditer(r"\.", name))
    return [name[:end] for end in dots if name[:end] in levels]


def _is_training(header: Header, name: str, containers: list[str]) -> bool:
    info = header.tensors[header.aliases.get(name, name)]
    if is_optimizer_state(info._replace(name=name)):
        return True
    if LEVELS_KEY not in header.metadata:
        return False  # without entries, each name is one of a state dict
    return any(map(_TRAINING.fullmatch, _list_keys(name, containers)))


def _list_keys(name: str, containers: list[str]) -> Iterator[str]:
    """Yield the keys of the entries that lead to a tensor, without its name in a state dict."""
    start = 0
    for place in containers or [name]:
        yield place[start:]
        start = len(place) + 1


def _drop_single_numbers(
    header: Header, names: Collection[str], containers: Mapping[str, list[str]]
) -> Iterator[str]:
    """Yield the names except those of single numbers outside of state dicts (`best_accuracy`)."""
    holders: dict[str, int] = {}
    for name in names:
        holder = containers[name][-1] if containers[name] else ""
        size = header.tensors[header.aliases.get(name, name)].size
        holders[holder] = max(holders.get(holder, 0), size)
    has_model = any(size > 1 for holder, size in holders.items() if holder)
    for name in names:
        is_outside = not containers[name] and holders[""] <= 1
        if not (is_outside and has_model):
            yield name


def _common_container(names: Collection[str], containers: Mapping[str, list[str]]) -> str:
    """Return the innermost container with all of these names; empty for the outermost container."""
    counts = Counter(place for name in names for place in containers[name])
    return max(
        (place for place, count in counts.items() if count == len(names)), key=len, default=""
    )


def _clean_metadata(
    header: Header,
    levels: Mapping[str, str],
    kept: Collection[str],
    containers: Mapping[str, list[str]],
    entry: str,
) -> dict[str, MetadataValue]:
    """Return the metadata without values of the checkpoint, with the levels of the kept names."""
    values = {LEVELS_KEY, *levels, *header.leaves, *header.aliases}
    metadata = {key: value for key, value in header.metadata.items() if key not in values}
    inner = {place for name in kept for place in containers[name] if len(place) > len(entry)}
    if not inner:
        return metadata
    from weightctl.formats.pytorch.nesting import levels_value

    start = len(entry) + 1 if entry else 0
    left = {place[start:]: levels[place] for place in levels if place in inner}
    return {**metadata, LEVELS_KEY: levels_value(left)}


def _describe(header: Header, kept: Collection[str], entry: str) -> Iterator[str]:
    known = set(kept)
    tensors = [name for name in (*header.tensors, *header.aliases) if name not in known]
    values = [name for name in header.leaves if name not in known]
    counts = [
        f"{pluralize(len(names), noun)} ({few(names)})"
        for names, noun in ((tensors, "tensor"), (values, "value"))
        if names
    ]
    if counts:
        yield f"training state is left out: {' and '.join(counts)}"
    if entry:
        yield (
            f"the prefix `{entry}.` is removed from tensor names, because this entry contains all "
            "tensors"
        )
