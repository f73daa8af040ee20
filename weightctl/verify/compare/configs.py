"""Differences between two configs that change results, and where a checkpoint states a field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightctl.errors import GraphError, WeightctlError
from weightctl.families.config_keys import REQUIRED, Present, PresentInLayer
from weightctl.families.config_values import show_value, show_values_apart
from weightctl.families.configs import MODEL_TYPE, Read, is_same_float32, shortest
from weightctl.families.model import ARCHITECTURE
from weightctl.families.rope_factors import inverse_frequencies
from weightctl.text.untyped import is_object, is_sequence
from weightctl.verify.results import Explanation, Problem
from weightctl.weights.steps.numbers import numbers_of
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from weightctl.families import RecognizedModel
    from weightctl.families.config_keys import Config, Fields, Key, Seen


# Fields that are not compared one by one: the RoPE frequencies that they cause are compared.
_STRETCH = ("rope_scaling", "has_rope_factors")
# Fields that are compared elsewhere. The tensors show better whether embeddings are tied, since a
# separate output may be a copy of the embedding.
_ELSEWHERE = {"tied", *_STRETCH}
# The context length changes results only if the model has a table of position embeddings.
_CONTEXT, _POSITIONS = "context", "position_embedding"
_WINDOWS = ("sliding_window", "windowed_layers")
# Fields that determine RoPE frequencies, apart from RoPE scaling.
_TURNS = ("rope_base", "rope_dimensions")
# A few float32 rounding errors; GGUF stores factors in float32.
_ROUNDING = 1e-5
_LONGEST = 1 << 30


@dataclass(frozen=True, slots=True)
class ConfigDifference:
    """A config key whose value differs from the reference's.

    `changes` maps fields of the checkpoint's config to the reference's values.
    """

    problem: Problem
    changes: Mapping[str, Any]


def find_differences(
    subject: RecognizedModel, reference: RecognizedModel, *, with_context: bool = False
) -> list[ConfigDifference]:
    """Return the keys in which the configs of two models of one family differ significantly.

    Differences that naming conventions always cause are left out, and so are values that follow
    from another difference. The context length is included if the model has a table of position
    embeddings, or if `with_context` is set: without a table, it only limits the length of texts.
    """
    own, other = spell_out_rope(subject), spell_out_rope(reference)
    found: list[ConfigDifference] = []
    following: dict[str, Any] = {}
    unequal = list(
        _list_unequal(subject, reference, own.config, other.config, with_context=with_context)
    )
    for name, value, wanted in unequal:
        if _follows(subject, reference, name, wanted):
            following[name] = wanted
        else:
            _add_difference(found, _make_difference(subject, reference, name, value, wanted))
    is_stated = any(name in _TURNS for name, *_ in unequal)
    if not is_stated and not rotates_alike(own, other):
        found.append(_compare_rope_scaling(subject, reference, own.config, other.config))
    if not found:
        # The fields follow from defaults that are not stated, whose own fields are equal.
        named = [each for each in unequal if each[0] in following]
        return [_make_difference(subject, reference, *each) for each in named]
    # To correct the checkpoint, the fields that follow have to change with the stated ones.
    found[-1:] = [replace(each, changes={**following, **each.changes}) for each in found[-1:]]
    return found


def _add_difference(found: list[ConfigDifference], new: ConfigDifference) -> None:
    """Add a difference, or join its changes with a difference of the same key."""
    for place, each in enumerate(found):
        if each.problem.where == new.problem.where:
            found[place] = replace(each, changes={**each.changes, **new.changes})
            return
    found.append(new)


def correct(subject: RecognizedModel, found: list[ConfigDifference]) -> RecognizedModel | None:
    """Return the model with the reference's values in its config; None if they are invalid there.

    `found` are the differences whose values are replaced.
    """
    changes = {name: value for each in found for name, value in each.changes.items()}
    given: Any = subject.config
    try:
        return replace(subject, config=replace(given, **changes))
    except (TypeError, ValueError, WeightctlError):
        return None


def note_lost_window(subject: RecognizedModel, reference: RecognizedModel) -> str:
    """Return a note on sliding windows that differ without an effect; empty if they do not."""
    windows = [getattr(each.config, "sliding_window", None) for each in (subject, reference)]
    if windows[0] == windows[1] or not _is_no_window(subject, reference):
        return ""
    here, there = map(_show, windows)
    why = f"llama.cpp does not use a sliding window for {subject.family.name}"
    if _covers_context(subject, reference):
        why = "a window that is not smaller than the context has no effect"
    return f"the sliding window is {here} here and {there} in the reference; {why}"


def _list_unequal(
    subject: RecognizedModel,
    reference: RecognizedModel,
    own: Config,
    other: Config,
    *,
    with_context: bool,
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields that differ significantly, with both values."""
    given: Any = own
    for name in (each.name for each in fields_of(given)):
        value, wanted = getattr(own, name), getattr(other, name)
        if _is_same(value, wanted) or name in _ELSEWHERE:
            continue
        if _is_of_convention(subject, reference, name):
            continue
        has_table = any(line.module == _POSITIONS for line in subject.family.names)
        if name == _CONTEXT and not (has_table or with_context):
            continue
        if name in _WINDOWS and _is_no_window(subject, reference):
            continue
        yield name, value, wanted


