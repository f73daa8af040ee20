"""The tables of the documentation that are made from the code."""

from __future__ import annotations

import json
import re
import tempfile
from importlib.resources import files
from inspect import cleandoc
from itertools import groupby
from pathlib import Path
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Any

from typer.main import get_command

from family_stand_ins import OWN_TYPES, STAND_INS
from recipe_models import write_llama_8b
from weightctl import convert
from weightctl.check import RULES
from weightctl.cli import COMMANDS
from weightctl.cli.help import describe
from weightctl.cli.ls import list_families
from weightctl.codecs import can_decode
from weightctl.dtype import ENCODINGS
from weightctl.families import FAMILIES
from weightctl.families.diffusion import list_diffusion_families
from weightctl.formats import FORMATS, list_formats
from weightctl.plan.recipe_lines import LLAMA_RECIPES
from weightctl.plan.scheme_names import list_schemes
from weightctl.schemes import SCHEMES
from weightctl.sharding.plan_file import STRATEGIES
from weightctl.system.registry import load
from weightctl.verify import CHECKS
from weightctl.verify.compare.causes import CAUSES
from weightctl.verify.report import COMPARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from weightctl.plan.recipe_lines import RecipeLine


# The table of rules of docs/check.md.
# `python tests/test_docs.py check` writes it.


