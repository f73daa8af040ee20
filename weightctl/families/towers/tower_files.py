"""Reads a tower from a file such as those in `families/tables/towers/`.

A file is like that of a family: rows of tensors and keys, and names of rules. What several towers
have is in `usual.toml`. `docs/contributing.md` explains each entry.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import Key, with_keys
from weightctl.families.config_values import Exactly
from weightctl.families.family import Family
from weightctl.families.file_rows import (
    check_fields,
    load_group,
    read_default,
    read_difference,
    read_fusion,
    read_keys,
    read_line,
    read_standard,
    read_types,
)
from weightctl.families.file_tables import FileTable, open_table, read_texts
from weightctl.families.groups import KEY_GROUPS, TOWER_RULES
from weightctl.families.model import CLIP
from weightctl.families.modules import Name, WeightAxes
from weightctl.families.towers.rules import CHANNELS
from weightctl.families.towers.tower import BreakToken, Tower
from weightctl.system.registry import load
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from weightctl.families.config_keys import Fields
    from weightctl.families.fusions import Fusion

# What several towers have.
USUAL = Path(__file__).parent / "usual.toml"
CONFIGS = {
    "images": "weightctl.families.towers.tower:VisionConfig",
    "audio": "weightctl.families.towers.tower:AudioConfig",
}
_LAYER, _BLOCK = "layers.{}.", "v.blk.{}."
# The entries that a tower has from a base if not from its file.
_REQUIRED = ("name", "config", "encoder", "texts", "text_prefixes", "types")


def read_tower(path: str | Path) -> Tower:
    """Return the tower that a file describes; the name of its projection is that of the file.

    Raises `FormatError` with the line and the entry if the file is invalid.
    """
    top, usual = (open_table(each, TOWER_RULES) for each in (path, USUAL))
    known = usual.table("bases").tables()
    bases = [top.find(each, known, "a base", "bases") for each in top.texts("bases")]
    sizes = [field for base in bases for field in base.texts("sizes")]
    lines = {_role(line): line for line in _read_lines(usual, {})}
    usual_keys = usual.table("keys")
    given: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    by_module: dict[str, Name] = {}
    keys: tuple[Key, ...] = ()
    for part in (*bases, top):
        given |= {name: take(part, name) for name, take in _ENTRIES.items() if name in part}
        settings |= _read_settings(part.table("processor"))
        by_module |= {line.module: line for line in _read_lines(part, lines)}
        if part is top:
            keys = tuple(_with_defaults(keys, sizes, top.table("defaults")))
        keys = _read_keys(part.table("keys"), keys, usual_keys)
    for name in _REQUIRED:
        if name not in given:
            top.fail(f"has no `{name}`")
    names = tuple(by_module.values())
    if "added_tensors" in top:
        rule = top.choose("added_tensors", top.rules("added_tensors"), "the rule")
        names = load(rule)(names)
    fusions = [each for part in (*bases, top) for each in _read_fusions(part, names)]
    for part in (*bases, top):
        part.end()
    encoder = given.pop("encoder")
    family = Family(
        gguf=CLIP,
        module="",
        prefix="",
        model_types=given.pop("types"),
        names=tuple(_with_encoder(each, encoder) for each in names),
        fusions=tuple(replace(each, name=_whole(each.name, encoder)) for each in fusions),
        keys=tuple(_with_projector(each, Path(path).stem) for each in keys),
        **{name: given.pop(name) for name in _OF_FAMILIES if name in given},
    )
    check_fields(top, family)
    top.check_formulas(family.keys, load(family.config).__dataclass_fields__)
    types = given.pop("text_types", {})
    return Tower(family=family, types=types, processor=partial(_fill, settings), **given)


def _with_encoder(line: Name, encoder: str) -> Name:
    """Return a line whose name in Hugging Face's convention is whole."""
    name = line.hugging_face
    return line if name is None else replace(line, hugging_face=_whole(name, encoder))


def _whole(name: str, encoder: str) -> str:
    """Return a name with the prefix of the encoder, if the name begins with a point."""
    return encoder + name if name.startswith(".") else name


# Tensors


def _read_lines(part: FileTable, usual: Mapping[str, Name]) -> Iterable[Name]:
    """Yield the lines of a part. Names in layers follow what the part states of them."""
    layers, rows = part.table("layers"), part.table("tensors")
    before, in_gguf = layers.template("hf", ""), layers.template("gguf", _BLOCK)
    bias = layers.flag("bias")
    layers.end()
    for role in rows.names():
        if isinstance(rows.peek(role), str):
            given: dict[str, Any] = {"hugging_face": rows.template(role)}
        else:
            row = rows.table(role)
            given = dict(read_line(row, ""))
            row.end()
        if role not in usual and not (given.get("gguf") and "axes" in given):
            rows.fail("has no `gguf` and `outputs`, and it is not a usual role", role)
        line = usual.get(role) or _make_line(role, given["gguf"])
        line = replace(line, **given)
        if line.is_of_layers:
            name = line.hugging_face
            line = replace(
                line,
                gguf=line.gguf and line.gguf.replace(_BLOCK, in_gguf),
                hugging_face=before + name if name is not None and "{}" not in name else name,
                bias=given.get("bias", bias),
            )
        yield line


