"""Reads a model family from a file such as those in `families/tables/`.

A file has the fields of a `Family`, the rows of its tensors and keys, and names of rules; it has no
code. `docs/contributing.md` explains each entry.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from weightctl.errors import FormatError
from weightctl.families.decoder_keys import with_keys
from weightctl.families.experts import (
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
    stacked_gate_up,
)
from weightctl.families.family import Family, ModelType, Name, WeightAxes
from weightctl.families.fusions import Fusion, qkv_form
from weightctl.families.groups import KEY_GROUPS, KINDS, LINE_GROUPS, MADE, MODELS, RULES, STEPS
from weightctl.families.keys import (
    IsAbsent,
    Key,
    Present,
    PresentAs,
    PresentInLayer,
    RowCount,
    product,
    quotient,
    same,
)
from weightctl.families.kinds import ACTIVATION, Exactly, OrNone, Real, WholeNumber
from weightctl.families.layers import FlagMeaning
from weightctl.families.lines import LINES, adapt
from weightctl.families.multimodal import in_multimodal
from weightctl.families.reshapes import InTurn
from weightctl.system.registry import load
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_T = TypeVar("_T")
# The folder with weightctl's own files.
TABLES = Path(__file__).parent / "tables"
_LAYER = "layers.{}."
_FORMULA = re.compile(r"= (?:(\d+) \* )?([a-z_][\w.]*)(?: / ([a-z_][\w.]*))?")
_NULL = "= null"
_FILLED = re.compile(r"\{(?:expert|kind)?\}")
_MOST_NAMED = 40
_PARTS = 3
_HINT = "the section on model families in docs/contributing.md explains each entry"
# The fields of a `Family` that the file has under the same names.
_TEXTS = ("gguf", "prefix", "lacks")
_FLAGS = ("in_llama_cpp", "keeps_window", "heads_fill_hidden")
_MAPS = ("blocks", "older", "spellings")
# What a family has of its base, besides tensors, keys and blocks. Rules are always stated.
_INHERITED = ("fusions", "prefix", "other_prefixes", "spellings")
_OF_ONE_RULE = ("completed", "unloaded", "is_of", "is_of_config", "not_run", "copied")


def read_family(path: str | Path, load_base: Callable[[str], Family]) -> Family:
    """Return the family that a file describes; its name is that of the file.

    `load_base` returns the family of a name. Raises `FormatError` with the line and the entry if
    the file is invalid.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(str(path), None, f"is not TOML: {error}", hint=_HINT) from error
    return _read_family(path.stem, _Table(_Source(str(path), text), (), values), load_base)


class _Source:
    """The text of a file, in which the lines of errors are found."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()

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


class _Table:
    """A table of the file. Each entry is taken once; those that nothing took are errors."""

    def __init__(self, source: _Source, place: tuple[str, ...], values: Mapping[str, Any]) -> None:
        self._source = source
        self._place = place
        self._values = dict(values)

    def fail(self, reason: str, *names: str) -> NoReturn:
        """Raise the error of the table, or of an entry in it."""
        self._source.fail((*self._place, *names), reason)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def names(self) -> list[str]:
        """Return the names of the entries that nothing took yet."""
        return list(self._values)

    def peek(self, name: str) -> Any:
        """Return an entry, which stays."""
        return self._values[name]

    def text(self, name: str, default: str | None = None) -> str:
        """Take a text."""
        return self._take(name, str, "a text", default)

    def template(self, name: str, default: str | None = None) -> str:
        """Take the name of a tensor, in which only numbers can be filled in."""
        found = self.text(name, default)
        if set("{}") & set(_FILLED.sub("", found)):
            self.fail("has braces other than `{}`, `{expert}` and `{kind}`", name)
        return found

    def patterns(self, name: str) -> tuple[str, ...]:
        """Take a list of regular expressions."""
        found = self.texts(name)
        try:
            for pattern in found:
                re.compile(pattern)
        except re.error as error:
            self.fail(f"has a pattern that is not valid: {error}", name)
        return found

    def number(self, name: str) -> int:
        """Take a whole number."""
        return self._take(name, int, "a whole number", None)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Take a flag."""
        return self._take(name, bool, "true or false", default)

    def texts(self, name: str) -> tuple[str, ...]:
        """Take a list of texts, which may be missing."""
        found: list[Any] = self._take(name, list, "a list of texts", [])
        if not all(isinstance(each, str) for each in found):
            self.fail("must be a list of texts", name)
        return tuple(found)

    def value(self, name: str) -> Any:
        """Take a value of any type, in which `= null` is None."""
        value = self._values.pop(name)
        return None if value == _NULL else value

    def table(self, name: str) -> _Table:
        """Take a table, which may be missing."""
        found: dict[str, Any] = self._take(name, dict, "a table", {})
        return _Table(self._source, (*self._place, name), found)

    def items(self, name: str) -> list[Any]:
        """Take a list of anything."""
        return self._take(name, list, "a list", [])

    def within(self, item: object, name: str) -> _Table:
        """Return a table that is an item of the list of an entry."""
        if not isinstance(item, dict):
            self.fail(f"has {item!r}, which is not a table", name)
        return _Table(self._source, (*self._place, name), cast("dict[str, Any]", item))

    def end(self) -> None:
        """Check that there is no other entry."""
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