def list_rules() -> str:
    """Return the table of rules, with what `--fix` does."""
    lines = [
        "| rule | level | what it requires | if it is violated | `--fix` |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, rule in RULES.items():
        texts = " | ".join(map(_capitalize, (rule.about, rule.details, rule.fix)))
        lines.append(f"| `{name}` | {rule.level.value} | {texts} |")
    return "\n".join(lines)


def _capitalize(text: str) -> str:
    is_file = re.match(r"\S+\.(json|jinja)", text)
    return f"{text[:1] if is_file else text[:1].upper()}{text[1:]}." if text else ""


# What docs/verify.md and `schemas/verify.json` say of the tables of checks and causes.
# `python tests/test_docs.py` writes both.

ROOT = Path(__file__).parent.parent.parent
SCHEMA = ROOT / "weightctl" / "schemas" / "verify.json"

_NAMES = re.compile(r'(?<="description": "A stable name: ).*(?=, or another\.",)')
_CHECKS = re.compile(r'(?<="propertyNames": \{"enum": \[).*(?=\]\})')
_FIGURES = re.compile(r'(?<="anyOf": \[\n {12}\{"type": "null"\},\n).*?(?=\n {10}\])', re.DOTALL)


def describe_checks() -> dict[str, str]:
    return {name: check.details for name, check in CHECKS.items()}


def describe_causes() -> dict[str, str]:
    note = "; a note, not a problem, unless `--max-rmse` is given"
    return {
        name: cause.sentence + (note if cause.computes_the_same else "")
        for name, cause in CAUSES.items()
    }


def update_schema(page: str) -> str:
    """Return the schema with the names of checks and causes as they are now."""
    measured = [name for name, check in CHECKS.items() if check.figures]
    references = ",\n".join(f'            {{"$ref": "#/$defs/{name}"}}' for name in measured)
    page = _NAMES.sub(", ".join(CAUSES), page)
    page = _CHECKS.sub(", ".join(f'"{name}"' for name in CHECKS), page)
    return _FIGURES.sub(references, page)


# The parts of the documentation that are generated from the program's tables.
# A page has them between `<!-- generated: NAME ARGUMENTS -->` and `<!-- end of generated -->`.
# `python tests/test_docs.py` writes them.

_BLOCK = re.compile(
    r"(?P<begin>^<!-- generated: (?P<name>[a-z-]+)(?P<arguments>(?: \S+)*) -->\n).*?"
    r"(?P<end>^<!-- end of generated -->$)",
    re.DOTALL | re.MULTILINE,
)
# The modules whose `__all__` is public. docs/api.md lists them, and single names of others.
PUBLIC_MODULES = (
    "weightctl", "weightctl.calibrate", "weightctl.check", "weightctl.deltas", "weightctl.driver",
    "weightctl.driver.tensor", "weightctl.dtype", "weightctl.engine", "weightctl.errors",
    "weightctl.families", "weightctl.graph", "weightctl.graph.ops", "weightctl.graph.quantization",
    "weightctl.graph.weight", "weightctl.graph.weights", "weightctl.nn", "weightctl.nn.layer",
    "weightctl.nn.models", "weightctl.pipelines.nn.layer", "weightctl.shape", "weightctl.translate",
    "weightctl.values", "weightctl.verify", "weightctl.weights",
)  # fmt: skip
_CODE = re.compile(r"(`[^`]*`)")
_SECTION = re.compile(r"^### (.*?)$(.*?)(?=^##|\Z)", re.DOTALL | re.MULTILINE)
_ERROR = re.compile(r"^error: (.*)$", re.MULTILINE)
_WIDTH = 100  # of a message in a list, in characters
# Conditions that few models meet, which make the table of recipes hard to read: lines with them are
# omitted, and lines with their opposite are shown without it.
_RARE = {"falcon", "8_experts", "70b"}
# Longer descriptions of conditions for the table of recipes.
_CONDITIONS = {
    "with importance matrix": "only with an importance matrix",
    "not with importance matrix": "only without an importance matrix",
    "not rows of whole blocks": "only if the row length is not a multiple of 256",
    "not first and last eighth of the layers": "not in the first and last eighth of the layers",
    "first tensors up to an eighth of the layers": "the first N; N is an eighth of the layers",
}
_MARKUP = re.compile(r"([\\*_\[\]<>])")
_CASES = Path(__file__).parents[1] / "crossing" / "cases"


def update_tables(page: str) -> str:
    def renew(match: re.Match[str]) -> str:
        name, arguments = match["name"], match["arguments"].split()
        made = _list_errors(page) if name == "errors" else _TABLES[name](*arguments)
        return f"{match['begin']}\n{made.strip()}\n\n{match['end']}"

    return _BLOCK.sub(renew, page)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Return a text of the program as Markdown that reads the same, on one line."""
    parts = _CODE.split(" ".join(text.split()))
    for index in range(0, len(parts), 2):
        parts[index] = _MARKUP.sub(r"\\\1", parts[index])
    return "".join(parts).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(map(_code, dict.fromkeys(texts)))


def _sentence(text: str) -> str:
    text = _plain(text)
    return text if not text or text.endswith((".", ":", ";", "!", "?")) else f"{text}."


def _capitalized(text: str) -> str:
    return _sentence(f"{text[:1].upper()}{text[1:]}")


def _click_command(name: str) -> Any:
    command = get_command(load(COMMANDS[name]))
    describe(command)
    return command


def _summary(name: str) -> str:
    return _sentence(cleandoc(_click_command(name).help).partition("\n\n")[0])


def _list_commands(link: str = "{}.md") -> str:
    """Return the table of commands; `link` is the path of each command's page."""
    rows = ([f"[`{name}`]({link.format(name)})", _summary(name)] for name in COMMANDS)
    return _table(("command", "what it does"), rows)


def _list_options(name: str) -> str:
    """Return the arguments and options of a command, in the groups of its help page."""
    parameters = [each for each in _click_command(name).params if not getattr(each, "hidden", 0)]
    groups: dict[str, list[Any]] = {"Arguments": [], "Options": []}
    for each in parameters:
        is_argument = each.param_type_name == "argument"
        panel = getattr(each, "rich_help_panel", None)
        groups.setdefault("Arguments" if is_argument else panel or "Options", []).append(each)
    return "\n\n".join(
        f"**{title}**\n\n{_table(('option', 'meaning'), map(_describe_option, members))}"
        for title, members in groups.items()
        if members
    ).replace("| option | meaning |", "| argument | meaning |", 1)


def _describe_option(option: Any) -> tuple[str, str]:
    text = [_sentence(option.help or "")]
    choices = list(getattr(option.type, "choices", ()))
    if option.param_type_name == "argument":
        return _code(option.metavar or option.human_readable_name), text[0]
    number = "N" if "int" in option.type.name else "TEXT"
    value = "" if option.is_flag else option.metavar or ("" if choices else number)
    names = [_code(each) for each in option.opts]
    names[0] = _code(" ".join(filter(None, (option.opts[0], value))).replace("|", "\\|"))
    if choices:
        text.append(f"One of {_codes(str(getattr(each, 'value', each)) for each in choices)}.")
    default = getattr(option.default, "value", option.default)
    if default not in {None, False, ()} and not callable(default):
        text.append(f"Default: {_code(str(default))}.")
    if getattr(option, "multiple", False) and "epeat" not in text[0]:
        text.append("Can be repeated.")
    return ", ".join(names), " ".join(filter(None, text))


def _list_json_keys(command: str, definition: str = "") -> str:
    """Return the keys of a command's JSON output, from its schema."""
    text = files("weightctl.schemas").joinpath(f"{command}.json").read_text()
    schema = json.loads(text)
    described = schema["$defs"][definition] if definition else schema
    rows = (
        [_code(name), _sentence(_description(each, schema))]
        for name, each in described["properties"].items()
    )
    return _table(("key", "value"), rows)


def _description(described: Any, schema: Any) -> str:
    """Return the description of a value in a schema, also for a reference to a definition."""
    if "description" in described or "$ref" not in described:
        return str(described.get("description", ""))
    return str(schema["$defs"][described["$ref"].rpartition("/")[2]].get("description", ""))


def _list_checks() -> str:
    rows = (
        [_code(name), _capitalized(text), _capitalized(CHECKS[name].remedy or COMPARE)]
        for name, text in describe_checks().items()
    )
    return _table(("check", "what it looks at", "what to do if no cause is reported"), rows)


def _list_causes() -> str:
    """Return the causes, grouped by remedy."""
    sentences = describe_causes()
    groups: dict[str, list[list[str]]] = {}
    for name, cause in CAUSES.items():
        row = [_code(name), _capitalized(sentences[name])]
        groups.setdefault(_capitalized(cause.remedy), []).append(row)
    return "\n\n".join(
        f"**What to do:** {remedy}\n\n{_table(('cause', 'what went wrong'), rows)}"
        for remedy, rows in groups.items()
    )


def _list_families() -> str:
    rows = [
        [
            _code(family.family),
            _codes(family.model_types),
            _code(family.gguf_architecture),
            _codes(family.transformers_classes),
            "yes" if family.runs_in_verify else "no",
            "yes" if family.vllm_layout else "no",
            _name_judges(family.family),
        ]
        for family in list_families()
    ]
    head = (
        "family", "`model_type`", "GGUF architecture", "transformers class", "runs in `verify`",
        "vLLM layout", "compared with",
    )  # fmt: skip
    return f"{_table(head, rows)}\n\n{_list_missing_judges()}"


def _list_family_notes() -> str:
    """Return the notes of families as a list, in the order of the families."""
    return "\n".join(
        fill(
            f"- {paragraph}",
            120,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for _, line in sorted(FAMILIES.items())
        for paragraph in line.load().notes.strip().split("\n\n")
        if paragraph
    )


def _list_diffusion_families() -> str:
    rows = [
        [_code(name), _code(line.class_name), _code(line.original[0]), _code(line.diffusers[0])]
        for name, line in list_diffusion_families().items()
    ]
    titles = "family and GGUF architecture, diffusers class, a tensor in original files"
    return _table([*titles.split(", "), "a tensor in diffusers"], rows)


def _list_missing_judges() -> str:
    """Return why llama.cpp does not judge some models, as a list."""
    reasons = [
        f"- `{family.family}`{'' if len(alone) == len(cases) else ', some models'}: {reason}."
        for family in sorted(list_families())
        for cases in [_read_cases(family.family)]
        for alone in [[case for case in cases if case.get("no_llama_cpp")]]
        for reason in dict.fromkeys(case["no_llama_cpp"] for case in alone)
    ]
    return "Models that are not compared with llama.cpp, with the reason:\n\n" + "\n".join(reasons)


def _read_cases(family: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((_CASES / f"{family}.json").read_text())
    return cases


def _name_judges(family: str) -> str:
    """Return the programs whose results the tests compare with those of a family's models."""
    cases = _read_cases(family)
    alone = [case for case in cases if case.get("no_llama_cpp")]
    kinds = {family if family in STAND_INS else case["model_type"] for case in cases}
    types = {STAND_INS[kind].model_type if kind in STAND_INS else kind for kind in kinds}
    others = sorted(types - kinds)
    first = f"transformers (as {_codes(others)})" if others else "transformers"
    first = "its definition in torch" if types <= OWN_TYPES else first
    if not alone:
        return f"{first}, llama.cpp"
    return first if len(alone) == len(cases) else f"{first}, llama.cpp (partly)"


def _list_block_types() -> str:
    rows = [
        [
            _code(each.name),
            f"{each.size * 8 / each.block:.4g}",
            str(each.block),
            "yes" if can_decode(each) else "no",
            "yes" if each.codec else "no",
            "needed" if each.needs_importance else "yes" if each.takes_importance else "no",
            _code(each.fallback),
        ]
        for each in ENCODINGS.values()
        if each.quantization
    ]
    head = ("type", "bits per weight", "block", "decoded", "written", "uses imatrix", "fallback")
    return _table(head, rows)


def _list_dtypes() -> str:
    rows = [
        [_code(each.name), str(each.size * 8 // each.block), *_in_formats(each.ids)]
        for each in ENCODINGS.values()
        if not each.quantization
    ]
    return _table(("dtype", "bits", *FORMATS), rows)


def _in_formats(ids: Any) -> Iterable[str]:
    return ("yes" if name in ids else "" for name in FORMATS)


def _list_recipes() -> str:
    rows = []
    for recipe in LLAMA_RECIPES.values():
        usual = [_without_rare(line) for line in recipe.lines]
        lines = [line for line in usual if line is not None]
        while lines and lines[-1].type == recipe.otherwise:
            lines.pop()
        # A line of the usual type is an exception only to a line below it for the same tensors.
        lines = [
            line
            for at, line in enumerate(lines)
            if line.type != recipe.otherwise
            or any(below.tensors == line.tensors for below in lines[at + 1 :])
        ]
        by_type = groupby(lines, lambda line: line.type)
        exceptions = [
            f"{_code(kind or 'keep')}: {_plain('; '.join(sorted({_role(each) for each in group})))}"
            for kind, group in by_type
        ]
        rows.append(
            [
                _code(recipe.name),
                f"{_count_bits(recipe.name):.2f}",
                _code(recipe.otherwise or ""),
                "<br>".join(exceptions),
            ]
        )
    heads = ("recipe", "bits per weight", "most matrices", "exceptions (the first match applies)")
    return _table(heads, rows)


def _count_bits(recipe: str) -> float:
    """Return the bits per weight of a recipe for a model with the shapes of Llama 3.1 8B."""
    with tempfile.TemporaryDirectory() as directory:
        path = write_llama_8b(Path(directory))
        plan = convert(path, path / "out.gguf", quant=recipe, dry_run=True).plan
    return (
        8
        * sum(item.info.nbytes for item in plan.items)
        / sum(item.info.size for item in plan.items)
    )


def _without_rare(line: RecipeLine) -> RecipeLine | None:
    """Return a line without conditions that most models meet; None if only few models meet it."""
    if _RARE & set(line.when):
        return None
    kept = [each for each in line.when if each.removeprefix("!") not in _RARE]
    return line._replace(when=tuple(kept))


def _role(line: RecipeLine) -> str:
    role = line.tensors if isinstance(line.tensors, str) else line.tensors.pattern
    when = ", ".join(_CONDITIONS.get(each, each) for each in line.conditions.split(", "))
    return f"{role} ({when})" if when and role else role or when


def _list_schemes() -> str:
    rows = []
    for name, line in SCHEMES.items():
        scheme = load(line.record)
        decoded, cut = ("yes" if each else "no" for each in (scheme.decode, scheme.cut))
        rows.append([_code(name), _sentence(scheme.summary), decoded, cut])
    return _table(("scheme", "how weights are stored", "can be decoded", "can be sharded"), rows)


def _list_written() -> str:
    rows = [
        (
            f"`{scheme.name}`",
            _sentence(scheme.summary),
            ", ".join(map(str, scheme.groups)) or "",
            _codes([*["symmetric"] * scheme.has_zeros, *["scaled"] * scheme.can_scale]),
        )
        for scheme in list_schemes()
    ]
    return _table(("type", "how weights are stored", "group sizes", "options, `yes` or `no`"), rows)


def _list_formats() -> str:
    rows = (
        [_code(name), _codes(map(named, line.suffixes)), _code(line.listing or usual or "")]
        for name, line, usual in (
            (key, one, one.in_directory) for key, one in list_formats().items()
        )
        for named in [f"{line.prefix}NAME{{}}".format if line.prefix else str]
    )
    return _table(("format", "suffixes", "file in a model directory"), rows)


def _list_errors(page: str) -> str:
    """Return the error messages on a page, each with a link to its section."""
    lines = []
    for title, section in _SECTION.findall(page):
        message = _ERROR.search(section)
        shown = shorten(message[1] if message else "(no error)", _WIDTH, placeholder=" ...")
        shown += "`" * (shown.count("`") % 2)  # where a quoted name was cut
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        lines.append(f"- {_plain(shown)} ([{title}](#{anchor}))")
    return "\n".join(lines)


def _list_strategies() -> str:
    rows = (
        [_code(name), _codes(each.needed), _codes(each.allowed)]
        for name, each in STRATEGIES.items()
        if each.needed or each.allowed
    )
    return _table(("strategy", "required settings", "optional settings"), rows)


def _list_public_names() -> str:
    rows = ((f"`{name}`", _codes(load(name).__all__)) for name in PUBLIC_MODULES)
    return _table(("module", "names"), rows)


def _list_schemas() -> str:
    rows = [
        (f"`{path.name}`", document["title"], document["version"])
        for path in sorted(SCHEMA.parent.glob("*.json"))
        for document in [json.loads(path.read_text("utf-8"))]
    ]
    return _table(("schema", "of", "version"), rows)


_TABLES: dict[str, Callable[..., str]] = {
    "block-types": _list_block_types,
    "causes": _list_causes,
    "checks": _list_checks,
    "commands": _list_commands,
    "diffusion-families": _list_diffusion_families,
    "dtypes": _list_dtypes,
    "families": _list_families,
    "family-notes": _list_family_notes,
    "formats": _list_formats,
    "json": _list_json_keys,
    "options": _list_options,
    "public-names": _list_public_names,
    "recipes": _list_recipes,
    "rules": list_rules,
    "schemas": _list_schemas,
    "schemes": _list_schemes,
    "written": _list_written,
    "strategies": _list_strategies,
}
