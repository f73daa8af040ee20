"""The effect of the steps in the tokenizer.json of a SentencePiece tokenizer."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from typing import TYPE_CHECKING, Any, ClassVar

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_object
from weightctl.text.wording import join_names
from weightctl.translate.tokenizer.files import KEEP_HINT
from weightctl.translate.tokenizer.sentencepiece.added_tokens import SPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_WORD = struct.Struct("<I")
_LABEL = 1 << 31 | 0xFF
_VALUE = (1 << 31) - 1
_HAS_LEAF, _IS_WIDE = 1 << 8, 1 << 9
# Regular expressions of a Replace: runs of spaces, of which one is kept; spaces at the ends of a
# text; and the start of a text that does not consist of spaces.
RUNS = " {2,}"
AT_ENDS = r"\A +| +\z"
BEFORE_TEXT = r"\A(?= *[^ ])"
_RUNS = {RUNS, " +"}
# White space for Strip and WhitespaceSplit, apart from the space.
_WHITE = (
    "\t\n\x0b\x0c\r\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000"
)
_COMMON = {"\t", "\n", "\r"}
_MOST_LISTED = 6
_MOST_SHOWN = 300
_COUNTED = (
    "if a text starts with a space, transformers uses this space as the prefix, but llama.cpp "
    "adds another one"
)
_FIRST = (
    "llama.cpp adds the prefix (a space) also before text after a special token; "
    "transformers adds it only before the first text"
)
_SPACES_ALONE = (
    "transformers adds the prefix even to a text that consists only of spaces; llama.cpp does not"
)
_CLUSTERS = (
    "transformers normalizes combined characters (Hangul jamo, combining marks, CR LF) "
    "differently from SentencePiece; llama.cpp normalizes them as SentencePiece does"
)


class Charsmap:
    """A compiled normalizer: a table of texts and their replacements.

    The table is a double array of darts-clone, after its length in bytes; the replacements follow
    it, each terminated by a zero byte. `where` names the normalizer in errors. Raises
    `TokenizerError` for bytes that llama.cpp refuses.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._where = where
        size = _WORD.unpack_from(data)[0] if len(data) >= _WORD.size else 0
        if not size or size % _WORD.size or size + _WORD.size >= len(data) or data[-1]:
            raise self._report_damage(
                f"{len(data)} bytes are too few for a table of {size} bytes and its texts"
            )
        self._units = memoryview(data)[_WORD.size : _WORD.size + size]
        self._texts = memoryview(data)[_WORD.size + size :]

    def replacement(self, text: str) -> str | None:
        """Return the replacement of a whole text; None if the table does not have the text.

        Raises `TokenizerError` if the table refers to an entry outside of itself.
        """
        unit = self._unit(0)
        place = _offset(unit)
        for byte in text.encode():
            place ^= byte
            unit = self._unit(place)
            if unit & _LABEL != byte:
                return None
            place ^= _offset(unit)
        if not unit & _HAS_LEAF:
            return None
        start = self._unit(place) & _VALUE
        if start >= len(self._texts):
            raise self._report_damage(
                f"the replacement at byte {start} is past the end of the {len(self._texts)} bytes "
                "of texts"
            )
        found = bytes(self._texts[start:]).split(b"\0", 1)[0]
        return found.decode("utf-8", "replace")

    def _unit(self, place: int) -> int:
        if place * _WORD.size >= len(self._units):
            raise self._report_damage(
                f"entry {place} does not exist: the table has {len(self._units) // _WORD.size} "
                "entries"
            )
        unit: int = _WORD.unpack_from(self._units, place * _WORD.size)[0]
        return unit

    def _report_damage(self, what: str) -> TokenizerError:
        return TokenizerError(
            f"{self._where}: its `precompiled_charsmap` is damaged: {what}", hint=KEEP_HINT
        )


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & _IS_WIDE) >> 6)


