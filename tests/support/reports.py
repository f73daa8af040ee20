"""Reports of every kind for verify, and their HTML pages."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from math import inf, nan, sin
from typing import TYPE_CHECKING
from xml.etree.ElementTree import fromstring

from markdown_it import MarkdownIt

from weightctl.verify.figures import (
    Activation,
    Divergence,
    DivergenceBin,
    FiniteFigures,
    ForwardFigures,
    LayerDivergence,
    MatrixGain,
    NamesFigures,
    NextToken,
    StructureFigures,
    TensorError,
    ValuesFigures,
)
from weightctl.verify.report.html import render_page
from weightctl.verify.results import Explanation, Problem, Report, Result

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element


# Reports that are made by hand, so that what becomes of them can be looked at.

PARTS = (
    "attention_norm", "attention.q", "attention.k", "attention.v", "attention.o", "mlp_norm",
    "mlp.gate", "mlp.up", "mlp.down",
)  # fmt: skip
HISTOGRAM = tuple(
    DivergenceBin(10.0 ** (power / 2), count)
    for power, count in zip(
        range(-12, 3), (0, 1, 2, 7, 15, 30, 52, 68, 44, 21, 9, 4, 2, 0, 1), strict=True
    )
)
HOSTILE = (
    "<script>alert(1)</script>",
    "a|b`c`*d*_e_[f](javascript:g)",
    '"><img src=x onerror=alert(1)>',
    "\u202eright to left\x1b[31m\n\n# heading\n| a | b |",
    "lone \udcff surrogate & &amp; ]]> -->",
    "long." * 60 + "weight",
)

PAIRING = "by the tensor names of llama"


def tensor(name: str, layer: int | None, part: str, error: float = 0.06) -> TensorError:
    return TensorError(
        name=name, reference=f"model.{name}", part=part, layer=layer, shape=(576, 576),
        encoding="Q4_K", reference_encoding="BF16", relative_rmse=error, max_error=error / 3,
        cosine=1 - error * error / 2, expected=0.06, worst=1.4,
    )  # fmt: skip


def norm(name: str, layer: int | None, part: str) -> TensorError:
    return replace(
        tensor(name, layer, part, 0.0), expected=0.0, worst=0.0, encoding="F32", shape=(576,)
    )


def tensors(layers: int, parts: tuple[str, ...] = PARTS) -> Iterator[TensorError]:
    yield tensor("token_embd.weight", None, "embedding.weight", 0.04)
    for layer in range(layers):
        for number, part in enumerate(parts):
            name = f"blk.{layer}.{part.replace('.', '_')}.weight"
            if part.endswith("norm"):
                yield norm(name, layer, f"{part}.weight")
            else:
                error = 0.06 + 0.02 * sin(layer * (number + 3))
                yield tensor(name, layer, f"{part}.weight", error)
    yield norm("output_norm.weight", None, "norm.weight")


def forward(layers: int) -> ForwardFigures:
    names = ["embedding", *(f"layers.{layer}" for layer in range(layers)), "output"]
    return ForwardFigures(
        source="a text of weightctl's own", device="cpu:0", tokens=256, perplexity=18.37,
        activations=tuple(
            Activation(name=name, rms=0.08 * 1.16**number, greatest=3.0 + 40.0 * (number > 3))
            for number, name in enumerate(names)
        ),
        next_tokens=(
            NextToken(token=284, text=" the", probability=0.412),
            NextToken(token=253, text=" a", probability=0.201),
            NextToken(token=198, text="\n", probability=0.0832),
            NextToken(token=17, text="", probability=0.00021),
        ),
    )  # fmt: skip


def against(layers: int) -> ForwardFigures:
    alone = forward(layers)
    return replace(
        alone,
        divergence=Divergence(
            layers=tuple(
                LayerDivergence(name=part.name, divergence=0.07 + 0.02 * sin(number), expected=0.08)
                for number, part in enumerate(alone.activations)
            ),
            mean=0.0312, percentile_99=0.31, greatest=1.92, top_1=0.914,
            reference_perplexity=17.94, histogram=HISTOGRAM,
        ),
    )  # fmt: skip


def only(results: dict[str, Result], reference: str | None = None) -> Report:
    """Return the report of these checks alone."""
    return Report(
        path="SmolLM2-135M-Q4_K_M.gguf",
        reference=reference,
        description="gguf, llama, 134,515,008 weights, Q4_K Q6_K F32",
        results=results,
        seconds={name: 0.31 * number for number, name in enumerate(results, 1)},
    )


def report(
    *, layers: int = 30, reference: str | None = "SmolLM2-135M", **results: Result
) -> Report:
    """Return the report of a healthy model, but for the checks that are given."""
    made = {
        "structure": Result(
            figures=StructureFigures(
                files=1, nbytes=98_400_000, tensors=272,
                readers={"gguf": None, "safetensors": "does not read this format"},
            ),
        ),
        "finite": Result(
            figures=FiniteFigures(tensors=272, numbers=134_515_008, nbytes=98_400_000)
        ),
        "names": Result(
            figures=NamesFigures(family="llama", layers=layers, expected=272, found=272),
            notes=("the output shares the embedding's weights",),
        ),
        "values": Result(
            figures=ValuesFigures(tensors=tuple(tensors(layers)), pairing=PAIRING)
        ),
        "forward": Result(figures=against(layers)),
    }  # fmt: skip
    if reference is None:
        del made["values"]
        made["forward"] = Result(figures=forward(layers))
    return only({**made, **results}, reference)


def alone() -> Report:
    """Return the report of a healthy model without a reference."""
    return report(reference=None)


def faulty() -> Report:
    """Return the report of a model that has three faults, one of which makes others."""
    rows = Explanation(
        "rope_rows", "its rows are in the order that Hugging Face has, not in GGUF's"
    )
    values = [
        replace(each, relative_rmse=1.39, worst=44.0, cosine=0.03, is_problem=True)
        if each.part in {"attention.q.weight", "attention.k.weight"} and each.layer == 7
        else replace(each, relative_rmse=0.081, worst=812.0, is_problem=True)
        if each.name == "blk.20.mlp_down.weight"
        else each
        for each in tensors(30)
    ]
    figures = against(30)
    assert figures.divergence is not None
    layers = tuple(
        replace(each, divergence=1.7, is_problem=True) if each.name == "layers.7" else each
        for each in figures.divergence.layers
    )
    activations = tuple(
        replace(each, nonfinite=31, rms=41.0) if each.name == "layers.24" else each
        for each in figures.activations
    )
    return report(
        finite=Result(
            problems=(
                Problem(
                    check="finite", where="blk.24.attn_v.weight",
                    text="the scale of block 311 (row 103, column 512) is NaN: 32 numbers are lost",
                    cause=Explanation("scale", "a block's scale is damaged; convert it again"),
                ),
            ),
        ),
        values=Result(
            figures=ValuesFigures(tensors=tuple(values), pairing=PAIRING),
            problems=(
                Problem(check="values", where="blk.7.attn_q.weight", cause=rows,
                        text="the relative RMSE is 1.39, and Q4_K usually costs 0.06"),
                Problem(check="values", where="blk.7.attn_k.weight", cause=rows,
                        text="the relative RMSE is 1.39, and Q4_K usually costs 0.06"),
                Problem(check="values", where="blk.20.mlp_down.weight",
                        text="row 11 from column 256 on is 812 times as far off as Q4_K costs"),
            ),
        ),
        forward=Result(
            figures=replace(
                figures, perplexity=inf, activations=activations,
                divergence=replace(figures.divergence, layers=layers, mean=3.1, top_1=0.21),
            ),
            problems=(
                Problem(check="forward", where="layers.7", cause=rows,
                        text="its output diverges by 1.7 where 0.08 is usual; this is the first"),
            ),
        ),
    )  # fmt: skip


def encoder() -> Report:
    figures = against(6)
    assert figures.divergence is not None
    divergence = replace(
        figures.divergence, mean=None, percentile_99=None, greatest=None, top_1=None,
        reference_perplexity=None, histogram=(), cosine=0.99871,
    )  # fmt: skip
    return report(
        layers=6,
        forward=Result(
            figures=replace(figures, perplexity=None, next_tokens=(), divergence=divergence)
        ),
    )


def unknown_family() -> Report:
    gains = tuple(
        MatrixGain(name=f"encoder.{n}.conv.weight", shape=(256, 256), gain=1.0 + n, usual=1.1)
        for n in range(40)
    )
    return report(
        reference=None,
        names=Result(skipped="`silero` is of no family that weightctl knows; nearest is bert"),
        forward=Result(
            figures=ForwardFigures(source="random unit vectors", matrices=gains, tokens=0)
        ),
    )


def hostile() -> Report:
    """Return a report in which everything that a file can choose is an attack."""
    figures = forward(2)
    problems = tuple(
        Problem(check="names", where=name, text=f"`{name}` is unexpected: {name}",
                cause=Explanation("config", f"the key is {name}"))
        for name in HOSTILE
    )  # fmt: skip
    return replace(
        report(
            names=Result(problems=problems, notes=HOSTILE, skipped=""),
            values=Result(
                figures=ValuesFigures(
                    tensors=tuple(tensor(name, 10**30, name) for name in HOSTILE), pairing="by name"
                )
            ),
            finite=Result(skipped=HOSTILE[0]),
            forward=Result(
                figures=replace(
                    figures,
                    source=HOSTILE[1],
                    next_tokens=tuple(
                        NextToken(token=n, text=text, probability=0.1)
                        for n, text in enumerate(HOSTILE)
                    ),
                    matrices=tuple(
                        MatrixGain(name=name, shape=(2, 2), gain=1.0, usual=1.0) for name in HOSTILE
                    ),
                )
            ),
        ),
        path=HOSTILE[0],
        reference=HOSTILE[2],
        description=HOSTILE[3],
    )


def nonfinite() -> Report:
    """Return a report whose every number is NaN, infinite, 0 or so small that it hardly is one."""
    bad = [nan, inf, 0.0, -0.0, 5e-324, 1.7e308, -inf]
    figures = against(len(bad))
    assert figures.divergence is not None
    values = tuple(
        replace(tensor(f"blk.{n}.x", n, "x"), relative_rmse=one, expected=other, worst=one,
                max_error=other, cosine=one, is_problem=n % 2 == 0)
        for n, (one, other) in enumerate((one, other) for one in bad for other in bad)
    )  # fmt: skip
    return report(
        values=Result(figures=ValuesFigures(tensors=values)),
        forward=Result(
            figures=replace(
                figures, perplexity=nan,
                activations=tuple(
                    Activation(name=f"layers.{n}", rms=one, greatest=one, nonfinite=n)
                    for n, one in enumerate(bad)
                ),
                matrices=tuple(
                    MatrixGain(name=f"m.{one}.{other}", shape=(), gain=one, usual=other)
                    for one in bad for other in bad
                ),
                next_tokens=tuple(
                    NextToken(token=n, text="x", probability=one) for n, one in enumerate(bad)
                ),
                divergence=replace(
                    figures.divergence, mean=nan, percentile_99=inf, greatest=inf, top_1=nan,
                    reference_perplexity=inf,
                    layers=tuple(
                        LayerDivergence(name=f"layers.{n}", divergence=one, expected=other)
                        for n, (one, other) in enumerate(zip(bad, reversed(bad), strict=True))
                    ),
                    histogram=tuple(DivergenceBin(one, n) for n, one in enumerate(bad)),
                ),
            )
        ),
    )  # fmt: skip


def deep() -> Report:
    """Return the report of a model of 126 layers, as the largest have."""
    parts = (*PARTS, "attention.q_norm", "attention.k_norm", "mlp.router")
    return report(
        layers=126, values=Result(figures=ValuesFigures(tensors=tuple(tensors(126, parts))))
    )


def experts(layers: int = 6, count: int = 100) -> Report:
    """Return the report of a mixture, of thousands of tensors of experts."""
    values = tuple(
        replace(each, relative_rmse=1.41, is_problem=True)
        if each.name == "layers.3.mlp.experts.77.up.weight"
        else each
        for layer in range(layers)
        for expert in range(count)
        for part in ("gate", "up", "down")
        for each in [
            tensor(f"layers.{layer}.mlp.experts.{expert}.{part}.weight", layer,
                   f"mlp.experts.{expert}.{part}.weight", 0.06 + 0.0002 * expert)
        ]
    )  # fmt: skip
    return report(layers=layers, values=Result(figures=ValuesFigures(tensors=values)))


def empty() -> Report:
    """Return the report of a file that is damaged, of which nothing more is known."""
    path = "model.safetensors"
    damage = Problem(
        check="structure", where=path, text=f"{path}, byte 24: the header is cut off",
        hint="is the download complete?",
    )  # fmt: skip
    return Report(
        path=path,
        reference=None,
        description="",
        results={
            "structure": Result(problems=(damage,)),
            "finite": Result(skipped="the files cannot be opened"),
        },
        seconds={"structure": 0.0, "finite": 0.0},
    )


MADE = {
    made.__name__: made
    for made in (
        report, alone, faulty, encoder, unknown_family, hostile, nonfinite, deep, experts, empty,
    )
}  # fmt: skip


# What a reader of a page has before them: elements and texts, whatever the markup looks like.


@cache
def page_of(name: str) -> str:
    """Return the page of one of the reports that are made by hand."""
    return render_page(MADE[name]())


def parsed(text: str) -> Element:
    """Return the root of a page that is well formed, to the strictest of parsers."""
    return fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def text_of(element: Element) -> str:
    return "".join(element.itertext())


def pictures(text: str) -> dict[str, Element]:
    """Return the pictures of a page by what they say that they show."""
    return {svg.get("aria-label", ""): svg for svg in parsed(text).iter("svg")}


def of_class(root: Element, name: str) -> list[Element]:
    return [each for each in root.iter() if name in each.get("class", "").split()]


def section(text: str, title: str) -> Element:
    for found in parsed(text).iter("section"):
        if found.findtext("h2") == title:
            return found
    raise AssertionError(title)


_MARKDOWN = MarkdownIt("commonmark").enable("table")


class Rendered(HTMLParser):
    """Markdown as a browser would have it: its tags, and the cells of its tables' rows."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.text = ""
        self._in_cell = False
        self.feed(_MARKDOWN.render(markdown))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in {"td", "th"}

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_cell:
            self.rows[-1][-1] += data

    def tables(self) -> Iterator[int]:
        """Yield how many cells each row has."""
        yield from map(len, self.rows)
