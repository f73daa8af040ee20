"""Names of tensors, from the groups of an HDF5 file and the names of Keras' layers.

Keras 3 names a group after the class of a layer and a number, and states the name of the layer as
an attribute of its variables, or only in config.json. Before, a file listed the names of its layers
and of their weights as attributes.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError
from weightctl.extras.keras.walking import Path, text_of
from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.extras.keras.file_object import PagedSource
    from weightctl.extras.keras.walking import FoundDatasets

_LAYERS, _WEIGHTS, _MODEL = "layer_names", "weight_names", "model_weights"
_DEEPEST = 50
_OPERATIONS = "keras.src.ops."


def name_datasets(
    file: PagedSource, root: Any, found: FoundDatasets, labels: Mapping[Path, str]
) -> dict[Path, str]:
    """Return the name of each path in a file; raises `FormatError` if two have the same name.

    `labels` are names of layers by the path of their group, for groups that do not state one.
    """
    paths = [*found.datasets, *found.aliases]
    stated = _read_names(root)
    labels = _keep_distinct({**labels, **found.labels})
    names = {path: stated.get(path) or _join(path, labels) for path in paths}
    taken = Counter(names.values())
    names = {path: name if taken[name] == 1 else ".".join(path) for path, name in names.items()}
    twice = next((name for name, times in Counter(names.values()).items() if times > 1), None)
    if twice is not None:
        text = f"two of its datasets are named `{twice}`"
        raise FormatError(file.path, None, text, hint="rename one of them with h5py")
    return names


def _join(path: Path, labels: Mapping[Path, str]) -> str:
    groups = (labels.get(path[:depth], path[depth - 1]) for depth in range(1, len(path)))
    return ".".join((*groups, path[-1]))


def _keep_distinct(labels: dict[Path, str]) -> dict[Path, str]:
    """Return the labels that no other group of the same group has."""
    taken = Counter((path[:-1], label) for path, label in labels.items())
    return {path: label for path, label in labels.items() if taken[path[:-1], label] == 1}


def _read_names(root: Any) -> dict[Path, str]:
    """Return the names that the attributes of a file state, in the layout before Keras 3."""
    prefix: Path = () if _has(root, _LAYERS) else (_MODEL,)
    group = root if not prefix else root.get(_MODEL)
    names: dict[Path, str] = {}
    if group is None or not hasattr(group, "attrs"):
        return names
    for layer in _list_texts(group, _LAYERS):
        if layer not in group:
            continue
        for weight in _list_texts(group[layer], _WEIGHTS):
            below = tuple(filter(None, weight.split("/")))
            own = re.sub(r":\d+$", "", weight).strip("/").replace("/", ".")
            is_within = layer in own.split(".")
            names[*prefix, *filter(None, layer.split("/")), *below] = (
                own if is_within else f"{layer}.{own}"
            )
    return names


def _has(group: Any, key: str) -> bool:
    return key in group.attrs or f"{key}0" in group.attrs


def _list_texts(group: Any, key: str) -> Iterator[str]:
    """Yield the texts of an attribute, which can be in several parts: `key0`, `key1`, ..."""
    parts = takewhile(group.attrs.__contains__, (f"{key}{number}" for number in count()))
    keys = [key] if key in group.attrs else [*parts]
    for each in keys:
        value = group.attrs[each]
        entries: Any = value.ravel().tolist() if hasattr(value, "ravel") else value
        yield from filter(None, map(text_of, entries if is_list(entries) else ()))


def names_of_config(config: Mapping[str, Any]) -> dict[Path, str]:
    """Return the names of the layers in a config of Keras, by the path of their group."""
    names: dict[Path, str] = {}
    _add_layers(names, (), config, 0)
    return names


def _add_layers(names: dict[Path, str], path: Path, config: Mapping[str, Any], depth: int) -> None:
    own = config.get("config")
    layers = own.get("layers") if is_object(own) else None
    if not is_list(layers) or depth > _DEEPEST:
        return
    taken: Counter[str] = Counter()
    for layer in layers:
        if not is_object(layer) or str(layer.get("module")).startswith(_OPERATIONS):
            continue
        group = _snake_case(str(layer.get("class_name")))
        number = taken[group]
        taken[group] += 1
        below = (*path, "layers", f"{group}_{number}" if number else group)
        settings = layer.get("config")
        label = settings.get("name") if is_object(settings) else None
        if isinstance(label, str) and label.isprintable() and label:
            names[below] = label
        _add_layers(names, below, layer, depth + 1)


def _snake_case(name: str) -> str:
    """Return the name of a class as Keras names its group."""
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
