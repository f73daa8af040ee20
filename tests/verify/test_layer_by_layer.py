"""A model that runs one part at a time has the same output as the whole model."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import cache
from threading import enumerate as list_threads
from typing import Any

import numpy as np
import pytest

import small_models
from weightctl import WeightData
from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.engine import InferenceSession
from weightctl.errors import ArchitectureError, EngineError, GraphError
from weightctl.nn.models import build_network
from weightctl.verify.checks.forward.walk import LayerAhead
from weightctl.verify.run.parts import Running
from weightctl.weights.derived import tensor_of
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.info import TensorInfo
from weightctl.weights.steps.numbers import numbers_of

FAMILIES = (
    "llama", "gpt2", "bert", "qwen2", "qwen3", "phi3", "mixtral", "qwen3moe", "gemma2", "gemma3",
)  # fmt: skip
IDS = small_models.tokens_below(96, 3, 20)
MASK = np.ones(IDS.shape, np.bool_)
MASK[1, 15:] = False


@cache
def checkpoint(family: str) -> Any:
    return small_models.checkpoint(getattr(small_models, family)())


def in_parts(running: Running, **replaced: Any) -> np.ndarray[Any, Any]:
    flow = running.begin(IDS, MASK, replaced)
    x = flow.x
    for number in range(running.layers):
        x = running.layer(number, x, flow.beside, replaced)
    return running.end(x, replaced)


def whole(of: Any) -> np.ndarray[Any, Any]:
    network = build_network(of)
    given = [IDS, MASK.astype(np.int64)][: len(network.INPUTS)]
    (found,) = InferenceSession().load(network.graph(), of.weights).execute(*given)
    return found.to_numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_in_turn_give_what_the_whole_graph_gives_to_the_bit(family: str) -> None:
    found = in_parts(Running(checkpoint(family)))
    assert found.tobytes() == whole(checkpoint(family)).tobytes()


def test_layers_that_run_in_advance_have_the_same_outputs() -> None:
    running = Running(checkpoint("llama"))
    flow = running.begin(IDS, MASK)
    x = wanted = flow.x
    with closing(LayerAhead(running, running.layers - 1)) as ahead:
        for number in range(running.layers):
            x = ahead.take(number, x, flow.beside)
            wanted = running.layer(number, wanted, flow.beside)
            assert x.tobytes() == wanted.tobytes()
    assert not any("weightctl-layer" in thread.name for thread in list_threads())


def test_an_error_of_a_layer_in_advance_is_raised_when_its_output_is_taken() -> None:
    running = Running(checkpoint("llama"))
    flow = running.begin(IDS, MASK)
    with closing(LayerAhead(running, running.layers)) as ahead:
        x = flow.x
        for number in range(running.layers):
            x = ahead.take(number, x, flow.beside)
        with pytest.raises(IndexError):
            ahead.take(running.layers, x, flow.beside)


@pytest.mark.parametrize("family", ["llama", "bert", "gemma3"])
def test_a_layer_takes_several_streams_of_the_windows_at_once(family: str) -> None:
    running = Running(checkpoint(family))
    flow = running.begin(IDS, MASK)
    other = np.random.default_rng(1).standard_normal(flow.x.shape, np.float32)
    both = running.layer(1, np.concatenate([flow.x, other]), flow.beside)
    alone = [running.layer(1, x, flow.beside) for x in (flow.x, other)]
    assert np.abs(both - np.concatenate(alone)).max() < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_together_need_all_the_weights(family: str) -> None:
    running = Running(checkpoint(family))
    parts = ["embedding", *(f"layers.{n}" for n in range(running.layers)), "output"]
    needed = {name for part in parts for name in running.weights_of(part)}
    assert needed == set(checkpoint(family).tensors)


def test_a_part_s_name_is_not_a_beginning_of_another_s() -> None:
    running = Running(small_models.checkpoint(small_models.llama(num_hidden_layers=11)))
    assert all(name.startswith("layers.1.") for name in running.weights_of("layers.1"))


def test_an_encoder_gives_states_and_all_else_logits() -> None:
    assert not Running(checkpoint("bert")).has_logits
    assert Running(checkpoint("llama")).has_logits
    assert Running(checkpoint("llama")).vocabulary == 96


def test_arrays_stand_in_for_tensors_and_are_gone_afterwards() -> None:
    running = Running(checkpoint("llama"))
    before = in_parts(running)
    name = "layers.1.mlp.down.weight"
    zeros = np.zeros(running.checkpoint.tensors[name].info.shape, np.float16)
    changed = in_parts(running, **{name: zeros})
    assert np.abs(changed - before).max() > 1e-3
    assert in_parts(running).tobytes() == before.tobytes()


def test_tensors_of_another_encoding_stand_in_for_stored_ones() -> None:
    running = Running(checkpoint("llama"))
    name, encoding = "layers.0.mlp.up.weight", ENCODINGS["Q8_0"]
    numbers = numbers_of(running.checkpoint.tensors[name])
    info = TensorInfo(name, numbers.shape, encoding)
    blocks = transcode(numbers.view(np.uint8), ENCODINGS["F32"], encoding).raw
    held = as_checkpoint({name: WeightData.stored(info, memoryview(blocks.tobytes()))})
    changed = in_parts(running, **{name: tensor_of(held.source, name)})
    assert 0 < np.abs(changed - in_parts(running)).max() < 0.1


def test_what_does_not_fit_is_refused() -> None:
    running = Running(checkpoint("llama"))
    with pytest.raises(GraphError):
        in_parts(running, **{"layers.0.mlp.up.weight": np.zeros((3, 3), np.float32)})


def test_tokens_that_the_model_does_not_know_are_refused() -> None:
    with pytest.raises(EngineError):
        Running(checkpoint("llama")).begin(IDS + 96, MASK)


def test_a_checkpoint_that_is_not_a_whole_model_is_refused() -> None:
    lacking = replace(checkpoint("llama"), missing=["norm.weight"])
    with pytest.raises(ArchitectureError, match=r"norm\.weight"):
        Running(lacking)
