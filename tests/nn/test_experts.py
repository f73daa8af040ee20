from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from lazy import LazyModule, torch, transformers
from runs import graph_of, run, types_of
from torch_layers import difference, numbers, seeded
from weightctl.errors import GraphError
from weightctl.nn import MixtureOfExperts

if TYPE_CHECKING:
    from collections.abc import Iterator

modeling_mixtral: Any = LazyModule("transformers.models.mixtral.modeling_mixtral")
modeling_qwen3_moe: Any = LazyModule("transformers.models.qwen3_moe.modeling_qwen3_moe")

SIZES: dict[str, Any] = {"hidden_size": 16, "num_experts_per_tok": 2, "num_hidden_layers": 1}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def taken(block: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a block of transformers' by our names, those of each expert apart."""
    found = {"router.weight": block.gate.weight}
    fused, down = block.experts.gate_up_proj, block.experts.down_proj
    for number, (both, last) in enumerate(zip(fused, down, strict=True)):
        parts = {**dict(zip(("gate", "up"), both.chunk(2), strict=True)), "down": last}
        found |= {f"experts.{number}.{name}.weight": part for name, part in parts.items()}
    return {name: weight.detach() for name, weight in found.items()}


def ours(block: Any, *, dtype: torch.dtype = torch.float32, **options: Any) -> torch.Tensor:
    module = MixtureOfExperts(16, 24, "silu", count=4, used=2, **options)
    module.load_state_dict(taken(block))
    return run(module, numbers(2, 5, 16, dtype=dtype))


def mixtral() -> Any:
    return seeded(modeling_mixtral.MixtralSparseMoeBlock(transformers.MixtralConfig(
        **SIZES, intermediate_size=24, num_local_experts=4
    )))  # fmt: skip


def test_a_mixture_of_experts_is_that_of_mixtral() -> None:
    theirs = mixtral()
    assert difference(ours(theirs), theirs(numbers(2, 5, 16))) < 1e-5


@each("is_normalized", [True, False])
def test_a_mixture_of_experts_is_that_of_qwen3(is_normalized: bool) -> None:
    theirs = seeded(modeling_qwen3_moe.Qwen3MoeSparseMoeBlock(transformers.Qwen3MoeConfig(
        **SIZES, moe_intermediate_size=24, num_experts=4, norm_topk_prob=is_normalized
    )))  # fmt: skip
    found = ours(theirs, is_normalized=is_normalized)
    assert difference(found, theirs(numbers(2, 5, 16))) < 1e-5


def test_the_shares_of_narrow_activations_are_computed_in_float32() -> None:
    theirs = mixtral()
    exact = theirs(numbers(2, 5, 16, dtype=torch.bfloat16).float())
    narrow = theirs.bfloat16()(numbers(2, 5, 16, dtype=torch.bfloat16))
    found = ours(mixtral(), dtype=torch.bfloat16)
    assert found.dtype == torch.bfloat16
    assert difference(found.float(), exact) < 1.5 * difference(narrow.float(), exact)


def test_an_expert_that_nobody_chose_adds_nothing() -> None:
    weights = taken(mixtral())
    # Every row of zeros but for two experts, of which each position takes both.
    weights["router.weight"] = torch.zeros(4, 16)
    weights["router.weight"][1:3] = 1.0
    x = numbers(1, 5, 16).abs()
    module = MixtureOfExperts(16, 24, "silu", count=4, used=2)
    module.load_state_dict(weights)
    before = run(module, x)
    weights |= {f"experts.{number}.down.weight": torch.ones(16, 24) for number in (0, 3)}
    module.load_state_dict(weights)
    assert torch.equal(run(module, x), before)


def test_the_weights_of_experts_are_used_one_expert_after_the_other() -> None:
    module = MixtureOfExperts(16, 24, "silu", count=3, used=1)
    graph = graph_of(module, types_of([np.zeros((1, 2, 16), np.float32)]))
    order = [node.attributes["weight"].name for node in graph.nodes if node.op == "weight"]
    assert order == ["router.weight"] + [
        f"experts.{number}.{part}.weight" for number in range(3) for part in ("gate", "up", "down")
    ]


@each("groups, used", [(3, 1), (2, 0), (2, 3)])
def test_groups_that_are_unequal_or_too_few_are_refused(groups: int, used: int) -> None:
    says = f"4 experts in {groups} groups are not possible, with {used} groups in use"
    with pytest.raises(GraphError, match=says):
        MixtureOfExperts(16, 24, "silu", count=4, used=2, groups=groups, groups_used=used)


@each("used", [0, 5])
def test_more_experts_than_there_are_or_none_are_refused(used: int) -> None:
    with pytest.raises(GraphError, match=f"{used} experts per token are not possible with 4"):
        MixtureOfExperts(16, 24, "silu", count=4, used=used)
