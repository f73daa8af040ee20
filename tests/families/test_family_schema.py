"""The JSON Schemas of files of model families and towers, which give editors completion.

`python tests/families/test_family_schema.py` writes them.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator

import weightctl
from weightctl.families import groups
from weightctl.families.index import TABLES
from weightctl.families.towers import TOWER_TABLES
from weightctl.families.towers.tower_files import CONFIGS, USUAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    Schema = dict[str, Any]

SCHEMAS = Path(weightctl.__file__).parent / "schemas"
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "integer"}
REAL: Schema = {"type": "number"}
ANY: Schema = {}
OFF: Schema = {"const": False}
TABLE: Schema = {"type": "object"}


def table(required: Iterable[str] = (), **entries: Schema) -> Schema:
    made: Schema = {"type": "object", "properties": entries, "additionalProperties": False}
    return made | ({"required": [*required]} if required else {})


def rows(of: Schema) -> Schema:
    return {"type": "object", "additionalProperties": of}


def items(of: Schema, least: int = 0, most: int | None = None) -> Schema:
    made: Schema = {"type": "array", "items": of, "minItems": least}
    return made if most is None else made | {"maxItems": most}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas]}


def names(known: Iterable[str]) -> Schema:
    return {"enum": sorted(known)}


def with_arguments(known: Iterable[str]) -> Schema:
    return {"type": "string", "pattern": f"^({'|'.join(sorted(known))})( .+)?$"}


def the(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


TYPES = rows(table(["class"], like=TEXT, defaults=TABLE, fixed=TABLE, **{"class": TEXT})) | {
    "minProperties": 1
}


def make_parts() -> dict[str, Schema]:
    """Return what files of families and towers have in common."""
    bounds = items(REAL, 2, 2)
    return {
        "tensor": table(
            hf=either(TEXT, OFF), gguf=either(TEXT, OFF), bias=either(FLAG, TEXT),
            when=items(TEXT), unless=TEXT, first=TEXT, count=TEXT, float32=FLAG, unread=FLAG,
            restarts=FLAG, counted=FLAG, outputs=items(TEXT), inputs=items(TEXT),
            kernel=items(TEXT), ends=table(hf=TEXT, gguf=TEXT), made=names(groups.MADE),
            step=either(OFF, the("step"), items(the("step"), 1)),
        ),
        "step": with_arguments(groups.STEPS),
        "fusion": table(
            ["name", "parts"], name=TEXT, parts=items(TEXT), in_gguf=FLAG, of_experts=FLAG,
            order=names(groups.ORDERS), transposed=FLAG, bias_name=TEXT, either_way=FLAG,
            axis=NUMBER,
        ),
        "key_groups": items(
            either(with_arguments(groups.KEY_GROUPS), the("key"), items(the("key")))
        ),
        "key": table(
            field=TEXT, kind=either(names(groups.KINDS), the("kind")), only=ANY, why=TEXT,
            function=TEXT, spelled=items(TEXT), means=TABLE, hf=TEXT, gguf=TEXT, gguf_type=TEXT,
            default=ANY, gguf_default=ANY, seen=the("seen"), written=FLAG, in_weights=FLAG,
        ),
        "kind": table(
            **dict.fromkeys(("integer", "uniform", "whole_real", "above", "real"), bounds),
            choice=TABLE, layer=TEXT, other=TEXT, meaning=TEXT, or_none=names(groups.KINDS),
            none=ANY,
        ),
        "seen": table(
            **dict.fromkeys(("rows", "lacks", "in_layers", "whole", "has", "meaning"), TEXT),
            axis=NUMBER,
        ),
    }  # fmt: skip


def whole(title: str, schema: Schema) -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "version": "1.0",
        "description": "docs/contributing.md explains each entry.",
        **schema,
        "$defs": make_parts(),
    }


def make_family_schema() -> Schema:
    """Return the schema; the names are those that `groups.py` lists."""
    rules = groups.RULES
    tensors = rows(either(TEXT, the("tensor")))
    family = table(
        ["types"],
        **dict.fromkeys(("base", "gguf", "prefix", "lacks", "layers", "notes"), TEXT),
        **dict.fromkeys(("not_run", "copied"), TEXT),
        **dict.fromkeys(("in_llama_cpp", "keeps_window", "heads_fill_hidden", "runs"), FLAG),
        **{each: names(rules[each]) for each in ("completed", "unloaded")},
        **dict.fromkeys(("beside", "other_prefixes"), items(TEXT)),
        **dict.fromkeys(("older", "rename", "multimodal"), rows(TEXT)),
        **dict.fromkeys(("keys_from", "first_keys", "last_keys"), the("key_groups")),
        model=names(groups.MODELS),
        blocks=TABLE,
        spellings=rows(names(["weight", "bias"])),
        standard=either(names(rules["standard"]), items(names(rules["standard"]))),
        checked=items(names({"experts", *rules["checked"]})),
        is_of=either(
            names(rules["is_of"]),
            table(["lacks"], lacks=TEXT),
            table(["key"], key=TEXT, is_not=ANY, or_none=FLAG, **{"is": ANY}),
        ),
        is_of_config=either(names(rules["is_of_config"]), table(["text"], text=TEXT)),
        differs=either(TEXT, table(["rule"], rule=names(rules["differs"]))),
        tensors_from=names(groups.LINE_GROUPS),
        tensors=rows(either(TEXT, OFF, the("tensor"))),
        head=table(["dense", "output"], dense=TEXT, output=TEXT, norm=TEXT),
        hybrid=table(other=TEXT, keys=the("key_groups"), tensors=rows(TEXT)),
        experts=table(
            ["count", "experts", "used"], count=TEXT, experts=NUMBER, used=NUMBER, layers=TEXT,
            parts=items(TEXT, 3, 3), dense=FLAG, tensors_from=names(groups.EXPERT_LINES),
            tensors=tensors, keys_from=the("key_groups"),
        ),
        mtp=table(
            ["count"], count=TEXT, most=NUMBER, prefix=TEXT, values=TABLE, unstated=items(TEXT),
            in_gguf=FLAG, tensors=tensors,
        ),
        fusions=items(either({"const": "base"}, with_arguments(groups.FUSIONS), the("fusion"))),
        keys=rows(either(OFF, the("key"), items(the("key"), 1))),
        rope_if_missing=TABLE,
        rope_by_layer=table(["full"], full=REAL, windowed=REAL),
        types=TYPES,
    )  # fmt: skip
    return whole("A model family of weightctl", family)


def make_tower_schema(*required: str) -> Schema:
    """Return the schema of towers; a base has no required entry."""
    rules = groups.TOWER_RULES
    tower = table(
        required,
        **dict.fromkeys(("name", "encoder"), TEXT),
        **{each: names(rules[each]) for each in ("completed", "added_tensors")},
        **dict.fromkeys(("bases", "sizes", "texts", "beside", "other_prefixes"), items(TEXT)),
        **dict.fromkeys(("tokens", "text_prefixes"), rows(TEXT)),
        **dict.fromkeys(("mean", "deviation"), items(REAL, 3, 3)),
        **dict.fromkeys(("defaults", "processor"), TABLE),
        config=names(CONFIGS),
        standard=either(names(rules["standard"]), items(names(rules["standard"]))),
        checked=items(names(rules["checked"])),
        differs=either(TEXT, table(["rule"], rule=names(rules["differs"]))),
        text_types=rows(items(TEXT, 2, 2)),
        break_token=table(["gguf", "token"], gguf=TEXT, token=TEXT),
        layers=table(hf=TEXT, gguf=TEXT, bias=FLAG),
        tensors=rows(either(TEXT, the("tensor"))),
        fusions=items(the("fusion")),
        keys=rows(
            either(
                {"const": True},
                with_arguments(groups.KEY_GROUPS),
                the("key"),
                items(the("key"), 1),
            )
        ),
        types=TYPES,
    )
    return whole("A tower of a multimodal model", tower)


MADE = {
    "family.json": make_family_schema(),
    "tower.json": make_tower_schema("name", "bases", "texts", "types"),
}


def test_the_schemas_are_those_of_the_names() -> None:
    message = "run `python tests/families/test_family_schema.py`"
    assert {name: json.loads((SCHEMAS / name).read_text()) for name in MADE} == MADE, message


def read_all(folder: Path) -> dict[str, Schema]:
    return {path.name: tomllib.loads(path.read_text()) for path in folder.glob("*.toml")}


def test_all_files_are_valid() -> None:
    bases = tomllib.loads(USUAL.read_text())["bases"]
    wrong = [
        (name, error.message)
        for schema, files in (
            (MADE["family.json"], read_all(TABLES)),
            (MADE["tower.json"], read_all(TOWER_TABLES)),
            (make_tower_schema(), bases),
        )
        for name, file in files.items()
        for error in Draft202012Validator(schema).iter_errors(file)
    ]
    assert wrong == []


def test_an_entry_of_another_name_or_type_is_invalid() -> None:
    validator = Draft202012Validator(MADE["family.json"])
    types = {"toy": {"class": "Toy"}}
    for wrong in (
        {},
        {"colour": 1},
        {"standard": "ropes"},
        {"types": {"toy": {}}},
        {"tensors": {"mlp.up": {"name": "w1"}}},
        {"tensors": {"mlp.up": {"step": "twist"}}},
        {"keys": {"heads": {"kind": "text"}}},
        {"keys_from": ["encoder"]},
    ):
        given = {"types": types, **wrong} if wrong else {}
        assert not validator.is_valid(given), wrong


if __name__ == "__main__":
    for name, schema in MADE.items():
        (SCHEMAS / name).write_text(json.dumps(schema, indent=1) + "\n")
        sys.stdout.write(f"{SCHEMAS / name}: written\n")
