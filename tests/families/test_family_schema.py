"""The JSON Schema of files of model families, which gives editors completion.

`python tests/families/test_family_schema.py` writes it.
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

if TYPE_CHECKING:
    from collections.abc import Iterable

    Schema = dict[str, Any]

PATH = Path(weightctl.__file__).parent / "schemas" / "family.json"
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


def make_schema() -> Schema:
    """Return the schema; the names are those that `groups.py` lists."""
    rules = groups.RULES
    tensors = rows(either(TEXT, the("tensor")))
    bounds = items(REAL, 2, 2)
    family = table(
        ["types"],
        **dict.fromkeys(("base", "gguf", "prefix", "lacks", "layers", "not_run", "copied"), TEXT),
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
        rope_by_layer=table(["full"], full=REAL, windowed=REAL),
        types=rows(table(["class"], like=TEXT, defaults=TABLE, fixed=TABLE, **{"class": TEXT}))
        | {"minProperties": 1},
    )  # fmt: skip
    parts = {
        "tensor": table(
            hf=either(TEXT, OFF), gguf=either(TEXT, OFF), bias=either(FLAG, TEXT),
            when=items(TEXT), unless=TEXT, first=TEXT, count=TEXT, float32=FLAG, unread=FLAG,
            restarts=FLAG, counted=FLAG, outputs=items(TEXT), inputs=items(TEXT),
            ends=table(hf=TEXT, gguf=TEXT), made=names(groups.MADE),
            step=either(OFF, the("step"), items(the("step"), 1)),
        ),
        "step": with_arguments(groups.STEPS),
        "fusion": table(
            ["name", "parts"], name=TEXT, parts=items(TEXT), in_gguf=FLAG, of_experts=FLAG,
            order=names(groups.ORDERS), transposed=FLAG, bias_name=TEXT, either_way=FLAG,
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
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A model family of weightctl",
        "description": "docs/contributing.md explains each entry.",
        **family,
        "$defs": parts,
    }


def test_the_schema_is_that_of_the_names() -> None:
    message = "run `python tests/families/test_family_schema.py`"
    assert json.loads(PATH.read_text()) == make_schema(), message


def test_all_files_are_valid() -> None:
    validator = Draft202012Validator(make_schema())
    wrong = {
        path.name: error.message
        for path in TABLES.glob("*.toml")
        for error in validator.iter_errors(tomllib.loads(path.read_text()))
    }
    assert wrong == {}


def test_an_entry_of_another_name_or_type_is_invalid() -> None:
    validator = Draft202012Validator(make_schema())
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
    PATH.write_text(json.dumps(make_schema(), indent=1) + "\n")
    sys.stdout.write(f"{PATH}: written\n")
