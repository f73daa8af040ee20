"""The errors of weightctl; each message says what is wrong, where, and what to do."""

from __future__ import annotations

import errno
from functools import partial

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
    "SourceWarning",
    "StateDictError",
    "TensorSplitError",
    "TokenizerError",
    "UnknownArchitectureError",
    "WeightctlError",
]


class WeightctlError(Exception):
    """The base class of weightctl's errors; `hint` says what to do next, or is empty."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    def add_hint(self, text: str) -> None:
        """Add text to the end of the hint."""
        self.hint = f"{self.hint}; {text}" if self.hint else text

    @property
    def headline(self) -> str:
        """The first line of the message, without the list that may follow it."""
        return self.message.partition("\n")[0].removesuffix(":")


class FormatError(WeightctlError, ValueError):
    """A file is invalid; the message has the path and, if there is one, the byte offset.

    `reason` is the message without path and offset.
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
    """A path does not exist; `filename` and `errno` are those of an `OSError`."""

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
    """A node of a tree has no tensor, and therefore no attributes of tensors, such as a shape."""


class MissingIndexError(MissingTensorError, IndexError):
    """A negative index of a tree node is before the first layer."""


class EncodingError(WeightctlError, ValueError):
    """Values cannot be stored in an encoding, or an encoding cannot be converted."""


class NonFiniteError(EncodingError):
    """A block encoding cannot hold the value at flat `index` of its rows."""

    def __init__(self, index: int, value: float, encoding: str) -> None:
        super().__init__(f"element {index} is {value:g}, which {encoding} cannot hold")
        self.index = index
        self.value = value
        self.encoding = encoding

    def __reduce__(self) -> tuple[object, ...]:
        return (NonFiniteError, (self.index, self.value, self.encoding))


class ConversionError(WeightctlError, ValueError):
    """A conversion is not possible as requested; raised before anything is written."""


class GraphError(WeightctlError, ValueError):
    """A graph cannot be built as requested: shapes, dtypes or devices do not match."""


class ArgumentTypeError(GraphError, EncodingError, TypeError):
    """An argument has the wrong type, such as the name of a device instead of the device.

    Both graphs and weights raise it.
    """


class ShardingError(WeightctlError, ValueError):
    """A tensor cannot be split as requested for this number of ranks."""


class TensorSplitError(ShardingError):
    """A tensor cannot be split along `axis` across this number of `ranks`, for a `reason`.

    `place` is the user's rule that requires the split, empty if there is none.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        axis: int,
        ranks: int,
        reason: str,
        *,
        hint: str = "",
        place: str = "",
    ) -> None:
        self.name = name
        self.shape = shape
        self.axis = axis
        self.ranks = ranks
        self.reason = reason
        self.place = place
        super().__init__(f"{self._split} across {ranks} ranks: {reason}", hint=hint)

    @property
    def summary(self) -> str:
        """The message without the number of ranks."""
        return f"{self._split}: {self.reason}"

    @property
    def _split(self) -> str:
        where = f"{self.place}: " if self.place else ""
        return (
            f"{where}`{self.name}` of shape {list(self.shape)} cannot be split along axis "
            f"{self.axis}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        parts = self.name, self.shape, self.axis, self.ranks, self.reason
        return partial(TensorSplitError, *parts, hint=self.hint, place=self.place), ()

    def at(self, place: str) -> TensorSplitError:
        """Return this error with the rule that requires the split."""
        return TensorSplitError(
            self.name, self.shape, self.axis, self.ranks, self.reason, hint=self.hint, place=place
        )


class EngineError(WeightctlError, RuntimeError):
    """A graph cannot be run with these inputs, weights or devices."""


class ArchitectureError(WeightctlError, ValueError):
    """A checkpoint has no supported model family, or contradicts the family that it names."""


class UnknownArchitectureError(ArchitectureError):
    """A checkpoint names a model family that is not supported."""


class TokenizerError(WeightctlError, ValueError):
    """A tokenizer is invalid, or cannot be expressed in another naming convention."""


class StateDictError(WeightctlError, ValueError):
    """The values for a module's weights are incomplete or do not match the weights."""


class OutputError(WeightctlError, OSError):
    """The target cannot be written, or must not be overwritten."""


class SourceWarning(UserWarning):
    """A file is read from another place than the one that was asked for."""
