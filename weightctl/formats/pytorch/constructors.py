"""The closed list of globals that PyTorch pickles can name, and the records of calls of these.

Sources: `torch/_utils.py` and `torch/_tensor.py` (the `_rebuild_*` functions),
`torch/serialization.py`, and the `__reduce__` methods of the classes of Python and NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from weightctl.dtype import ENCODINGS
from weightctl.formats.pickles.records import Blob, Global, Pairs, PickledCall, record_call
from weightctl.formats.pytorch.records import (
    STORAGE_NAMES,
    Array,
    Device,
    Enclosed,
    Encoded,
    Items,
    NumpyScalar,
    NumPyType,
    Size,
    Storage,
    TensorRecord,
    dtype_of,
)
from weightctl.text.untyped import is_list, is_tuple
from weightctl.weights.info import Leaf

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_NAME = 256
_LONGEST_PATH = 512
# The module whose dtypes are pickled as globals, and not as codes.
_NAMED_DTYPES = "ml_dtypes"
_MOST_PARTS = 8
_LONGEST_DEVICE = 32
_LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")


def _is_name(value: Any) -> TypeGuard[str]:
    """Whether a value is a string that is short enough for a name."""
    return type(value) is str and len(value) <= _LONGEST_NAME


def _unknown(name: str, *arguments: Any) -> PickledCall:
    """Return the record of a call of a builtin with unexpected arguments."""
    return PickledCall(Global("builtins", name), arguments)


def _mapping(*arguments: Any) -> Pairs | Items:
    return Items(arguments[0]) if arguments else Pairs()


def _default_mapping(*_factory: Any) -> Pairs:
    return Pairs()


def _elements(name: str) -> Callable[..., PickledCall]:
    def make(elements: Any = (), *_: Any) -> PickledCall:
        # Without a copy, because a pickle can create many sets from one list.
        if is_list(elements):
            made = _unknown(name)
            made.elements = elements
            return made
        return _unknown(name, elements)

    return make


def _bytes(text: Any = "", _encoding: Any = None, *_: Any) -> Encoded | Blob | PickledCall:
    if type(text) is str:
        return Encoded(text)
    return text if type(text) in {Blob, Encoded} else _unknown("bytes", text)


def _complex(real: Any = 0.0, imaginary: Any = 0.0) -> complex | PickledCall:
    if {type(real), type(imaginary)} <= {int, float}:
        return complex(real, imaginary)
    return _unknown("complex", real, imaginary)


def _path(kind: str) -> Callable[..., Any]:
    def make(*segments: Any) -> Any:
        # Limited, because a pickle can create many paths from the same strings.
        if not all(map(_is_name, segments)):
            return PickledCall(Global("pathlib", kind), segments)
        if sum(map(len, segments)) > _LONGEST_PATH:
            return Leaf(f"pathlib.{kind}", "too long")
        import pathlib  # pure paths, which do not access the disk

        is_windows = "Windows" in kind
        pure = pathlib.PureWindowsPath if is_windows else pathlib.PurePosixPath
        return str(pure(*segments))

    return make


def _reconstruct(kind: Any, _base: Any = None, content: Any = None, *_: Any) -> PickledCall:
    """Return the record of an object of protocol 0 or 1, which can be a dict, list or tuple too."""
    made = PickledCall(kind, content if is_tuple(content) else ())
    if is_list(content):
        made.elements = content
    elif type(content) is Pairs:
        made.pairs = content.pairs
    elif not is_tuple(content) and content is not None:
        made.arguments = (content,)
    return made


# NumPy.


def _dtype(code: Any = None, *_: Any) -> NumPyType:
    if isinstance(code, Global) and code.module == _NAMED_DTYPES:
        return NumPyType(code.name)
    return NumPyType(code if _is_name(code) else "class")


def _array(*_: Any) -> Array:
    return Array()


def _array_from_buffer(content: Any, dtype: Any, shape: Any, order: Any = "C", *_: Any) -> Array:
    return Array(dtype, shape, content, is_fortran=order == "F")


def _scalar(dtype: Any = None, content: Any = None, *_: Any) -> NumpyScalar:
    return NumpyScalar(dtype, content)


_ARRAY_PARTS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("multiarray._reconstruct", _array),
    ("multiarray.scalar", _scalar),
    ("numeric._frombuffer", _array_from_buffer),
)
_NUMPY: dict[str, Callable[..., Any] | None] = {
    **{f"numpy{core}.{name}": make for core in (".core", "._core") for name, make in _ARRAY_PARTS},
    "numpy.dtype": _dtype,
    "numpy.ndarray": None,
}

_PYTHON: dict[str, Callable[..., Any] | None] = {
    "collections.OrderedDict": _mapping,
    "collections.Counter": _mapping,
    "collections.defaultdict": _default_mapping,
    "builtins.dict": _mapping,
    "builtins.set": _elements("set"),
    "builtins.frozenset": _elements("frozenset"),
    "builtins.bytearray": _bytes,
    "builtins.bytes": _bytes,
    "builtins.complex": _complex,
    "builtins.object": None,
    **{f"builtins.{name}": None for name in ("list", "tuple", "int", "float", "str", "bool")},
    "_codecs.encode": _bytes,
    "copyreg._reconstructor": _reconstruct,
    "argparse.Namespace": None,
    **{f"{module}.{kind}": _path(kind) for module in ("pathlib", "pathlib._local") for kind in (
        "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path",
    )},
    **{f"datetime.{name}": None for name in ("datetime", "date", "timedelta")},
}  # fmt: skip


# Tensors.


def _tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any = None, _hooks: Any = None,
    metadata: Any = None,
) -> TensorRecord:  # fmt: skip
    encoding = storage.encoding if type(storage) is Storage else None
    return TensorRecord(storage, offset, shape, strides, None if _is_lazy(metadata) else encoding)


def _tensor_of_dtype(
    storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any, _hooks: Any, dtype: Any,
    *metadata: Any,
) -> TensorRecord:  # fmt: skip
    encoding = None if any(map(_is_lazy, metadata)) else dtype_of(dtype)
    return TensorRecord(storage, offset, shape, strides, encoding)


def _is_lazy(metadata: Any) -> bool:
    """Whether the values are not those of the storage, but their conjugates or negatives."""
    pairs = metadata.pairs[:_MOST_PARTS] if type(metadata) is Pairs else ()
    return any(key in ("conj", "neg") and value is True for key, value in pairs)


def _quantized_tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, quantizer: Any, *_: Any
) -> TensorRecord:
    encoding = storage.encoding if type(storage) is Storage else None
    return TensorRecord(storage, offset, shape, strides, encoding, quantizer)


def _first(value: Any, *_: Any) -> Any:
    """Return the object that a call wraps: a parameter, a device tensor, a tag of TorchScript."""
    return value


def _of_type(function: Any, kind: Any, arguments: Any, state: Any = None, *_: Any) -> Any:
    """Return the record of a tensor of a subclass, or of an object of the subclass itself."""
    if isinstance(function, Global) and function.make is not None and is_tuple(arguments):
        return record_call(function, arguments)
    made = PickledCall(kind, ())
    made.states = [state]
    return made


def _without_data(*_: Any) -> Leaf:
    return Leaf("torch.Tensor", "meta, without data")


def _parts(path: str, *names: str) -> Callable[..., PickledCall]:
    """Return the constructor of an object that consists of several named tensors."""
    module, _, name = path.rpartition(".")
    kind = Global(module, name)

    def make(*values: Any) -> PickledCall:
        made = PickledCall(kind, ())
        labels = names if len(values) <= len(names) else map(str, range(len(values)))
        made.pairs = list(zip(labels, values, strict=False))
        return made

    return make


def _parts_of_jagged(parts: Any, *_: Any) -> PickledCall:
    """Return the parts of a jagged nested tensor, which define its shape, without its caches."""
    made = PickledCall(Global("torch", "nested_jagged"), ())
    pairs = parts.pairs if type(parts) is Pairs else [("parts", parts)]
    made.pairs = [
        (str(key).removeprefix("_"), value) for key, value in pairs if key != "_metadata_cache"
    ]
    return made


def _sparse(layout: Any, data: Any) -> PickledCall:
    kind = layout.path if isinstance(layout, Global) else "torch.sparse"
    values = data if is_tuple(data) and len(data) <= _MOST_PARTS else (data,)
    if kind.endswith(("csr", "csc", "bsr", "bsc")):
        return _parts(kind, "compressed_indices", "plain_indices", "values", "size")(*values)
    return _parts(kind, "indices", "values", "size", "is_coalesced")(*values)


def _layout(name: Any) -> Global:
    module, _, layout = name.rpartition(".") if _is_name(name) else ("torch", "", "layout")
    return Global(module, layout)


# Other objects of torch.


def _enclose(content: Any) -> Enclosed:
    return Enclosed(content)


def _graph_module(*arguments: Any) -> PickledCall:
    """Return the record of a module that is created from code, with its attributes.

    The attributes are the first mapping among the arguments.
    """
    made = PickledCall(Global("torch.fx.graph_module", "GraphModule"), ())
    made.states = [each for each in arguments if type(each) is Pairs][:1]
    return made


def _size(sizes: Any = ()) -> Size:
    return Size(sizes)


def _device(kind: Any, number: Any = None) -> Device:
    is_numbered = type(number) is int and abs(number) < 1 << 31
    if not _is_name(kind) or len(kind) > _LONGEST_DEVICE or not (is_numbered or number is None):
        raise ValueError("a `torch.device` has no valid name or number")
    return Device(kind if number is None else f"{kind}:{number}")


_TORCH: dict[str, Callable[..., Any] | None] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_dtype,
    "torch._utils._rebuild_qtensor": _quantized_tensor,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._utils._rebuild_device_tensor_from_numpy": _first,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _first,
    "torch._utils._rebuild_xla_tensor": _first,
    "torch._utils._rebuild_sparse_tensor": _sparse,
    "torch._utils._rebuild_nested_tensor": _parts(
        "torch.nested", "buffer", "sizes", "strides", "storage_offsets"
    ),
    "torch.nested._internal.nested_tensor._rebuild_njt": _parts_of_jagged,
    # Objects of these are only arguments and caches of a jagged nested tensor.
    "torch.nested._internal.nested_tensor.NestedTensor": None,
    "torch._dynamo.decorators._DimRange": None,
    "torch._utils._rebuild_meta_tensor_no_storage": _without_data,
    "torch._utils._rebuild_wrapper_subclass": None,
    "torch._tensor._rebuild_from_type": _of_type,
    "torch._tensor._rebuild_from_type_v2": _of_type,
    "torch.serialization._get_layout": _layout,
    "torch.nn.parameter.Parameter": _first,
    "torch.nn.parameter.Buffer": _first,
    "torch.Tensor": None,
    "torch.Size": _size,
    "torch.device": _device,
    "torch.jit._pickle.build_intlist": _first,
    "torch.jit._pickle.build_doublelist": _first,
    "torch.jit._pickle.build_boollist": _first,
    "torch.jit._pickle.build_tensorlist": _first,
    "torch.jit._pickle.restore_type_tag": _first,
    **{
        f"torch.{scheme}": None
        for scheme in (
            "per_tensor_affine", "per_tensor_symmetric", "per_channel_affine",
            "per_channel_symmetric", "per_channel_affine_float_qparams",
        )
    },
    **{f"torch.{name}": None for name in (*_LAYOUTS, "nested")},
    **{
        f"torch.{each.ids['pytorch']}": None
        for each in ENCODINGS.values()
        if "pytorch" in each.ids
    },
    **{f"torch.{name}Tensor": None for name in (
        "Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool",
    )},
    **dict.fromkeys(STORAGE_NAMES),
    **{f"torch.distributed.checkpoint.{name}": None for name in (
        "metadata.Metadata", "metadata.MetadataIndex", "metadata.StorageMeta",
        "metadata.TensorProperties", "metadata.TensorStorageMetadata",
        "metadata.BytesStorageMetadata", "metadata.ChunkStorageMetadata",
        "metadata._MEM_FORMAT_ENCODING", "filesystem._StorageInfo",
    )},
}  # fmt: skip
# Globals that are supported here but harm programs that call them: they load a pickle, or run code.
_HARMFUL: dict[str, Callable[..., Any] | None] = {
    "torch.storage._load_from_bytes": _enclose,
    **{f"torch.fx.graph_module.{name}": _graph_module for name in (
        "reduce_graph_module", "reduce_deploy_graph_module", "reduce_package_graph_module",
    )},
}  # fmt: skip

CONSTRUCTORS = {**_TORCH, **_NUMPY, **_PYTHON, **_HARMFUL}


def is_allowed(path: str) -> bool:
    """Whether a global is in the closed list, and runs no code of the file's author."""
    return path in CONSTRUCTORS and path not in _HARMFUL
