"""Formats that are only read: what they answer when they are to be written."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError, FormatError
from weightctl.formats.base import NO_METADATA
from weightctl.system.registry import name_install

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from weightctl.formats.base import Part
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.metadata import MetadataValue


class ReadOnly:
    """The functions `unfit` and `layout` of a format that is only read.

    `name` is the format in the message, and `hint` says what to write instead.
    """

    def __init__(self, name: str, hint: str) -> None:
        self._name, self._hint = name, hint

    def unfit(
        self, tensors: Sequence[TensorInfo], _: Mapping[str, MetadataValue] = NO_METADATA
    ) -> list[str]:
        """Raise `ConversionError`: the format is only read."""
        del tensors
        self._refuse()

    def layout(
        self,
        tensors: Sequence[TensorInfo],
        metadata: Mapping[str, MetadataValue],
        part: Part | None = None,
    ) -> NoReturn:
        """Raise `ConversionError`: the format is only read."""
        del tensors, metadata, part
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConversionError(f"weightctl does not write {self._name}", hint=self._hint)


def require_package(package: str, path: str, what: str, extra: str) -> None:
    """Raise `FormatError`, which names the extra, if a package that reads a format is missing.

    `what` says what the path is. The package is not imported.
    """
    if find_spec(package) is None:
        raise FormatError(
            path,
            None,
            f"it is {what}, and reading it needs the package {package}, which is not installed",
            hint=f"install it: {name_install(extra)}",
        )
