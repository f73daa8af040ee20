"""A program that reads files with another library, and prints the tensors that it finds.

`python reader_process.py READER MEMORY FILE...` prints one JSON object per line. If the library
READER is not installed, this is `{"missing": why}`. Otherwise the program prints
`{"begin": number}` for each file, followed by its tensors or by `{"error": message}`. It uses at
most MEMORY bytes, not counting mapped files.
"""

from __future__ import annotations

import json
import struct
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from weightctl.system.children import limit_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# The limit of address space is larger by this: it also counts mapped files, and the memory that GPU
# libraries map when they are loaded.
_LIBRARIES = 16 << 30
_LONGEST = 300
# Arrays with more elements are read at once: GGUFReader needs as much time for one element as for
# reading hundreds of them.
_MANY = 2000
_STRING, _ARRAY = 8, 9
# The sizes of GGUF's scalars by type: u8 to f32, bool, then the 64-bit types.
_SIZES = dict(enumerate((1, 1, 2, 2, 4, 4, 4, 1))) | dict.fromkeys((10, 11, 12), 8)
_DEEPEST = 50
# torch adds pages of advice to its errors, some of it dangerous. These texts mark what is removed.
_ERROR, _VERSION = "WeightsUnpickler error:", "In PyTorch 2.6"
_ADVICE = ("Weights only load failed", "(1)", "(2)", "Check the documentation", "Please file an")


def _read_safetensors(path: str) -> dict[str, Any]:
    with import_module("safetensors").safe_open(path, framework="numpy") as file:
        tensors: dict[str, Any] = {}
        for name in file.keys():  # noqa: SIM118  # it has `keys`, but is not a dictionary
            part = file.get_slice(name)
            tensors[name] = [part.get_dtype(), list(part.get_shape())]
    return {"tensors": tensors, "whole": True}


def _read_gguf(path: str) -> dict[str, Any]:
    reader = _make_quick(import_module("gguf").GGUFReader)(path)
    return {
        "tensors": {
            each.name: [int(each.tensor_type), [int(size) for size in reversed(each.shape)]]
            for each in reader.tensors
        },
        "whole": True,
    }


def _make_quick(reader: Any) -> Any:
    """Return a subclass of GGUFReader that reads the long arrays of a vocabulary at once."""
    if not hasattr(reader, "_get_field_parts"):
        return reader

    class Quick(reader):  # type: ignore[misc]  # the base class is a runtime value
        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if int(raw_type) == _ARRAY:
                data, order = memoryview(self.data), self._order
                kind, count = struct.unpack_from(f"{order}IQ", data, orig_offs)
                start = orig_offs + 12
                end = _find_array_end(data, start, kind, count, order) if count > _MANY else 0
                if end > len(data):
                    raise ValueError("an array ends past the end of the file")
                if end:
                    return end - orig_offs, [self.data[orig_offs:end]], [0], []
            parts = reader._get_field_parts  # noqa: SLF001  # what is replaced here
            return parts(self, orig_offs, raw_type)

        @property
        def _order(self) -> str:
            is_little = (sys.byteorder == "little") == (self.byte_order == "I")
            return "<" if is_little else ">"

    return Quick


def _find_array_end(data: memoryview, at: int, kind: int, count: int, order: str) -> int:
    """Return the offset of the end of a GGUF array that starts at `at`; 0 for arrays of arrays."""
    if kind != _STRING:
        return at + count * _SIZES[kind] if kind in _SIZES else 0
    length = struct.Struct(f"{order}Q").unpack_from
    for _ in range(count):
        at += 8 + length(data, at)[0]
    return at


def _read_torch(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        is_zip = file.read(4) == b"PK\3\4"
    load: Any = import_module("torch").load
    found = load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    is_flat = isinstance(found, dict) and all(_is_tensor(each) for _, each in _list_entries(found))
    tensors: dict[str, Any] = {}
    for name, tensor in _walk_tensors(found, "", 0):
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = list(tensor.shape)
        if dtype.endswith("_x2") and shape:
            shape[-1] *= 2
        tensors[name] = [dtype, shape]
    return {"tensors": tensors, "whole": is_flat}


def _walk_tensors(content: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in nested dictionaries and lists, with keys joined by dots as names."""
    if _is_tensor(content):
        yield name, content
    elif depth < _DEEPEST:
        for key, value in _list_entries(content):
            yield from _walk_tensors(value, f"{name}.{key}" if name else str(key), depth + 1)


def _is_tensor(content: Any) -> bool:
    return hasattr(content, "dtype") and hasattr(content, "shape")


def _list_entries(content: Any) -> Iterable[tuple[Any, Any]]:
    found: Any = content
    if isinstance(content, dict):
        return found.items()  # type: ignore[no-any-return]  # `found` has any type
    return enumerate([*found]) if isinstance(content, list | tuple) else ()


READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "safetensors": _read_safetensors,
    "gguf": _read_gguf,
    "torch": _read_torch,
}


def main(reader: str, memory: int, paths: list[str]) -> None:
    """Print the tensors that the library `reader` finds in each file, or its error.

    `memory` is the limit of memory in bytes.
    """
    limit_process(memory, mapped=_LIBRARIES)
    try:
        import_module(reader)
    except (ImportError, OSError, MemoryError) as error:
        _print_line(missing=_shorten(error))
        return
    for number, path in enumerate(paths):
        _print_line(begin=number)
        try:
            _print_line(**READERS[reader](path))
        except ImportError as error:  # a dependency of the reader is missing
            _print_line(missing=_shorten(error))
            return
        except Exception as error:  # noqa: BLE001  # any exception is the library's error
            _print_line(error=_shorten(error))


def _shorten(error: BaseException) -> str:
    lines = (
        line.rpartition(_ERROR)[2].partition(_VERSION)[0].strip() for line in str(error).split("\n")
    )
    text = next((line for line in lines if line and not line.startswith(_ADVICE)), "")
    text = text or type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _print_line(**what: Any) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201  # the output of this program


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
