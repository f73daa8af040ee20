"""What a checkpoint calls a field of its config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.archs.keys import REQUIRED
from weightctl.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.archs import Checkpoint
    from weightctl.archs.keys import Key, Seen

__all__ = ["Spelling", "spelled"]


class Spelling(NamedTuple):
    """Where a checkpoint says a field: a key, or a tensor that tells it by being there.

    `is_said` tells whether it does; else `default` is the value, or what gives it from the others.
    `seen` is what of the tensors tells it, None where a key does.
    """

    key: str
    is_said: bool
    default: Any = None
    seen: Seen | None = None


def spelled(checkpoint: Checkpoint, field: str) -> Spelling:
    """Return where a checkpoint says a field, or would."""
    lines = [key for key in checkpoint.arch.keys if key.field == field]
    own = [key for key in lines if key.is_in(checkpoint.dialect)] or lines
    found = [_of_line(checkpoint, key) for key in own]
    said = [each for each in found if each.is_said]
    named = [each for each in found if each.key]
    unsaid = Spelling("", is_said=False)
    chosen = (said or named or found or [unsaid])[0]
    return chosen if chosen.key else chosen._replace(key=field.removeprefix("scaling."))


def _of_line(checkpoint: Checkpoint, key: Key) -> Spelling:
    if checkpoint.dialect == "gguf":
        if key.seen is not None and key.seen.see(checkpoint.tree.header.tensors) is not None:
            return Spelling(key.seen.tensor, True, seen=key.seen)
        name = key.gguf.format(arch=checkpoint.arch.gguf_name)
        is_said = name in checkpoint.tree.metadata
        default = None if key.gguf_default is REQUIRED else key.gguf_default
        return Spelling(name, is_said, default)
    path, is_said = _in_document(checkpoint, key.hugging_face)
    return Spelling(path, is_said, None if key.default is REQUIRED else key.default)


def _in_document(checkpoint: Checkpoint, path: str) -> tuple[str, bool]:
    """Return how config.json spells what stands at a path once it is in the usual form."""
    if not path:
        return "", False
    document = checkpoint.document
    *_, last = path.split(".")
    # In the order in which they count.
    for spelling in (path, f"rope_scaling.{last}", last):
        if _holds(document, spelling):
            return spelling, True
    try:
        is_said = _holds(checkpoint.arch.standard(document), path)
    except ValueError:
        is_said = False
    return last, is_said


def _holds(document: Mapping[str, Any], path: str) -> bool:
    found: Any = document
    for part in path.split("."):
        if not is_object(found) or found.get(part) is None:
            return False
        found = found[part]
    return True