def _is_same(value: Any, wanted: Any) -> bool:
    # GGUF stores values in float32, config.json in decimals.
    if isinstance(value, float) and isinstance(wanted, float):
        return is_same_float32(value, wanted)
    return bool(value == wanted)


def _is_of_convention(subject: RecognizedModel, reference: RecognizedModel, field: str) -> bool:
    """Whether no key or tensor states a field, or only the weights of one convention contain it."""
    lines = [key for key in subject.family.keys if key.field == field]
    if subject.convention != reference.convention and any(key.is_in_weights for key in lines):
        return True
    return not any(key.gguf or key.hugging_face or key.seen for key in lines)


def _is_no_window(subject: RecognizedModel, reference: RecognizedModel) -> bool:
    """Whether a difference in sliding windows has no effect.

    This is so if GGUF leaves out a window that llama.cpp does not use, or if neither window is
    smaller than the context.
    """
    pair = {each.convention: each.config for each in (subject, reference)}
    in_gguf = getattr(pair.get("gguf"), "sliding_window", None)
    may_lack = len(pair) == 2 and in_gguf is None and not subject.family.keeps_window
    return may_lack or _covers_context(subject, reference)


def _covers_context(subject: RecognizedModel, reference: RecognizedModel) -> bool:
    """Whether neither model has a sliding window that is smaller than its context."""
    for each in (subject, reference):
        window = getattr(each.config, "sliding_window", None)
        if window is not None and window < each.config.context:
            return False
    return True


def _follows(subject: RecognizedModel, reference: RecognizedModel, field: str, wanted: Any) -> bool:
    """Whether a value is computed from other fields, and equals `wanted` with the reference's."""
    where = find_spelling(subject, field)
    if not callable(where.default) or (where.is_stated and not where.follows):
        return False
    if where.follows and not hasattr(subject.config, where.follows):
        # The field that it follows from is not compared, so the difference must be reported here.
        return False
    try:
        return _is_same(where.default(reference.fields), wanted)
    except (KeyError, TypeError, ValueError):
        return False


def _make_difference(
    subject: RecognizedModel, reference: RecognizedModel, field: str, value: Any, wanted: Any
) -> ConfigDifference:
    where, there = find_spelling(subject, field), find_spelling(reference, field)
    if isinstance(where.seen, Present | PresentInLayer) and field.endswith("bias"):
        return ConfigDifference(_describe_bias(where, has_none=not value), {field: wanted})
    if where.follows and where.follows == there.follows:
        pair = [each.fields.get(where.follows) for each in (subject, reference)]
        text = _say_both(where, there, *pair)
    elif where.follows or there.follows:
        name = field.removeprefix("scaling.").replace("_", " ")
        own, other = _say_value(where, name, value), _say_value(there, name, wanted)
        text = f"{own}, and {other} in the reference"
    else:
        text = _say_both(where, there, value, wanted)
    cause = Explanation("config", text)
    problem = Problem(where=where.key, text="differs from the reference", cause=cause)
    return ConfigDifference(problem, {field: wanted})


def _say_both(where: Spelling, there: Spelling, value: Any, wanted: Any) -> str:
    own, other = _show(value), _show(wanted)
    if is_sequence(value) and is_sequence(wanted):
        own, other = show_values_apart(value, wanted)
    statement = f"is {own} here and {other} in the reference"
    if not where.is_stated:
        statement = f"is missing, which means {own}, and is {other} in the reference"
    is_called_otherwise = there.is_stated and there.key != where.key
    named = f", where it is called `{there.key}`" if is_called_otherwise else ""
    return f"`{where.key}` {statement}{named}"


