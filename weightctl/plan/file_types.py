"""llama.cpp's number for the main type of a file: `general.file_type`, from `llama_ftype`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import ENCODINGS
from weightctl.plan.recipe_lines import LLAMA_RECIPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weightctl.dtype import Encoding
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.metadata import MetadataValue

# The bit which states that a tool guessed the number from the tensors.
GUESSED = 1024
_KEY = "general.file_type"


class FileType(NamedTuple):
    """A file type: its name, the usual encodings of its matrices, and all allowed encodings."""

    name: str
    usual: frozenset[str]
    allowed: frozenset[str]


def file_type(infos: Iterable[TensorInfo], encoding: Encoding | None = None) -> int:
    """Return the number of an encoding, by default of the encoding that stores the most values."""
    if encoding is None:
        sizes: Counter[Encoding] = Counter()
        for info in infos:
            sizes[info.encoding] += info.size
        encoding = sizes.most_common(1)[0][0] if sizes else None
    number = None if encoding is None else encoding.file_type
    return GUESSED if number is None else number


def read_file_type(metadata: Mapping[str, MetadataValue]) -> int | None:
    """Return `general.file_type` of a GGUF; None if it is missing or was guessed by a tool."""
    value = metadata.get(_KEY)
    if value is None or not isinstance(value.content, int) or isinstance(value.content, bool):
        return None
    return None if value.content & GUESSED else value.content


def find_file_type(number: int) -> FileType | None:
    """Return the file type for a number of llama.cpp; None if the number is unknown."""
    plain = [name for name, each in ENCODINGS.items() if each.file_type == number]
    recipes = [recipe for recipe in LLAMA_RECIPES.values() if recipe.file_type == number]
    usual = {*plain}
    usual |= {recipe.otherwise for recipe in recipes if recipe.otherwise is not None}
    if not usual:
        return None
    allowed = usual | {encoding.name for recipe in recipes for encoding in recipe.encodings}
    name = recipes[0].name if recipes else plain[0]
    return FileType(name, frozenset(usual), frozenset(allowed))
