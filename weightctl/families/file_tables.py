"""The tables of a TOML file that describes a family or a tower, with checks of their entries.

An error names the file, the line and the entry.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from weightctl.errors import FormatError
from weightctl.families.groups import RULES
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weightctl.families.config_keys import Key

_T = TypeVar("_T")
_NULL = "= null"
# The parts of a regular expression: those that stand for characters, then groups, the ends of
# groups with what repeats them, and quantifiers and alternatives.
_PARTS_OF_PATTERN = re.compile(
    r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|(\((?:\?(?:P?<\w+>|<?[=!]|[:>#]|[a-zA-Z-]+:?))?"
    r"|\)(?:[*+?]|\{[\d,]+\})?|[*+?|]|\{[\d,]+\})"
)
_FILLED = re.compile(r"\{(?:expert|kind)?\}")
_MOST_NAMED = 40
_HINT = "docs/contributing.md explains each entry of such a file"


def open_table(path: str | Path, rules: Mapping[str, Mapping[str, str]] = RULES) -> FileTable:
    """Return the table of a whole file; `rules` are those that it can name.

    Raises `FormatError` if the file is not TOML.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(str(path), None, f"is not TOML: {error}", hint=_HINT) from error
    return FileTable(_Source(str(path), text, rules), (), values)


class _Source:
    """The text of a file, in which the lines of errors are found."""

    def __init__(self, path: str, text: str, rules: Mapping[str, Mapping[str, str]]) -> None:
        self._path = path
        self.rules = rules
        self._lines = text.splitlines()
        # The defaults that are formulas, with the entries that state them and the fields they read.
        self.formulas: list[tuple[Any, tuple[str, ...], tuple[str, ...]]] = []

    def fail(self, place: tuple[str, ...], reason: str) -> NoReturn:
        """Raise the error of an entry, which names its line."""
        name = ".".join(f'"{word}"' if "." in word else word for word in place)
        where = f"line {self._find_line(place)}: " if place else ""
        entry = f"`{name}` " if name else ""
        raise FormatError(self._path, None, f"{where}{entry}{reason}", hint=_HINT)

    def _find_line(self, place: tuple[str, ...]) -> int:
        # Each word of the place is searched from the line of the word before it.
        number = 0
        for word in place:
            wanted = re.compile(rf"(?:^|[\[\].{{,\s])[\"']?{re.escape(word)}[\"']?\s*(?:=|\]|\.|$)")
            for later in range(number, len(self._lines)):
                if wanted.search(self._lines[later]):
                    number = later
                    break
        return number + 1


