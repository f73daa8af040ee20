"""Help pages: usage, description, arguments, options by section, notes, exit codes and examples.

`pages/NAME.toml` has the texts of a command, and `pages/common.toml` those of parameters that are
the same in several commands. They are read if a page is shown, and not when a command runs.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any

import typer.core

from weightctl.cli.progress import phase_line
from weightctl.cli.render import columns, format_lines
from weightctl.text.columns import Cell, width, wrap_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# The help of an option with a longer name begins on the next line.
_NAME_COLUMNS = 26
_LEAST_TEXT = 20
_OPTIONS = "Options"
# The lines of examples in a short page.
_MOST_EXAMPLES = 4
# The key of a context whose help pages are shown in whole.
WHOLE_PAGE = "weightctl.whole_page"

Lines = list[list[Cell]]


class HelpCommand(typer.core.TyperCommand):
    """A command whose help page fits the terminal, and that shows the phases of its work."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; for a completion, leave out a last option that has no value yet."""
        if ctx.resilient_parsing and args and self._takes_value(ctx, args[-1]):
            args = args[:-1]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and show the phases of its work on a terminal."""
        with phase_line(quiet=bool(ctx.params.get("quiet"))):
            return super().invoke(ctx)

    def _takes_value(self, ctx: Any, name: str) -> bool:
        params: list[Any] = self.get_params(ctx)
        return any(name in param.opts and not getattr(param, "is_flag", True) for param in params)

    def get_help(self, ctx: Any) -> str:
        """Return the help page as text: all of it, or only the options of daily use.

        `weightctl help NAME` shows the whole page, and `weightctl NAME --help` the short one, if
        the page says which options are of daily use.
        """
        describe(self)
        daily = None if WHOLE_PAGE in ctx.meta else read_page(self.name or "").get("daily")
        return format_help(self, ctx, daily=daily)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return completions; some shells show the help texts of options beside their names."""
        describe(self)
        return super().shell_complete(ctx, incomplete)


def describe(command: Any, name: str | None = None) -> None:
    """Give a command and its parameters the texts of its page, where they have none of their own.

    `name` is the name of the page, by default that of the command.
    """
    page = read_page(name or command.name)
    command.epilog = command.epilog or _fill(_make_epilog(page))
    texts = _read_parameters(page)
    for param in command.params:
        found = texts.get(param.name, {})
        param.help = param.help or _fill(" ".join(found.get("help", "").split()))
        param.metavar = param.metavar or found.get("metavar")
        param.brief = " ".join(found.get("brief", "").split())
        panel = getattr(param, "rich_help_panel", None)
        param.rich_help_panel = panel or found.get("panel") or None


def read_page(name: str) -> dict[str, Any]:
    """Return the content of a page; empty if a command has none."""
    import tomllib
    from importlib.resources import files

    path = files("weightctl.cli").joinpath("pages", f"{name}.toml")
    return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}


