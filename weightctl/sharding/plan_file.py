"""Reads plan files in TOML, which map patterns of tensor names to strategies of cutting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import ConversionError, ShardingError, TensorSplitError
from weightctl.plan.toml_file import read_toml
from weightctl.split import (
    Sharding,
    axiswise,
    columnwise,
    expert_parallel,
    gate_up,
    head_aware_columnwise,
    replicate,
    rowwise,
    segmented,
    stacked_qkv,
)
from weightctl.storage.location import parse_location
from weightctl.text.patterns import regular_expression
from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from weightctl.split import Grid, Whole

_FORM = (
    "write [tensors], then lines like 'o_proj' = 'columnwise' or 'qkv' = { strategy = "
    "'stacked_qkv', heads = 32, kv_heads = 8, head_dim = 128 }"
)


class NamedStrategy(NamedTuple):
    """A way to cut tensors.

    `cut` takes a tensor, the number of ranks, and settings by name. The settings in `needed` are
    required, and those in `allowed` optional.
    """

    cut: Callable[..., Sharding]
    needed: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


STRATEGIES: Mapping[str, NamedStrategy] = {
    "replicate": NamedStrategy(replicate),
    "rowwise": NamedStrategy(rowwise),
    "columnwise": NamedStrategy(columnwise),
    "axiswise": NamedStrategy(axiswise, ("axis",)),
    "segmented": NamedStrategy(segmented, ("sizes",), ("axis",)),
    "gate_up": NamedStrategy(gate_up, (), ("axis",)),
    "stacked_qkv": NamedStrategy(stacked_qkv, ("heads", "kv_heads", "head_dim"), ("axis",)),
    "head_aware_columnwise": NamedStrategy(
        head_aware_columnwise, ("heads", "head_dim"), ("kv_heads", "axis")
    ),
    "expert_parallel": NamedStrategy(expert_parallel),
}
_EXPERTS = "expert_parallel"
# The name that messages use for rules that are passed as an argument.
_ARGUMENT = "rules"


class CutRule(NamedTuple):
    """A line of a plan file: how to cut tensors whose names match a pattern."""

    pattern: re.Pattern[str]
    strategy: str
    settings: Mapping[str, Any]

    def sharding(self, whole: Whole, grid: Grid) -> Sharding:
        """Return the sharding of a tensor for all ranks of a grid, as if each stage had the tensor.

        `expert_parallel` divides stacked experts among all ranks of a stage. Other strategies cut
        a tensor for the `tp` ranks of a group, in the same way in each `ep` group.
        """
        cut = STRATEGIES[self.strategy].cut
        places = [grid.place(rank) for rank in range(grid.ranks)]
        if self.strategy == _EXPERTS:
            made = cut(whole, grid.tp * grid.ep)
            own = [group * grid.tp + number for number, group, _ in places]
        else:
            made = cut(whole, grid.tp, **self.settings)
            own = [number for number, _, _ in places]
        return Sharding(made.strategy, tuple(made.parts[number] for number in own))


class CutRules(NamedTuple):
    """The user's rules for cutting tensors.

    `path` is the path of the plan file, or the text "rules" for rules that are passed in Python.
    """

    path: str
    rules: tuple[CutRule, ...]

    def sharding(self, whole: Whole, grid: Grid) -> Sharding | None:
        """Return the sharding by the first rule that matches a tensor; None if no rule does.

        Raises `ShardingError` if the tensor cannot be split in this way.
        """
        rule = self._rule(whole.name)
        if rule is None:
            return None
        try:
            return rule.sharding(whole, grid)
        except TensorSplitError as error:
            raise error.at(f"{self.path}: `{rule.pattern.pattern}`") from error
        except ShardingError as error:
            where = f"{self.path}: `{rule.pattern.pattern}`"
            raise ShardingError(f"{where}: {error.message}", hint=error.hint) from error

    def notes(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return notes on rules that are not used for any of these tensors."""
        names = list(names)
        used = {id(self._rule(name)) for name in names}
        return tuple(
            f"{self.path}: all tensors that match `{rule.pattern.pattern}` also match an "
            "earlier rule"
            if any(map(rule.pattern.search, names))
            else f"{self.path}: no tensor matches `{rule.pattern.pattern}`"
            for rule in self.rules
            if id(rule) not in used
        )

    def _rule(self, name: str) -> CutRule | None:
        return next((rule for rule in self.rules if rule.pattern.search(name)), None)


