"""The weights of training checkpoints, without the training state that is stored with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from conftest import ROOT
from lazy import torch
from weightctl import convert, open_weights
from weightctl.errors import ConversionError
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

TRAINING = ROOT / "fixtures" / "training.pt"
STATE = {"model.0.weight": torch.ones(4, 3), "model.0.bias": torch.ones(4)}
COUNTED = STATE | {"model.1.num_batches_tracked": torch.tensor(7)}


def kept(
    tmp_path: Path, content: Any, suffix: str = ".safetensors"
) -> tuple[list[str], dict[str, Any]]:
    """Return the names and the metadata that are kept of a checkpoint that torch writes."""
    source, out = tmp_path / "in.ckpt", tmp_path / f"out{suffix}"
    torch.save(content, source)
    convert(source, out, weights_only=True, force=True)
    header = header_of(open_weights(out))
    return [*header.tensors], {key: value.content for key, value in header.metadata.items()}


def optimizer_state() -> dict[str, Any]:
    """Return the state of AdamW after a step."""
    weight = torch.nn.Parameter(torch.ones(4, 3))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def lightning() -> dict[str, Any]:
    """Return a checkpoint as Lightning writes it."""
    return {
        "epoch": 3,
        "global_step": 30,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": COUNTED,
        "loops": {"fit_loop": {"state_dict": {}, "total": torch.tensor(2)}},
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.3)}},
        "optimizer_states": [optimizer_state()],
        "lr_schedulers": [{"last_epoch": 3}],
        "hyper_parameters": {"lr": 1e-3, "layers": [1, 2]},
    }


def test_a_training_checkpoint_keeps_its_model_under_the_names_of_its_state_dict(
    tmp_path: Path,
) -> None:
    convert(TRAINING, tmp_path / "out.safetensors", weights_only=True)
    made = open_weights(tmp_path / "out.safetensors")
    assert list(made.header.tensors) == [
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
        "1.num_batches_tracked", "2.weight", "2.bias",
    ]  # fmt: skip
    assert {key: value.content for key, value in made.metadata.items()} == {"format": "pt"}
    stored = open_weights(TRAINING)
    assert np.array_equal(made["2.weight"].data(), stored["model.2.weight"].data())


def test_torch_loads_the_result_as_a_state_dict(tmp_path: Path) -> None:
    convert(TRAINING, tmp_path / "out.pt", weights_only=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4)
    )
    model.load_state_dict(torch.load(tmp_path / "out.pt", weights_only=True))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_lightning_checkpoint_keeps_the_names_of_the_module(tmp_path: Path, suffix: str) -> None:
    names, metadata = kept(tmp_path, lightning(), suffix)
    assert names == [*COUNTED]
    assert metadata.keys() <= {"format"}


def test_rules_of_names_apply_to_what_is_left(tmp_path: Path) -> None:
    torch.save(lightning(), tmp_path / "in.ckpt")
    out = tmp_path / "out.safetensors"
    convert(tmp_path / "in.ckpt", out, weights_only=True, rename=r"^model\.=", include="0.*")
    assert [*open_weights(out).header.tensors] == ["0.weight", "0.bias"]


def test_the_notes_list_what_is_left_out(tmp_path: Path) -> None:
    torch.save(lightning(), tmp_path / "in.ckpt")
    planned = convert(tmp_path / "in.ckpt", tmp_path / "out.gguf", weights_only=True, dry_run=True)
    left_out, entry, *_ = planned.notes
    assert left_out.startswith("training state is left out: 5 tensors (`loops.fit_loop.total`")
    assert "values (`epoch`, `global_step`, `pytorch-lightning_version`, ...)" in left_out
    assert entry.startswith("the prefix `state_dict.` is removed from tensor names, because")


def test_several_models_keep_the_names_of_their_entries(tmp_path: Path) -> None:
    content = {
        "generator": STATE,
        "discriminator": {"weight": torch.zeros(2, 2)},
        "generator_optimizer": optimizer_state(),
        "optimizerD": optimizer_state(),
        "best_loss": torch.tensor(0.5),
        "rng_state": torch.get_rng_state(),
        "cuda_rng_states": [torch.get_rng_state()],
    }
    names, metadata = kept(tmp_path, content)
    assert names == [*(f"generator.{name}" for name in STATE), "discriminator.weight"]
    assert json.loads(metadata["pytorch.levels"]) == {"generator": "dict", "discriminator": "dict"}


def test_a_tensor_that_training_shares_with_the_model_stays(tmp_path: Path) -> None:
    weight = torch.ones(4, 3)
    names, _ = kept(
        tmp_path, {"optimizer": {"master": [weight]}, "model": {"a.weight": weight, "b": weight}}
    )
    assert names == ["a.weight"]
    assert open_weights(tmp_path / "out.safetensors").header.aliases == {"b": "a.weight"}


def test_a_state_dict_without_entries_keeps_all_of_it(tmp_path: Path) -> None:
    state = {"optimal.weight": torch.ones(2, 2), "rng": torch.ones(2), "scale": torch.tensor(1.0)}
    assert kept(tmp_path, state)[0] == [*state]


def test_metadata_of_gguf_stays(tiny_llama: Path, tmp_path: Path) -> None:
    convert(tiny_llama, tmp_path / "a.gguf")
    convert(tmp_path / "a.gguf", tmp_path / "b.gguf", weights_only=True)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_a_checkpoint_of_nothing_but_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="all tensors are training state") as caught:
        kept(tmp_path, {"optimizer": optimizer_state(), "epoch": 3})
    assert "--weights-only (weights_only=True in Python)" in caught.value.hint


def test_a_part_of_a_tree_and_a_plan_are_refused(tmp_path: Path) -> None:
    training = open_weights(TRAINING)
    with pytest.raises(ConversionError, match="weights_only works only on a whole checkpoint"):
        convert(training.model, tmp_path / "out.safetensors", weights_only=True)


def test_the_command_says_what_it_leaves_out(weightctl: Run, tmp_path: Path) -> None:
    done = weightctl("convert", TRAINING, tmp_path / "o.pt", "--weights-only", "-n")
    assert done.returncode == 0
    assert "training state is left out: 18 tensors" in " ".join(done.stderr.split())
    assert "optimizer" not in done.stdout
