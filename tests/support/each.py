"""One test for all rows of a table: it runs for each row, and lists all that fail.

`@each(names, rows)` is written as `@pytest.mark.parametrize(names, rows)` is. Decorators on top of
each other give all combinations. A row has its own `tmp_path` and `monkeypatch`, and what it
skips is skipped alone; all other fixtures are shared by the rows. `pytest --row TEXT` runs only the
rows whose name contains the text.

A row that has the mark `long` runs in the long layer only: there the test has a second case. With
`@each(names, rows, in_turn=True)` above another `@each`, each row has only one of the other's rows
in the default layer, all in turn; the other combinations are long.
"""

from __future__ import annotations

import functools
import inspect
import re
import shutil
from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Test = Callable[..., None]

# The other failures of a table are named without a traceback.
_TRACED = 5
_ROWS = "rows_of_each"
_LAYER = "layer_of_rows"


class _Row(NamedTuple):
    """A row of a table, by the names of its values."""

    name: str
    values: dict[str, Any]
    is_long: bool


class _Chosen:
    """The text of `--row`."""

    text = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--row", default="", help="run only rows whose name contains this text")


def pytest_configure(config: pytest.Config) -> None:
    _Chosen.text = config.getoption("--row")


def each(
    names: str | Sequence[str],
    rows: Iterable[Any],
    ids: Callable[[Any], Any] | Iterable[Any] | None = None,
    *,
    in_turn: bool = False,
) -> Callable[[Test], Test]:
    """Return a decorator that runs a test for each row, in one case."""
    words = [word.strip() for word in names.split(",")] if isinstance(names, str) else [*names]
    table = [
        _Row(
            _name_row(row, number, ids, words),
            dict(zip(words, _values(row, words), strict=True)),
            _is_long(row),
        )
        for number, row in enumerate(rows)
    ]

    def decorate(test: Test) -> Test:
        if inner := getattr(test, _ROWS, None):
            # A decorator above another one: all combinations, in one loop.
            function, below = inner
            return _loop(function, _combine(table, below, in_turn=in_turn))
        assert not in_turn, "there is no table below, of which the rows could have one each"
        return _loop(test, table)

    return decorate


def _combine(above: list[_Row], below: list[_Row], *, in_turn: bool) -> list[_Row]:
    chosen = {id(row): number for rows in (above, below) for number, row in enumerate(_usual(rows))}
    fewer = min(len(_usual(above)), len(_usual(below)))

    def is_long(one: _Row, other: _Row) -> bool:
        if one.is_long or other.is_long:
            return True
        return in_turn and chosen[id(one)] % fewer != chosen[id(other)] % fewer

    return [
        _Row(f"{one.name}-{other.name}", one.values | other.values, is_long(one, other))
        for other, one in product(above, below)
    ]


def _usual(rows: list[_Row]) -> list[_Row]:
    return [row for row in rows if not row.is_long]


def few_or_many(name: str, few: int, many: int) -> pytest.MarkDecorator:
    """Return a decorator that gives a test a small count, and a large one in the long layer."""
    return pytest.mark.parametrize(name, [few, pytest.param(many, marks=pytest.mark.long)])


def _loop(test: Test, table: list[_Row]) -> Test:
    signature = inspect.signature(test)
    given = {name for row in table for name in row.values}
    layers = {"default": _usual(table), "long": [row for row in table if row.is_long]}
    has_long_rows = bool(layers["long"])
    own = {"tmp_path", "monkeypatch"} & signature.parameters.keys()

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        failed: list[tuple[str, BaseException]] = []
        skipped: list[str] = []
        wanted = _select(layers[fixtures.pop(_LAYER)] if has_long_rows else table)
        for number, (name, values, _) in enumerate(wanted):
            with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
                its_own: dict[str, Any] = {}
                if "monkeypatch" in own:
                    its_own["monkeypatch"] = patch
                if "tmp_path" in own:
                    its_own["tmp_path"] = place = fixtures["tmp_path"] / f"{number}"
                    place.mkdir()
                    stack.callback(shutil.rmtree, place, ignore_errors=True)
                try:
                    test(**fixtures | values | its_own)
                except pytest.skip.Exception as reason:
                    skipped.append(str(reason))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # listed below
                    failed.append((name, error))
                    stack.pop_all()  # as pytest does, what a failed test wrote is kept
        if failed:
            _report(failed, len(wanted))
        if skipped and len(skipped) == len(wanted):
            pytest.skip(skipped[0])

    parameters = [one for name, one in signature.parameters.items() if name not in given]
    if has_long_rows:
        parameters.append(inspect.Parameter(_LAYER, inspect.Parameter.KEYWORD_ONLY))
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    setattr(run, _ROWS, (test, table))
    return _in_layers(run) if has_long_rows else run


def _select(rows: list[_Row]) -> list[_Row]:
    return [row for row in rows if _Chosen.text in row.name]


def _in_layers(test: Test) -> Test:
    both = ["default", pytest.param("long", marks=pytest.mark.long)]
    return pytest.mark.parametrize(_LAYER, both)(test)


def _report(failed: list[tuple[str, BaseException]], count: int) -> None:
    for name, error in failed:
        error.add_note(f"row: {name}")
    listed = "\n".join(f"  {name}: {_shorten(error)}" for name, error in failed)
    raise BaseExceptionGroup(
        f"{len(failed)} of {count} rows failed:\n{listed}\n",
        [error for _, error in failed[:_TRACED]],
    )


def _shorten(error: BaseException) -> str:
    lines = f"{type(error).__name__}: {error}".splitlines()
    return lines[0][:200]


def _values(row: Any, words: list[str]) -> Sequence[Any]:
    if _is_param(row):
        return row.values
    return row if len(words) > 1 else (row,)


def _is_long(row: Any) -> bool:
    marks = [mark.name for mark in row.marks] if _is_param(row) else []
    assert set(marks) <= {"long"}, "a row of each() has no other mark: write a test of its own"
    return bool(marks)


def _is_param(row: Any) -> bool:
    return isinstance(row, type(pytest.param()))


def _name_row(row: Any, number: int, ids: Any, words: list[str]) -> str:
    if _is_param(row) and row.id:
        return str(row.id)
    values = _values(row, words)
    if callable(ids):
        named = [ids(value) for value in values]
        values = [value if one is None else one for one, value in zip(named, values, strict=True)]
    elif ids is not None:
        return str([*ids][number])
    text = "-".join(re.sub(r"\s+", " ", str(value)) for value in values)
    return text if len(text) <= 120 else f"{text[:100]}... ({number})"


def usual(chosen: Iterable[Any], rows: Iterable[Any]) -> list[Any]:
    """Return rows for `parametrize` or `each`, of which all but the chosen ones are long."""
    chosen, rows = [*chosen], [*rows]
    assert not [row for row in chosen if row not in rows]
    return [
        pytest.param(
            *(row if isinstance(row, tuple) else (row,)),
            marks=() if row in chosen else pytest.mark.long,
        )
        for row in rows
    ]
