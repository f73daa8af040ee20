"""Members of tree nodes beyond the specification, and errors for missing members."""

from __future__ import annotations

from itertools import islice
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, cast

from weightctl.errors import ArgumentTypeError, MissingAttributeError, MissingTensorError
from weightctl.weights.nodes import find, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.weights.nodes import TreeNode
    from weightctl.weights.tree import Checkpoint

ResultT = TypeVar("ResultT")
ParametersT = ParamSpec("ParametersT")

# The number of names that are compared with a missing one.
_CANDIDATES = 1000

_ARRAY = "use `np.asarray(node)` for its array; NumPy's functions take nodes too: `np.sum(node)`"


class Addition(Generic[ResultT]):
    """A property of `Checkpoint` beyond the specification; a child node with its name hides it.

    For example, `weights.header.weight` is the tensor of that name if the checkpoint has one. Code
    of this package calls `header_of` and similar functions instead, which do not depend on the
    names of tensors.

    On a node without a tensor, `hasattr` is false for properties of tensors.
    """

    def __init__(self, function: Callable[[Any], ResultT]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, node: Checkpoint | None, owner: type) -> ResultT:
        if node is None:
            # The docstring of the property, for `help`.
            return cast("ResultT", self)
        if self._name in node:
            # If a tensor or prefix has this name, the caller means the node.
            return cast("ResultT", node[self._name])
        return self.of(node)

    def of(self, node: Checkpoint) -> ResultT:
        """Return the property of a node; raises `MissingAttributeError` if it has no tensor."""
        try:
            return self._function(node)
        except MissingTensorError as error:
            raise MissingAttributeError(error.message, hint=error.hint) from None


def added_method(
    function: Callable[Concatenate[Any, ParametersT], ResultT],
) -> Addition[Callable[ParametersT, ResultT]]:
    """Make a method of `Checkpoint` that a child node with its name hides."""

    def bind(node: Checkpoint) -> Callable[ParametersT, ResultT]:
        return MethodType(function, node)

    bind.__doc__ = function.__doc__
    return Addition(bind)


def refuse_call(node: Checkpoint, *, is_of_tensor: bool) -> NoReturn:
    """Raise `ArgumentTypeError` for a call of a node."""
    parent, _, segment = node.name.rpartition(".")
    if node:
        raise ArgumentTypeError(f"`{node.name}` is a node of the tree, not a function", hint=_ARRAY)
    where = f"`{parent}`" if parent else "the tree"
    raise ArgumentTypeError(
        f"`{segment}` is not a method of a node, and {where} has no tensor of this name",
        hint=_ARRAY if is_of_tensor else "`dir(node)` lists the methods and children of a node",
    )


def wrong_index(key: object) -> ArgumentTypeError:
    """Return the error for an invalid index of a tree."""
    is_slice = isinstance(key, slice)
    return ArgumentTypeError(
        f"{key!r} is not an index of a tree; use a name or an integer",
        hint="`node.values()` is a list of its children and can be sliced"
        if is_slice
        else "for example `node[0]`, `node[-1]` or `node['mlp.weight']`",
    )


def missing(name: str, root: TreeNode, count: int) -> MissingTensorError:
    """Return the error for a missing tensor, with similar names."""
    import difflib  # only on an error

    # Only names below the correct part are compared: a search among all names of a large tree would
    # take a second.
    known = name
    while known and find(root, known) is None:
        known = known.rpartition(".")[0]
    below = find(root, known)
    names = islice(walk(below), _CANDIDATES) if below is not None else ()
    near = difflib.get_close_matches(name, names, n=3)
    hint = f"the checkpoint has {count} tensors; `items()` lists them"
    if near:
        hint = f"did you mean {' or '.join(f'`{match}`' for match in near)}?"
    return MissingTensorError(f"no tensor is named `{name}`", hint=hint)
