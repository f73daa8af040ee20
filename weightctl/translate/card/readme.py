"""READMEs of model directories: the YAML front matter, between two lines of dashes.

The front matter is untrusted. All scalars are read as text, so `no` is Norwegian and `1.0` is a
version; only strings, lists and mappings are created. Only requested keys are parsed, because the
results of evaluations can be long.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError
from weightctl.storage.files import is_file, open_reader
from weightctl.text.untyped import is_object, is_sequence
from weightctl.translate.card.origins import ENTRY, LISTS, SOURCES, TEXTS, format_origin

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from weightctl.weights.metadata import MetadataValue

_MOST_READ = 4_000_000
# Several times the length of the longest lists of languages; longer texts would take seconds to
# parse.
_MOST_PARSED = 20_000
_DEEP = re.compile(r"(?:[\[{]\s*){50}")
_FENCE = re.compile(r"---[ \t\r]*")
_KEY = re.compile(r"""["']?([A-Za-z_][\w-]*)["']?[ \t]*:(?:\s|$)""")
_NOTHING = {"", "~", "null", "Null", "NULL"}
_MOST_LISTED = 1000


def read_front_matter(path: str, keys: Collection[str]) -> Mapping[str, Any]:
    """Return the values of some keys in a file's front matter; empty if the file does not exist.

    Raises `ValueError`, whose message is a clause about the file, if it cannot be read.
    """
    if not is_file(path):
        return {}
    try:
        raw = open_reader(path).read(0, _MOST_READ)
    except FormatError as error:
        raise ValueError(f"cannot be read: {error.reason}") from error
    return parse_front_matter(raw.decode("utf-8", "replace"), keys)


def parse_front_matter(text: str, keys: Collection[str]) -> Mapping[str, Any]:
    """Return the values of some keys in the front matter of a text; empty if it has none.

    Raises `ValueError` if the front matter is not valid YAML, too long, or nested too deeply.
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
            wanted.append(line.replace("\t", "  "))  # YAML requires spaces; people write tabs
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

    if _DEEP.search(document):
        # PyYAML would take seconds to find that it is nested too deeply.
        raise ValueError("has front matter that is nested too deeply")
    try:
        # Creates only str, list and dict, and does not merge keys.
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


def _format_front_matter(facts: Mapping[str, Any]) -> str:
    """Return facts between two lines of dashes; strings that look like other types are quoted."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes strings that a reader could take for the end of a line, and writes no aliases."""

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


def to_readme(metadata: Mapping[str, MetadataValue]) -> bytes | None:
    """Return a README with the metadata's facts in its front matter; None if there are no facts."""
    facts: dict[str, Any] = {}
    for key, names in TEXTS.items():
        if text := _text(metadata, f"general.{key}"):
            facts[names[0]] = text
    for key, names in LISTS.items():
        value = metadata.get(f"general.{key}")
        content = value.content if value is not None and is_sequence(value.content) else ()
        if texts := [_clean(each) for each in content if isinstance(each, str)][:_MOST_LISTED]:
            facts[names[0]] = texts
    for kind, names in SOURCES.items():
        if entries := _origins(metadata, kind):
            facts[names[0]] = entries[0] if len(entries) == 1 else entries
    if not facts:
        return None
    parts = [_format_front_matter(facts)]
    for prefix, key in (("# ", "name"), ("", "description")):
        if key in facts:
            parts.append(f"{prefix}{' '.join(facts[key].split())}\n")
    return "\n".join(parts).encode()


def _origins(metadata: Mapping[str, MetadataValue], kind: str) -> list[Any]:
    count = metadata.get(f"general.{kind}.count")
    number = count.content if count is not None and isinstance(count.content, int) else 0
    found = [
        {key: text for key in ENTRY if (text := _text(metadata, f"general.{kind}.{place}.{key}"))}
        for place in range(min(number, _MOST_LISTED))
    ]
    return [format_origin(entry) for entry in found if entry]


def _text(metadata: Mapping[str, MetadataValue], key: str) -> str:
    value = metadata.get(key)
    return _clean(value.content) if value is not None and isinstance(value.content, str) else ""


def _clean(text: str) -> str:
    """Return a text that UTF-8 can encode; GGUF's strings can be any bytes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
