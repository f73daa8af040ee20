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
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType, Name, WeightAxes
from weightctl.families.fusions import Fusion
from weightctl.families.groups import (
    EXPERT_LINES,
    FUSIONS,
    KEY_GROUPS,
    KINDS,
    LINE_GROUPS,
    MADE,
    MODELS,
    ORDERS,
    RULES,
    STEPS,
)
from weightctl.families.heads import head_lines, with_prefix, without_head
from weightctl.families.hybrid import hybrid_keys, hybrid_lines
from weightctl.families.keys import (
    REQUIRED,
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
from weightctl.families.kinds import (
    ACTIVATION,
    Choice,
    Exactly,
    OrNone,
    Real,
    WholeNumber,
    WholeReal,
)
from weightctl.families.layer_rope import keys_of_global_layers, local_base_key
from weightctl.families.layers import FlagMeaning, LayerChoice, Uniform, every_but, from_layer
from weightctl.families.lines import LINES, adapt
from weightctl.families.mtp import MTP_LINES, MtpForm, mtp_keys, with_mtp_lines
from weightctl.families.mtp_tensors import MOST_LAYERS
from weightctl.families.multimodal import in_multimodal
from weightctl.families.reshapes import InTurn
from weightctl.families.rope_keys import with_older_names
from weightctl.system.registry import load
from weightctl.text.untyped import is_list
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from weightctl.weights.metadata import MetadataValue

_T = TypeVar("_T")
# The folder with weightctl's own files.
TABLES = Path(__file__).parent / "tables"
_LAYER = "layers.{}."
_FIELD = r"([a-z_][\w.]*)"
_FORMULA = re.compile(rf"= (?:{_FIELD}(?: / {_FIELD})?|(\d+|[a-z_][\w.]*) \* {_FIELD})")
_LAYERS_FROM = re.compile(r"= all layers (?:but every|from) (\d+|[a-z_]\w*)")
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
_OF_ONE_RULE = ("completed", "unloaded", "is_of_config", "not_run", "copied")


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


class _Table:
    """A table of the file. Each entry is taken once; those that nothing took are errors."""

    def __init__(self, source: _Source, place: tuple[str, ...], values: Mapping[str, Any]) -> None:
        self._source = source
        self._place = place
        self._values = dict(values)

    def fail(self, reason: str, *names: str) -> NoReturn:
        """Raise the error of the table, or of an entry in it."""
        self._source.fail((*self._place, *names), reason)

    def keep_formula(self, made: Any, name: str, *fields: str | None) -> Any:
        """Return a default that an entry computes from fields, and keep it to be checked."""
        of_keys = tuple(each for each in fields if each is not None and not each.isdigit())
        self._source.formulas.append((made, (*self._place, name), of_keys))
        return made

    def check_formulas(self, keys: Iterable[Key]) -> None:
        """Check that the keys of the fields that formulas read precede those of the formulas."""
        earlier: set[str] = set()
        for key in keys:
            for made, place, fields in self._source.formulas:
                if made is not key.default and made is not key.gguf_default:
                    continue
                for each in fields:
                    if each not in earlier:
                        self._source.fail(
                            place, f"reads `{each}`, which no earlier key states: use `last_keys`"
                        )
            earlier.add(key.field)

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

    def real(self, name: str) -> float:
        """Take a number that is not a whole one."""
        return self._take(name, float, "a number with a point", None)

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
    given |= _read_rules(top)
    names = _read_lines(top, base, given.get("prefix", "model."))
    keys = () if base is None else base.keys
    for group in _read_groups(top, "keys_from"):
        keys = with_keys(keys, *group)
    if "experts" in top:
        names, keys = _read_experts(top.table("experts"), names, keys)
    hybrid = top.table("hybrid")
    conditions = hybrid.table("tensors")
    names = hybrid_lines(names, {each: conditions.text(each) for each in conditions.names()})
    if "mtp" in top:
        given["mtp"], names, keys = _read_mtp(top.table("mtp"), names, keys)
    if "fusions" in top:
        given["fusions"] = tuple(_read_fusions(top, base))
    rows = top.table("keys")
    left_out = tuple(each for each in rows.names() if rows.peek(each) is False)
    made = [
        key
        for each in rows.names()
        if each not in left_out
        for key in _read_keys(rows, each, [key for key in keys if key.field == each])
    ]
    classes = _read_map(top.table("multimodal"))
    types = _read_types(top.table("types"), base)
    if not types:
        top.fail("has no `types`, the model types of config.json")
    keys = with_keys(keys, *made, without=left_out)
    if "other" in hybrid:
        keys = hybrid_keys(keys, hybrid.text("other"), *_join(_read_groups(hybrid, "keys")))
    hybrid.end()
    first, last = (_join(_read_groups(top, each)) for each in ("first_keys", "last_keys"))
    family = Family(
        name=name,
        model_types=types,
        names=names,
        keys=(*first, *_read_rope_by_layer(top, keys), *last),
        **given,
    )
    top.end()
    _check_fields(top, family)
    top.check_formulas(family.keys)
    return in_multimodal(family, classes) if classes else family


def _check_fields(top: _Table, family: Family) -> None:
    """Check that all fields that the rows name are fields of the config or of a key."""
    config, of_keys = load(family.config), {key.field for key in family.keys}
    known = {*config.__dataclass_fields__, *dir(config)}
    for name in family.blocks:
        if name not in config.__dataclass_fields__:
            top.fail("is not a setting of the model", "blocks", name)
    for name, kind in family.model_types.items():
        for of_type, values in (("defaults", kind.defaults), ("fixed", kind.fixed)):
            for field in values:
                if field not in of_keys:
                    top.fail("is not the field of a key", "types", name, of_type, field)
    for line in family.names:
        bias = (line.bias,) if isinstance(line.bias, str) else ()
        for field in (*line.when, line.unless, line.first, *bias):
            if field and field not in known:
                role = line.module.removeprefix(_LAYER)
                top.fail(f"names `{field}`, which is not a field of the model", "tensors", role)


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


def _read_types(table: _Table, base: Family | None) -> dict[str, ModelType]:
    """Return the types of models; one can have the defaults of a type before it, or of the base."""
    made: dict[str, ModelType] = {}
    for name in table.names():
        row = table.table(name)
        known = {**({} if base is None else base.model_types), **made}
        like = row.choose("like", known, "the type") if "like" in row else ModelType()
        defaults = row.table("defaults")
        made[name] = ModelType(
            class_name=row.text("class"),
            defaults={
                **like.defaults,
                **{field: _read_default(defaults, field) for field in defaults.names()},
            },
            fixed={**like.fixed, **_read_map(row.table("fixed"))},
        )
        row.end()
    return made


def _read_rules(top: _Table) -> dict[str, Any]:
    """Return the functions of a family, by the fields of `Family`."""
    given: dict[str, Any] = {
        each: load(top.choose(each, RULES[each], "the rule"))
        for each in _OF_ONE_RULE
        if each in top
    }
    if "is_of" in top:
        given["is_of"] = _read_is_of(top)
    if "standard" in top or "rename" in top:
        given["standard"] = _read_standard(top)
    if "differs" in top:
        given["differs"] = _read_difference(top)
    if "checked" in top:
        given["checked"] = _read_checks(top)
    return given


def _read_difference(top: _Table) -> Any:
    """Return a text, or a function by the name of its rule."""
    if not isinstance(top.peek("differs"), dict):
        return top.text("differs")
    table = top.table("differs")
    rule = table.choose("rule", RULES["differs"], "the rule")
    table.end()
    return load(rule)


def _read_is_of(top: _Table) -> Any:
    """Return whether GGUF metadata describe a family: a rule, or what a key has."""
    if not isinstance(top.peek("is_of"), dict):
        return load(top.choose("is_of", RULES["is_of"], "the rule"))
    table = top.table("is_of")
    if "lacks" in table:
        missing = table.text("lacks")
        table.end()

        def is_without(metadata: Mapping[str, MetadataValue]) -> bool:
            return missing not in metadata

        return is_without
    key, content, has_key = table.text("key"), None, not table.flag("or_none")
    is_equal = "is" in table
    if is_equal or "is_not" in table:
        content = table.value("is" if is_equal else "is_not")
    table.end()

    def is_of(metadata: Mapping[str, MetadataValue]) -> bool:
        if key not in metadata:
            return not has_key
        found = metadata[key].content
        return content is None or (type(found) is type(content) and found == content) == is_equal

    return is_of


def _read_standard(top: _Table) -> Any:
    """Return what brings a config.json into the usual form: other names of keys, then rules."""
    is_list = "standard" in top and isinstance(top.peek("standard"), list)
    names = top.texts("standard") if is_list or "standard" not in top else (top.text("standard"),)
    rules = [load(top.find(each, RULES["standard"], "the rule", "standard")) for each in names]
    renamed = top.table("rename")
    older = {each: renamed.text(each) for each in renamed.names()}
    if len(rules) == 1 and not older:
        return rules[0]

    def standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
        made = with_older_names(document, older)
        for rule in rules:
            made = rule(made)
        return made

    return standard


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


def _read_lines(top: _Table, base: Family | None, prefix: str) -> tuple[Name, ...]:
    names = () if base is None else base.names
    if "tensors_from" in top:
        names = load(top.choose("tensors_from", LINE_GROUPS, "the group of tensors"))
    layers = top.template("layers", "model.layers.{}.")
    head = top.table("head")
    if head.names():
        names = without_head(names)
    if "tensors" in top:
        names = adapt(names, dict(_read_changes(top.table("tensors"), layers)))
    if head.names():
        lines = head_lines(
            head.template("dense"), head.template("output"), head.template("norm", "")
        )
        names = (*with_prefix(names, prefix), *lines)
    head.end()
    return names


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
    if callable(step):
        return _call(row, "step", step, name, arguments)
    return row.fail(f"has arguments of `{name}`", "step") if arguments else step


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
    more: dict[str, str | Mapping[str, Any]] = {}
    if "tensors_from" in table:
        more |= load(table.choose("tensors_from", EXPERT_LINES, "the group of tensors"))
    for role, change in _read_changes(table.table("tensors"), ""):
        if change is None:
            table.fail("cannot be left out of the experts", "tensors", role)
        more[role] = change
    added: tuple[Key, ...] = ()
    for group in _read_groups(table, "keys_from"):
        added = with_keys(added, *group)
    layer, dense = table.template("layers", "mlp."), table.flag("dense")
    made = expert_lines(names, layer, parts=(gate, up, down), more=more, dense=dense)
    rows = expert_keys(
        keys,
        table.text("count"),
        *added,
        experts=table.number("experts"),
        used=table.number("used"),
    )
    table.end()
    return made, rows


def _read_mtp(
    table: _Table, names: tuple[Name, ...], keys: tuple[Key, ...]
) -> tuple[MtpForm, tuple[Name, ...], tuple[Key, ...]]:
    """Return the form of layers for MTP, and lines and keys with those of these layers."""
    usual = {each.module.rpartition(".")[2]: each for each in MTP_LINES}
    added: list[Name] = []
    rows = table.table("tensors")
    for part in rows.names():
        line = replace(rows.find(part, usual, "a tensor", part), when=("in_mtp",))
        if isinstance(rows.peek(part), str):
            added.append(replace(line, hugging_face=rows.template(part)))
            continue
        row = rows.table(part)
        added.append(replace(line, **dict(_read_line(row, ""))))
        row.end()
    in_gguf = table.flag("in_gguf", default=True)
    most = table.number("most") if "most" in table else MOST_LAYERS
    made = mtp_keys(keys, table.text("count"), most=most, in_gguf=in_gguf)
    form = MtpForm(
        prefix=table.template("prefix", ""),
        values=_read_map(table.table("values")),
        unstated=table.texts("unstated"),
        in_gguf=in_gguf,
    )
    table.end()
    return form, with_mtp_lines(names, tuple(added) or MTP_LINES), made


def _read_fusions(top: _Table, base: Family | None) -> Iterable[Fusion]:
    """Yield tensors with several parts: usual forms by name, and those that the file describes."""
    for each in top.items("fusions"):
        if each == "base":
            yield from () if base is None else base.fusions
            continue
        if isinstance(each, str):
            yield from _load_group(top, each, "fusions", FUSIONS, Fusion)
            continue
        table = top.within(each, "fusions")
        yield Fusion(
            convention="gguf" if table.flag("in_gguf") else "hugging_face",
            name=table.template("name"),
            parts=tuple(_LAYER + part for part in table.texts("parts")),
            of_experts=table.flag("of_experts"),
            order=load(table.choose("order", ORDERS, "the order")) if "order" in table else None,
            transposed=table.flag("transposed"),
            bias_name=table.template("bias_name", ""),
            either_way=table.flag("either_way"),
        )
        table.end()


# Keys


def _read_rope_by_layer(top: _Table, keys: tuple[Key, ...]) -> tuple[Key, ...]:
    """Return keys of RoPE that only layers with full attention have, and the base of the others."""
    bases = top.table("rope_by_layer")
    if not bases.names():
        return keys
    far, near = bases.real("full"), bases.real("windowed") if "windowed" in bases else None
    bases.end()
    return (*keys_of_global_layers(keys, far), *([] if near is None else [local_base_key(near)]))


def _read_groups(table: _Table, name: str) -> Iterable[tuple[Key, ...]]:
    """Yield groups of keys, and the keys of rows with a `field`, in the order of a list."""
    for each in table.items(name):
        if isinstance(each, str):
            yield _load_group(table, each, name, KEY_GROUPS, Key)
            continue
        rows = [table.within(row, name) for row in (each if is_list(each) else [each])]
        yield tuple(_read_key(row, row.text("field"), []) for row in rows)


def _join(groups: Iterable[tuple[Key, ...]]) -> tuple[Key, ...]:
    return tuple(key for group in groups for key in group)


def _load_group(
    table: _Table, wanted: str, name: str, known: Mapping[str, str], kind: type[_T]
) -> tuple[_T, ...]:
    """Return the keys or fusions of a group, whose name can have arguments after it."""
    group, *arguments = wanted.split() or [""]
    found = load(table.find(group, known, "a group", name))
    if callable(found):
        found = _call(table, name, found, group, arguments)
    elif arguments:
        table.fail(f"has arguments of `{group}`", name)
    return (found,) if isinstance(found, kind) else found


def _call(table: _Table, entry: str, function: Any, name: str, arguments: Iterable[str]) -> Any:
    """Return what a function returns for the words after its name."""
    values = [int(each) if each.isdigit() else each for each in arguments]
    try:
        return function(*values)
    except (TypeError, KeyError):
        return table.fail(f"has arguments that `{name}` does not take", entry)


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
        preferred = ACTIVATION.preferring(*row.texts("spelled"))
        given["kind"] = Choice({**preferred.meanings, **_read_map(row.table("means"))})
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
    found = next((name for name in _OF_KINDS if name in kind), None)
    if found is None:
        kind.fail("has no entry that says which values there are")
    made = _OF_KINDS[found](kind, found)
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
    if value == "= required":
        return REQUIRED
    if rule := RULES["default"].get(value[1:].strip()):
        return load(rule)
    if (found := _LAYERS_FROM.fullmatch(value)) is not None:
        number = int(found[1]) if found[1].isdigit() else found[1]
        made = from_layer(number) if " from " in value else every_but(number)
        return row.keep_formula(made, name, "layers", found[1])
    if (found := _FORMULA.fullmatch(value)) is None:
        row.fail(
            f"is `{value}`; a formula is such as `= a`, `= a / b`, `= a * b` or `= 4 * a`", name
        )
    field, divisor, factor, multiplied = found.groups()
    if multiplied:
        made = product(multiplied, int(factor) if factor.isdigit() else factor)
    else:
        made = quotient(field, divisor) if divisor else same(field)
    return row.keep_formula(made, name, *found.groups())


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
_OF_KINDS: Mapping[str, Callable[[_Table, str], Any]] = {
    "integer": lambda kind, name: WholeNumber(*_read_bounds(kind, name)),
    "uniform": lambda kind, name: Uniform(WholeNumber(*_read_bounds(kind, name))),
    "whole_real": lambda kind, name: WholeReal(*_read_bounds(kind, name)),
    "above": lambda kind, name: Real(*_read_bounds(kind, name)),
    "real": lambda kind, name: Real(*_read_bounds(kind, name), is_closed=True),
    "choice": lambda kind, name: Choice(_read_map(kind.table(name))),
    "layer": lambda kind, name: LayerChoice(kind.text(name), kind.text("other")),
    "meaning": lambda kind, name: FlagMeaning(kind.text(name)),
    "or_none": lambda kind, name: OrNone(
        load(kind.choose(name, KINDS, "the kind")), kind.value("none") if "none" in kind else 0
    ),
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
