"""A checkpoint to verify, and whether an error of opening it is a wrong path or damage."""

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
from weightctl.formats import format_by_index, format_by_suffix
from weightctl.formats.open.opening import open_source
from weightctl.formats.sharded.gathered import GatheredSource
from weightctl.formats.sharded.opening import find_whole
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.storage.files import is_directory, list_names, open_reader
from weightctl.storage.location import is_remote
from weightctl.system.phases import begin_phase
from weightctl.weights.from_arrays import select_node
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from weightctl.families import RecognizedModel
    from weightctl.translate.tokenizer.encoding import TokenEncoder
    from weightctl.weights.protocol import Openable
    from weightctl.weights.tree import Checkpoint


class Subject:
    """A checkpoint, which is opened, recognized and read on first use.

    `path` is empty for a tree of weights or a mapping of arrays.
    Errors of recognition are kept as `refusal`, not raised, so that every check can run.
    """

    def __init__(self, source: Openable, format_name: str | None = None) -> None:
        self._source = source
        self.path = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
        self.format_name = format_name

    @cached_property
    def stored(self) -> Checkpoint:
        """The tree as stored in the files; raises `FormatError` if they are damaged."""
        return select_node(open_source(self._source, self.format_name))

    @cached_property
    def weights(self) -> Checkpoint:
        """The tree in which each weight that a scheme stores in several tensors is one tensor."""
        return dequantize_weights(self.stored, in_blocks=False)

    @property
    def cut(self) -> GatheredSource | None:
        """The source of a sharded checkpoint; None if the files are not those of several ranks."""
        source = source_of(self.stored)
        return source if isinstance(source, GatheredSource) else None

    @property
    def whole(self) -> str:
        """The directory of the sharded checkpoint if this is one rank's file; otherwise empty."""
        return find_whole(header_of(self.stored).files)

    @cached_property
    def _recognized(self) -> RecognizedModel | WeightctlError:
        try:
            return recognize(self.weights)
        except WeightctlError as error:
            return error

    @property
    def checkpoint(self) -> RecognizedModel | None:
        """The recognized model; None if the family is unknown or the tensors do not match it."""
        found = self._recognized
        return None if isinstance(found, WeightctlError) else found

    @property
    def refusal(self) -> WeightctlError | None:
        """The error that explains why `checkpoint` is None; None if the model was recognized."""
        found = self._recognized
        return found if isinstance(found, WeightctlError) else None

    @cached_property
    def encoder(self) -> TokenEncoder | None:
        """The tokenizer's text encoder; None if the model is unknown or has no tokenizer.

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
        """The error that opening the files raises; None if they can be opened."""
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
            config(header_of(self.stored))
        )


def require_there(subject: Subject) -> None:
    """Raise the error of opening a checkpoint if its path or format is probably a mistake.

    Other errors are problems of the checkpoint itself.
    """
    damage = subject.damage
    if damage is None:
        return
    is_unread = damage.path == subject.path and isinstance(damage.__cause__, OSError)
    # A checkpoint that cannot be reached is an error, and not a problem of the checkpoint.
    is_unread |= is_remote(damage.path) and not _is_readable(damage.path)
    if is_unread or _is_mistaken(subject, damage):
        raise damage


def _is_readable(path: str) -> bool:
    try:
        return is_directory(path) or bool(open_reader(path).path)
    except FormatError:
        return False


def _is_mistaken(subject: Subject, damage: FormatError) -> bool:
    """Whether the path or the format is wrong, rather than a file of weights damaged."""
    path = subject.path
    if subject.format_name is not None and Subject(path).damage is None:
        return True
    if not is_directory(damage.path):
        # The JSON files in a model's directory, except indexes, do not contain weights.
        return damage.path == path and path.endswith(".json") and format_by_index(path) is None
    named = [name for name in list_names(damage.path) if format_by_suffix(name)]
    return all(Subject(os.path.join(damage.path, name)).damage is None for name in named)
