"""Every error that weightctl raises on purpose; each says what is wrong, where, and what to do."""

from __future__ import annotations

import errno

__all__ = [
    "ArchitectureError",
    "ArgumentTypeError",
    "ConversionError",
    "EncodingError",
    "EngineError",
    "FormatError",
    "GraphError",
    "MissingAttributeError",
    "MissingFileError",
    "MissingIndexError",
    "MissingTensorError",
    "NonFiniteError",
    "OutputError",
    "ShardingError",
    "StateDictError",
    "TokenizerError",
    "UnknownArchitectureError",
    "WeightctlError",
]


class WeightctlError(Exception):
    """The root of weightctl's own errors; `hint` says what to do next, or is empty."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    @property
    def headline(self) -> str:
        """The first line of the message, without those that list what it is about."""
        return self.message.partition("\n")[0].removesuffix(":")


class FormatError(WeightctlError, ValueError):
    """A file is not what it should be; names the path and, where there is one, the byte offset.

    `reason` is the message without them.
    """

    def __init__(self, path: str, offset: int | None, message: str, *, hint: str = "") -> None:
        where = path if offset is None else f"{path}, byte {offset}"
        super().__init__(f"{where}: {message}", hint=hint)
        self.path = path
        self.offset = offset
        self.reason = message

    def __reduce__(self) -> tuple[object, ...]:
        return (_format_error, (self.path, self.offset, self.reason, self.hint))


def _format_error(path: str, offset: int | None, message: str, hint: str) -> FormatError:
    return FormatError(path, offset, message, hint=hint)


class MissingFileError(FormatError, FileNotFoundError):
    """A path leads to nothing; `filename` and `errno` are those of an `OSError`."""

    def __init__(self, path: str, offset: int | None, message: str, *, hint: str = "") -> None:
        super().__init__(path, offset, message, hint=hint)
        self.errno = errno.ENOENT
        self.strerror = message
        self.filename = path

    def __reduce__(self) -> tuple[object, ...]:
        return (_missing_file_error, (self.path, self.offset, self.reason, self.hint))


def _missing_file_error(path: str, offset: int | None, message: str, hint: str) -> FormatError:
    return MissingFileError(path, offset, message, hint=hint)


class MissingTensorError(WeightctlError, KeyError):
    """No tensor has this name."""


class MissingAttributeError(MissingTensorError, AttributeError):
    """A node of a tree has no tensor, and so nothing that only tensors have, such as a shape."""


class MissingIndexError(MissingTensorError, IndexError):
    """A node of a tree has not so many layers that an index below 0 counts back to one."""


class EncodingError(WeightctlError, ValueError):
    """An encoding cannot hold, or cannot be made from, what it was asked to."""


class NonFiniteError(EncodingError):
    """A block encoding was asked to hold what it cannot, at flat `index` of its rows."""

    def __init__(self, index: int, value: float, encoding: str) -> None:
        super().__init__(f"element {index} is {value:g}, which {encoding} cannot hold")
        self.index = index
        self.value = value
        self.encoding = encoding

    def __reduce__(self) -> tuple[object, ...]:
        return (NonFiniteError, (self.index, self.value, self.encoding))


class ConversionError(WeightctlError, ValueError):
    """A conversion cannot be carried out as asked; said before anything is written."""


class GraphError(WeightctlError, ValueError):
    """A graph cannot be built as asked: shapes, dtypes or devices do not fit."""


class ArgumentTypeError(GraphError, EncodingError, TypeError):
    """An argument is of the wrong type, such as the name of a device for the device.

    Graphs and weights share it: it is what either raises for a wrong argument.
    """


class ShardingError(WeightctlError, ValueError):
    """A tensor cannot be cut as asked for so many ranks."""


class EngineError(WeightctlError, RuntimeError):
    """A graph cannot be run as asked, on these inputs, weights or devices."""


class ArchitectureError(WeightctlError, ValueError):
    """A checkpoint is of no model family that is known, or contradicts the one it names."""


class UnknownArchitectureError(ArchitectureError):
    """A checkpoint names a model family that is not known."""


class TokenizerError(WeightctlError, ValueError):
    """A tokenizer is not what it should be, or cannot be said in another naming convention."""


class StateDictError(WeightctlError, ValueError):
    """The values for a module's weights do not fit them, or are not all there."""


class OutputError(WeightctlError, OSError):
    """The target cannot be written, or must not be."""
