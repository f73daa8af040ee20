"""Reads the rows of tensors and keys in a file that describes a family or a tower."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from weightctl.families.config_keys import (
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
from weightctl.families.config_values import (
    ACTIVATION,
    Choice,
    Exactly,
    OrNone,
    Real,
    WholeNumber,
    WholeReal,
)
from weightctl.families.family import ModelType
from weightctl.families.file_tables import FileTable, read_map
from weightctl.families.fusions import Fusion
from weightctl.families.groups import KEY_GROUPS, KINDS, MADE, ORDERS, STEPS
from weightctl.families.layers import FlagMeaning, LayerChoice, Uniform, every_but, from_layer
from weightctl.families.modules import WeightAxes
from weightctl.families.rope import with_older_names, with_rope_defaults
from weightctl.families.steps import in_turn
from weightctl.families.usual_names import LINES
from weightctl.system.registry import load
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from weightctl.families.family import Family

_T = TypeVar("_T")
_LAYER = "layers.{}."
_FIELD = r"([a-z_][\w.]*)"
_FORMULA = re.compile(rf"= (?:{_FIELD}(?: / (\d+|[a-z_][\w.]*))?|(\d+|[a-z_][\w.]*) \* {_FIELD})")
_LAYERS = re.compile(r"= all layers (but every|but the first of|from) (\d+|[a-z_]\w*)")


def check_settings(top: FileTable, family: Family, settings: Iterable[str]) -> None:
    """Check that no setting of `blocks` in a file is also read from a key in both conventions."""
    read = {key.field for key in family.keys if key.hugging_face and key.gguf}
    for name in settings:
        if name in read:
            reason = f"is read from a key, which replaces it: use `{name} = false` in [keys]"
            top.fail(reason, "blocks", name)


def check_fields(top: FileTable, family: Family) -> None:
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


def read_types(table: FileTable, base: Mapping[str, ModelType]) -> dict[str, ModelType]:
    """Return the types of models; one can have the defaults of a type before it, or of the base."""
    made: dict[str, ModelType] = {}
    for name in table.names():
        row = table.table(name)
        known = {**base, **made}
        like = row.choose("like", known, "the type") if "like" in row else ModelType()
        defaults = row.table("defaults")
        made[name] = ModelType(
            class_name=row.text("class"),
            defaults={
                **like.defaults,
                **{field: read_default(defaults, field) for field in defaults.names()},
            },
            fixed={
                **like.fixed,
                **{
                    field: tuple(value) if is_list(value) else value
                    for field, value in read_map(row.table("fixed")).items()
                },
            },
        )
        row.end()
    return made


def read_difference(top: FileTable) -> Any:
    """Return a text, or a function by the name of its rule."""
    if not isinstance(top.peek("differs"), dict):
        return top.text("differs")
    table = top.table("differs")
    rule = table.choose("rule", top.rules("differs"), "the rule")
    table.end()
    return load(rule)


def read_standard(top: FileTable) -> Any:
    """Return what brings a config.json into the usual form: other names of keys, then rules."""
    is_list = "standard" in top and isinstance(top.peek("standard"), list)
    names = top.texts("standard") if is_list or "standard" not in top else (top.text("standard"),)
    rules = [load(top.find(each, top.rules("standard"), "the rule", "standard")) for each in names]
    renamed = top.table("rename")
    older = {each: renamed.text(each) for each in renamed.names()}
    rope = read_map(top.table("rope_if_missing"))
    if len(rules) == 1 and not older and not rope:
        return rules[0]

    def standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
        made = with_rope_defaults(with_older_names(document, older), rope)
        for rule in rules:
            made = rule(made)
        return made

    return standard


def read_changes(rows: FileTable, layers: str) -> Iterable[tuple[str, Mapping[str, Any] | None]]:
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
            yield role, dict(read_line(row, layers if in_layers else ""))
            row.end()


def read_line(row: FileTable, layers: str) -> Iterable[tuple[str, Any]]:
    """Yield the fields of a line; its name in Hugging Face's convention follows `layers`."""
    before = {"hf": layers, "gguf": "blk.{}." if layers else ""}
    for name, field in _CONVENTIONS.items():
        if name in row:
            is_there = row.peek(name) is not False or row.flag(name)
            yield field, before[name] + row.template(name) if is_there else None
    for name, (field, take) in _OF_LINES.items():
        if name in row:
            yield field, take(row, name)
    if "outputs" in row:
        kernel = row.texts("kernel")
        yield "axes", WeightAxes(row.texts("outputs"), row.texts("inputs"), kernel=kernel)
    if "ends" in row:
        ends = row.table("ends")
        yield "ends", {_CONVENTIONS[name]: ends.text(name) for name in _CONVENTIONS if name in ends}
        ends.end()
    if "step" in row:
        yield "change", _read_steps(row) if row.peek("step") or row.flag("step") else None
    if "made" in row:
        functions = row.choose("made", MADE, "what makes a tensor")
        yield from zip(("made", "add_fields"), map(load, functions), strict=True)


