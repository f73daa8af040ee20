"""A mixture of experts, 8 of 64, on a CPU: time against transformers' block of Qwen3 MoE.

Run with `python tests/bench/experts.py`. Both sides have the same numbers in float32 and the same
threads, and take turns in one process. Medians are printed, for a prompt and for one position.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from forward import times
from measuring import make_parser
from weightctl import DType
from weightctl.engine import InferenceSession
from weightctl.graph import Graph, TensorType
from weightctl.nn import MixtureOfExperts

if TYPE_CHECKING:
    from collections.abc import Sequence

EXPERTS, USED, MOST_TIMES = 64, 8, 1.0
POSITIONS = (512, 1)


def in_transformers(hidden: int, inner: int) -> Any:
    """Return the block of transformers with random weights."""
    torch.manual_seed(1)
    config = Qwen3MoeConfig(
        hidden_size=hidden, moe_intermediate_size=inner, num_experts=EXPERTS,
        num_experts_per_tok=USED, norm_topk_prob=True, num_hidden_layers=1,
    )  # fmt: skip
    block = Qwen3MoeSparseMoeBlock(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=hidden**-0.5)
    return block.eval()


def weights_of(block: Any) -> dict[str, torch.Tensor]:
    """Return the block's weights by the names of weightctl's module."""
    found = {"router.weight": block.gate.weight}
    fused, down = block.experts.gate_up_proj, block.experts.down_proj
    for number, (both, last) in enumerate(zip(fused, down, strict=True)):
        gate, up = both.chunk(2)
        found |= {f"experts.{number}.{name}.weight": each
                  for name, each in (("gate", gate), ("up", up), ("down", last))}  # fmt: skip
    return {name: each.detach() for name, each in found.items()}


def main(words: Sequence[str] | None = None) -> bool:
    """Measure and print; return whether a target is missed."""
    parser = make_parser(__doc__, repeats=7, threads=2)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--inner", type=int, default=512)
    arguments = parser.parse_args(words)
    torch.set_num_threads(arguments.threads)
    block = in_transformers(arguments.hidden, arguments.inner)
    module = MixtureOfExperts(arguments.hidden, arguments.inner, "silu", count=EXPERTS, used=USED)
    module.name_weights()
    with Graph("experts", [TensorType(DType.float32, ("b", "n", arguments.hidden))]) as graph:
        graph.output(module(graph.inputs[0]))
    model = InferenceSession().load(graph, weights_of(block), resident=True)
    is_over = False
    for count in POSITIONS:
        x = torch.from_numpy(
            np.random.default_rng(2).standard_normal((1, count, arguments.hidden), np.float32)
        )

        def theirs(x: torch.Tensor = x) -> torch.Tensor:
            with torch.inference_mode():
                made = block(x)
            return made[0] if isinstance(made, tuple) else made

        def ours(x: torch.Tensor = x) -> torch.Tensor:
            return torch.from_dlpack(model.execute(x)[0])

        apart = float((ours() - theirs()).abs().max() / theirs().abs().max())
        took, took_there = times([ours, theirs], arguments.repeats)
        ratio = took / took_there
        is_over |= ratio > MOST_TIMES
        print(
            f"{count} positions: {took * 1e3:.1f} ms, transformers {took_there * 1e3:.1f} ms: "
            f"{ratio:.2f} times (target {MOST_TIMES:g}); {apart:.0e} of the largest apart",
            flush=True,
        )
    return is_over


if __name__ == "__main__":
    sys.exit(main())
