"""A checkpoint as a tree of dotted names."""

from __future__ import annotations

from functools import cached_property
from itertools import chain, islice
from operator import index
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    NoReturn,
    ParamSpec,
    Self,
    SupportsIndex,
    TypeVar,
    cast,
)

from weightctl.device import CPU
from weightctl.errors import (
    ArgumentTypeError,
    MissingAttributeError,
    MissingIndexError,
    MissingTensorError,
)
from weightctl.system.registry import load
from weightctl.text.rows import make_rows, render_rows
from weightctl.weights.buffer import ArrayOperators
from weightctl.weights.nodes import build_tree, find, is_number, walk
from weightctl.weights.protocol import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.device import DeviceLike
    from weightctl.dtype import DType, DTypeLike, QuantizationEncoding
    from weightctl.graph.graph import Weight
    from weightctl.shape import ShapeLike
    from weightctl.weights.allocation import Allocations
    from weightctl.weights.buffer import Buffer
    from weightctl.weights.data import Source, WeightData
    from weightctl.weights.dlpack import DLPackArray
    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.metadata import MetadataValue
    from weightctl.weights.nodes import TreeNode


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


class _Tree:
    """The nodes of a source's names, created on first use, and the allocated weights.

    A copied or unpickled tree has the same names, and no allocated weights.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._allocations: Allocations | None = None

    @property
    def allocations(self) -> Allocations:
        if self._allocations is None:
            from weightctl.weights.allocation import Allocations  # a listing needs none

            self._allocations = Allocations(self.source)
        return self._allocations

    @cached_property
    def root(self) -> TreeNode:
        return build_tree(chain(self.source.header.tensors, self.source.header.aliases))

    @cached_property
    def first_segments(self) -> frozenset[str]:
        """The first segments of all names; finding them is faster than building the tree."""
        names = chain(self.source.header.tensors, self.source.header.aliases)
        return frozenset(name.partition(".")[0] for name in names)

    def find(self, prefix: str) -> TreeNode | None:
        return find(self.root, prefix)

    def __reduce__(self) -> tuple[type[_Tree], tuple[Source]]:
        return (_Tree, (self.source,))


class Checkpoint(ArrayOperators, Weights):
    """A node in a checkpoint's tree of names, and a tensor if one has exactly this name.

    `weights.model.layers[0].weight`, `weights["model.layers.0.weight"]` and
    `weights.model["layers"][0].weight` are the same node, and `weights.model.layers[-1]` is the
    last layer. Access by name never fails; reading a missing tensor does.

    Every node is a mapping of its children: iteration, `keys`, `values`, `get`, `len` and `in` use
    the next segments of names, numbers in order. `items` yields the tensors at and below the node,
    by full name, and `tensors` is a mapping of them. A node is true if a tensor exists at or below
    it. Nodes of the same name in the same tree are equal. The node of a tensor is an array too: it
    has `shape` and `dtype`, and supports `np.asarray`, DLPack, operators and NumPy functions;
    blocks are dequantized.

    A child hides what is not part of `Weights` (`info`, `shape`, `header`, `keys`, ...). To reach a
    child that a method of `Weights` hides, use an index: `weights["layer.data"]`.

    `close` closes the files of the tree. As a context manager, it does so at the end of the block.
    """

    __slots__ = ("_prefix", "_tree")

    def __init__(self, source: Source) -> None:
        self._tree = _Tree(source)
        self._prefix = ""

    @property
    def name(self) -> str:
        """The name of this node: the name of a tensor, or a prefix of names."""
        return self._prefix

    @Addition
    def source(self) -> Source:
        """The source of the data of the whole tree."""
        return self._tree.source

    @Addition
    def header(self) -> Header:
        """The header of the checkpoint."""
        return header_of(self)

    @Addition
    def metadata(self) -> Mapping[str, MetadataValue]:
        """The checkpoint's metadata, each value with its type."""
        return header_of(self).metadata

    @Addition
    def info(self) -> TensorInfo:
        """The description of the node's tensor; raises `MissingTensorError` if there is none."""
        return info_of(self)

    @Addition
    def shape(self) -> tuple[int, ...]:
        """The sizes of the node's tensor in elements, also if it is quantized."""
        return info_of(self).shape

    @Addition
    def ndim(self) -> int:
        """The number of dimensions of the node's tensor."""
        return len(info_of(self).shape)

    @Addition
    def size(self) -> int:
        """The number of elements of the node's tensor."""
        return info_of(self).size

    @Addition
    def dtype(self) -> DType | QuantizationEncoding:
        """The dtype of the tensor's elements, or the encoding of its blocks.

        Raises `EncodingError` for an encoding that weightctl does not support.
        """
        from weightctl.weights.data import dtype_of_stored

        return dtype_of_stored(info_of(self))

    def exists(self) -> bool:
        """Whether a tensor has exactly this name."""
        header = header_of(self)
        return self._prefix in header.tensors or self._prefix in header.aliases

    def data(self) -> WeightData:
        """Return the data of the tensor of this name; it is read on first use.

        If its bytes can be used in place, the data is a private mapping of the file. Access to a
        mapping ends the process (SIGBUS) if another program made the file shorter. Use
        `source.read_into` to read the file instead, which raises `FormatError` in this case. Raises
        `MissingTensorError`, a `KeyError`, if there is no tensor of this name.
        """
        found = self._tree.source.data(find_stored_name(self))
        return found if found.name == self._prefix else found.with_name(self._prefix)

    def allocate(
        self,
        dtype: DTypeLike | None = None,
        shape: ShapeLike | None = None,
        quantization_encoding: QuantizationEncoding | str | None = None,
        device: DeviceLike = CPU,
    ) -> Weight:
        """Return a graph's `Weight` for the tensor of this name; nothing is read.

        Arguments that are not given are as stored. Another dtype converts the values as
        `WeightData.astype` does. `quantization_encoding` packs them into blocks; `dtype` is then
        the dtype of the dequantized values, or uint8 if `shape` is given in bytes. A name in
        `shape` matches any size, the same for each use of the name; the weight has the actual
        sizes. The same request for the same name returns the same weight.

        In the tree of `Graph.weights`, dtype and shape must be given. Raises `MissingTensorError`
        if the checkpoint does not have the tensor, `EncodingError` if the conversion is not
        possible, and `GraphError` if the shape differs from the stored shape or the name was
        allocated in another form; nothing is allocated then. The latter two are `ValueError`s.
        """
        return self._tree.allocations.allocate(
            self._prefix,
            None if _is_declaring(self) else find_stored_name(self),
            dtype=dtype,
            shape=shape,
            quantization=quantization_encoding,
            device=device,
        )

    @property
    def allocated_weights(self) -> dict[str, DLPackArray]:
        """The tensors of the whole tree that were allocated, each in its requested form.

        They are `WeightData` that is read and converted on first use; each access creates them
        again. Tensors that are only declared are not included.
        """
        return dict(self._tree.allocations.data())

    def items(self) -> Iterator[tuple[str, Checkpoint]]:
        """Yield the full name and node of every tensor at or below this node, layer 2 before 10."""
        node = self._tree.find(self._prefix)
        if node is not None:
            for name in walk(node):
                yield name, self._at(name)

    @added_method
    def keys(self) -> list[str]:
        """Return the segments of the children, numbers in order."""
        return list(self)

    @added_method
    def values(self) -> list[Checkpoint]:
        """Return the children."""
        return [self[segment] for segment in self]

    @added_method
    def close(self) -> None:
        """Close the files of the whole tree; data that was not read can no longer be read."""
        for file in self._tree.source.files:
            file.close()

    @Addition
    def tensors(self) -> Mapping[str, Checkpoint]:
        """The tensors at and below this node, by full name; `len` counts them."""
        return dict(self.items())

    @Addition
    def config(self) -> Mapping[str, Any]:
        """The content of the config.json beside the files; empty if there is none."""
        return _config_of(self)

    @Addition
    def architecture(self) -> str:
        """GGUF's `general.architecture`, or `model_type` in config.json; empty without them."""
        stated = header_of(self).metadata.get("general.architecture")
        return str(stated.content if stated else _config_of(self).get("model_type", ""))

    @added_method
    def rows(self) -> list[dict[str, Any]]:
        """Return name, shape, encoding, elements and bytes of each tensor, for data frames."""
        return make_rows(_describe(node) for _, node in self.items())

    @added_method
    def to_torch(self) -> Any:
        """Return the elements of the node's tensor as a tensor of torch; blocks are dequantized."""
        return self.data().to_torch()

    @added_method
    def get(self, key: str | int, default: Any = None) -> Any:
        """Return the node of a name below this one; `default` if nothing exists there."""
        try:
            return self[key] or default
        except MissingIndexError:
            return default

    def _at(self, name: str) -> Checkpoint:
        node = object.__new__(Checkpoint)
        node._tree, node._prefix = self._tree, name  # of this class
        return node

    def __getattr__(self, segment: str) -> Checkpoint:
        # Names that Python and its tools probe for are not tensors; a node would break the tools.
        if segment.startswith(("__", "_repr_", "_ipython_")):
            raise AttributeError(segment)
        addition = vars(Checkpoint).get(segment)
        if isinstance(addition, Addition):
            # The property raised an AttributeError, and Python then calls this method.
            return cast("Addition[Checkpoint]", addition).of(self)
        return self[segment]

    if not TYPE_CHECKING:
        # Type checkers do not see this: for them, a node is not callable.
        def __call__(self, *_: object, **__: object) -> NoReturn:
            """Raise `ArgumentTypeError`."""
            parent = self._prefix.rpartition(".")[0]
            refuse_call(self, is_of_tensor=self._at(parent).exists())

    def __getitem__(self, key: str | int) -> Checkpoint:
        segment = key if isinstance(key, str) else self._segment(key)
        return self._at(f"{self._prefix}.{segment}" if self._prefix else segment)

    def _segment(self, key: object) -> str:
        """Return the segment of an index; a negative index counts from the last numbered child."""
        if isinstance(key, bool) or not hasattr(key, "__index__"):
            raise wrong_index(key)
        place = index(cast("SupportsIndex", key))
        if place >= 0:
            return str(place)
        numbers = [segment for segment in self if is_number(segment)]
        if -place > len(numbers):
            where = f"`{self._prefix}`" if self._prefix else "the tree"
            raise MissingIndexError(
                f"{where} has {len(numbers)} numbered children, so index {place} is before "
                "the first",
                hint="use an index of at least 0: a tree that only declares weights has no end"
                if _is_declaring(self)
                else "`keys()` lists the children",
            )
        return numbers[place]

    def __iter__(self) -> Iterator[str]:
        node = self._tree.find(self._prefix)
        return iter(node.children() if node is not None else ())

    def __len__(self) -> int:
        node = self._tree.find(self._prefix)
        return 0 if node is None else len(node.below)

    def __bool__(self) -> bool:
        node = self._tree.find(self._prefix)
        return node is not None and (node.tensor is not None or bool(node.below))

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str | int) or isinstance(key, bool):
            return False
        try:
            name = self[key].name
        except MissingIndexError:
            return False
        if name and "." not in name:
            return name in self._tree.first_segments
        return self._tree.find(name) is not None

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        return self._elements().__array__(dtype, copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self._elements().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data().__dlpack_device__()

    def _elements(self) -> WeightData:
        """Return the data as one value for each element: blocks are dequantized to float32."""
        from weightctl.dtype import DType

        data = self.data()
        return data if data.quantization_encoding is None else data.astype(DType.float32)

    def _buffer(self) -> Buffer:
        return self._elements().to_buffer()

    def _sizes(self) -> tuple[int, ...]:
        return info_of(self).shape

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._tree.source.files:
            file.close()

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *self]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint):
            return NotImplemented
        return self._tree is other._tree and self._prefix == other._prefix

    def __hash__(self) -> int:
        return hash((id(self._tree), self._prefix))

    def __getstate__(self) -> tuple[_Tree, str]:
        return (self._tree, self._prefix)

    def __setstate__(self, state: tuple[Any, str]) -> None:
        self._tree, self._prefix = state

    def _repr_html_(self) -> str:
        return render_rows(make_rows(_describe(node) for _, node in self.items()))

    def __repr__(self) -> str:
        if self.exists():
            info = info_of(self)
            return f"<Checkpoint {self._prefix}: {info.encoding} {list(info.shape)}>"
        node = self._tree.find(self._prefix)
        tensors = sum(1 for _ in walk(node)) if node is not None else 0
        return f"<Checkpoint {self._prefix or 'root'}: {tensors} tensors>"


