"""The description of a checkpoint: everything in its header, without the bytes of tensors."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.dtype import Encoding
    from weightctl.split import Sharding
    from weightctl.storage.base import Reader
    from weightctl.weights.metadata import MetadataValue


class TensorInfo(NamedTuple):
    """A tensor's name, logical shape (outermost dimension first) and encoding."""

    name: str
    shape: tuple[int, ...]
    encoding: Encoding

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements."""
        return self.encoding.nbytes(self.shape)

    @property
    def row(self) -> int:
        """The number of elements in a row (the last dimension); 1 for a scalar."""
        return self.shape[-1] if self.shape else 1


class StoredBlocks(Protocol):
    """The blocks of a tensor that its file stores in several places, and may compress."""

    def read_into(self, file: Reader, offset: int, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the tensor's bytes from `start` on.

        The first block is at `offset` of the file. Raises `FormatError` if a block is damaged.
        """
        ...


class Extent(NamedTuple):
    """Where a tensor's bytes are: index of the file in `Header.files`, offset and length.

    If the tensor is not contiguous, `strides` has the bytes from one element to the next in each
    dimension, and `nbytes` is the size of a contiguous copy. `held` has the bytes themselves if the
    file stores them in another form. `blocks` reads them if they are in several places of the file,
    the first of them at `offset`.
    """

    file: int
    offset: int
    nbytes: int
    strides: tuple[int, ...] | None = None
    held: bytes | None = None
    blocks: StoredBlocks | None = None


class Leaf(NamedTuple):
    """An entry of the tree that is not a tensor: its Python type, and its value as text.

    For an unsupported object, the type is its class, such as `models.yolo.Model`, which is never
    imported, and the text is empty.
    """

    kind: str
    look: str = ""


class Origin(NamedTuple):
    """The stored tensors that a tensor is computed from, and the text of each step."""

    sources: tuple[TensorInfo, ...]
    steps: tuple[str, ...]


# The mappings of a header are never changed. A dataclass could copy the defaults, but is slow to
# import.
_NOTHING: Mapping[str, Any] = {}


# The files of a tokenizer, which can be in a directory of their own.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja",
    "rwkv_vocab_v20230424.txt", "vocab.bpe", "tokenizer.model.v3", "tekken.json",
    "chat_template.json", "tokenizer.jsonl", "hy.tiktoken",
)  # fmt: skip


class Documents(NamedTuple):
    """The directories of the config and of the tokenizer, where these are not beside the files.

    `target` is that of the model that a draft model is for.
    """

    config: str = ""
    tokenizer: str = ""
    target: str = ""

    def find_directory(self, name: str) -> str:
        """Return the directory of a file of this name; empty if it is that of the model."""
        return self.tokenizer if name in TOKENIZER_FILES else self.config


class Header(NamedTuple):
    """The header of a checkpoint: its tensors and metadata.

    `tensors` and `extents` have the same names, in the order of the file. `aliases` map further
    names of tensors to their stored names (tied weights). `leaves` are the other entries of the
    tree, by name; plain values among them are also metadata of that name. `metadata` keeps the
    types of the values in the file. `alignment` is the boundary in bytes that tensors start on.
    `listing` is the path of the file that lists the parts. `notes` inform the user how the
    checkpoint was opened. `warnings` describe dangers for other programs that load the files.
    `origins` have the sources of tensors that are not stored in a file. `shardings` state how
    tensors are split among several ranks; each rank has one of the `files`. `missing` are the names
    of missing parts, in a checkpoint that was opened with `partial`. `documents` are the
    directories of the config and the tokenizer that the user named.
    """

    format: str
    files: tuple[str, ...]
    tensors: Mapping[str, TensorInfo]
    extents: Mapping[str, Extent]
    metadata: Mapping[str, MetadataValue] = _NOTHING
    aliases: Mapping[str, str] = _NOTHING
    leaves: Mapping[str, Leaf] = _NOTHING
    alignment: int = 1
    big_endian: bool = False
    listing: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    origins: Mapping[str, Origin] = _NOTHING
    shardings: Mapping[str, Sharding] = _NOTHING
    missing: tuple[str, ...] = ()
    documents: Documents = Documents()