def _say_value(where: Spelling, name: str, value: Any) -> str:
    """Describe a value together with its key, or with the key that it follows from."""
    if where.follows:
        return f"`{where.key}` sets the {name} to {_show(value)}"
    return f"`{where.key}` is {_show(value)}"


def _describe_bias(where: Spelling, *, has_none: bool) -> Problem:
    if not has_none:
        return Problem(where=where.key, text="is not in the reference")
    cause = Explanation(
        "bias_dropped", "the biases of the reference were left out, in this and other layers"
    )
    return Problem(where=where.key, text="is missing, and the reference has one", cause=cause)


def _compare_rope_scaling(
    subject: RecognizedModel, reference: RecognizedModel, own: Config, other: Config
) -> ConfigDifference:
    """Return the difference in RoPE scaling, reported at the first key that differs."""
    values: list[dict[str, Any]] = []
    for config in (own, other):
        given: Any = getattr(config, "rope_scaling", None)
        names = () if given is None else [each.name for each in fields_of(given)]
        values.append({name: getattr(given, name) for name in names} or {"kind": None})
    unequal = [
        name
        for name in values[0] | values[1]
        if not _is_same(values[0].get(name), values[1].get(name))
    ]
    first = next((name for name in ("kind", *unequal) if name in unequal), "kind")
    pair = [each.get(first) for each in values]
    made = _make_difference(subject, reference, f"scaling.{first}", *pair)
    changes = {"rope_scaling": getattr(other, "rope_scaling", None)}
    if hasattr(own, "has_rope_factors"):
        changes["has_rope_factors"] = False
    return ConfigDifference(made.problem, changes)


def _show(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, float):
        return f"{shortest(value):g}"
    return show_value(value).strip("`")


def spell_out_rope(checkpoint: RecognizedModel) -> Read:
    """Return the fields and the config, with the values of GGUF's small RoPE tensors as fields.

    The config is returned unchanged if config.json cannot express these values.
    """
    fields: Fields = checkpoint.fields
    try:
        for names in checkpoint.family.tensors(checkpoint.config):
            add_fields, tensor = names.line.add_fields, checkpoint.tensors.get(names.module)
            if add_fields is not None and tensor is not None:
                fields = add_fields(fields, numbers_of(tensor))
        if fields is checkpoint.fields:
            return Read(fields, checkpoint.config)
        family = checkpoint.family
        config = family.make_config(family.checked(fields), checkpoint.convention)
        return Read(fields, config)
    except (KeyError, ValueError, WeightctlError):
        return Read(checkpoint.fields, checkpoint.config)


def rotates_alike(one: Read, other: Read) -> bool:
    """Whether two configs give the same RoPE angles; also true if neither uses RoPE.

    Also true if a checkpoint has frequencies in a tensor that a config cannot express: these are
    not compared.
    """
    if any(getattr(each.config, "has_rope_factors", False) for each in (one, other)):
        return True
    found, wanted = (_compute_speeds(each.config) for each in (one, other))
    return len(found) == len(wanted) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=_ROUNDING, atol=0)
        for a, b in zip(found, wanted, strict=True)
    )


def _compute_speeds(config: Any) -> Sequence[NDArray[Any]]:
    """Return the RoPE frequencies for short and long contexts, and the factor of the cosines.

    Return nothing if the config has no RoPE, and only the factor if its frequencies are invalid.
    """
    base, scaling = getattr(config, "rope_base", None), getattr(config, "rope_scaling", None)
    if base is None:
        return ()
    amplitude = np.array(1.0 if scaling is None else scaling.amplitude)
    try:
        return (
            inverse_frequencies(config.rope_dimensions, base, scaling),
            inverse_frequencies(config.rope_dimensions, base, scaling, _LONGEST),
            amplitude,
        )
    except GraphError:
        return (amplitude,)


# The key or tensor in which a checkpoint states a field of its config.


# The fields of RoPE scaling that config.json has, and the field that GGUF has in their place.
_LOUDNESS = {
    f"scaling.{name}": "scaling.attention_share"
    for name in ("attention_factor", "mscale", "mscale_all_dim")
}