class Steps:
    """The effect on text of the steps that were applied.

    `is_marked`: spaces are `▁`. `prefix` states before which texts a mark is added: "each" text;
    each "text" that does not consist of spaces; "always", unless the text begins with one; the
    "first" text, unless it begins with one; empty for none. `removes_spaces`, `splits_words` and
    `charsmap` are as in `_TextRule`.
    """

    def __init__(self, path: str, *, is_unigram: bool) -> None:
        self._path = path
        self._is_unigram = is_unigram
        self._ends: set[str] = set()  # the ends of a text at which spaces are removed
        self._is_cut = self._is_stripped = False  # at any white space
        self.charsmap = b""
        self.is_marked = self.removes_spaces = self.splits_words = False
        self.prefix = ""

    def take(self, step: Any) -> None:
        """Apply a step; raises `TokenizerError` if llama.cpp does not support it."""
        take = self._TAKES.get(step.get("type")) if is_object(step) else None
        if take is not None and take(self, step):
            return
        kind = "unigram model" if self._is_unigram else "SentencePiece BPE"
        shown = json.dumps(step, ensure_ascii=False)
        shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."
        raise TokenizerError(
            f"{self._path}: llama.cpp does not apply this step to the text of a {kind}, "
            f"so text would be tokenized differently: {shown}",
            hint=KEEP_HINT,
        )

    def notes(self) -> Iterator[str]:
        if self.charsmap:
            yield _CLUSTERS
        if not self._is_cut:
            yield from self._notes_on_spaces()
        if self.prefix == "first":
            yield _FIRST
        other = self._white_space() if self._is_cut or self._is_stripped else []
        if other:
            listed = join_names([f"U+{ord(each):04X}" for each in other], _MOST_LISTED)
            where = "between words" if self._is_cut else "at the ends of a text"
            yield f"transformers removes {listed} {where}; llama.cpp keeps them"

    def _takes_sequence(self, step: Mapping[str, Any]) -> bool:
        return step.get("normalizers", step.get("pretokenizers")) is not None  # they come next

    def _takes_prepend(self, step: Mapping[str, Any]) -> bool:
        prefix = step.get("prepend")
        fits = prefix == SPACE or (prefix == " " and not self.is_marked)
        return fits and self._takes_prefix("each")

    def _takes_words(self, step: Mapping[str, Any]) -> bool:
        del step
        is_early = self._is_early()
        self._is_cut = self.removes_spaces = True
        return is_early and not _COMMON & {*self._white_space()}

    def _is_early(self) -> bool:
        """Whether a step that only unigram models have is possible at this point."""
        return self._is_unigram and not self.is_marked and not self.prefix

    def _takes_prefix(self, prefix: str) -> bool:
        is_new = not self.prefix
        self.prefix = prefix
        return is_new

    def _takes_replace(self, step: Mapping[str, Any]) -> bool:
        pattern, content = step.get("pattern"), step.get("content")
        text = _pattern(pattern)
        regex = pattern.get("Regex") if is_object(pattern) else None
        if text == " " and content == SPACE:
            self.is_marked = True
            return True
        if regex == BEFORE_TEXT and content == SPACE and self._is_unigram:
            return self._takes_prefix("text")
        if regex in _RUNS and content in (" ", SPACE):
            self.removes_spaces = True
            return self._is_early()
        if regex == AT_ENDS and content == "":
            self._ends |= {"start", "end"}
            return self._is_early()
        return False

    def _takes_metaspace(self, step: Mapping[str, Any]) -> bool:
        # Older files have a flag instead of a scheme.
        flag = "never" if step.get("add_prefix_space") is False else "always"
        scheme = step.get("prepend_scheme") or flag
        if not self.prefix and scheme != "never":
            self.prefix = scheme
        self.is_marked = True
        self.splits_words = step.get("split") is not False or self._is_cut
        return step.get("replacement", SPACE) == SPACE and scheme in ("always", "first", "never")

    def _takes_split(self, step: Mapping[str, Any]) -> bool:
        if not self.is_marked or step.get("invert"):
            return False
        text = _pattern(step.get("pattern"))
        if text == SPACE and step.get("behavior") == "MergedWithNext":
            self.splits_words = True
            return True
        return text == " "  # has no effect: spaces have been replaced with marks

    def _takes_charsmap(self, step: Mapping[str, Any]) -> bool:
        is_first = not (self.charsmap or self._ends or self._is_stripped or self.removes_spaces)
        if not is_first or not self._is_early():
            return False
        written = step.get("precompiled_charsmap")
        try:
            self.charsmap = base64.b64decode(
                written if isinstance(written, str) else "?", validate=True
            )
        except (binascii.Error, ValueError) as error:
            raise TokenizerError(
                f"{self._path}: `precompiled_charsmap` is not base64: {error}", hint=KEEP_HINT
            ) from error
        Charsmap(self.charsmap, self._path)
        return True

    def _takes_strip(self, step: Mapping[str, Any]) -> bool:
        sides = {"start": "strip_left", "end": "strip_right"}
        ends = {end for end, key in sides.items() if step.get(key)}
        self._ends |= ends
        self._is_stripped |= bool(ends)
        return self._is_early() or not ends

    def _notes_on_spaces(self) -> Iterator[str]:
        starts_marked = self.prefix in {"always", "first"}
        if self.removes_spaces:
            # One space at the start is kept, and becomes the prefix.
            for end in sorted({"start", "end"} - self._ends - {"start" if starts_marked else ""}):
                yield f"transformers keeps a space at the {end} of a text; llama.cpp does not"
            return
        for end in sorted(self._ends):
            yield f"transformers removes spaces at the {end} of a text; llama.cpp keeps them"
        if starts_marked and "start" not in self._ends:
            yield _COUNTED
        if self.prefix == "each" and self._is_unigram:
            yield _SPACES_ALONE

    def _white_space(self) -> list[str]:
        """Return the white space that the normalizer does not convert to spaces."""
        if not self.charsmap:
            return list(_WHITE)
        table = Charsmap(self.charsmap, self._path)
        made = {each: table.replacement(each) for each in _WHITE}
        return [each for each, text in made.items() if text is None or text.strip(" ")]

    # The method for each type of step; other types are refused.
    _TAKES: ClassVar[dict[Any, Callable[[Steps, Mapping[str, Any]], bool]]] = {
        "Metaspace": _takes_metaspace,
        "Precompiled": _takes_charsmap,
        "Prepend": _takes_prepend,
        "Replace": _takes_replace,
        "Sequence": _takes_sequence,
        "Split": _takes_split,
        "Strip": _takes_strip,
        "WhitespaceSplit": _takes_words,
    }


def _pattern(pattern: object) -> object:
    """Return the text or the regular expression of a pattern."""
    return next(iter(pattern.values()), None) if is_object(pattern) else pattern
