"""Facts about a checkpoint: the size of its files, quantization, context length, license."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.dtype import ENCODINGS
from weightctl.inspection.contents import Contents
from weightctl.storage.files import file_size, is_file
from weightctl.text.sizes import format_size
from weightctl.text.untyped import is_object
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.info import Header

# The keys that config.json files of different families use for the context length.
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len",
            "seq_length", "n_ctx")  # fmt: skip
# The keys for the license in the headers of GGUF and safetensors files.
_LICENSE_KEYS = ("general.license.name", "general.license", "modelspec.license", "license")
_LONGEST_LICENSE = 40
_README = "README.md"
_MIXED = "mixed"


class Details(NamedTuple):
    """Facts about a checkpoint, each None if the checkpoint does not state it."""

    file_bytes: int | None
    quantization: str | None
    context_length: int | None
    license: str | None

    def describe(self, files: int) -> str:
        """Return the facts on one line: `file 98.4 MB, Q4_K_M, context length 8,192`."""
        parts: list[str] = []
        if self.file_bytes is not None:
            size = format_size(self.file_bytes)
            parts.append(f"file {size}" if files == 1 else f"{size} in {files:,} files")
        if self.quantization:
            parts.append(self.quantization)
        if self.context_length:
            parts.append(f"context length {self.context_length:,}")
        if self.license:
            parts.append(f"license {self.license}")
        return ", ".join(parts)


def read_details(contents: Contents) -> Details:
    """Return the details of a checkpoint; only headers, config.json and README.md are read."""
    header = header_of(contents.weights)
    return Details(
        file_bytes=_count_bytes(header),
        quantization=_name_quantization(contents),
        context_length=_find_context_length(header, contents.config),
        license=_find_license(contents),
    )


def _count_bytes(header: Header) -> int | None:
    """Return the total size of all files; None if one of them is not a regular file."""
    if not header.files or not all(map(is_file, header.files)):
        return None
    return sum(map(file_size, header.files))


def _name_quantization(contents: Contents) -> str | None:
    """Return the file type that a GGUF header states, or the encoding or scheme of most bytes.

    A file that states no type, and has several of GGUF's block types, is mixed.
    """
    metadata = header_of(contents.weights).metadata
    if "general.file_type" in metadata:
        from weightctl.plan.file_types import find_file_type, read_file_type

        number = read_file_type(metadata)
        kind = None if number is None else find_file_type(number)
        if kind is not None:
            return kind.name
    is_whole = len(contents.entries) == contents.count
    totals = contents.totals if is_whole else Contents(contents.weights).totals
    blocks = [kind for kind in totals.by_kind if kind in ENCODINGS and ENCODINGS[kind].quantization]
    return _MIXED if len(blocks) > 1 else next(iter(totals.by_kind), None)


def _find_context_length(header: Header, config: Mapping[str, Any]) -> int | None:
    architecture = header.metadata.get("general.architecture")
    found: list[object] = []
    if architecture is not None:
        length = header.metadata.get(f"{architecture.content}.context_length")
        found.append(None if length is None else length.content)
    thinker = config.get("thinker_config")
    configs = [config, (thinker if is_object(thinker) else config).get("text_config")]
    found += [each.get(key) for each in configs if is_object(each) for key in _CONTEXT_KEYS]
    return next((each for each in found if type(each) is int and each > 0), None)


def _find_license(contents: Contents) -> str | None:
    """Return the license that the header states, or the one in the front matter of README.md."""
    header = header_of(contents.weights)
    values = [header.metadata[key].content for key in _LICENSE_KEYS if key in header.metadata]
    is_model = bool(header.files) and bool(contents.config or contents.adapter)
    readme = os.path.join(os.path.dirname(header.files[0]), _README) if is_model else ""
    if not values and is_file(readme):
        from weightctl.translate.card.readme import read_front_matter

        with suppress(ValueError):  # a README that cannot be read states no license
            card = read_front_matter(readme, ("license_name", "license"))
            values = [card[key] for key in ("license_name", "license") if key in card]
    texts = (each[:_LONGEST_LICENSE] for each in values if isinstance(each, str) and each.strip())
    return next(texts, None)
