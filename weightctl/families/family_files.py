"""Reads a model family from a file such as those in `families/tables/`.

A file has the fields of a `Family`, the rows of its tensors and keys, and names of rules; it has no
code. `docs/contributing.md` explains each entry.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import with_keys
from weightctl.families.experts import (
    checking_experts,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, MtpForm
from weightctl.families.file_rows import (
    check_fields,
    check_settings,
    join_groups,
    load_group,
    read_changes,
    read_default,
    read_difference,
    read_fusion,
    read_groups,
    read_keys,
    read_line,
    read_standard,
    read_types,
)
from weightctl.families.file_tables import FileTable, open_table, read_map
from weightctl.families.fusions import Fusion
from weightctl.families.groups import (
    EXPERT_LINES,
    FUSIONS,
    LINE_GROUPS,
    MODELS,
)
from weightctl.families.mtp import MTP_LINES, mtp_keys, with_mtp_lines
from weightctl.families.mtp_tensors import MOST_LAYERS
from weightctl.families.multimodal import in_multimodal
from weightctl.families.usual_names import adapt
from weightctl.system.registry import load
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from weightctl.families.config_keys import Key
    from weightctl.families.modules import Name
    from weightctl.weights.metadata import MetadataValue

_LAYER = "layers.{}."
_PARTS = 3
# The fields of a `Family` that the file has under the same names.
_TEXTS = ("gguf", "prefix", "lacks", "notes")
_FLAGS = ("in_llama_cpp", "keeps_window", "heads_fill_hidden")
_MAPS = ("blocks", "older", "spellings")
# What a family has of its base, besides tensors, keys and blocks. Rules are always stated.
_INHERITED = ("fusions", "prefix", "other_prefixes", "spellings")
_OF_ONE_RULE = ("completed", "unloaded", "not_run", "copied")


def read_family(path: str | Path, load_base: Callable[[str], Family]) -> Family:
    """Return the family that a file describes; its name is that of the file.

    `load_base` returns the family of a name. Raises `FormatError` with the line and the entry if
    the file is invalid.
    """
    return _read_family(Path(path).stem, open_table(path), load_base)


def _read_family(name: str, top: FileTable, load_base: Callable[[str], Family]) -> Family:
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
    given |= {each: read_map(top.table(each)) for each in _MAPS if each in top}
    settings = tuple(given.get("blocks", ()))
    if base is not None:
        inherited = {each: getattr(base, each) for each in _INHERITED}
        given = {**inherited, **given, "blocks": {**base.blocks, **given.get("blocks", {})}}
    given |= _read_rules(top)
    names = _read_lines(top, base, given.get("prefix", "model."))
    keys = () if base is None else base.keys
    for group in read_groups(top, "keys_from"):
        keys = with_keys(keys, *group)
    if "experts" in top:
        names, keys = _read_experts(top.table("experts"), names, keys)
    hybrid = top.table("hybrid")
    conditions = hybrid.table("tensors")
    if conditions.names():
        from weightctl.families.hybrid import hybrid_lines

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
        for key in read_keys(rows, each, [key for key in keys if key.field == each])
    ]
    classes = read_map(top.table("multimodal"))
    types = read_types(top.table("types"), {} if base is None else base.model_types)
    if not types:
        top.fail("has no `types`, the model types of config.json")
    keys = with_keys(keys, *made, without=left_out)
    if "other" in hybrid:
        from weightctl.families.hybrid import hybrid_keys

        keys = hybrid_keys(keys, hybrid.text("other"), *join_groups(read_groups(hybrid, "keys")))
    hybrid.end()
    first, last = (join_groups(read_groups(top, each)) for each in ("first_keys", "last_keys"))
    all_keys = (*first, *_read_rope_by_layer(top, keys), *last)
    family = Family(
        name=name,
        model_types=types,
        names=names,
        # Lists with a value for each layer are read by the number of layers for MTP.
        keys=tuple(sorted(all_keys, key=lambda key: key.field != "mtp_layers")),
        **given,
    )
    top.end()
    check_fields(top, family)
    check_settings(top, family, settings)
    top.check_formulas(family.keys)
    return in_multimodal(family, classes) if classes else family


def _load_base(top: FileTable, load_base: Callable[[str], Family]) -> Family | None:
    if "base" not in top:
        return None
    name = top.text("base")
    try:
        return load_base(name)
    except KeyError:
        top.fail(f"is `{name}`, which is not the name of a family", "base")


def _read_rules(top: FileTable) -> dict[str, Any]:
    """Return the functions of a family, by the fields of `Family`."""
    given: dict[str, Any] = {
        each: load(top.choose(each, top.rules(each), "the rule"))
        for each in _OF_ONE_RULE
        if each in top
    }
    if "is_of" in top:
        given["is_of"] = _read_is_of(top)
    if "is_of_config" in top:
        given["is_of_config"] = _read_is_of_config(top)
    if any(each in top for each in ("standard", "rename", "rope_if_missing")):
        given["standard"] = read_standard(top)
    if "differs" in top:
        given["differs"] = read_difference(top)
    if "checked" in top:
        given["checked"] = _read_checks(top)
    return given


def _read_is_of(top: FileTable) -> Any:
    """Return whether GGUF metadata describe a family: a rule, or what a key has."""
    if not isinstance(top.peek("is_of"), dict):
        return load(top.choose("is_of", top.rules("is_of"), "the rule"))
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


def _read_is_of_config(top: FileTable) -> Any:
    """Return whether a config.json describes a family: a rule, or the type of its text model."""
    if not isinstance(top.peek("is_of_config"), dict):
        return load(top.choose("is_of_config", top.rules("is_of_config"), "the rule"))
    table = top.table("is_of_config")
    kind = table.text("text")
    table.end()

    def is_of_config(document: Mapping[str, Any]) -> bool:
        text = document.get("text_config")
        return is_object(text) and text.get("model_type") == kind

    return is_of_config


def _read_checks(top: FileTable) -> Any:
    """Return the checks of a family in one function, the first one around the others."""
    made: Any = None
    for name in reversed(top.texts("checked")):
        if name == "experts":
            made = checking_experts(made or _keep_fields)
        elif made is not None:
            top.fail(f"has `{name}` before another check; only `experts` can precede it", "checked")
        else:
            made = load(top.find(name, top.rules("checked"), "a check", "checked"))
    return made


def _keep_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return fields


# Tensors


def _read_lines(top: FileTable, base: Family | None, prefix: str) -> tuple[Name, ...]:
    names = () if base is None else base.names
    if "tensors_from" in top:
        names = load(top.choose("tensors_from", LINE_GROUPS, "the group of tensors"))
    layers = top.template("layers", "model.layers.{}.")
    head = top.table("head")
    if has_head := bool(head.names()):
        from weightctl.families.heads import without_head

        names = without_head(names)
    if "tensors" in top:
        rows = top.table("tensors")
        try:
            names = adapt(names, dict(read_changes(rows, layers)))
        except KeyError as error:
            rows.fail("is not among the tensors, so it cannot be left out", error.args[0])
    if has_head:
        from weightctl.families.heads import head_lines, with_prefix

        lines = head_lines(
            head.template("dense"), head.template("output"), head.template("norm", "")
        )
        names = (*with_prefix(names, prefix), *lines)
    head.end()
    return names


def _read_experts(
    table: FileTable, names: tuple[Name, ...], keys: tuple[Key, ...]
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
    for role, change in read_changes(table.table("tensors"), ""):
        if change is None:
            table.fail("cannot be left out of the experts", "tensors", role)
        more[role] = change
    added: tuple[Key, ...] = ()
    for group in read_groups(table, "keys_from"):
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
    table: FileTable, names: tuple[Name, ...], keys: tuple[Key, ...]
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
        added.append(replace(line, **dict(read_line(row, ""))))
        row.end()
    in_gguf = table.flag("in_gguf", default=True)
    values = table.table("values")
    most = table.number("most") if "most" in table else MOST_LAYERS
    made = mtp_keys(keys, table.text("count"), most=most, in_gguf=in_gguf)
    form = MtpForm(
        prefix=table.template("prefix", ""),
        values={name: read_default(values, name) for name in values.names()},
        unstated=table.texts("unstated"),
        in_gguf=in_gguf,
    )
    table.end()
    return form, with_mtp_lines(names, tuple(added) or MTP_LINES), made


def _read_fusions(top: FileTable, base: Family | None) -> Iterable[Fusion]:
    """Yield tensors with several parts: usual forms by name, and those that the file describes."""
    for each in top.items("fusions"):
        if each == "base":
            yield from () if base is None else base.fusions
            continue
        if isinstance(each, str):
            yield from load_group(top, each, "fusions", FUSIONS, Fusion)
            continue
        yield read_fusion(top.within(each, "fusions"))


# Keys


def _read_rope_by_layer(top: FileTable, keys: tuple[Key, ...]) -> tuple[Key, ...]:
    """Return keys of RoPE that only layers with full attention have, and the base of the others."""
    bases = top.table("rope_by_layer")
    if not bases.names():
        return keys
    far, near = bases.real("full"), bases.real("windowed") if "windowed" in bases else None
    bases.end()
    from weightctl.families.rope import keys_of_global_layers, local_base_key

    return (*keys_of_global_layers(keys, far), *([] if near is None else [local_base_key(near)]))
