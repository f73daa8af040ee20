"""What came of verifying checkpoints that are not there: healthy, broken in many ways, unknown."""

from __future__ import annotations

import math

from weightctl.verify.figures import (
    Activation,
    Divergence,
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
from weightctl.verify.problem import Cause, Problem
from weightctl.verify.report import Report, Result

ROPE = Cause(
    "rope_rows",
    "the rows are in the order of Hugging Face's rotation, and GGUF's llama wants pairs side by "
    "side",
)
THETA = Cause("config", "rope_theta is 10000 here and 1000000 in the reference")
HOSTILE = "blk.0.\x1b[31m\nattn_q.weight"


def error(name: str, layer: int | None, rmse: float, *, is_problem: bool = False) -> TensorError:
    return TensorError(
        name=name,
        reference=f"model.{name}",
        part=name.rpartition(".")[0],
        layer=layer,
        shape=(256, 256),
        encoding="Q8_0",
        reference_encoding="BF16",
        relative_rmse=rmse,
        max_error=rmse * 3.1,
        cosine=1 - rmse * rmse / 2,
        expected=0.00541,
        worst=rmse / 0.00541,
        is_problem=is_problem,
    )


def activations(layers: int) -> tuple[Activation, ...]:
    names = ["embedding", *(f"layers.{number}" for number in range(layers)), "output"]
    return tuple(
        Activation(name=name, rms=0.05 * 1.3**place, greatest=3.0 * 1.3**place)
        for place, name in enumerate(names)
    )


def structure(files: int = 1) -> Result:
    return Result(
        figures=StructureFigures(
            files=files, nbytes=2_090_000, tensors=30, readers={"gguf": "", "torch": "no pickle"}
        )
    )


def names(layers: int) -> Result:
    return Result(figures=NamesFigures(family="llama", layers=layers, expected=30, found=30))


def report(
    results: dict[str, Result], path: str = "model.gguf", reference: str | None = None
) -> Report:
    return Report(
        path=path,
        reference=reference,
        description="gguf, llama, 1,937,920 weights, Q8_0 F32",
        results=results,
        seconds=dict.fromkeys(results, 0.25),
    )


def healthy(layers: int = 30) -> Report:
    """Return what is said of a good model, alone."""
    tokens = (
        NextToken(token=261, text=" the", probability=0.1234),
        NextToken(token=13, text="\n", probability=0.08),
        NextToken(token=7, text="", probability=0.00001),
    )
    forward = ForwardFigures(
        source="the built-in text",
        tokens=256,
        device="cpu:0",
        activations=activations(layers),
        perplexity=23.456,
        next_tokens=tokens,
    )
    finite = FiniteFigures(tensors=30, numbers=1_937_920, nbytes=2_090_000)
    return report(
        {
            "structure": structure(),
            "finite": Result(figures=finite),
            "names": names(layers),
            "forward": Result(figures=forward, notes=("of the text 12 tokens are left out",)),
        }
    )


def broken(layers: int = 3) -> Report:
    """Return what is said of a model in which rows are permuted, against a good one."""
    parts = ("attn_q", "attn_k")
    tensors = [error("blk.1.ffn_down.weight", 1, 0.0054)]
    tensors += [error(f"blk.1.{part}.weight", 1, 1.41, is_problem=True) for part in parts]
    problems = [
        Problem(
            check="values",
            where=f"blk.1.{part}.weight",
            text="relative RMSE 141 %, where Q8_0 costs 0.54 %",
            cause=ROPE,
        )
        for part in parts
    ]
    tensors.append(error("blk.2.ffn_norm.weight", 2, math.inf, is_problem=True))
    problems.append(
        Problem(check="values", where="blk.2.ffn_norm.weight", text="4 numbers are NaN")
    )
    divergences = tuple(
        LayerDivergence(
            name=each.name,
            divergence=0.9 if each.name == "layers.1" else 0.004,
            expected=0.004,
            is_problem=each.name == "layers.1",
        )
        for each in activations(layers)
    )
    norms = list(activations(layers))
    norms[-1] = Activation(name="output", rms=1.0, greatest=2.0, nonfinite=12)
    forward = ForwardFigures(
        source="the built-in text",
        tokens=256,
        device="cpu:0",
        activations=tuple(norms),
        perplexity=912.7,
        divergence=Divergence(
            layers=divergences,
            mean=2.345,
            percentile_99=7.1,
            greatest=9.9,
            top_1=0.125,
            reference_perplexity=23.4,
            histogram=((0.01, 3), (math.inf, 253)),
        ),
    )
    return report(
        {
            "structure": structure(),
            "names": names(layers),
            "values": Result(
                problems=tuple(problems),
                figures=ValuesFigures(tensors=tuple(tensors), pairing="by the names of llama"),
            ),
            "forward": Result(
                problems=(
                    Problem(check="forward", where="rope_theta", text="differs", cause=THETA),
                    Problem(check="forward", where="", text="perplexity 912.7 is above 40"),
                ),
                figures=forward,
            ),
        },
        path="a-model-with-a-rather-long-name-Q8_0.gguf",
        reference="models/the-original",
    )


def unknown() -> Report:
    """Return what is said of a model of no known family, some of it skipped, one name hostile."""
    gains = (
        MatrixGain(name="encoder.weight", shape=(64, 32), gain=8.1, usual=8.0),
        MatrixGain(name=HOSTILE, shape=(64, 64), gain=math.nan, usual=8.0),
    )
    zeros = Problem(check="finite", where=HOSTILE, text="all 4,096 numbers are zero")
    return report(
        {
            "finite": Result(problems=(zeros,)),
            "names": Result(skipped="the family `novel` is not known; it is nearest to llama"),
            "forward": Result(figures=ForwardFigures(matrices=gains)),
        }
    )


def damaged() -> Report:
    """Return what is said of a file that cannot be opened."""
    problem = Problem(
        check="structure",
        where="model.gguf",
        text="model.gguf, byte 24: the header is cut off",
        hint="is the download complete?",
    )
    return Report(
        path="model.gguf",
        reference=None,
        description="",
        results={
            "structure": Result(problems=(problem,)),
            "forward": Result(skipped="the files cannot be opened"),
        },
        seconds={"structure": 0.0, "forward": 0.0},
    )


REPORTS = {
    "healthy": healthy,
    "deep": lambda: healthy(126),
    "broken": broken,
    "unknown": unknown,
    "damaged": damaged,
}
