"""A checkpoint that is verified: its tree, and its model if the family is known."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from weightctl.errors import (
    ArchitectureError,
    FormatError,
    UnknownArchitectureError,
    WeightctlError,
)
from weightctl.families.recognition import recognize
from weightctl.formats.open.opening import open_weights
from weightctl.formats.sharded.gathered import GatheredSource
from weightctl.formats.sharded.opening import find_whole
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.system.phases import begin_phase
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from weightctl.families import RecognizedModel
    from weightctl.translate.tokenizer.encoding import Encoder
    from weightctl.weights.tree import Checkpoint

__all__ = ["Subject"]


class Subject:
    """A checkpoint at a path, which is opened, recognized and read on first use.

    Errors are kept, not raised, so that every check can report what it finds.
    """

    def __init__(self, path: str | os.PathLike[str], format_name: str | None = None) -> None:
        self.path = os.fspath(path)
        self.format_name = format_name

    @cached_property
    def stored(self) -> Checkpoint:
        """The tree as it is in the files; raises `FormatError` if they are damaged."""
        return open_weights(self.path, self.format_name)

    @cached_property
    def weights(self) -> Checkpoint:
        """The tree in which quantized weights of several tensors are ordinary tensors."""
        return dequantize_weights(self.stored, in_blocks=False)

    @property
    def cut(self) -> GatheredSource | None:
        """The sharded checkpoint, if the files are those of several ranks; else None."""
        source = source_of(self.stored)
        return source if isinstance(source, GatheredSource) else None

    @property
    def whole(self) -> str:
        """The directory of the sharded checkpoint if this is one rank's file; else empty."""
        return find_whole(header_of(self.stored).files)

    @cached_property
    def _recognized(self) -> RecognizedModel | WeightctlError:
        try:
            return recognize(self.weights)
        except WeightctlError as error:
            return error

    @property
    def checkpoint(self) -> RecognizedModel | None:
        """The model; None if the family is unknown or the checkpoint does not match it."""
        found = self._recognized
        return None if isinstance(found, WeightctlError) else found

    @property
    def refusal(self) -> WeightctlError | None:
        """Why there is no `checkpoint`."""
        found = self._recognized
        return found if isinstance(found, WeightctlError) else None

    @cached_property
    def encoder(self) -> Encoder | None:
        """The encoder of text for a known model; None without a tokenizer.

        Raises `TokenizerError` if the tokenizer is damaged, or if the `tokenizers` library is
        missing.
        """
        from weightctl.translate.tokenizer.encoding import encoder_of

        checkpoint = self.checkpoint
        if checkpoint is None:
            return None
        begin_phase("reading the tokenizer")
        files = header_of(checkpoint.tree).files
        directory = os.path.dirname(files[0]) or "." if files else None
        kind = str(checkpoint.document.get("model_type", checkpoint.family.name))
        return encoder_of(header_of(checkpoint.tree).metadata, directory, kind, checkpoint.where)

    @property
    def damage(self) -> FormatError | None:
        """The error that prevents opening the files; None if they can be opened."""
        try:
            _ = self.stored
        except FormatError as error:
            return error
        return None

    @property
    def is_of_unknown_family(self) -> bool:
        """Whether the checkpoint does not state its family, or states an unknown one."""
        return isinstance(self.refusal, UnknownArchitectureError) or (
            isinstance(self.refusal, ArchitectureError) and not self._says_its_family
        )

    @property
    def _says_its_family(self) -> bool:
        from weightctl.families.model import ARCHITECTURE
        from weightctl.formats.huggingface import config

        return ARCHITECTURE in header_of(self.stored).metadata or bool(
            config(header_of(self.stored).files)
        )