def _read_parameters(page: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Map the names of parameters to their texts: `help`, `metavar` and `panel`.

    Those of a page replace those of the pages that it is `like`, and these the common ones.
    """
    pages = [read_page("common"), *map(read_page, page.get("like", ())), page]
    found: dict[str, dict[str, str]] = {}
    for each in pages:
        for name, texts in each.get("parameters", {}).items():
            found[name] = found.get(name, {}) | texts
    return found


def _make_epilog(page: dict[str, Any]) -> str:
    """Return what follows the options: notes, exit codes, and examples that work in this order."""
    if not page:
        return ""
    codes = [("0", page.get("success", "success"))]
    codes += [("1", page["findings"])] if "findings" in page else []
    codes += [("2", "an error: see stderr for the cause"), ("130", "interrupted by Ctrl-C")]
    rows = [f"  {code}  {' '.join(text.split())}" for code, text in codes]
    # The lines of an example that continue it are indented.
    examples = [
        ("  " if line[0] == " " else "  $ ") + line for line in page["examples"].split("\n")
    ]
    blocks = [
        page.get("notes", ""),
        "\n".join(["Exit codes:", *rows]),
        page.get("documents", ""),
        "\n".join(["Examples:", *examples]),
    ]
    return "\n\n".join(filter(None, blocks))


def _fill(text: str) -> str:
    """Replace names in braces, such as `{formats}`, by the lists of what weightctl supports."""
    return re.sub(r"\{(\w+)\}", lambda match: _list_supported(match[1]), text)


def _list_supported(kind: str) -> str:
    """Return the names of what weightctl supports, of one of the kinds that pages refer to."""
    if kind.endswith("formats"):
        from weightctl.formats import list_formats, list_written_formats

        *others, last = list_written_formats() if kind == "written_formats" else list_formats()
        return f"{', '.join(others)} or {last}"
    if kind.endswith("checks"):
        from weightctl.verify import CHECKS

        if kind == "descriptions_of_checks":
            return "\n".join(f"  {name}  {check.about}" for name, check in CHECKS.items())
        return ", ".join(CHECKS)
    from weightctl.plan.scheme_names import list_written
    from weightctl.plan.type_names import list_recipes, plain_types, single_types

    lists: dict[str, Iterable[str]] = {
        "recipes": list_recipes(),
        "single_types": single_types(),
        "plain_types": plain_types(),
        "schemes": list_written(),
    }
    return ", ".join(lists[kind])


def format_help(
    command: Any,
    ctx: Any,
    commands: Sequence[tuple[str, str]] = (),
    room: int | None = None,
    daily: Sequence[str] | None = None,
) -> str:
    """Return the help page of a command, or of a group.

    `commands` are the names and descriptions of the commands in a group. `room` is the number of
    columns, by default that of the terminal. `daily` are the names of the parameters to which a
    short page is limited: it has the first paragraph and the examples.
    """
    room = room or columns()
    about, epilog = command.help or "", command.epilog or ""
    if daily is not None:
        about = about.partition("\n\n")[0]
        examples = _split_blocks(epilog)[-1].splitlines()[: _MOST_EXAMPLES + 1]
        epilog = "\n\n".join([_point_to_whole_page(command, ctx), "\n".join(examples)])
    sections = _list_sections(command, ctx, commands, daily)
    names = [name for rows in sections.values() for name, _ in rows]
    column = min(max(map(len, names)), _NAME_COLUMNS) + 4
    blocks = [_format_usage(command, ctx, room), *_format_paragraphs(about, room)]
    for title, rows in sections.items():
        listed = [line for name, text in rows for line in _format_row(name, text, column, room)]
        blocks.append([[Cell(f"{title}:", "bold")], *listed])
    blocks += [_format_block(block, room) for block in _split_blocks(epilog)]
    return format_lines([line for block in blocks for line in ([], *block)][1:]).rstrip("\n")


def _point_to_whole_page(command: Any, ctx: Any) -> str:
    options = [each for each in command.get_params(ctx) if each.param_type_name == "option"]
    return f"`weightctl help {command.name}` shows all {len(options)} options, and exit codes."


def _list_sections(
    command: Any,
    ctx: Any,
    commands: Sequence[tuple[str, str]],
    daily: Sequence[str] | None,
) -> dict[str, list[tuple[str, str]]]:
    """Map the titles of a page's sections to the names and texts that they list."""
    arguments: list[tuple[str, str]] = []
    options: dict[str, list[tuple[str, str]]] = {}
    general: list[tuple[str, str]] = []
    for param in command.get_params(ctx):
        if getattr(param, "hidden", False):
            continue
        if param.param_type_name == "argument":
            arguments.append((argument_name(param).strip("[]"), _describe(param, ctx)))
            continue
        if daily is not None and param.name not in daily:
            continue
        title = getattr(param, "rich_help_panel", None) if daily is None else None
        rows = general if title is None else options.setdefault(title, [])
        rows.append((_option_names(param), _describe(param, ctx, is_brief=daily is not None)))
    found = {"Commands": [*commands], "Arguments": arguments, **options, _OPTIONS: general}
    return {title: rows for title, rows in found.items() if rows}


def argument_name(param: Any) -> str:
    """Return the name of an argument, in brackets if it is optional: `MODEL`, `[OUT]`."""
    name: str = param.metavar or param.name.upper()
    return name if param.required or name.startswith("[") else f"[{name}]"


def _option_names(param: Any) -> str:
    """Return the names of an option: `-j, --threads N`; long names start in the same column."""
    names = sorted([*param.opts, *param.secondary_opts], key=len)
    shown = ", ".join(names) if len(names[0]) == 2 else f"    {', '.join(names)}"
    return shown if param.is_flag else f"{shown} {_value_name(param)}"


def _value_name(param: Any) -> str:
    choices: Sequence[object] | None = getattr(param.type, "choices", None)
    if param.metavar is not None or choices is None:
        name: str = param.metavar or param.type.name.upper()
        return name
    return "|".join(str(each.value if isinstance(each, Enum) else each) for each in choices)


def _describe(param: Any, ctx: Any, *, is_brief: bool = False) -> str:
    """Return the help text of a parameter, with its default value, if any.

    If `is_brief` is set, only the first sentence, or the short text of the page, is returned.
    """
    text: str = param.help or ""
    if is_brief:
        text = getattr(param, "brief", None) or re.split(r"(?<=\.) ", text, maxsplit=1)[0]
    default = None if getattr(param, "is_flag", False) else param.get_default(ctx)
    if default is None or not param.show_default:
        return text
    return f"{text} [default: {default.value if isinstance(default, Enum) else default}]"


def _format_usage(command: Any, ctx: Any, room: int) -> Lines:
    arguments = [
        argument_name(param)
        for param in command.get_params(ctx)
        if param.param_type_name == "argument"
    ]
    if isinstance(command, typer.core.TyperGroup):
        arguments.append("COMMAND [ARGS]...")
    text = " ".join([ctx.command_path, "[OPTIONS]", *arguments])
    first, *rest = wrap_text(text, room - len("Usage: "))
    return [
        [Cell("Usage:", "bold"), Cell(f" {first}")],
        *([Cell(f"       {line}")] for line in rest),
    ]


def _format_paragraphs(text: str, room: int) -> list[Lines]:
    """Return the paragraphs of a docstring, each wrapped again to `room` columns."""
    return [[[Cell(line)] for line in wrap_text(block, room)] for block in _split_blocks(text)]


def _split_blocks(text: str) -> list[str]:
    return [block for block in re.split(r"\n\s*\n", text.strip("\n")) if block.strip()]


def _format_row(name: str, text: str, column: int, room: int) -> Lines:
    """Return a name and its text in two columns; the text of a long name is below it."""
    lines = wrap_text(text, max(room - column, _LEAST_TEXT))
    rest = [[Cell(" " * column), Cell(line)] for line in lines]
    head = [Cell("  "), Cell(name, "cyan")]
    if not lines or width(name) + 4 > column:
        return [head, *rest]
    return [[*head, Cell(" " * (column - 2 - width(name))), rest[0][1]], *rest[1:]]


def _format_block(block: str, room: int) -> Lines:
    """Return a block of an epilog: commands unchanged, rows in two columns, or a paragraph."""
    title, *rows = block.splitlines()
    if not rows or not title.endswith(":"):
        return [[Cell(line)] for line in wrap_text(block, room)]
    if rows[0].startswith("  $ "):
        return [[Cell(title, "bold")], *([Cell(row)] for row in rows)]
    pairs = [re.split(r"  +", row.strip(), maxsplit=1) for row in rows]
    column = max(len(name) for name, _ in pairs) + 4
    listed = [line for name, text in pairs for line in _format_row(name, text, column, room)]
    return [[Cell(title, "bold")], *listed]