class FileTable:
    """A table of the file. Each entry is taken once; those that nothing took are errors."""

    def __init__(self, source: _Source, place: tuple[str, ...], values: Mapping[str, Any]) -> None:
        self._source = source
        self._place = place
        self._values = dict(values)

    def fail(self, reason: str, *names: str) -> NoReturn:
        """Raise the error of the table, or of an entry in it."""
        self._source.fail((*self._place, *names), reason)

    def rules(self, called: str) -> Mapping[str, str]:
        """Return the rules of one kind that the file can name."""
        return self._source.rules[called]

    def keep_formula(self, made: Any, name: str, *fields: str | None) -> Any:
        """Return a default that an entry computes from fields, and keep it to be checked."""
        of_keys = tuple(each for each in fields if each is not None and not each.isdigit())
        self._source.formulas.append((made, (*self._place, name), of_keys))
        return made

    def check_formulas(self, keys: Iterable[Key], computed: Iterable[str] = ()) -> None:
        """Check that the fields that formulas read are those of earlier keys.

        Formulas that are not defaults of keys can read all fields, and those that checks compute.
        """
        earlier: set[str] = set()
        others = {place: fields for _, place, fields in self._source.formulas}
        for key in keys:
            for made, place, fields in self._source.formulas:
                if made is not key.default and made is not key.gguf_default:
                    continue
                others.pop(place, None)
                for each in fields:
                    if each not in earlier:
                        self._source.fail(
                            place, f"reads `{each}`, which no earlier key states: use `last_keys`"
                        )
            earlier.add(key.field)
        for place, fields in others.items():
            for each in fields:
                if each not in earlier.union(computed):
                    self._source.fail(place, f"reads `{each}`, which is not a field")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def names(self) -> list[str]:
        """Return the names of the entries that nothing took yet."""
        return list(self._values)

    def peek(self, name: str) -> Any:
        """Return an entry, which stays."""
        return self._values[name]

    def text(self, name: str, default: str | None = None) -> str:
        return self._take(name, str, "a text", default)

    def template(self, name: str, default: str | None = None) -> str:
        """Take the name of a tensor, in which only numbers can be filled in."""
        found = self.text(name, default)
        if set("{}") & set(_FILLED.sub("", found)):
            self.fail("has braces other than `{}`, `{expert}` and `{kind}`", name)
        return found

    def metadata_key(self, name: str) -> str:
        """Take a key of GGUF's metadata, in which only the architecture can be filled in.

        The text is empty if there is no key.
        """
        found = self.text(name)
        if set("{}") & set(found.replace("{arch}", "")):
            self.fail("has braces other than `{arch}`, which is the architecture", name)
        if found and "." not in found:
            self.fail("is not a key of GGUF's metadata, such as `{arch}.logit_scale`", name)
        return found

    def patterns(self, name: str) -> tuple[str, ...]:
        """Take a list of regular expressions, in which no group with a choice is repeated."""
        found = self.texts(name)
        try:
            for pattern in found:
                re.compile(pattern)
        except re.error as error:
            self.fail(f"has a pattern that is not valid: {error}", name)
        for pattern in filter(_has_slow_group, found):
            self.fail(
                f"has the pattern `{pattern}`, which repeats a group with a quantifier or an "
                "alternative: to match it could take very long",
                name,
            )
        return found

    def number(self, name: str) -> int:
        return self._take(name, int, "a whole number", None)

    def real(self, name: str) -> float:
        """Take a number that is not a whole one."""
        return self._take(name, float, "a number with a point", None)

    def flag(self, name: str, *, default: bool = False) -> bool:
        return self._take(name, bool, "true or false", default)

    def texts(self, name: str, count: int | None = None) -> tuple[str, ...]:
        """Take a list of texts, which may be missing if their `count` is not given."""
        found: list[Any] = self._take(name, list, "a list of texts", [])
        if not all(isinstance(each, str) for each in found):
            self.fail("must be a list of texts", name)
        if count not in {None, len(found)}:
            self.fail(f"must be a list of {count} texts", name)
        return tuple(found)

    def reals(self, name: str, count: int) -> tuple[float, ...]:
        """Take a list of some numbers that are not whole ones."""
        found = self.items(name)
        if len(found) != count or not all(isinstance(each, float) for each in found):
            self.fail(f"must be a list of {count} numbers with a point", name)
        return tuple(found)

    def value(self, name: str) -> Any:
        """Take a value of any type, in which `= null` is None."""
        value = self._values.pop(name)
        return None if value == _NULL else value

    def table(self, name: str) -> FileTable:
        """Take a table, which may be missing."""
        found: dict[str, Any] = self._take(name, dict, "a table", {})
        return FileTable(self._source, (*self._place, name), found)

    def tables(self) -> dict[str, FileTable]:
        """Take all entries, which must be tables."""
        return {name: self.table(name) for name in self.names()}

    def items(self, name: str) -> list[Any]:
        return self._take(name, list, "a list", [])

    def within(self, item: object, name: str) -> FileTable:
        """Return a table that is an item of the list of an entry."""
        if not isinstance(item, dict):
            self.fail(f"has {item!r}, which is not a table", name)
        return FileTable(self._source, (*self._place, name), cast("dict[str, Any]", item))

    def end(self) -> None:
        """Check that no entry is left."""
        for name in self._values:
            self.fail("is not an entry of this table", name)

    def choose(self, name: str, known: Mapping[str, Any], called: str) -> Any:
        """Take the name of one of some things, and return that thing."""
        return self.find(self.text(name), known, called, name)

    def find(self, wanted: str, known: Mapping[str, Any], called: str, *place: str) -> Any:
        """Return one of some things by its name, which an entry states."""
        if wanted not in known:
            names = join_names([f"`{each}`" for each in sorted(known)], _MOST_NAMED)
            self.fail(f"is `{wanted}`; {called} is one of {names}", *place)
        return known[wanted]

    def _take(self, name: str, wanted: type[_T], called: str, default: _T | None) -> _T:
        if name not in self._values:
            if default is None:
                self.fail(f"has no `{name}`")
            return default
        value = self._values.pop(name)
        if type(value) is not wanted:
            self.fail(f"must be {called}", name)
        return value


def _has_slow_group(pattern: str) -> bool:
    """Whether a regular expression repeats a group that can match a text in several ways."""
    open_groups, is_slow = [False], False
    for escaped, text in _PARTS_OF_PATTERN.findall(pattern):
        if escaped:
            continue
        if text.startswith("("):
            open_groups.append(False)
        elif text.startswith(")"):
            has_choice = open_groups.pop()
            is_repeated = text[-1] in "*+}"
            is_slow = is_slow or (has_choice and is_repeated)
            open_groups[-1] = open_groups[-1] or has_choice or is_repeated
        else:
            open_groups[-1] = True
    return is_slow


def read_map(table: FileTable) -> dict[str, Any]:
    """Return the values of a table."""
    return {name: table.value(name) for name in table.names()}


def read_texts(table: FileTable) -> dict[str, str]:
    """Return the values of a table, which must be texts."""
    return {name: table.text(name) for name in table.names()}