def make_rules(tensors: Mapping[str, Any]) -> CutRules:
    """Make rules from a mapping of patterns to strategies, like `[tensors]` of a plan file.

    Raises `ConversionError` if a pattern or a strategy is invalid.
    """
    return CutRules(_ARGUMENT, tuple(_rules(_ARGUMENT, tensors)))


def read_rules(path: str) -> CutRules:
    """Read a plan file, whose table `[tensors]` has a strategy for each name pattern.

    The first pattern that matches a name decides. A strategy is a name, or a table of the name and
    its settings. Raises `ConversionError` if the file is invalid.
    """
    path = parse_location(path).name
    content = read_toml(path, "plan", form=_FORM, otherwise="check the path")
    unknown = content.keys() - {"tensors"}
    if unknown or not content:
        what = (
            f"`{min(unknown)}` is not a table of a plan file"
            if unknown
            else ("the plan file is empty")
        )
        raise ConversionError(f"{path}: {what}", hint=_FORM)
    tensors = content["tensors"]
    if not is_object(tensors):
        raise ConversionError(f"{path}: `tensors` is not a table", hint=_FORM)
    if not tensors:
        raise ConversionError(f"{path}: `tensors` is empty", hint=_FORM)
    return CutRules(path, tuple(_rules(path, tensors)))


def _rules(path: str, tensors: Mapping[str, Any]) -> Iterator[CutRule]:
    for pattern, content in tensors.items():
        try:
            expression = regular_expression(pattern)
        except ConversionError as error:
            raise ConversionError(f"{path}: {error.message}", hint=error.hint) from error
        yield _rule(f"{path}: `{pattern}`", expression, content)


def _rule(where: str, pattern: re.Pattern[str], content: object) -> CutRule:
    if isinstance(content, str):
        settings: dict[str, Any] = {}
        name: object = content
    elif is_object(content):
        settings = dict(content)
        if "strategy" not in settings:
            raise ConversionError(
                f"{where} is a table without a `strategy`",
                hint="put a pattern with dots in quotes: 'mlp.up' = 'rowwise'; the strategies are "
                f"{', '.join(STRATEGIES)}",
            )
        name = settings.pop("strategy")
    else:
        raise ConversionError(f"{where} is {content!r}, which is not a strategy", hint=_FORM)
    if not isinstance(name, str) or name not in STRATEGIES:
        raise ConversionError(
            f"{where}: {name!r} is not a supported strategy",
            hint=f"use one of {', '.join(STRATEGIES)}",
        )
    _check(f"{where}: {name}", STRATEGIES[name], settings)
    return CutRule(pattern, name, settings)


def _check(where: str, strategy: NamedStrategy, settings: Mapping[str, Any]) -> None:
    """Raise `ConversionError` if settings are missing, unknown or invalid for a strategy."""
    takes = _describe_settings(strategy)
    for key in settings:
        if key not in (*strategy.needed, *strategy.allowed):
            raise ConversionError(f"{where} does not have the setting `{key}`", hint=takes)
    for key in strategy.needed:
        if key not in settings:
            raise ConversionError(f"{where} needs the setting `{key}`", hint=takes)
    for key, value in settings.items():
        least = 0 if key == "axis" else 1
        if key == "sizes":
            fits = is_list(value) and bool(value) and all(_is_number(each, 1) for each in value)
            wanted = "a list of integers of at least 1"
        else:
            fits, wanted = _is_number(value, least), f"an integer of at least {least}"
        if not fits:
            raise ConversionError(f"{where}: `{key}` is {value!r}; it must be {wanted}", hint=takes)
    heads, kv_heads = settings.get("heads"), settings.get("kv_heads")
    if heads and kv_heads and heads % kv_heads:
        raise ConversionError(
            f"{where}: {heads} `heads` cannot be divided evenly among {kv_heads} `kv_heads`",
            hint="every KV head needs the same number of query heads",
        )


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _describe_settings(strategy: NamedStrategy) -> str:
    needed, allowed = ", ".join(strategy.needed), ", ".join(strategy.allowed)
    if not needed and not allowed:
        return "it has no settings; use its name only"
    clauses = (needed and f"required: {needed}", allowed and f"optional: {allowed}")
    return "; ".join(filter(None, clauses))