def _make_line(role: str, gguf: str) -> Name:
    module = _LAYER + role if "{}" in gguf else role
    return Name(module=module, gguf=gguf, hugging_face=None, axes=WeightAxes(()))


def _role(line: Name) -> str:
    return line.module.removeprefix(_LAYER)


def _read_fusions(part: FileTable, names: tuple[Name, ...]) -> Iterable[Fusion]:
    """Yield tensors with several parts, whose roles are those of lines."""
    modules = {_role(line): line.module for line in names}
    for each in part.items("fusions"):
        yield read_fusion(part.within(each, "fusions"), modules)


# Keys


def _with_defaults(keys: Iterable[Key], sizes: Iterable[str], defaults: FileTable) -> Iterable[Key]:
    """Yield keys with the defaults of a tower, without the sizes that have no default."""
    for key in keys:
        if key.field not in sizes:
            yield key
        elif key.field in defaults:
            yield replace(key, default=defaults.value(key.field))
    defaults.end()


def _read_keys(rows: FileTable, keys: tuple[Key, ...], usual: FileTable) -> tuple[Key, ...]:
    """Return keys with those of the rows of a part: `true` is a usual row, and a text a group."""
    made: list[Key] = []
    for field in rows.names():
        content = rows.peek(field)
        if isinstance(content, str):
            made += load_group(rows, rows.text(field), field, KEY_GROUPS, Key)
        elif content is True and rows.flag(field):
            if field not in usual:
                rows.fail("is `true`, but this field has no usual key", field)
            made += read_keys(usual, field, [])
        else:
            made += read_keys(rows, field, [key for key in keys if key.field == field])
    return with_keys(keys, *made)


def _with_projector(key: Key, name: str) -> Key:
    """Return a key, that of the name of the projection with the name of the tower."""
    if key.field != "projector":
        return key
    kind = Exactly(name, f"this is not a projection of {name}")
    return replace(key, kind=kind, gguf_default=name)


# Other entries


def _read_settings(table: FileTable) -> dict[str, Any]:
    """Return the settings of a processor, some of which are functions of the fields."""
    return {
        name: _read_settings(table.table(name))
        if isinstance(table.peek(name), dict)
        else read_default(table, name)
        for name in table.names()
    }


def _fill(settings: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return settings with the values of fields."""
    made: dict[str, Any] = {}
    for name, each in settings.items():
        if is_object(each):
            made[name] = _fill(each, fields)
        else:
            made[name] = each(fields) if callable(each) else each
    return made


def _read_checks(part: FileTable, name: str) -> Callable[[Fields], Fields]:
    """Return the checks of a tower in one function."""
    checks = [load(part.find(each, part.rules(name), "a check", name)) for each in part.texts(name)]

    def check(fields: Fields) -> Fields:
        for each in checks:
            fields = each(fields)
        return fields

    return check


def _read_text_types(part: FileTable, name: str) -> dict[str, tuple[str, ...]]:
    table = part.table(name)
    return {each: table.texts(each, 2) for each in table.names()}


def _read_break_token(part: FileTable, name: str) -> BreakToken:
    table = part.table(name)
    made = BreakToken(gguf=table.text("gguf"), token=table.text("token"))
    table.end()
    return made


# The entries of a file, and how they are read.
_OF_FAMILIES: Mapping[str, Callable[[FileTable, str], Any]] = {
    "name": FileTable.text,
    "config": lambda part, name: part.choose(name, CONFIGS, "the config"),
    "other_prefixes": FileTable.texts,
    "beside": FileTable.patterns,
    "standard": lambda part, _: read_standard(part),
    "completed": lambda part, name: load(part.choose(name, part.rules(name), "the rule")),
    "checked": _read_checks,
    "differs": lambda part, _: read_difference(part),
}
_ENTRIES: Mapping[str, Callable[[FileTable, str], Any]] = {
    **_OF_FAMILIES,
    "encoder": FileTable.text,
    "types": lambda part, name: read_types(part.table(name), {}),
    "texts": FileTable.texts,
    "text_prefixes": lambda part, name: read_texts(part.table(name)),
    "text_types": _read_text_types,
    "tokens": lambda part, name: read_texts(part.table(name)),
    "break_token": _read_break_token,
    "mean": lambda part, name: part.reals(name, CHANNELS),
    "deviation": lambda part, name: part.reals(name, CHANNELS),
}