class Spelling(NamedTuple):
    """The place where a checkpoint states a field: a key, or a tensor whose presence states it.

    `is_stated` says whether the checkpoint states the field. If not, `default` is its value, or a
    function that computes the value from other fields. `seen` describes the tensor that states the
    field; it is None if `key` is a metadata key. `follows` names the field or family key that
    determines a field without a key of its own; `key` is then the key of that field.
    """

    key: str
    is_stated: bool
    default: Any = None
    seen: Seen | None = None
    follows: str = ""


def find_spelling(checkpoint: RecognizedModel, field: str) -> Spelling:
    """Return the key or tensor in which a checkpoint states a field, or would state it."""
    lines = [key for key in checkpoint.family.keys if key.field == field]
    own = [key for key in lines if key.is_in(checkpoint.convention)] or lines
    found = [_spell_key(checkpoint, key) for key in own]
    stated = [each for each in found if each.is_stated]
    named = [each for each in found if each.key]
    chosen = (stated or named or found or [Spelling("", is_stated=False)])[0]
    if chosen.key:
        return chosen
    if tensor := _find_tensor_of(checkpoint, field):
        return Spelling(tensor, is_stated=True, follows=tensor)
    return _follow_default(checkpoint, field, chosen)


def _follow_default(checkpoint: RecognizedModel, field: str, spelling: Spelling) -> Spelling:
    """Return the place of the value that determines a field without a key."""
    sources = _find_sources(spelling.default, checkpoint.fields)
    if field.startswith("scaling."):
        sources = [_LOUDNESS.get(field, "scaling.kind"), "scaling.kind"]
    # Sources that are fields of the config come last: they are compared as fields of their own.
    for source in sorted(sources, key=lambda name: hasattr(checkpoint.config, name)):
        found = find_spelling(checkpoint, source) if source != field else spelling
        if found.key:
            return Spelling(found.key, found.is_stated, spelling.default, follows=source)
    family = ARCHITECTURE if checkpoint.convention == "gguf" else MODEL_TYPE
    return Spelling(family, False, spelling.default, follows=family)


def _find_tensor_of(checkpoint: RecognizedModel, field: str) -> str:
    """Return the name of the tensor whose values state a field; empty if none does."""
    fields: Fields = checkpoint.fields
    for names in checkpoint.family.tensors(checkpoint.config):
        add_fields, tensor = names.line.add_fields, checkpoint.tensors.get(names.module)
        if add_fields is None or tensor is None:
            continue
        try:
            made = add_fields(fields, numbers_of(tensor))
        except (KeyError, ValueError, WeightctlError):
            continue
        if made.get(field) != fields.get(field):
            return tensor.info.name
    return ""


class _Watched(Mapping[str, Any]):
    """A mapping of fields that records the names that were looked up."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self.asked: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self.asked.append(name)
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def _find_sources(default: Any, fields: Fields) -> list[str]:
    """Return the fields that a default is computed from."""
    watched = _Watched(fields)
    if callable(default):
        try:
            default(watched)
        except (KeyError, TypeError, ValueError):
            return watched.asked
    return watched.asked


def _spell_key(checkpoint: RecognizedModel, key: Key) -> Spelling:
    if checkpoint.convention == "gguf":
        if key.seen is not None and key.seen.see(header_of(checkpoint.tree).tensors) is not None:
            return Spelling(key.seen.tensor, True, seen=key.seen)
        name = key.gguf.format(arch=checkpoint.family.gguf_name)
        is_stated = name in header_of(checkpoint.tree).metadata
        default = None if key.gguf_default is REQUIRED else key.gguf_default
        return Spelling(name, is_stated, default)
    path, is_stated = _spell_path(checkpoint, key.hugging_face)
    return Spelling(path, is_stated, None if key.default is REQUIRED else key.default)


def _spell_path(checkpoint: RecognizedModel, path: str) -> tuple[str, bool]:
    """Return the spelling of a normalized config path in this config.json, and if it is stated."""
    if not path:
        return "", False
    document = checkpoint.document
    *_, last = path.split(".")
    # In order of precedence.
    for spelling in (path, f"rope_scaling.{last}", last):
        if _has_path(document, spelling):
            return spelling, True
    try:
        is_stated = _has_path(checkpoint.family.standard(document), path)
    except ValueError:
        is_stated = False
    return last, is_stated


def _has_path(document: Mapping[str, Any], path: str) -> bool:
    found: Any = document
    for part in path.split("."):
        if not is_object(found) or found.get(part) is None:
            return False
        found = found[part]
    return True
