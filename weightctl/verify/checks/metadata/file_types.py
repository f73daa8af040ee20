"""Comparison of `general.file_type` with the encoding that the tensors of a GGUF file have."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import ENCODINGS
from weightctl.plan.file_types import GUESSED
from weightctl.plan.llama_recipes import LLAMA_RECIPES
from weightctl.text.wording import percent
from weightctl.verify.checks.metadata.comparison import Compared

if TYPE_CHECKING:
    from weightctl.weights.info import Header

__all__ = ["check_file_type"]

_KEY = "general.file_type"
# The types of llama.cpp that no recipe of ours makes, each with the encodings that most matrices
# get (llama.h, `llama_ftype`, and src/llama-quant.cpp).
_OTHERS = {
    19: ("IQ2_XXS",), 20: ("IQ2_XS",), 22: ("IQ3_S", "IQ3_XXS"), 23: ("IQ3_XXS", "IQ3_S"),
    24: ("IQ1_S",), 26: ("IQ3_S",), 27: ("IQ3_S",), 28: ("IQ2_XS", "IQ2_S"),
    29: ("IQ2_S", "IQ2_XS"), 31: ("IQ1_M",),
}  # fmt: skip
# Tools may keep some matrices in another type; most of them they convert.
_MOST = 0.5


class _FileType(NamedTuple):
    """A file type: what it is called, the encoding that must be there, and all that may be."""

    name: str
    usual: frozenset[str]
    allowed: frozenset[str]


def check_file_type(header: Header, reference: Header | None) -> Compared:
    """Compare `general.file_type` with the tensors, and with that of a reference of the same types.

    Where no tensor has the encoding that it names, that is a problem. Where only few have, a tool
    may have chosen types of its own: against a reference that is a problem, and else a note.
    """
    found = Compared()
    number = _read_stated(header)
    if number is None:
        return found
    text = ""
    wanted = None if reference is None else _read_stated(reference)
    if wanted not in {None, number} and reference is not None and _has_same(header, reference):
        text = f"is {_show(number)} here and {_show(wanted or 0)} in the reference, which has "
        text += "the same encodings"
    kind = _find_file_type(number)
    sizes = Counter[str]() if kind is None else _count_values(header, kind)
    if kind is not None and sizes:
        total = sum(sizes.values())
        has_usual = any(sizes[name] for name in kind.usual)
        is_mostly = sum(sizes[name] for name in kind.allowed) > _MOST * total
        (most, size), *_ = sizes.most_common(1)
        share = percent(size / total)
        mixed = f"is {_show(number)}, but {share} of the matrices' values are {most}"
        if not has_usual or (not is_mostly and reference is not None):
            text = mixed
        elif not is_mostly:
            found.notes.append(f"`{_KEY}` {mixed}")
    if text:
        found.add(_KEY, text)
    return found


def _read_stated(header: Header) -> int | None:
    value = header.metadata.get(_KEY)
    if value is None or not isinstance(value.content, int) or isinstance(value.content, bool):
        return None
    # A number that a tool has guessed from the tensors has this bit set.
    return None if value.content & GUESSED else value.content


def _find_file_type(number: int) -> _FileType | None:
    """Return what a number of llama.cpp's stands for, None where that is not known."""
    plain = [name for name, each in ENCODINGS.items() if each.file_type == number]
    recipes = [recipe for recipe in LLAMA_RECIPES.values() if recipe.file_type == number]
    usual = {*plain, *_OTHERS.get(number, ())}
    usual |= {recipe.otherwise for recipe in recipes if recipe.otherwise is not None}
    if not usual:
        return None
    allowed = usual | {encoding.name for recipe in recipes for encoding in recipe.encodings}
    name = recipes[0].name if recipes else next(iter(_OTHERS.get(number, plain)))
    return _FileType(name, frozenset(usual), frozenset(allowed))


def _count_values(header: Header, kind: _FileType) -> Counter[str]:
    """Return how many values are in each encoding, of matrices that can have the usual one.

    Others get a substitute, as their rows do not divide into its blocks.
    """
    block = max(ENCODINGS[name].block for name in kind.usual)
    sizes: Counter[str] = Counter()
    for info in header.tensors.values():
        if len(info.shape) > 1 and not info.shape[-1] % block:
            sizes[info.encoding.name] += info.size
    return sizes


def _has_same(header: Header, reference: Header) -> bool:
    """Whether all tensors have the encodings of the reference's of the same names."""
    own, other = (
        {name: info.encoding.name for name, info in each.tensors.items()}
        for each in (header, reference)
    )
    return own == other


def _show(number: int) -> str:
    kind = _find_file_type(number)
    return f"{number}" if kind is None else f"{number}, {kind.name}"
