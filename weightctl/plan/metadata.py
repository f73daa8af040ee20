"""Changes of the metadata of an output."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import ConversionError
from weightctl.formats.base import (
    ALIGNMENT_KEY,
    LEAST_ALIGNMENT,
    SPLIT_KEYS,
    is_alignment,
    is_text,
)
from weightctl.storage.files import read_start
from weightctl.storage.location import parse_location
from weightctl.text.patterns import select_names
from weightctl.text.untyped import is_list
from weightctl.weights.metadata import INTEGERS, TEXT, MetadataValue, as_json, is_type, parse_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weightctl.plan.plan import Plan

# The maximum size of a file that a value is read from.
_MOST_BYTES = 100_000_000
# Names of types in gguf-py and other tools.
_SPELLINGS = {
    **{f"{'u' if sign == 'u' else ''}int{bits}": f"{sign}{bits}"
       for sign in "ui" for bits in (8, 16, 32, 64)},
    "float32": "f32", "float64": "f64", "str": "string",
}  # fmt: skip


class Setting(NamedTuple):
    """A metadata value as text; without a `type`, it gets the type of the existing value.

    `otherwise` is the type of a new value in GGUF if `type` is None. `path` is the file that the
    text was read from; it is empty if the text was given directly.
    """

    key: str
    type: str | None
    text: str
    otherwise: str = "string"
    path: str = ""

    @classmethod
    def of(cls, key: str, value: object) -> Setting:
        """Return the setting of a key to a Python value, or to a `MetadataValue` with its type.

        A new integer is a u32 if it fits, else an i64. A new float is an f32. The elements of a new
        list have these types too. Raises `ConversionError` for other values.
        """
        if isinstance(value, MetadataValue):
            return cls(key, value.type, _format_content(value.content))
        kind = _type_for(value)
        if kind is None:
            raise ConversionError(
                f"the metadata key `{key}` cannot be set to {value!r:.80}",
                hint="values are text, numbers, booleans and lists of one of these types; "
                "to choose the type, use `MetadataValue('array[u8]', [1])`",
            )
        return cls(key, None, _format_content(value), kind)

    @classmethod
    def parse(cls, written: str) -> Setting:
        """Parse `KEY=VALUE` or `KEY:TYPE=VALUE`; raises `ConversionError` if the text is invalid.

        `KEY=@FILE` reads the value from a file. `KEY=@@VALUE` is a value that begins with @.
        """
        name, equals, content = written.partition("=")
        key, colon, kind = name.rpartition(":")
        if not equals or not (key if colon else name):
            raise ConversionError(
                f"`--set {written}` does not have the form KEY=VALUE",
                hint="write KEY=VALUE, or KEY:u32=5 to state a type",
            )
        if not is_text(name + content):
            raise ConversionError(f"{written!r} is not UTF-8", hint="check the terminal's encoding")
        path = ""
        if content.startswith("@@"):
            content = content[1:]
        elif content.startswith("@"):
            path = parse_location(content[1:]).name
            content = _read_text(written, path)
        if not colon:
            return cls(name, None, content, path=path)
        kind = _SPELLINGS.get(kind, kind)
        if not is_type(kind):
            raise ConversionError(
                f"`{kind}` in `{written}` is not a metadata type",
                hint="types: u8 to u64, i8 to i64, f32, f64, bool, string (GGUF), text "
                "(safetensors), and arrays such as array[i32]",
            )
        return cls(key, kind, content, path=path)


def _read_text(written: str, path: str) -> str:
    """Return the text of a file that contains a value, without a byte order mark."""
    hint = "KEY=@FILE takes the text of a file; a text that begins with @ is written KEY=@@TEXT"
    try:
        raw = read_start(path, _MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"cannot read the file {path} of `--set {written}`: {reason}"
        raise ConversionError(message, hint=hint) from error
    if len(raw) > _MOST_BYTES:
        raise ConversionError(f"{path} is too large for a metadata value", hint=hint)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8 text, at byte {error.start}"
        raise ConversionError(message, hint=hint) from error


def _format_content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return json.dumps(as_json(content)) if not isinstance(content, float) else repr(content)


def _type_for(value: object) -> str | None:
    """Return the type of a new value in GGUF; None if GGUF has no type for it."""
    if isinstance(value, bool):  # before int, which is its base class
        return "bool"
    if isinstance(value, int):
        low, high = INTEGERS["u32"]
        return "u32" if low <= value <= high else "i64"
    if isinstance(value, float):
        return "f32"
    if isinstance(value, str):
        return "string"
    kinds: set[str | None] = {*map(_type_for, value)} if is_list(value) else set()
    kind = "i64" if kinds == {"u32", "i64"} else kinds.pop() if len(kinds) == 1 else None
    return None if kind is None else f"array[{kind}]"


def list_settings(metadata: Mapping[str, object] | Sequence[Setting]) -> Sequence[Setting]:
    """Return the settings of a mapping from keys to values, or settings as they are.

    Raises `ConversionError` for anything else, and for values that are not metadata.
    """
    if isinstance(metadata, Mapping):
        return [Setting.of(key, value) for key, value in metadata.items()]
    for each in metadata:
        given: Any = each  # a caller's types are not checked
        if not isinstance(given, Setting):
            raise ConversionError(
                f"metadata is a mapping from keys to values, not {given!r:.80}",
                hint='for example `metadata={"general.name": "mine"}`',
            )
    return metadata


def change_metadata(plan: Plan, settings: Iterable[Setting], removed: Iterable[str] = ()) -> Plan:
    """Set metadata values, and remove others.

    An existing value keeps its type unless another is stated. A new value without a type is a
    string. `removed` are keys or patterns of keys. Raises `ConversionError` if a value does not
    have its type, if no key has the name or matches the pattern to remove, and for keys that
    weightctl writes itself.
    """
    settings = tuple(settings)
    gone = {key for pattern in removed for key in _keys_to_remove(plan, pattern)}
    metadata = {key: value for key, value in plan.metadata.items() if key not in gone}
    for setting in settings:
        _refuse_kept(plan, setting.key)
        kind = setting.type or _type_of(plan, setting)
        try:
            content = parse_value(kind, setting.text)
        except (ValueError, OverflowError, RecursionError) as error:
            what = f"the text of {setting.path}" if setting.path else f"`{setting.text}`"
            raise ConversionError(
                f"{what} is not a valid {kind}, the type of the metadata key `{setting.key}`",
                hint=f"to state another type, use --set {setting.key}:TYPE=VALUE (a "
                "`MetadataValue` in Python)",
            ) from error
        value = metadata[setting.key] = MetadataValue(kind, content)
        if setting.key == ALIGNMENT_KEY and (not is_alignment(value) or content < LEAST_ALIGNMENT):
            raise ConversionError(
                f"`{ALIGNMENT_KEY}` cannot be {content} ({kind})",
                hint="use --align (align in Python) with a power of two of at least 8",
            )
    files = {each.path: f"the value of `{each.key}`" for each in settings if each.path}
    return replace(plan, metadata=metadata, consulted={**plan.consulted, **files})


def _keys_to_remove(plan: Plan, pattern: str) -> Sequence[str]:
    """Return the keys that a pattern matches, except those that weightctl writes itself.

    If the pattern is itself a key, it selects only this key, even if it contains `[`.
    """
    if pattern in plan.metadata:
        _refuse_kept(plan, pattern)
        return [pattern]
    found = select_names(plan.metadata, [pattern])
    if not found:
        near = difflib.get_close_matches(pattern, plan.metadata, n=3)
        raise ConversionError(
            f"there is no metadata key `{pattern}` to remove",
            hint=f"did you mean {' or '.join(f'`{each}`' for each in near)}?" if near
            else "`weightctl ls --meta` lists all keys",
        )  # fmt: skip
    free = [key for key in found if key not in SPLIT_KEYS and key not in plan.tied]
    if not free:
        _refuse_kept(plan, found[0])
    return free


def _type_of(plan: Plan, setting: Setting) -> str:
    if setting.key in plan.metadata:
        return plan.metadata[setting.key].type
    return TEXT if plan.format == "safetensors" else setting.otherwise


def _refuse_kept(plan: Plan, key: str) -> None:
    if key in SPLIT_KEYS:
        raise ConversionError(
            f"weightctl writes the metadata key `{key}` itself: it numbers the parts of a "
            "checkpoint",
            hint="to write several parts, use --max-shard-size (max_shard_size in Python)",
        )
    if key in plan.tied:
        raise ConversionError(
            f"weightctl writes the metadata key `{key}` itself: it is the name of a tied tensor",
            hint=f"to leave the tensor out, use --exclude {key} (exclude in Python)",
        )
