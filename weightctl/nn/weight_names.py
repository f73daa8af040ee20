"""Where the weights of a model are, and their names, which follow from it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import GraphError
from weightctl.graph.graph import Weight
from weightctl.nn.base_layer import (
    ROOT,
    SHARED,
    Layer,
    Naming,
    current_naming,
    list_attributes,
    path_below,
    recursive_named_layers,
)
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CONTAINERS = (list, tuple, dict, set, frozenset)


def is_container(value: object) -> bool:
    """Whether a value is a container that may hold weights or layers, and is not a layer itself."""
    return isinstance(value, _CONTAINERS) and not isinstance(value, Layer)


def refuse_hidden(root: Layer) -> None:
    """Raise `GraphError` if a container holds weights, or layers with weights, that have no path.

    Shards do not need paths: they get the values of their whole weight.
    """
    layers = list(recursive_named_layers(root))
    reached = {
        id(found)
        for _, layer in layers
        for found in vars(layer).values()
        if isinstance(found, Weight)
    }
    for path, layer in layers:
        for name, value in list_attributes(layer).items():
            if not is_container(value):
                continue
            for weight in _weights_in(value):
                if id(weight) not in reached and weight.shard_idx is None:
                    where = f"{path}.{name}" if path else name
                    raise GraphError(
                        f"`{where}` of {type(root).__name__} is a {type(value).__name__}; "
                        f"weights in it, such as `{weight.name}`, are not part of the state",
                        hint="put layers in a LayerList, and weights in attributes",
                    )


def _weights_in(container: Any) -> Iterator[Weight]:
    """Yield the weights in a container, in nested containers, and below layers in any of them."""
    seen: set[int] = set()
    stack: list[object] = [container]
    while stack:
        found = stack.pop()
        number = id(found)
        if isinstance(found, Weight):
            yield found
        elif isinstance(found, (Layer, *_CONTAINERS)) and number not in seen:
            seen.add(number)
            stack.extend(_list_held(found))


def _list_held(holder: Any) -> Iterable[object]:
    if isinstance(holder, Layer):
        return (*holder.sublayers.values(), *list_attributes(holder).values())
    return holder.values() if is_object(holder) else holder


class _Site(NamedTuple):
    """An attribute of a layer whose value is a weight."""

    layer: Layer
    attribute: str
    weight: Weight


def weights_of(layer: Layer) -> dict[str, Weight]:
    """Return the weights of a layer, without sublayers, by attribute name."""
    return {name: found for name, found in vars(layer).items() if isinstance(found, Weight)}


def all_weights(root: Layer) -> Iterator[Weight]:
    """Yield the weights of a layer and of all layers below it, including shared ones."""
    for _, layer in recursive_named_layers(root):
        yield from weights_of(layer).values()


def share(layer: Layer, name: str, weight: Weight) -> None:
    """Set an attribute of a layer to a weight that another layer owns."""
    # The value may be of any type: a caller's types are not checked.
    given: Any = weight
    if not isinstance(given, Weight):
        raise TypeError(f"a shared weight must be a Weight, not {type(given).__name__}")
    setattr(layer, name, weight)
    vars(layer)[SHARED] = {**_find_shared_weights(layer), name: weight}


def find_owned(root: Layer) -> dict[str, list[_Site]]:
    """Return the sites of the weights that a layer and its sublayers own, by path.

    A weight with several paths is listed by the first; shards are not listed. Raises `GraphError`
    if two weights have the same path.
    """
    found: dict[str, list[_Site]] = {}
    name_of: dict[int, str] = {}
    for path, layer in recursive_named_layers(root):
        shared = _find_shared_weights(layer)
        for attribute, weight in weights_of(layer).items():
            if shared.get(attribute) is weight or weight.shard_idx is not None:
                continue
            name = f"{path}.{attribute}" if path else attribute
            known = name_of.setdefault(id(weight), name)
            if known == name and known in found:
                raise GraphError(
                    f"two weights of {type(root).__name__} have the path `{name}`",
                    hint="remove the dot from the name of the attribute",
                )
            found.setdefault(known, []).append(_Site(layer, attribute, weight))
    return found


def second_names(root: Layer, sites: dict[str, list[_Site]] | None = None) -> dict[str, str]:
    """Return the other paths of owned weights, each with the name of its weight.

    These are the paths of shared weights, and paths below a layer that several attributes hold.
    `sites` is the result of `find_owned`.
    """
    sites = find_owned(root) if sites is None else sites
    names = {id(first.weight): name for name, (first, *_) in sites.items()}
    found: dict[str, str] = {}
    # A stack, since models may nest deeper than Python recurses; cycles are not followed.
    stack: list[tuple[str, Layer, frozenset[int]]] = [("", root, frozenset())]
    while stack:
        prefix, layer, above = stack.pop()
        for attribute, weight in weights_of(layer).items():
            path, name = prefix + attribute, names.get(id(weight))
            if name is not None and name != path:
                found[path] = name
        for attribute, below in layer.sublayers.items():
            if id(below) not in above:
                stack.append((f"{prefix}{attribute}.", below, above | {id(layer)}))
    return found


def _find_shared_weights(layer: Layer) -> dict[str, Weight]:
    shared: dict[str, Weight] = vars(layer).get(SHARED, {})
    return shared


def name_weights(module: Layer, prefix: str = "") -> dict[str, list[_Site]]:
    """Name the weights of a module by their paths from the root of its model, and return them.

    The result has paths in the module, each with the weight's sites in the whole model. If the
    module is not part of a model, its path is `prefix`, unless some of its paths already start with
    it. Raises `GraphError` if two weights have the same path, or if plain containers hold weights;
    no weight is named then.
    """
    root, prefix = naming_of(module, prefix)
    refuse_hidden(root)
    sites = find_owned(root)
    _refuse_orphans(root, sites, prefix)
    others: dict[str, list[str]] = {name: [] for name in sites}
    for second, name in second_names(root, sites).items():
        others[name].append(prefix + second)
    for name, (first, *_) in sites.items():
        first.weight.name = prefix + name
        first.weight.second_names = tuple(others[name])
    for _, layer in recursive_named_layers(root):
        vars(layer)[ROOT] = _Root(root, is_own=layer is root)
    if root is module:
        return sites
    everywhere = {id(where[0].weight): where for where in sites.values()}
    return {name: everywhere[id(where[0].weight)] for name, where in find_owned(module).items()}


def _refuse_orphans(root: Layer, sites: dict[str, list[_Site]], prefix: str) -> None:
    """Raise `GraphError` if a shared weight without an owner has the name of another weight."""
    held = {id(where[0].weight) for where in sites.values()}
    for weight in all_weights(root):
        if id(weight) not in held and weight.name.removeprefix(prefix) in sites:
            raise GraphError(
                f"a shared weight of {type(root).__name__} and the weight that replaced "
                f"it are both named `{weight.name}`",
                hint="use `set_shared_weight` to share the new one",
            )


def name_before_call(module: Layer) -> Naming:
    """Name the weights of a module's model by their current paths.

    If no layer of the model was named, weights that were created with names keep them: they may be
    names of a checkpoint.
    """
    noted: _Root | None = vars(module).get(ROOT)
    if noted is not None and noted.is_gone:
        # The model that named the weights no longer exists, or this is a copy of a part of it: the
        # names stay.
        return naming_of(module)
    was_named = any(ROOT in vars(layer) for _, layer in recursive_named_layers(module))
    if was_named or all(
        site.weight.name == site.attribute
        for sites in find_owned(module).values()
        for site in sites
    ):
        name_weights(module)
    return naming_of(module)


def naming_of(module: Layer, prefix: str = "") -> Naming:
    """Return the layer that names a module's weights, and the prefix of its paths.

    During a call it is the prefix of that call. Otherwise it is `prefix` for a module that is not
    part of a model, unless some of its paths start with it.
    """
    root, current = _root_of(module), current_naming()
    if current is not None and current.root is root:
        return current
    if prefix and (root is not module or any(name.startswith(prefix) for name in find_owned(root))):
        prefix = ""
    return Naming(root, prefix)


def _root_of(module: Layer) -> Layer:
    """Return the layer that names a module's weights: the model it is a part of, or itself.

    It is the layer that named them last, or else the root of the call in progress.
    """
    noted: _Root | None = vars(module).get(ROOT)
    current = current_naming()
    for root in (noted.layer() if noted else None, current.root if current else None):
        if root is None or root is module:
            continue
        if path_below(root, module) is not None:
            return root
    return module


class _Root:
    """A weak reference to the layer that named the weights of another layer, or its own."""

    def __init__(self, layer: Layer | None, *, is_own: bool) -> None:
        self._layer = None if layer is None else weakref.ref(layer)
        self._is_own = is_own

    @property
    def is_gone(self) -> bool:
        """Whether another layer named the weights and no longer exists."""
        return not self._is_own and self.layer() is None

    def layer(self) -> Layer | None:
        return None if self._layer is None else self._layer()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Root:
        # In a copy of a whole model the copied model is the root; a copy of a part has no root.
        return _Root(memo.get(id(self.layer())), is_own=self._is_own)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore_root, (self._is_own,))


def _restore_root(is_own: bool) -> _Root:
    return _Root(None, is_own=is_own)