def _read_family(name: str, top: _Table, load_base: Callable[[str], Family]) -> Family:
    base = _load_base(top, load_base)
    given: dict[str, Any] = {each: top.text(each) for each in _TEXTS if each in top}
    given |= {each: top.flag(each) for each in _FLAGS if each in top}
    given["config"], given["module"] = top.find(
        top.text("model", "decoder"), MODELS, "the model", "model"
    )
    if not top.flag("runs", default=True):
        given["module"] = ""
    given |= {each: top.patterns(each) for each in ("beside",) if each in top}
    given |= {each: top.texts(each) for each in ("other_prefixes",) if each in top}
    given |= {each: _read_map(top.table(each)) for each in _MAPS if each in top}
    if base is not None:
        inherited = {each: getattr(base, each) for each in _INHERITED}
        given = {**inherited, **given, "blocks": {**base.blocks, **given.get("blocks", {})}}
    for each in _OF_ONE_RULE:
        if each in top:
            given[each] = load(top.choose(each, RULES[each], "the rule"))
    given |= {each: _read_rule(top, each) for each in ("standard", "differs") if each in top}
    names = _read_lines(top, base)
    keys = () if base is None else base.keys
    for group in _load_groups(top, "keys_from"):
        keys = with_keys(keys, *group)
    if "experts" in top:
        names, keys = _read_experts(top.table("experts"), names, keys)
    if "fusions" in top:
        given["fusions"] = tuple(_read_fusions(top))
    rows = top.table("keys")
    left_out = tuple(each for each in rows.names() if rows.peek(each) is False)
    made = [
        key
        for each in rows.names()
        if each not in left_out
        for key in _read_keys(rows, each, [key for key in keys if key.field == each])
    ]
    if "checked" in top:
        given["checked"] = _read_checks(top)
    classes = _read_map(top.table("multimodal"))
    types = dict(_read_types(top.table("types")))
    if not types:
        top.fail("has no `types`, the model types of config.json")
    family = Family(
        name=name,
        model_types=types,
        names=names,
        keys=with_keys(keys, *made, without=left_out),
        **given,
    )
    top.end()
    return in_multimodal(family, classes) if classes else family


def _load_base(top: _Table, load_base: Callable[[str], Family]) -> Family | None:
    if "base" not in top:
        return None
    name = top.text("base")
    try:
        return load_base(name)
    except KeyError:
        top.fail(f"is `{name}`, which is not the name of a family", "base")


def _read_map(table: _Table) -> dict[str, Any]:
    return {name: table.value(name) for name in table.names()}


def _read_types(table: _Table) -> Iterable[tuple[str, ModelType]]:
    for name in table.names():
        of_type = table.table(name)
        yield (
            name,
            ModelType(
                class_name=of_type.text("class"),
                defaults=_read_map(of_type.table("defaults")),
                fixed=_read_map(of_type.table("fixed")),
            ),
        )
        of_type.end()


def _read_rule(top: _Table, name: str) -> Any:
    """Return a function by its name, or the text that `differs` may be."""
    if name == "differs" and not isinstance(top.peek(name), dict):
        return top.text(name)
    table = top.table(name) if isinstance(top.peek(name), dict) else top
    rule = table.choose("rule" if table is not top else name, RULES[name], "the rule")
    if table is not top:
        table.end()
    return load(rule)


def _read_checks(top: _Table) -> Any:
    """Return the checks of a family in one function, the first one around the others."""
    made: Any = None
    for name in reversed(top.texts("checked")):
        if name == "experts":
            made = checking_experts(made or _keep_fields)
        elif made is not None:
            top.fail(f"has `{name}` before another check; only `experts` can precede it", "checked")
        else:
            made = load(top.find(name, RULES["checked"], "a check", "checked"))
    return made


def _keep_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return fields


# Tensors


def _read_lines(top: _Table, base: Family | None) -> tuple[Name, ...]:
    names = () if base is None else base.names
    if "tensors_from" in top:
        names = load(top.choose("tensors_from", LINE_GROUPS, "the group of tensors"))
    layers = top.template("layers", "model.layers.{}.")
    return adapt(names, dict(_read_changes(top.table("tensors"), layers)))


