"""Results are tables: rows for data frames, and HTML for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import weightctl
from weightctl.text.rows import make_rows, render_rows
from weightctl.verify.figures import ValuesFigures

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_of_records_in_records_are_flat_and_have_the_same_keys(
    tiny_llama: Path, tmp_path: Path
) -> None:
    weightctl.convert(tiny_llama, tmp_path / "q.gguf", quant="Q8_0")
    compared = weightctl.diff(tiny_llama, tmp_path / "q.gguf", values=True)
    rows = compared.rows()
    assert len(rows) == len(compared.differences) > 1
    assert len({tuple(row) for row in rows}) == 1
    assert rows[0]["change.relative_rmse"] == compared.differences[0].change.relative_rmse
    assert make_rows([]) == []


def test_all_results_and_trees_have_rows(tiny_llama: Path) -> None:
    weights = weightctl.open_weights(tiny_llama)
    norm = weights.model.norm.weight
    assert norm.rows() == [
        {"name": norm.name, "shape": list(norm.shape), "encoding": norm.info.encoding.name,
         "elements": norm.size, "bytes": norm.info.nbytes}
    ]  # fmt: skip
    assert [row["name"] for row in weights.rows()] == [*weights.tensors]
    assert [row["name"] for row in weightctl.stat(weights).rows()] == [*weights.tensors]
    report = weightctl.verify(weights, weights, checks=["structure", "values"])
    assert report.rows() == []
    figures = report.figures(ValuesFigures)
    assert figures is not None
    assert {row["relative_rmse"] for row in figures.rows()} == {0.0}
    assert weightctl.check(tiny_llama).rows() == weightctl.scan(tiny_llama).rows() == []


def test_a_notebook_shows_tables_and_the_page_of_a_report(tiny_llama: Path) -> None:
    weights = weightctl.open_weights(tiny_llama)
    shown = weights.model.norm._repr_html_()
    assert shown.startswith("<div><table>")
    assert "<td>model.norm.weight</td>" in shown
    assert "<th>effective_rank</th>" in weightctl.stat(weights.model.norm)._repr_html_()
    page = weightctl.verify(weights, weights, checks=["values"])._repr_html_()
    assert page.startswith("<iframe srcdoc=")
    assert "&lt;svg" in page
    many = render_rows([{"name": f"<b>{number}"} for number in range(130)])
    assert many.count("<tr>") == 101
    assert "<p>and 30 more rows</p>" in many
    assert "<b>" not in many
