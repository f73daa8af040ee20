"""A checkpoint that is sharded for any number of ranks and joined has the same bytes."""

from __future__ import annotations

import shutil
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharded_files import contents_of, write_whole
from weightctl import open_weights
from weightctl.dtype import ENCODINGS
from weightctl.sharding.plan_file import read_rules
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid
from weightctl.weights.info import TensorInfo
from weightctl.write.gathering import gather
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from families import Made
    from weightctl.sharding.planning import CutRulesLike

COUNTS = (1, 2, 3, 4, 8)
KEPT_BY = {"gguf": ("F32", "BF16", "Q8_0", "Q4_K"), "safetensors": ("F32", "BF16")}


class Drawn:
    """Tensors of one strategy, with rules that say so, and sizes that divide by luck alone."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], ranks: int) -> None:
        self._draw, self._ranks = draw, ranks
        self.some = lambda: draw(st.integers(1, 3))

    def enough(self) -> int:
        """Return as many units as there are ranks, or more."""
        return self._ranks + self._draw(st.integers(0, 5))

    def heads(self) -> tuple[int, int]:
        """Return how many heads there are, and of keys and values, which may be fewer."""
        few = [count for count in range(1, self._ranks) if self._ranks % count == 0]
        keys = self._draw(st.sampled_from([*few, self._ranks, self._ranks + 1]))
        group = self._draw(st.integers(-(-self._ranks // keys), 3 + self._ranks // keys))
        return keys * group, keys

    def replicate(self, block: int) -> tuple[tuple[int, ...], str]:
        return (self.some(), self.some() * block), "'replicate'"

    def rowwise(self, block: int) -> tuple[tuple[int, ...], str]:
        return (self.enough(), self.some() * block), "'rowwise'"

    def columnwise(self, block: int) -> tuple[tuple[int, ...], str]:
        return (self.some(), self.enough() * block), "'columnwise'"

    def axiswise(self, block: int) -> tuple[tuple[int, ...], str]:
        axis = self._draw(st.integers(0, 2))
        shape = [self.enough() if place == axis else self.some() for place in range(3)]
        return (*shape[:2], shape[2] * block), f"{{ strategy = 'axiswise', axis = {axis} }}"

    def segmented(self, block: int) -> tuple[tuple[int, ...], str]:
        axis = self._draw(st.integers(0, 1))
        sizes = [self.enough() * (block if axis else 1) for _ in range(self.some())]
        shape = [self.some(), self.some() * block]
        shape[axis] = sum(sizes)
        text = f"{{ strategy = 'segmented', sizes = {sizes}, axis = {axis} }}"
        return tuple(shape), text

    def gate_up(self, block: int) -> tuple[tuple[int, ...], str]:
        return (2 * self.enough(), self.some() * block), "'gate_up'"

    def stacked_qkv(self, block: int) -> tuple[tuple[int, ...], str]:
        (heads, keys), size = self.heads(), self.some()
        text = f"heads = {heads}, kv_heads = {keys}, head_dim = {size}"
        shape = ((heads + 2 * keys) * size, self.some() * block)
        return shape, f"{{ strategy = 'stacked_qkv', {text} }}"

    def head_aware_columnwise(self, block: int) -> tuple[tuple[int, ...], str]:
        (heads, keys), size = self.heads(), self.some() * block
        text = f"heads = {heads}, kv_heads = {keys}, head_dim = {size}"
        return (
            self.some(),
            heads * size,
        ), f"{{ strategy = 'head_aware_columnwise', {text} }}"

    def expert_parallel(self, block: int) -> tuple[tuple[int, ...], str]:
        return (self.enough(), self.some(), self.some() * block), "'expert_parallel'"


STRATEGIES = [name for name, of in vars(Drawn).items() if callable(of) and name[0] != "_"]
STRATEGIES = [name for name in STRATEGIES if name not in {"enough", "heads"}]


def put_back(source: Path, directory: Path, grid: Grid, rules: CutRulesLike | None = None) -> Path:
    """Cut a checkpoint, put it together again, and return where that is."""
    weights = open_weights(source)
    save_shards(shard_plan(weights, grid, rules=rules), directory / "shards")
    whole = directory / f"whole.{weights.header.format}"
    gather(directory / "shards", whole)
    return whole


@pytest.mark.parametrize("format_name", KEPT_BY)
@pytest.mark.parametrize("ranks", COUNTS)
@given(data=st.data())
@settings(max_examples=5)
def test_every_strategy_gives_back_what_it_cut(
    format_name: str, ranks: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("cut")
    drawn = Drawn(data.draw, ranks)
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    contents: dict[str, tuple[TensorInfo, bytes]] = {}
    lines = ["[tensors]"]
    for strategy, encoding in product(STRATEGIES, KEPT_BY[format_name]):
        shape, text = getattr(drawn, strategy)(ENCODINGS[encoding].block)
        info = TensorInfo(f"{strategy}.{encoding}", shape, ENCODINGS[encoding])
        contents[info.name] = info, random.bytes(info.nbytes)
        lines.append(f"'^{strategy}.{encoding}$' = {text}")
    (directory / "plan.toml").write_text("\n".join(lines))
    source = write_whole(directory / "in.bin", format_name, contents, {})
    rules = read_rules(str(directory / "plan.toml"))
    whole = put_back(source, directory, Grid(ranks), rules)
    assert contents_of(whole) == contents
    shardings = shard_plan(open_weights(source), Grid(ranks), rules=rules).shardings
    for name, sharding in shardings.items():
        assert (ranks > 1 and "replicate" not in name) == any(sharding.parts)
    shutil.rmtree(directory)


GRIDS = [
    ("llama", Grid(2, 1, 2)), ("llama", Grid(4)), ("llama-yarn", Grid(2, 1, 2)), ("qwen2", Grid(4)),
    ("gemma3", Grid(2, 1, 3)), ("phi3-long", Grid(4, 1, 2)), ("gpt2", Grid(3, 1, 2)),
    ("bert", Grid(3, 1, 2)), ("mixtral", Grid(1, 3)), ("mixtral", Grid(2, 4, 2)),
    ("qwen3moe", Grid(4, 2, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "grid"), GRIDS)
def test_models_of_every_family_come_back(
    name: str, grid: Grid, family: Callable[[str], Made], tmp_path: Path
) -> None:
    source = family(name).bf16
    assert contents_of(put_back(source, tmp_path, grid)) == contents_of(source)


@pytest.mark.parametrize(
    ("option", "dtype"), [("--dtype", "f32"), ("--quant", "q8_0"), ("--quant", "q4_k_m")]
)
@pytest.mark.parametrize(("name", "grid"), [("mixtral", Grid(1, 2, 2)), ("qwen2", Grid(1, 1, 2))])
def test_models_of_gguf_come_back(
    name: str,
    grid: Grid,
    option: str,
    dtype: str,
    family: Callable[[str], Made],
    converted: Callable[..., Path],
    tmp_path: Path,
) -> None:
    own = converted(family(name).bf16, f"{name}-{dtype}.gguf", option, dtype)
    tp = 1 if dtype == "q4_k_m" else 2  # of its rows a head is less than a block
    whole = put_back(own, tmp_path, grid._replace(tp=tp))
    assert contents_of(whole) == contents_of(own)
    assert open_weights(whole).metadata == open_weights(own).metadata