def _read_changes(rows: _Table, layers: str) -> Iterable[tuple[str, Mapping[str, Any] | None]]:
    """Yield the changes of lines, by role, as `adapt` takes them."""
    for role in rows.names():
        usual = LINES.get(role)
        in_layers = usual is None or usual.is_of_layers
        content = rows.peek(role)
        if content is False:
            rows.flag(role)
            yield role, None
        elif isinstance(content, str):
            yield role, {"hugging_face": (layers if in_layers else "") + rows.template(role)}
        else:
            row = rows.table(role)
            if usual is None:
                row.fail("is not the role of a tensor")
            yield role, dict(_read_line(row, layers if in_layers else ""))
            row.end()


def _read_line(row: _Table, layers: str) -> Iterable[tuple[str, Any]]:
    before = {"hf": layers, "gguf": "blk.{}." if layers else ""}
    for name, field in _CONVENTIONS.items():
        if name in row:
            is_there = row.peek(name) is not False or row.flag(name)
            yield field, before[name] + row.template(name) if is_there else None
    for name, (field, take) in _OF_LINES.items():
        if name in row:
            yield field, take(row, name)
    if "outputs" in row:
        yield "axes", WeightAxes(row.texts("outputs"), row.texts("inputs"))
    if "ends" in row:
        ends = row.table("ends")
        yield "ends", {_CONVENTIONS[name]: ends.text(name) for name in _CONVENTIONS if name in ends}
        ends.end()
    if "step" in row:
        yield "change", _read_steps(row) if row.peek("step") or row.flag("step") else None
    if "made" in row:
        functions = row.choose("made", MADE, "what makes a tensor")
        yield from zip(("made", "add_fields"), map(load, functions), strict=True)


def _read_steps(row: _Table) -> Any:
    steps = row.texts("step") if isinstance(row.peek("step"), list) else (row.text("step"),)
    made = [_read_step(row, *step.split()) for step in steps]
    return made[0] if len(made) == 1 else InTurn(*made)


def _read_step(row: _Table, name: str = "", *arguments: str) -> Any:
    step: Any = load(row.find(name, STEPS, "a step", "step"))
    if not callable(step):
        return row.fail(f"has arguments of `{name}`", "step") if arguments else step
    try:
        return step(*(int(each) if each.isdigit() else each for each in arguments))
    except TypeError:
        row.fail(f"has {len(arguments)} arguments of `{name}`, which has another number", "step")


def _read_experts(
    table: _Table, names: tuple[Name, ...], keys: tuple[Key, ...]
) -> tuple[tuple[Name, ...], tuple[Key, ...]]:
    """Return lines and keys with experts in place of the MLP."""
    parts: list[str | None] = ["gate_proj", "up_proj", "down_proj"]
    if "parts" in table:
        parts = [each or None for each in table.texts("parts")]
    if len(parts) != _PARTS:
        table.fail("must have the names of a gate, an up and a down", "parts")
    gate, up, down = parts
    more: dict[str, Mapping[str, Any]] = {}
    for role, change in _read_changes(table.table("tensors"), ""):
        if change is None:
            table.fail("cannot be left out of the experts", "tensors", role)
        more[role] = change
    layer, dense = table.template("layers", "mlp."), table.flag("dense")
    made = expert_lines(names, layer, parts=(gate, up, down), more=more, dense=dense)
    rows = expert_keys(
        keys,
        table.text("count"),
        *(key for group in _load_groups(table, "keys_from") for key in group),
        experts=table.number("experts"),
        used=table.number("used"),
    )
    table.end()
    return made, rows


def _read_fusions(top: _Table) -> Iterable[Fusion]:
    """Yield tensors with several parts: usual forms by name, and those that the file describes."""
    usual: dict[str, tuple[Fusion, ...]] = {
        "qkv": (qkv_form(),),
        "experts": expert_forms(),
        "experts router": expert_forms("router"),
        "gate_up_exps": (stacked_gate_up(),),
    }
    for each in top.items("fusions"):
        if isinstance(each, str):
            yield from top.find(each, usual, "a usual fusion", "fusions")
            continue
        table = top.within(each, "fusions")
        yield Fusion(
            convention="hugging_face",
            name=table.template("name"),
            parts=tuple(_LAYER + part for part in table.texts("parts")),
            of_experts=table.flag("of_experts"),
        )
        table.end()


# Keys


def _load_groups(table: _Table, name: str) -> Iterable[tuple[Key, ...]]:
    for each in table.texts(name):
        found = load(table.find(each, KEY_GROUPS, "a group of keys", name))
        yield (found,) if isinstance(found, Key) else found


