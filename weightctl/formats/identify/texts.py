"""Identification of text files: Git LFS pointers, web pages, error messages, other JSON."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from weightctl.formats import FORMATS, INDEX_SUFFIX, format_by_suffix
from weightctl.formats.identify.kinds import ELSEWHERE, FORMATS_HINT, LOGIN, NonCheckpointFile
from weightctl.text.sizes import format_size
from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from weightctl.storage.base import Reader

_HEAD = 64 << 10
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{1,2000})", re.IGNORECASE)
_MESSAGE = re.compile(r"<message>([^<]{1,2000})", re.IGNORECASE)
_KEY = re.compile(r'"([^"\\]{1,40})"\s{0,9}:')
# Keys that servers use for error messages, the most informative first.
_REASONS = ("error", "message", "detail", "msg", "errors")

_DIRECTORY = "use the directory that contains it"
_INDEX = FORMATS["safetensors"].suffix + INDEX_SUFFIX
# Keys of a JSON file, what a file with these keys is, and what to do.
_JSON: tuple[tuple[frozenset[str], str, str], ...] = (
    (frozenset({"weightsManifest"}), "a TensorFlow.js model", ELSEWHERE),
    (frozenset({"modelTopology"}), "a TensorFlow.js model", ELSEWHERE),
    (frozenset({"weight_map"}), f"the index of a split checkpoint, but not named NAME{_INDEX}",
     f"copy it to NAME{_INDEX}; its parts are named NAME-00001-of-..."),
    (frozenset({"added_tokens"}), "a tokenizer, not weights", _DIRECTORY),
    (frozenset({"model_type"}), "a model's config, not its weights", _DIRECTORY),
    (frozenset({"architectures"}), "a model's config, not its weights", _DIRECTORY),
    (frozenset({"peft_type"}), "an adapter's config, not its weights", _DIRECTORY),
    (frozenset({"_class_name"}), "a diffusers config, not weights", _DIRECTORY),
)  # fmt: skip


def show_line(text: str, width: int = 60) -> str:
    """Return text of unknown origin as one printable line of at most `width` characters."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[: 40 * width])
    line = " ".join(line.split())
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def _text(file: Reader) -> str:
    """Return the start of a file as text; empty if it is not text."""
    head = file.read(0, _HEAD)
    encoding = _MARKS.get(head[:2], "utf-8-sig")
    try:
        text = head.decode(encoding)
    except UnicodeDecodeError as error:
        # The last character can be incomplete.
        if len(head) == file.size or error.start < len(head) - 4:
            return ""
        text = head[: error.start].decode(encoding, "ignore")
    odd = sum(not (letter.isprintable() or letter.isspace()) for letter in text)
    return text if odd <= 1 + len(text) // 50 and "\0" not in text else ""


def pointer(file: Reader) -> NonCheckpointFile | None:
    """Identify a Git LFS pointer, and report the size of the file that it refers to."""
    head = file.read(0, 1024)
    if not head.startswith(b"version https://git-lfs"):
        return None
    size = re.search(rb"^size (\d{1,18})\s*$", head, re.MULTILINE)
    size_of = f" ({format_size(int(size[1]))})" if size else ""
    return NonCheckpointFile(
        "a Git LFS pointer",
        "install Git LFS if you do not have it, then run `git lfs install` and `git lfs pull` in "
        "the repository",
        f", and the actual file{size_of} has not been downloaded",
    )


def page(file: Reader) -> NonCheckpointFile | None:
    """Identify a web page, quoting its title, and XML, quoting its error message."""
    text = _text(file)
    start = text.lstrip()[:1024].lower()
    if not start.startswith("<"):
        return None
    if "<!doctype html" in start or "<html" in start or start.startswith("<head"):
        return NonCheckpointFile("a web page", LOGIN, _quote_title(_TITLE.search(text)))
    if re.search(r"<net\s[^>]{0,300}version=", start):
        return NonCheckpointFile("the graph of an OpenVINO model, not weights", ELSEWHERE)
    if start.startswith("<?xml") or re.match(r"<[a-z][\w:-]*[\s/>]", start):
        reason = _MESSAGE.search(text)
        return NonCheckpointFile(
            "an error message in XML" if reason else "XML",
            LOGIN if reason else FORMATS_HINT,
            _quote_title(reason),
        )
    return None


def _quote_title(match: re.Match[str] | None) -> str:
    if match is None:
        return ""
    import html

    title = show_line(html.unescape(match[1]))
    return f": `{title}`" if title else ""


def document(file: Reader) -> NonCheckpointFile | None:
    text = _text(file)
    if not text.lstrip().startswith(("{", "[")):
        return None
    keys = frozenset(_KEY.findall(text))
    for wanted, what, hint in _JSON:
        if wanted <= keys:
            return NonCheckpointFile(what, hint)
    try:
        content = json.loads(text) if file.size <= _HEAD else None
    except (ValueError, RecursionError):
        return None
    reason = _reason(content)
    if reason:
        return NonCheckpointFile("an error message in JSON", LOGIN, f": `{reason}`")
    if content is None and not keys:
        return None
    return NonCheckpointFile("JSON, not weights", FORMATS_HINT)


def _reason(content: Any) -> str:
    """Return the error message in a JSON document, at most four levels deep; empty if none."""
    is_reason = False
    for _ in range(4):
        if is_list(content) and content:
            content = content[0]
        if not is_object(content):
            break
        content = next((content[key] for key in _REASONS if content.get(key)), None)
        is_reason = True
    return show_line(content) if is_reason and isinstance(content, str) else ""


def plain(file: Reader) -> NonCheckpointFile | None:
    """Identify other text, quoting its beginning."""
    text = show_line(_text(file))
    if not text:
        return None
    is_short = file.size < 1024 and format_by_suffix(os.path.basename(file.path)) is not None
    return NonCheckpointFile(
        "text, not weights", LOGIN if is_short else FORMATS_HINT, f": `{text}`"
    )
