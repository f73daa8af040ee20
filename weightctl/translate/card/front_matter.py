"""The facts at the head of a README, between two lines of dashes, in YAML.

They are untrusted. Every scalar is text here, so `no` is Norwegian and `1.0` is a version; nothing
is built but texts, lists and mappings; and only keys that are asked for are parsed at all, since
the results of evaluations can be long.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["format_front_matter", "parse_front_matter", "read_front_matter"]

_MOST_READ = 4_000_000
# Some times what the longest lists of languages need; more would take seconds to parse.
_MOST_PARSED = 20_000
_FENCE = re.compile(r"---[ \t\r]*")
_KEY = re.compile(r"""["']?([A-Za-z_][\w-]*)["']?[ \t]*:(?:\s|$)""")
_NOTHING = {"", "~", "null", "Null", "NULL"}


def read_front_matter(path: str, keys: Collection[str]) -> Mapping[str, Any]:
    """Return what a file's front matter says for some keys; empty if the file does not exist.

    Raises `ValueError`, whose message is a clause about the file, if it cannot be read.
    """
    if not os.path.isfile(path):
        return {}
    try:
        with open(path, "rb") as stream:
            raw = stream.read(_MOST_READ)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    return parse_front_matter(raw.decode("utf-8", "replace"), keys)


def parse_front_matter(text: str, keys: Collection[str]) -> Mapping[str, Any]:
    """Return what the front matter of a text says for some keys; nothing if there is none.

    Raises `ValueError` if it is not YAML, too long, or nested too deeply.
    """
    lines = text.removeprefix("\ufeff").split("\n")
    if not _FENCE.fullmatch(lines[0]):
        return {}
    wanted: list[str] = []
    takes = True
    for line in lines[1:]:
        if _FENCE.fullmatch(line):
            break
        key = _KEY.match(line)
        takes = takes if key is None else key[1] in keys
        if takes:
            wanted.append(line.replace("\t", "  "))  # YAML wants spaces; people write tabs
    else:
        raise ValueError("has front matter without an end marker")
    document = "\n".join(wanted)
    if len(document) > _MOST_PARSED:
        raise ValueError(f"has front matter of more than {_MOST_PARSED} characters")
    parsed = _parse_yaml(document)
    if parsed is None or _is_nothing(parsed):
        return {}
    if not is_object(parsed):
        raise ValueError("has front matter that is not a mapping")
    return {key: parsed[key] for key in keys if key in parsed and not _is_nothing(parsed[key])}


def _is_nothing(content: object) -> bool:
    return isinstance(content, str) and content in _NOTHING


def _parse_yaml(document: str) -> Any:
    import yaml

    try:
        # Builds nothing but str, list and dict, and merges no keys.
        return yaml.load(document, yaml.BaseLoader)  # noqa: S506
    except yaml.YAMLError as error:
        raise ValueError(
            f"has front matter that is not valid YAML: {_first_line(error)}"
        ) from error
    except RecursionError as error:
        raise ValueError("has front matter that is nested too deeply") from error
    except OverflowError as error:
        raise ValueError("has front matter with an invalid character") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def format_front_matter(facts: Mapping[str, Any]) -> str:
    """Return facts between two lines of dashes; texts that look like other things are quoted."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes what a reader would take for the end of a line, and writes nothing twice."""

        def represent_str(self, data: str) -> yaml.ScalarNode:
            if data.isprintable():
                return super().represent_str(data)
            return yaml.ScalarNode("tag:yaml.org,2002:str", data, style='"')

        def ignore_aliases(self, data: object) -> bool:
            del data
            return True

    Dumper.add_representer(str, Dumper.represent_str)
    body = yaml.dump(dict(facts), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return f"---\n{body}---\n"