def _read_keys(rows: _Table, field: str, usual: list[Key]) -> Iterable[Key]:
    """Yield the keys of a field. A row without a kind changes the only key that there is."""
    content = rows.peek(field)
    if not isinstance(content, list):
        yield _read_key(rows.table(field), field, usual)
        return
    for each in rows.items(field):
        yield _read_key(rows.within(each, field), field, [])


def _read_key(row: _Table, field: str, usual: list[Key]) -> Key:
    given: dict[str, Any] = {}
    if "function" in row:
        # llama.cpp assumes the activation without a key.
        given |= dict.fromkeys(("default", "gguf_default"), row.text("function"))
        given["kind"] = ACTIVATION.preferring(*row.texts("spelled"))
        given["hugging_face"] = "hidden_act"
    elif (kind := _read_kind(row)) is not None:
        given["kind"] = kind
    elif len(usual) != 1:
        row.fail(f"has no `kind`, and there are {len(usual)} keys of this field to change")
    given |= {wanted: take(row, name) for name, (wanted, take) in _OF_KEYS.items() if name in row}
    row.end()
    return Key(field=field, **given) if "kind" in given else replace(usual[0], **given)


def _read_kind(row: _Table) -> Any:
    """Return which values a key has: a usual kind, or one that the row describes."""
    if "only" in row:
        return Exactly(row.value("only"), row.text("why"))
    if "kind" not in row:
        return None
    if isinstance(row.peek("kind"), str):
        return load(row.choose("kind", KINDS, "the kind"))
    kind = row.table("kind")
    made: Any = None
    if "integer" in kind:
        made = WholeNumber(*_read_bounds(kind, "integer"))
    elif "above" in kind:
        made = Real(*_read_bounds(kind, "above"))
    elif "real" in kind:
        made = Real(*_read_bounds(kind, "real"), is_closed=True)
    elif "meaning" in kind:
        made = FlagMeaning(kind.text("meaning"))
    elif "or_none" in kind:
        made = OrNone(load(kind.choose("or_none", KINDS, "the kind")))
    else:
        kind.fail("has no entry that says which values there are")
    kind.end()
    return made


def _read_bounds(kind: _Table, name: str) -> tuple[Any, Any]:
    found = kind.items(name)
    if [type(each) in {int, float} for each in found] != [True, True]:
        kind.fail("must be the least and the largest number", name)
    return found[0], found[1]


def _read_default(row: _Table, name: str) -> Any:
    """Return a default: a value, or a function that computes it from fields."""
    value = row.value(name)
    if not isinstance(value, str) or not value.startswith("="):
        return value
    if rule := RULES["default"].get(value[1:].strip()):
        return load(rule)
    if (found := _FORMULA.fullmatch(value)) is None:
        row.fail(f"is `{value}`; a formula is `= FIELD`, `= FIELD / FIELD` or `= 4 * FIELD`", name)
    factor, field, divisor = found.groups()
    if factor:
        return product(field, int(factor))
    return quotient(field, divisor) if divisor else same(field)


def _read_seen(row: _Table, name: str) -> Any:
    """Return how the value of a key is seen in the tensors of a GGUF file."""
    seen = row.table(name)
    if "rows" in seen:
        made: Any = RowCount(seen.text("rows"), seen.number("axis") if "axis" in seen else 0)
    elif "lacks" in seen:
        made = IsAbsent(seen.text("lacks"))
    elif "in_layers" in seen:
        made = PresentInLayer(seen.text("in_layers"), seen.text("whole", ""))
    else:
        tensor = seen.text("has")
        meaning = seen.text("meaning", "")
        made = PresentAs(tensor, meaning) if meaning else Present(tensor, seen.text("whole", ""))
    seen.end()
    return made


# The entries of tensors and keys, with the fields of `Name` and `Key`, and how they are read.
_CONVENTIONS = {"hf": "hugging_face", "gguf": "gguf"}
_OF_LINES: Mapping[str, tuple[str, Callable[[_Table, str], Any]]] = {
    "bias": ("bias", _Table.value),
    "when": ("when", _Table.texts),
    "unless": ("unless", _Table.text),
    "first": ("first", _Table.text),
    "count": ("count", _Table.text),
    "float32": ("is_float32", _Table.flag),
    "unread": ("unread", _Table.flag),
    "restarts": ("restarts", _Table.flag),
    "counted": ("counted", _Table.flag),
}
_OF_KEYS: Mapping[str, tuple[str, Callable[[_Table, str], Any]]] = {
    "gguf": ("gguf", _Table.text),
    "hf": ("hugging_face", _Table.text),
    "gguf_type": ("gguf_type", _Table.text),
    "default": ("default", _read_default),
    "gguf_default": ("gguf_default", _read_default),
    "seen": ("seen", _read_seen),
    "written": ("written", _Table.flag),
    "in_weights": ("is_in_weights", _Table.flag),
}