def read_fusion(table: FileTable, modules: Mapping[str, str] | None = None) -> Fusion:
    """Return a tensor with several parts.

    `modules` are those of the roles that the file can name. Without them, all are of layers.
    """
    parts = table.texts("parts")
    for each in parts:
        if modules is not None and each not in modules:
            table.fail(f"names `{each}`, which is not the role of a tensor", "parts")
    made = Fusion(
        convention="gguf" if table.flag("in_gguf") else "hugging_face",
        name=table.template("name"),
        parts=tuple(_LAYER + each if modules is None else modules[each] for each in parts),
        of_experts=table.flag("of_experts"),
        order=load(table.choose("order", ORDERS, "the order")) if "order" in table else None,
        transposed=table.flag("transposed"),
        bias_name=table.template("bias_name", ""),
        either_way=table.flag("either_way"),
        axis=table.number("axis") if "axis" in table else 0,
    )
    table.end()
    return made


def _read_steps(row: FileTable) -> Any:
    steps = row.texts("step") if isinstance(row.peek("step"), list) else (row.text("step"),)
    made = [_read_step(row, *step.split()) for step in steps]
    return made[0] if len(made) == 1 else in_turn(*made)


def _read_step(row: FileTable, name: str = "", *arguments: str) -> Any:
    step: Any = load(row.find(name, STEPS, "a step", "step"))
    if callable(step):
        return _call(row, "step", step, name, arguments)
    return row.fail(f"has arguments of `{name}`", "step") if arguments else step


def read_groups(table: FileTable, name: str) -> Iterable[tuple[Key, ...]]:
    """Yield groups of keys, and the keys of rows with a `field`, in the order of a list."""
    for each in table.items(name):
        if isinstance(each, str):
            yield load_group(table, each, name, KEY_GROUPS, Key)
            continue
        rows = [table.within(row, name) for row in (each if is_list(each) else [each])]
        yield tuple(_read_key(row, row.text("field"), []) for row in rows)


def join_groups(groups: Iterable[tuple[Key, ...]]) -> tuple[Key, ...]:
    """Return the keys of groups, one after the other."""
    return tuple(key for group in groups for key in group)


def load_group(
    table: FileTable, wanted: str, name: str, known: Mapping[str, str], kind: type[_T]
) -> tuple[_T, ...]:
    """Return the keys or fusions of a group, whose name can have arguments after it."""
    group, *arguments = wanted.split() or [""]
    found = load(table.find(group, known, "a group", name))
    if callable(found):
        found = _call(table, name, found, group, arguments)
    elif arguments:
        table.fail(f"has arguments of `{group}`", name)
    return (found,) if isinstance(found, kind) else found


def _call(table: FileTable, entry: str, function: Any, name: str, arguments: Iterable[str]) -> Any:
    """Return what a function returns for the words after its name."""
    values = [int(each) if each.isdigit() else each for each in arguments]
    try:
        return function(*values)
    except (TypeError, KeyError):
        return table.fail(f"has arguments that `{name}` does not take", entry)


def read_keys(rows: FileTable, field: str, usual: list[Key]) -> Iterable[Key]:
    """Yield the keys of a field. A row without a kind changes the only key of the field."""
    content = rows.peek(field)
    if not isinstance(content, list):
        yield _read_key(rows.table(field), field, usual)
        return
    for each in rows.items(field):
        yield _read_key(rows.within(each, field), field, [])


