"""Models in a directory and on this machine, and what their headers say of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightctl.errors import WeightctlError
from weightctl.formats import FORMATS, format_by_index, format_by_suffix
from weightctl.formats.open.opening import open_weights
from weightctl.formats.open.sets import part_of, set_of
from weightctl.inspection.contents import Contents
from weightctl.inspection.details import read_details
from weightctl.storage.files import is_directory, list_names
from weightctl.storage.local_models import list_local_models
from weightctl.system.phases import begin_phase
from weightctl.system.temporary import is_temporary
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from weightctl.families.memory.caches import MemoryOptions

# Files with these names are the model of their directory.
_USUAL = {line.in_directory for line in FORMATS.values()}


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model of a list, and what its headers say; other fields are None if `problem` is not empty.

    `name` is what commands accept as MODEL, or relative to a directory that is listed. `place` is
    the program that keeps the model, or the directory. `fits` says whether llama.cpp can run it in
    the memory; it is None if this cannot be estimated.
    """

    name: str
    place: str
    path: str
    format: str | None
    quantization: str | None
    bytes: int | None
    parameters: int | None
    context_length: int | None
    fits: bool | None
    problem: str


@dataclass(frozen=True, slots=True)
class ModelList:
    """Models with the memory, in bytes, and the context, in tokens, that `fits` refers to."""

    models: tuple[ListedModel, ...]
    memory: int
    context: int


def list_models(memory: int, options: MemoryOptions) -> ModelList:
    """List the models of the Hub's cache, Ollama, LM Studio, and the current directory."""
    return _describe_all(_find_all(), memory, options)


def list_directory(path: str, memory: int, options: MemoryOptions) -> ModelList:
    """List the models in a directory; names are relative to it."""
    found = ((name, path, os.path.join(path, name)) for name in find_models(path))
    return _describe_all(found, memory, options)


def find_models(directory: str) -> list[str]:
    """Return the names of the models in a directory, empty for one that is the whole directory.

    A set of files is named by its first file. Directories with GGUF files are looked into. A
    directory that cannot be read has no models.
    """
    names = [name for name in _list_readable(directory) if not is_temporary(name)]
    if any(name in _USUAL or format_by_index(name) for name in names):
        return [""]
    found: list[str] = []
    for name in names:
        if format_by_suffix(name) is not None:
            found += [name] if _is_first(name) else []
        elif is_directory(os.path.join(directory, name)) and "." not in name[:1]:
            inner = _list_readable(os.path.join(directory, name))
            found += [
                f"{name}/{each}" for each in inner if each.endswith(".gguf") and _is_first(each)
            ]
    return found


def _list_readable(directory: str) -> Sequence[str]:
    try:
        return list_names(directory)
    except OSError:
        return ()


def _is_first(name: str) -> bool:
    part = part_of(name)
    return part is None or name == next(iter(set_of(part)))


def _find_all() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the place and the path of each model on this machine."""
    for model in list_local_models():
        if not os.path.isdir(model.path):
            yield model.name, model.program, model.path
            continue
        for below in find_models(model.path):
            name = f"{model.name}/{below}" if below else model.name
            yield name, model.program, os.path.join(model.path, below).rstrip("/")
    for name in _find_here():
        yield name, "this directory", name


def _find_here() -> Iterator[str]:
    below = find_models(".")
    yield from (name or "." for name in below)
    if below == [""]:
        return
    for name in _list_readable("."):
        if os.path.isdir(name) and find_models(name) == [""]:
            yield name


def _describe_all(
    found: Iterable[tuple[str, str, str]], memory: int, options: MemoryOptions
) -> ModelList:
    begin_phase("reading headers")
    models = tuple(_describe(*each, memory, options) for each in found)
    return ModelList(models, memory, options.context)


def _describe(name: str, place: str, path: str, memory: int, options: MemoryOptions) -> ListedModel:
    try:
        contents = Contents(open_weights(path))
        details = read_details(contents)
    except (WeightctlError, OSError) as error:
        problem = error.message if isinstance(error, WeightctlError) else str(error)
        return ListedModel(name, place, path, None, None, None, None, None, None, problem)
    return ListedModel(
        name=name,
        place=place,
        path=path,
        format=header_of(contents.weights).format,
        quantization=details.quantization,
        bytes=details.file_bytes,
        parameters=contents.totals.parameters,
        context_length=details.context_length,
        fits=_fits(contents, memory, options),
        problem="",
    )


def _fits(contents: Contents, memory: int, options: MemoryOptions) -> bool | None:
    from weightctl.families.memory.estimate import estimate_memory
    from weightctl.families.recognition import recognize

    try:
        estimate = estimate_memory(recognize(contents.weights), options)
    except WeightctlError:
        return None
    layers = len(estimate.layer_weights)
    return estimate.fit(memory).gpu_layers == layers + 1
