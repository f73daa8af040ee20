"""What people read of a verification, at 80 and 200 columns. `python tests/verify/test_screen.py`
writes the screens anew.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

if __name__ == "__main__":  # pytest knows these folders
    sys.path.append(str(Path(__file__).parents[1] / "support"))

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import reports
from each import each
from weightctl.text.chart import Bar, chart
from weightctl.text.columns import Cell, hung, width, wrap_text
from weightctl.text.wording import printable
from weightctl.verify.figures import (
    Activation,
    Divergence,
    ForwardFigures,
    LayerDivergence,
    MatrixGain,
    NextToken,
    ValuesFigures,
)
from weightctl.verify.report.screen import brief, verdict
from weightctl.verify.results import Explanation, Problem, Report, Result

SCREENS = Path(__file__).parent / "screens"
COLUMNS = (80, 200)
SHOWN = ("alone", "deep", "faulty", "encoder", "unknown_family", "hostile", "nonfinite", "empty")
ROPE = Explanation(
    "rope_rows",
    "the rows are in the order of Hugging Face's rotation, and GGUF's llama wants pairs side by "
    "side",
)
THETA = Explanation("config", "rope_theta is 10000 here and 1000000 in the reference")


def text_of(lines: list[list[Cell]]) -> str:
    return "".join("".join(cell.text for cell in line).rstrip() + "\n" for line in lines)


def screen(name: str, columns: int) -> str:
    return text_of(verdict(reports.MADE[name](), columns, wraps=True))


def piped(report: Report) -> str:
    return text_of(verdict(report, 80, wraps=False))


def of(*problems: Problem, reference: str | None = None) -> Report:
    return reports.only({"names": Result(problems=problems)}, reference)


def problem(where: str, text: str, cause: Explanation | None = None) -> Problem:
    return Problem(check="names", where=where, text=text, cause=cause)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("name", SHOWN)
def test_a_verdict_is_shown_as_was_agreed(name: str, columns: int) -> None:
    assert screen(name, columns) == (SCREENS / f"{name}-{columns}.txt").read_text()


@each("columns", [72, 80, 200])
@each("name", reports.MADE)
def test_no_line_is_wider_than_the_terminal(name: str, columns: int) -> None:
    lines = screen(name, columns).splitlines()
    assert [line for line in lines if width(line) > columns] == []


def test_every_verdict_belongs_to_a_report() -> None:
    expected = {f"{name}-{columns}.txt" for name in SHOWN for columns in COLUMNS}
    assert {path.name for path in SCREENS.iterdir()} == expected


def test_a_pipe_gets_each_problem_and_each_cause_on_one_line() -> None:
    long = "of another shape " * 20
    shown = piped(of(problem("blk.0.attn_q.weight", long, Explanation("transposed", long))))
    assert f"  blk.0.attn_q.weight: {long.strip()}\n" in shown
    assert f"    likely cause: {long.strip()}\n" in shown


def test_a_cause_that_neighbors_share_is_reported_once_and_another_one_too() -> None:
    shown = piped(
        of(
            problem("a", "is wrong", ROPE),
            problem("b", "is odd", ROPE),
            problem("c", "is wrong", THETA),
        )
    )
    lines = [line.strip()[:12] for line in shown.splitlines() if line.startswith("  ")][1:]
    assert lines == [
        "a: is wrong",
        "b: is odd",
        "likely cause",
        "c: is wrong",
        "likely cause",
    ]


def test_neighbors_of_which_the_same_is_wrong_share_a_line() -> None:
    shown = piped(of(*(problem(where, "is wrong", ROPE) for where in "abc")))
    assert "  a, b, c: is wrong\n    likely cause: the rows" in shown


def test_of_many_problems_the_first_are_listed_and_the_others_counted() -> None:
    shown = piped(of(*(problem(f"t{n}", f"is wrong {n}") for n in range(30))))
    assert "  t23: is wrong 23\n  and 6 more; --report FILE lists all\n" in shown
    shown = piped(of(*(problem(f"t{n}", "is wrong") for n in range(30))))
    assert "t10, t11 and 18 more: is wrong" in shown
    assert "--report" not in shown


def test_a_finding_about_both_checkpoints_comes_first_and_stands_for_the_rest() -> None:
    cause = Explanation("different_models", "B is not the original of A")
    report = replace(reports.faulty(), results={"values": Result(problems=(
        Problem(check="values", where="", text="A and B are different models", cause=cause),
    ))})  # fmt: skip
    lines = piped(report).splitlines()
    assert lines[0] == "A and B are different models"
    assert lines[2].startswith("A: ")
    assert lines[3].startswith("B: ")
    assert sum("A and B are" in line for line in lines) == 1
    assert "B is not the original" not in piped(report)


def test_a_comparison_has_differences_and_no_problems() -> None:
    found = Problem(check="values", where="a", text="relative RMSE 2 %, largest difference 0.1")
    results = {"metadata": Result(), "values": Result(differences=(found,))}
    report = replace(reports.only(results, "good"), comparison=True)
    assert re.search(r"values +1 difference\n", piped(report))
    assert piped(report).endswith("\n1 difference in values\n")
    assert text_of(brief(report)) == f"values: a: {found.text}\n"
    report = replace(reports.only({"values": Result()}, "good"), comparison=True)
    assert piped(report).endswith("\nno differences found in 1 check\n")


def test_what_a_checkpoint_calls_itself_cannot_move_the_cursor() -> None:
    for name in reports.MADE:
        assert not set(screen(name, 80)) & set("\x1b\r\u202e\udcff")
    evil = "\x1b[2J\r\u202e"
    shown = piped(of(problem(evil, evil, Explanation(evil, evil)), reference=evil))
    assert not set(shown) & set("\x1b\r\u202e")
    assert not set(text_of(brief(of(problem(evil, evil))))) & set("\x1b\r\u202e")


def test_the_brief_form_is_one_line_for_each_problem() -> None:
    assert text_of(brief(reports.empty())) == (
        "structure: model.safetensors: byte 24: the header is cut off\n"
    )
    assert text_of(brief(reports.alone())) == ""
    assert [str(line[1].text).partition(":")[0] for line in brief(reports.faulty())] == [
        "blk.24.attn_v.weight", "blk.7.attn_q.weight, blk.7.attn_k.weight",
        "blk.20.mlp_down.weight", "layers.7",
    ]  # fmt: skip
    high = "perplexity 912.7 is above 40"
    assert text_of(brief(of(problem("", high)))) == f"names: {high}\n"


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        ("rope_rows", "convert the original model again"),
        ("gate_and_up_swapped", "--rename FILE"),
        ("zeroed", "download the file again"),
        ("config", "--set KEY=VALUE"),
    ],
)
def test_a_cause_comes_with_what_to_do(cause: str, message: str) -> None:
    shown = piped(of(problem("a", "is wrong", Explanation(cause, "so")), reference="good"))
    assert re.search(rf"^next: .*{re.escape(message)}", shown, re.MULTILINE)


def test_a_problem_without_a_cause_asks_for_a_reference_where_there_is_none() -> None:
    high = reports.only(
        {"forward": Result(problems=(Problem(check="forward", where="", text="is high"),))}
    )
    assert "next: compare with a checkpoint that is known to be good" in piped(high)
    assert "next:" not in piped(replace(high, reference="good"))
    assert "next:" not in piped(reports.empty())


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("structure", "download the file again"),
        ("finite", "download the file again"),
        ("names", "compare the names with those of the original"),
        ("values", "download the file again"),
    ],
)
def test_what_is_named_without_a_cause_comes_with_what_to_do_too(check: str, message: str) -> None:
    problem = Problem(check=check, where="a", text="is wrong")
    shown = piped(reports.only({check: Result(problems=(problem,))}))
    assert f"next: {message}" in shown
    assert "--against" not in shown


def test_a_model_that_ran_alone_may_still_have_wrong_weights() -> None:
    doubt = "swapped or slightly wrong weights cannot be detected"
    assert doubt in piped(reports.alone())
    assert "check whether perplexity 18.4 is right" in piped(reports.alone())
    assert doubt not in piped(replace(reports.alone(), reference="good"))
    assert doubt not in piped(reports.only({"names": Result()}))


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    for columns in range(40, 80):
        shown = text_of(verdict(of(problem("a", "b 1.22 % " * 9)), columns, wraps=True))
        assert not re.search(r"^\s*%", shown, re.MULTILINE)


def test_what_is_furthest_from_usual_comes_before_what_is_large() -> None:
    usual = reports.tensor("a", None, "a", 0.005)
    wrong = replace(usual, name="c", relative_rmse=0.1, expected=0.001, is_problem=True)
    figures = ValuesFigures(tensors=(usual, wrong))
    shown = piped(reports.only({"values": Result(figures=figures)}))
    assert re.search(
        r"^largest errors, relative to the expected errors\n.* ratio .*\n  c  .* 100 ",
        shown,
        re.MULTILINE,
    )
    figures = ValuesFigures(tensors=(usual, replace(usual, name="b", relative_rmse=0.006)))
    shown = piped(reports.only({"values": Result(figures=figures)}))
    assert re.search(r"^largest errors, all as expected\n.*\n  b  ", shown, re.MULTILINE)


def test_divergences_are_drawn_where_one_is_beyond_what_is_usual() -> None:
    assert "divergence: " in piped(reports.faulty())
    usual = LayerDivergence(name="layers.0", divergence=0.01, expected=0.01)
    figures = ForwardFigures(divergence=Divergence(layers=(usual,), mean=0.001))
    shown = piped(reports.only({"forward": Result(figures=figures)}, "good"))
    assert "divergence: " not in shown
    assert "KL divergence mean 0.001" in shown


def test_what_is_not_finite_has_no_axis() -> None:
    part = Activation(name="layers.0", rms=0.0, greatest=0.0, nonfinite=4)
    shown = piped(reports.only({"forward": Result(figures=ForwardFigures(activations=(part,)))}))
    assert "activations: the output of every layer is NaN or infinite" in shown
    assert "│" not in shown


def test_matrices_that_were_tried_alone_are_not_a_model_that_ran() -> None:
    assert re.search(r"forward +partial", piped(reports.unknown_family()))


def test_what_was_skipped_is_in_the_last_word() -> None:
    results = {"names": Result(), "forward": Result(skipped="torch is not installed")}
    assert piped(reports.only(results)).endswith(
        "\n\nno problems found in 1 check; skipped: forward\n"
    )
    results = {"forward": Result(skipped="torch is not installed")}
    assert piped(reports.only(results)).endswith("nothing was checked; skipped: forward\n")


def test_a_terminal_of_ascii_gets_a_chart_of_ascii() -> None:
    for make in reports.MADE.values():
        chart = text_of(verdict(make(), 80, wraps=True, plain=True))
        assert not set(chart) & set("▁▂▃▄▅▆▇█│▲")
    assert "###" in text_of(verdict(reports.faulty(), 80, wraps=True, plain=True))


def test_an_activation_that_is_not_finite_is_not_a_bar() -> None:
    parts = tuple(
        Activation(name=f"layers.{nonfinite}", rms=1.0, greatest=1.0, nonfinite=nonfinite)
        for nonfinite in (0, 1)
    )
    shown = piped(reports.only({"forward": Result(figures=ForwardFigures(activations=parts))}))
    assert shown.count("█") * 3 == shown.count("!") * 3 == 54
    assert "▲ NaN or infinite values" in shown


@given(st.lists(st.floats(), min_size=8, max_size=8))
@example([5e-324, 1.7e308, 5e-324, 1.7e308, 0.0, -0.0, math.nan, math.inf])
def test_numbers_of_any_size_can_be_shown(numbers: list[float]) -> None:
    first, second, third, fourth = numbers[:4]
    pairs = list(pairwise(numbers))
    tensors = tuple(
        replace(
            reports.tensor("a", None, "a"),
            relative_rmse=one, expected=other, max_error=first, cosine=second, worst=third,
        )
        for one, other in pairs
    )  # fmt: skip
    forward = ForwardFigures(
        activations=tuple(Activation(name="a", rms=each, greatest=each) for each in numbers),
        perplexity=first,
        next_tokens=(NextToken(token=1, text="a", probability=second),),
        matrices=tuple(MatrixGain(name="a", shape=(2,), gain=a, usual=b) for a, b in pairs),
        divergence=Divergence(
            layers=tuple(
                LayerDivergence(name="a", divergence=one, expected=other, is_problem=True)
                for one, other in pairs
            ),
            mean=first, percentile_99=second, greatest=third, top_1=fourth, cosine=first,
            reference_perplexity=second,
        ),
    )  # fmt: skip
    results = {
        "values": Result(figures=ValuesFigures(tensors=tensors)),
        "forward": Result(figures=forward),
    }
    lines = text_of(verdict(reports.only(results), 80, wraps=True)).splitlines()
    assert [line for line in lines if width(line) > 80] == []


def main() -> None:
    SCREENS.mkdir(exist_ok=True)
    for old in SCREENS.iterdir():
        old.unlink()
    for name in SHOWN:
        for columns in COLUMNS:
            (SCREENS / f"{name}-{columns}.txt").write_text(screen(name, columns))


if __name__ == "__main__":
    main()


# Charts and wrapped sentences, for any numbers, text and width of a terminal.


NUMBERS = st.floats() | st.floats(0, 10)


def drawn(bars: list[Bar], room: int, *, plain: bool = False) -> list[str]:
    return ["".join(cell.text for cell in line) for line in chart(bars, room, plain=plain)]


def bars_of(*values: float) -> list[Bar]:
    return [Bar(str(number), value) for number, value in enumerate(values)]


def heights(lines: list[str]) -> list[int]:
    """Return how many eighths each column of a chart has."""
    rows = [line.partition("│")[2] for line in lines if "│" in line]
    wide = max(map(len, rows))
    return [
        sum(" ▁▂▃▄▅▆▇█".index(row.ljust(wide)[column]) for row in rows) for column in range(wide)
    ]


@given(st.lists(NUMBERS, max_size=300), st.integers(30, 250), st.booleans())
@example([], 30, False)
@example([0.0], 30, True)
@example([math.nan, math.inf], 30, False)
@example([5e-324, 1.7e308], 30, False)
@example([5e-324], 30, False)
def test_a_chart_of_any_numbers_fits(values: list[float], room: int, plain: bool) -> None:
    lines = drawn(bars_of(*values), room, plain=plain)
    assert all(width(line.rstrip()) <= room + 6 for line in lines)
    assert all(width(line.rstrip()) <= room for line in lines[:6])
    if plain:
        assert all(line.isascii() for line in lines)


@given(st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=40))
def test_a_greater_number_has_no_lower_bar(values: list[float]) -> None:
    found = heights(drawn(bars_of(*sorted(values)), 120))
    shown = [each for each in found if each]
    assert shown == sorted(shown)
    assert min(shown) >= 1
    assert max(shown) == 48


def test_numbers_that_are_alike_are_drawn_alike() -> None:
    assert set(heights(drawn(bars_of(2.0, 2.0, 2.0), 80))) - {0} == {48}
    low, high = (found for found in sorted({*heights(drawn(bars_of(1.0, 1.05), 80))}) if found)
    assert high - low <= 2


def test_nothing_at_all_has_no_bar() -> None:
    assert {*heights(drawn(bars_of(0.0, 0.0), 80))} <= {0}


def test_a_bar_that_is_not_finite_is_not_a_bar() -> None:
    lines = drawn(bars_of(1.0, math.nan), 80)
    assert lines[0].count("!") == lines[5].count("!") == 3


@pytest.mark.parametrize("count", [3, 30, 126, 500])
def test_labels_stand_below_their_bars(count: int) -> None:
    bars = [Bar("in", 1.0), *bars_of(*[1.0] * count), Bar("out", 1.0)]
    labels = drawn(bars, 80)[-1].split()
    numbers = [int(label) for label in labels if label.isdecimal()]
    steps = {later - earlier for earlier, later in pairwise(numbers)}
    assert len(steps) == 1
    assert labels[0] == "in"
    assert width(drawn(bars, 80)[-1]) <= 80


def test_neighbors_that_share_a_column_show_the_highest_and_what_is_bad() -> None:
    bars = bars_of(*[1.0] * 1000)
    bars[500] = Bar("500", 100.0, is_bad=True)
    lines = drawn(bars, 80)
    assert heights(lines).count(48) == 1
    assert lines[-2].count("▲") == 1


@given(st.text(), st.integers(1, 100))
@example("a" * 300, 7)
@example("\u4e2d\u6587" * 50, 2)
def test_wrapped_text_breaks_between_words_and_loses_nothing(text: str, room: int) -> None:
    text = printable(text)
    lines = wrap_text(text, room)
    assert " ".join(lines).split() == text.split()
    for line in lines:
        assert line
        assert width(line) <= room or " " not in line or re.search(r"\d? (%|nats|[kMGT]|B)", line)


@given(st.text(), st.integers(1, 100))
@example("a" * 300, 7)
@example("\u4e2d\u6587" * 50, 2)
def test_text_that_is_cut_fits_and_loses_nothing(text: str, room: int) -> None:
    text = printable(text)
    lines = wrap_text(text, room, cuts_words=True)
    assert all(line and width(line) <= max(room, 2) for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_a_line_of_wrapped_text_ends_where_the_next_word_does_not_fit() -> None:
    lines = wrap_text(
        "one sentence of several words /a/path/that/is/longer/than/a/line and more", 20
    )
    assert lines == [
        "one sentence of", "several words", "/a/path/that/is/longer/than/a/line", "and more",
    ]  # fmt: skip


@given(st.text(max_size=60), st.text(), st.integers(20, 200))
def test_a_text_hangs_behind_its_head_within_the_terminal(head: str, text: str, room: int) -> None:
    head = printable(head)
    lines = hung([Cell(head)], text, room)
    for line in lines[1:]:
        assert width("".join(cell.text for cell in line)) <= max(room, 20 + 64)
    whole = "".join(cell.text for line in hung([Cell(head)], text, None) for cell in line)
    assert whole == head + printable(text)