def _read_key(row: FileTable, field: str, usual: list[Key]) -> Key:
    given: dict[str, Any] = {}
    if "function" in row:
        # llama.cpp assumes the activation without a key.
        given |= dict.fromkeys(("default", "gguf_default"), row.text("function"))
        preferred = ACTIVATION.preferring(*row.texts("spelled"))
        given["kind"] = Choice({**preferred.meanings, **read_map(row.table("means"))})
        given["hugging_face"] = "hidden_act"
    elif (kind := _read_kind(row)) is not None:
        given["kind"] = kind
    elif len(usual) != 1:
        row.fail(f"has no `kind`, and there are {len(usual)} keys of this field to change")
    given |= {wanted: take(row, name) for name, (wanted, take) in _OF_KEYS.items() if name in row}
    row.end()
    return Key(field=field, **given) if "kind" in given else replace(usual[0], **given)


def _read_kind(row: FileTable) -> Any:
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


def _read_bounds(kind: FileTable, name: str) -> tuple[Any, Any]:
    found = kind.items(name)
    if [type(each) in {int, float} for each in found] != [True, True]:
        kind.fail("must be the least and the largest number", name)
    return found[0], found[1]


def read_default(row: FileTable, name: str) -> Any:
    """Return a default: a value, or a function that computes it from fields."""
    value = row.value(name)
    if not isinstance(value, str) or not value.startswith("="):
        return value
    if value == "= required":
        return REQUIRED
    if rule := row.rules("default").get(value[1:].strip()):
        return load(rule)
    if (found := _LAYERS.fullmatch(value)) is not None:
        which, stated = found.groups()
        number = int(stated) if stated.isdigit() else stated
        is_first = which == "but the first of"
        made = from_layer(number) if which == "from" else every_but(number, first=is_first)
        return row.keep_formula(made, name, "layers", stated)
    if (found := _FORMULA.fullmatch(value)) is None:
        row.fail(
            f"is `{value}`; a formula is such as `= a`, `= a / b`, `= a * b` or `= 4 * a`", name
        )
    field, divisor, factor, multiplied = found.groups()
    if multiplied:
        made = product(multiplied, int(factor) if factor.isdigit() else factor)
    else:
        made = same(field)
        if divisor:
            made = quotient(field, int(divisor) if divisor.isdigit() else divisor)
    return row.keep_formula(made, name, *found.groups())


def _read_seen(row: FileTable, name: str) -> Any:
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


_OF_LINES: Mapping[str, tuple[str, Callable[[FileTable, str], Any]]] = {
    "bias": ("bias", FileTable.value),
    "when": ("when", FileTable.texts),
    "unless": ("unless", FileTable.text),
    "first": ("first", FileTable.text),
    "count": ("count", FileTable.text),
    "float32": ("is_float32", FileTable.flag),
    "unread": ("unread", FileTable.flag),
    "restarts": ("restarts", FileTable.flag),
    "counted": ("counted", FileTable.flag),
}


_OF_KINDS: Mapping[str, Callable[[FileTable, str], Any]] = {
    "integer": lambda kind, name: WholeNumber(*_read_bounds(kind, name)),
    "uniform": lambda kind, name: Uniform(WholeNumber(*_read_bounds(kind, name))),
    "whole_real": lambda kind, name: WholeReal(*_read_bounds(kind, name)),
    "above": lambda kind, name: Real(*_read_bounds(kind, name)),
    "real": lambda kind, name: Real(*_read_bounds(kind, name), is_closed=True),
    "choice": lambda kind, name: Choice(read_map(kind.table(name))),
    "layer": lambda kind, name: LayerChoice(kind.text(name), kind.text("other")),
    "meaning": lambda kind, name: FlagMeaning(kind.text(name)),
    "or_none": lambda kind, name: OrNone(
        load(kind.choose(name, KINDS, "the kind")), kind.value("none") if "none" in kind else 0
    ),
}


_OF_KEYS: Mapping[str, tuple[str, Callable[[FileTable, str], Any]]] = {
    "gguf": ("gguf", FileTable.metadata_key),
    "hf": ("hugging_face", FileTable.text),
    "gguf_type": ("gguf_type", FileTable.text),
    "default": ("default", read_default),
    "gguf_default": ("gguf_default", read_default),
    "seen": ("seen", _read_seen),
    "written": ("written", FileTable.flag),
    "in_weights": ("is_in_weights", FileTable.flag),
}
