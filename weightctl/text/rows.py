"""Tables of records: rows for data frames, and HTML for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from weightctl.text.documents import to_document
from weightctl.text.wording import number, say_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# The most rows that a notebook shows.
_MOST_SHOWN = 100


class Tabular:
    """A result with records of one kind, which `rows` returns for data frames."""

    __slots__ = ()

    def _records(self) -> Iterable[Any]:
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        """Return a flat dictionary for each record, as pandas and polars take them.

        `pandas.DataFrame(result.rows())` is a table. A field in a field has both names:
        `change.relative_rmse`. Numbers that are not finite are None.
        """
        return make_rows(self._records())

    def _repr_html_(self) -> str:
        return render_rows(self.rows())


def make_rows(records: Iterable[Any]) -> list[dict[str, Any]]:
    """Return a flat dictionary for each record, all with the same keys."""
    found = [dict(_flatten(to_document(record), "")) for record in records]
    keys = dict.fromkeys(key for row in found for key in row)
    inner = {key.rpartition(".")[0] for key in keys}
    return [{key: row.get(key) for key in keys if key not in inner} for row in found]


def _flatten(document: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flatten(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            yield prefix + key, value


def render_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table as HTML, with the first rows if there are many."""
    from weightctl.text.page.markup import element  # only for notebooks

    head = [element("th", key) for key in (rows[0] if rows else ())]
    body = [
        element("tr", *(element("td", _show(value)) for value in row.values()))
        for row in rows[:_MOST_SHOWN]
    ]
    table = element("table", element("thead", element("tr", *head)), element("tbody", *body))
    more = say_more(len(rows) - _MOST_SHOWN, "rows")
    return element("div", table, *([element("p", more)] if more else []))


def _show(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "x".join(map(str, cast("list[object]", value)))
    return number(value, 4) if isinstance(value, float) else str(value)
