"""Renaming of tensors by rules of the user."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError
from weightctl.plan.toml_file import SINGLE_QUOTES, read_toml
from weightctl.storage.location import parse_location
from weightctl.text.patterns import regular_expression
from weightctl.text.untyped import is_object
from weightctl.weights.derived import Derived, StoredTensor
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator

RenamingsLike = str | os.PathLike[str] | Mapping[str, str] | Sequence[str | os.PathLike[str]]

_FORM = r"write [rename], then lines like '^encoder\.(\d+)\.' = 'bert.encoder.layer.\1.'"
# What sed and other programs call a substitution, such as `s/^model/net/`.
_SUBSTITUTION = re.compile(r"s(?P<mark>[/|#])(?P<pattern>.+)(?P=mark)(?P<new>.*)(?P=mark)g?")
_INLINE = r"--rename '^encoder\.=bert.encoder.'"


class Renaming(NamedTuple):
    r"""A rule: the text that `pattern` matches becomes `replacement`, where `\1` is a capture."""

    pattern: re.Pattern[str]
    replacement: str

    def apply(self, name: str) -> str | None:
        """Return the new name; None if the pattern is not found."""
        return self.pattern.sub(self.replacement, name) if self.pattern.search(name) else None


def collect_renamings(given: RenamingsLike) -> Sequence[Renaming]:
    """Return the rules of a mapping, or of texts and files.

    Raises `ConversionError` if a rule is invalid.
    """
    if isinstance(given, Mapping):
        return [make_renaming(pattern, made) for pattern, made in given.items()]
    each = [given] if isinstance(given, str | os.PathLike) else given
    return [rule for one in each for rule in parse_renamings(one)]


def list_rule_files(given: RenamingsLike | None) -> list[str]:
    """Return the paths of rule files among the given rules."""
    if given is None or isinstance(given, Mapping):
        return []
    each = [given] if isinstance(given, str | os.PathLike) else given
    return [parse_location(os.fspath(one)).name for one in each if not is_inline_rule(one)]


def parse_renamings(given: str | os.PathLike[str]) -> tuple[Renaming, ...]:
    """Return the rule in a text `REGEX=NEW`, or the rules of a TOML file.

    Text with `=` is a rule unless a file with that name exists. NEW cannot contain `=`, and can be
    empty. Raises `ConversionError` if a rule or the file is invalid.
    """
    written = os.fspath(given)
    if (substitution := _SUBSTITUTION.fullmatch(written)) and not os.path.lexists(written):
        raise ConversionError(
            f"`--rename {written}` is not a rule `REGEX=NEW`",
            hint="write --rename '{pattern}={new}'".format(**substitution.groupdict()),
        )
    if not is_inline_rule(given):
        return read_renamings(parse_location(written).name)
    expression, _, replacement = written.rpartition("=")
    if not expression:
        raise ConversionError(f"`--rename {written}` has no pattern before `=`", hint=_INLINE)
    return (make_renaming(expression, replacement),)


def is_inline_rule(given: str | os.PathLike[str]) -> bool:
    """Whether the argument is a rule `REGEX=NEW` and not the path or URL of a file."""
    if not isinstance(given, str) or "=" not in given:
        return False
    where = parse_location(given)
    return where.scheme == "file" and where.name == given and not os.path.lexists(given)


def make_renaming(text: str, replacement: str) -> Renaming:
    """Return a rule from a regular expression and its replacement.

    Raises `ConversionError` if either is not valid.
    """
    pattern = regular_expression(text)
    try:
        # References to captures are only checked when the rule is used, so it is tried on an empty
        # match. The line break ends a comment in the pattern.
        regular_expression(f"{text}\n|").sub(replacement, "")
    except (re.error, IndexError) as error:
        raise ConversionError(f"`{text}` = `{replacement}`: {error}", hint=_INLINE) from error
    return Renaming(pattern, replacement)


def read_renamings(path: str) -> tuple[Renaming, ...]:
    """Read a TOML file with a table `[rename]` of patterns and replacements.

    Raises `ConversionError` if the file is invalid.
    """
    hint = f"{_FORM}; a rule without a file is {_INLINE}"
    content = read_toml(path, "file of naming rules", form=_FORM, otherwise=hint)
    rules = content.get("rename")
    if not is_object(rules) or not rules or len(content) > 1:
        raise ConversionError(
            f"{path}: the file must have one table, `rename`, with rules", hint=_FORM
        )
    return tuple(_rules(path, rules))


def _rules(path: str, rules: dict[str, object]) -> Iterator[Renaming]:
    for text, replacement in rules.items():
        if not isinstance(replacement, str):
            raise ConversionError(
                f"{path}: the replacement for `{text}` is not a string", hint=_FORM
            )
        if "\b" in text + replacement:
            # In double quotes, TOML reads `\b` as a backspace, which no name contains.
            raise ConversionError(f"{path}: {text!r} contains a backspace", hint=SINGLE_QUOTES)
        try:
            yield make_renaming(text, replacement)
        except ConversionError as error:
            hint = f"{SINGLE_QUOTES}: {_FORM}"
            raise ConversionError(f"{path}: {error.message}", hint=hint) from error


def rename(weights: Checkpoint, renamings: Sequence[Renaming]) -> Checkpoint:
    """Return a tree in which each tensor is renamed by the first rule that matches its name.

    Raises `ConversionError` if a rule is never used, or if two tensors would get the same name.
    """
    header = header_of(weights)
    names: dict[str, str] = {}
    used: set[Renaming] = set()
    for name in (*header.tensors, *header.aliases):
        found = ((rule, rule.apply(name)) for rule in renamings)
        rule, made = next(((rule, made) for rule, made in found if made is not None), (None, name))
        names[name] = made
        if rule is not None:
            used.add(rule)
    for rule in renamings:
        if rule not in used:
            raise ConversionError(
                f"no tensor's name matches `{rule.pattern.pattern}`, or earlier rules rename all "
                "tensors that it matches",
                hint="check the names with `weightctl ls --flat`, or move this rule before the "
                "others",
            )
    by_name: dict[str, str] = {}
    for name, made in names.items():
        if made in by_name or not made:
            raise ConversionError(
                f"`{by_name[made]}` and `{name}` would have the same name, `{made}`"
                if made
                else f"`{name}` would have an empty name",
                hint="only the first rule that matches a name applies; write a rule for each name",
            )
        by_name[made] = name
    return rename_all(weights, names)


def rename_all(
    weights: Checkpoint, names: Mapping[str, str], notes: tuple[str, ...] = ()
) -> Checkpoint:
    """Return a tree whose tensors and tied tensors have new names, by their names; adds notes."""
    header = header_of(weights)
    tensors = {names[name]: StoredTensor(source_of(weights), name) for name in header.tensors}
    aliases = {names[name]: names[tensor] for name, tensor in header.aliases.items()}
    metadata = {key: value for key, value in header.metadata.items() if key not in header.aliases}
    return Checkpoint(Derived(source_of(weights), tensors, metadata, aliases, notes))
