"""Checks that values fit the weights of a module; one error lists all that do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import StateDictError
from weightctl.graph.graph import MOST_ALIGN, is_alignment
from weightctl.nn.values import address, data_of, describe, to_held
from weightctl.text.patterns import regular_expression
from weightctl.weights.equal import difference
from weightctl.weights.protocol import Weights
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.dtype import DType, QuantizationEncoding
    from weightctl.graph.graph import Weight
    from weightctl.nn.values import HeldValue, StateValue
    from weightctl.shape import Shape
    from weightctl.weights.info import TensorInfo

_OVERRIDE = "use `override_quantization_encoding=True` to keep the encodings of the values"
_DTYPES = (
    "declare the weights with the dtypes of the values, or convert the values with "
    "`WeightData.astype`"
)
_SHAPES = "create the model with the configuration of the checkpoint"
_COPY = "leave `weight_alignment` out; unaligned values are then copied when a graph runs"
_TIED = "give only one of the two, or untie the weights in the model"
_STRICT = "use `strict=False` to load only matching weights"


class Configuration(NamedTuple):
    """The arguments of `Weight.configure` that make a weight fit its value."""

    dtype: DType
    shape: Shape
    quantization_encoding: QuantizationEncoding | None


class Fitted(NamedTuple):
    """The changes that loading will make: values by name, and weights with a new encoding."""

    values: dict[str, HeldValue]
    configurations: dict[str, Configuration]
    missing: list[str]
    unexpected: list[str]


def fit(
    weights: Mapping[str, Weight],
    state_dict: Mapping[str, StateValue] | Weights,
    *,
    override: bool,
    alignment: int | None,
    strict: bool,
    second_names: Callable[[], Mapping[str, str]],
    rename: Mapping[str, str],
) -> Fitted:
    """Return the values for weights by name; nothing is changed, and no data is read.

    A value under a second name, which `second_names()` lists, is used for the weight of that name.
    If a weight has values under both names, they are read and must be equal. Raises
    `StateDictError` that names every value which does not fit and, if `strict`, every weight
    without a value and every value without a weight.
    """
    _require_alignment(alignment)
    given = _rename(_by_name(state_dict), rename)
    lines = _settle_second_names(given, weights, second_names)
    missing = [name for name in weights if name not in given]
    fitted = Fitted({}, {}, missing, _list_unexpected(weights, given))
    # A dictionary removes duplicates and keeps the order.
    hints: dict[str, None] = {_TIED: None} if lines else {}
    if strict and (fitted.missing or fitted.unexpected):
        lines += [
            f"`{name}` is missing: {_describe_weight(weights[name])}" for name in fitted.missing
        ]
        lines += [f"`{name}` is unexpected" for name in fitted.unexpected]
        hints[_naming_hint(fitted.missing, fitted.unexpected)] = None
    for name, weight in weights.items():
        if name in given:
            try:
                _take(fitted, name, weight, given[name], override=override, alignment=alignment)
            except StateDictError as error:
                lines.append(f"`{name}` {error.message}")
                hints[error.hint] = None
    if lines:
        message = "\n  ".join(["the values do not match the weights:", *lines])
        raise StateDictError(message, hint="; ".join(filter(None, hints)))
    return fitted


def _settle_second_names(
    given: dict[str, StateValue],
    weights: Mapping[str, Weight],
    second_names: Callable[[], Mapping[str, str]],
) -> list[str]:
    """Keep one value for each weight; return the differences between values of one weight."""
    if given.keys() <= weights.keys():
        return []
    lines: list[str] = []
    for second, name in second_names().items():
        if second not in given or name not in weights:
            continue
        value = given.pop(second)
        if name not in given:
            given[name] = value
        elif problem := _difference(given[name], value):
            lines.append(f"`{second}` is another name of `{name}`, but {problem}")
    return lines


def _difference(one: StateValue, other: StateValue) -> str:
    stored = _find_stored_tensor(one)
    if one is other or (stored is not None and stored == _find_stored_tensor(other)):
        return ""
    try:
        return difference(data_of(one), data_of(other))
    except StateDictError as error:
        return f"one of them {error.message}"


def _take(
    fitted: Fitted,
    name: str,
    weight: Weight,
    value: StateValue,
    *,
    override: bool,
    alignment: int | None,
) -> None:
    info = describe(name, value)
    configuration = _configuration(weight, info, override=override)
    if configuration is not None:
        fitted.configurations[name] = configuration
    held = to_held(value)
    # Only `weight_alignment` requires alignment; the engine copies unaligned values if necessary.
    start = None if alignment is None else address(held)
    if start is not None and alignment is not None and start % alignment:
        raise StateDictError(
            f"is not aligned: its memory address is not a multiple of {alignment} bytes", hint=_COPY
        )
    fitted.values[name] = held


def _configuration(weight: Weight, info: TensorInfo, *, override: bool) -> Configuration | None:
    """Return how a weight has to change for a value, None if the value fits as it is.

    Raises `StateDictError` if it does not fit.
    """
    dtype, shape = weight.original_dtype_and_shape
    own, quantization = weight.quantization_encoding, info.encoding.quantization
    encoding = dtype.encoding if own is None else own.encoding
    # Blocks as plain bytes, which `state_dict` creates for weights without values.
    is_bytes = own is not None and info.encoding == weight.dtype.encoding
    if is_bytes and weight.shape == list(info.shape):
        return None
    # None for encodings with neither a dtype nor a quantization, which a weight cannot have.
    numbers = info.encoding.dtype if quantization is None else dtype
    is_fraction = dtype.is_float and numbers is not None and numbers.is_float
    is_override = own is not quantization and is_fraction
    from weightctl.codecs import can_decode, holds_all  # `ls` loads no numpy

    # Loading float16 into a float32 weight is exact; the engine widens the values when it runs.
    widens = own is quantization is None and holds_all(info.encoding, encoding)
    # Blocks for a weight of floats are decoded when the engine runs.
    decodes = own is None and quantization is not None and is_fraction and can_decode(info.encoding)
    fits = info.encoding == encoding or (override and is_override) or widens or decodes
    if shape == list(info.shape) and fits and numbers is not None:
        keeps = own is quantization or (decodes and not override)
        return None if keeps else Configuration(numbers, shape, quantization)
    hints = {
        _SHAPES: shape != list(info.shape),
        _OVERRIDE: not fits and is_override,
        _DTYPES: not fits and not is_override and numbers is not dtype,
    }
    raise StateDictError(
        f"is {info.encoding.called}{list(info.shape)} instead of {_describe_weight(weight)}",
        hint="; ".join(hint for hint, applies in hints.items() if applies),
    )


def _describe_weight(weight: Weight) -> str:
    dtype, shape = weight.original_dtype_and_shape
    own = weight.quantization_encoding
    return f"{(dtype.encoding if own is None else own.encoding).called}{shape.text}"


def _require_alignment(alignment: Any) -> None:
    if alignment is None:
        return
    if not is_alignment(alignment):
        raise StateDictError(
            f"weight_alignment {alignment!r} is not a power of two up to {MOST_ALIGN}"
        )


def _by_name(state_dict: Mapping[str, StateValue] | Weights) -> dict[str, StateValue]:
    if not isinstance(state_dict, Weights):
        # The value may be of any type: a caller's types are not checked.
        given: Any = state_dict
        if not hasattr(given, "keys"):
            raise StateDictError(
                f"a state must be a mapping from names to values, not {type(given).__name__}",
                hint="use a dictionary, or the tree of a checkpoint",
            )
        named: dict[Any, StateValue] = dict(given)
        if (odd := next((name for name in named if not isinstance(name, str)), None)) is not None:
            raise StateDictError(f"a weight name must be a string, not {odd!r}")
        return named
    prefix = f"{state_dict.name}." if state_dict.name else ""
    return {
        # Nodes of other tree classes give their data now; that data may still be read on use.
        name.removeprefix(prefix): node if isinstance(node, Checkpoint) else node.data()
        for name, node in state_dict.items()
    }


def _rename(given: dict[str, StateValue], rules: Mapping[str, str]) -> dict[str, StateValue]:
    """Return values by the names that the first matching rule of each gives them.

    Raises `StateDictError` if a rule matches no name, or if two names become the same.
    """
    patterns = {regular_expression(text): new for text, new in rules.items()}
    unused = dict.fromkeys(patterns)
    renamed: dict[str, StateValue] = {}
    for name, value in given.items():
        pattern = next((each for each in patterns if each.search(name)), None)
        new = name if pattern is None else pattern.sub(patterns[pattern], name)
        if new in renamed:
            raise StateDictError(
                f"two names become `{new}`, one of them is `{name}`",
                hint="only the first rule that matches a name applies; make the rules narrower",
            )
        renamed[new] = value
        if pattern is not None:
            unused.pop(pattern, None)
    if unused:
        raise StateDictError(
            f"no name matches `{next(iter(unused)).pattern}`, or earlier rules match all of them",
            hint="check the names of the values",
        )
    return renamed


def _list_unexpected(weights: Mapping[str, Weight], given: Mapping[str, StateValue]) -> list[str]:
    """Return the names that no weight has, except other names of a tensor that is loaded."""
    loaded = {_find_stored_tensor(given[name]) for name in weights if name in given}
    return [
        name
        for name, value in given.items()
        if name not in weights
        and (_find_stored_tensor(value) is None or _find_stored_tensor(value) not in loaded)
    ]


def _find_stored_tensor(value: StateValue) -> tuple[int, str] | None:
    """Return the source and name of a value's tensor, None if it is not from a checkpoint."""
    if not isinstance(value, Checkpoint):
        return None
    return id(source_of(value)), header_of(value).aliases.get(value.name, value.name)


def _naming_hint(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    if prefix := _prefix(missing, unexpected):
        return f"the values have the prefix `{prefix}`: remove it from their names"
    if prefix := _prefix(unexpected, missing):
        return (
            f"the weights of the model have the prefix `{prefix}`: add it to the names of "
            "the values"
        )
    if missing and unexpected:
        # Probably the same weights with other names: without them, the model would be incomplete.
        return "rename the values to the names of the weights of the model"
    return _STRICT


def _prefix(short: Sequence[str], long: Sequence[str]) -> str:
    """Return a path prefix that all of `long` have and all of `short` lack, or an empty string."""
    found = set(long)
    candidates = {name.removesuffix(short[0]) for name in long if short}
    for prefix in candidates:
        is_path = prefix.endswith(".") and all(name.startswith(prefix) for name in long)
        if is_path and all(prefix + name in found for name in short):
            return prefix
    return ""