def source_of(weights: Checkpoint) -> Source:
    """Return the source of a whole tree, whatever the names of its tensors."""
    return weights._tree.source  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of this module


def header_of(weights: Checkpoint) -> Header:
    """Return the header of a checkpoint, whatever the names of its tensors."""
    return weights._tree.source.header  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of this module


class _ListedTensor(NamedTuple):
    """A tensor as a row of a table."""

    name: str
    shape: tuple[int, ...]
    encoding: str
    elements: int
    bytes: int


def _describe(node: Checkpoint) -> _ListedTensor:
    info = info_of(node)
    return _ListedTensor(info.name, info.shape, info.encoding.name, info.size, info.nbytes)


def _config_of(weights: Checkpoint) -> Mapping[str, Any]:
    found: Mapping[str, Any] = load("weightctl.formats.huggingface:config")(header_of(weights))
    return found


def info_of(node: Checkpoint) -> TensorInfo:
    """Return the description of a node's tensor; raises `MissingTensorError` if there is none."""
    return header_of(node).tensors[find_stored_name(node)]._replace(name=node.name)


def root_of(weights: Checkpoint) -> TreeNode:
    """Return the root node of a whole tree of names."""
    return weights._tree.root  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of this module


def allocations_of(weights: Checkpoint) -> Allocations:
    """Return the allocated weights of a whole tree."""
    return weights._tree.allocations  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of this module


def _is_declaring(weights: Checkpoint) -> bool:
    return header_of(weights).format == "declared"


def find_stored_name(node: Checkpoint) -> str:
    """Return the name under which a node's tensor is stored; it differs for a tied name.

    Raises `MissingTensorError`, which suggests similar names, if there is no tensor.
    """
    header, name = header_of(node), node.name
    name = header.aliases.get(name, name)
    if name not in header.tensors:
        if _is_declaring(node):
            from weightctl.weights.source import nothing_loaded

            raise nothing_loaded(name)
        raise missing(name, root_of(node), len(header.tensors))
    return name


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
