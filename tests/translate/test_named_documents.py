"""Checkpoints of training programs, with the config and the tokenizer of another directory."""

from __future__ import annotations

import shutil
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.torch import load_file

from commands import TINY
from commands import run_command as weightctl
from each import each
from lazy import torch
from weightctl import convert, open_weights
from weightctl.errors import ArchitectureError, ArgumentTypeError, ConversionError
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.fixture(scope="module")
def state() -> Mapping[str, Any]:
    """Return the weights of the tiny llama, by name."""
    return load_file(TINY / "model.safetensors")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the GGUF of the model itself."""
    out = tmp_path_factory.mktemp("expected") / "out.gguf"
    convert(TINY, out)
    return out.read_bytes()


def with_prefix(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def list_moments(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of an optimizer, as FSDP names it."""
    return {name: {"step": torch.ones(()), "exp_avg": tensor} for name, tensor in state.items()}


# What each program saves, and what is removed from the names of its tensors.
PROGRAMS = {
    "a state dict": (dict, ""),
    "Lightning": (
        lambda state: {
            "epoch": 3,
            "state_dict": with_prefix("model.", state),
            "optimizer_states": [{"state": list_moments(state), "param_groups": [{"lr": 1e-3}]}],
        },
        "`model.`",
    ),
    "DDP of a compiled model": (
        lambda state: with_prefix("module._orig_mod.", state),
        "`module.`, `_orig_mod.`",
    ),
    "checkpoints of activations": (
        lambda state: {
            name.replace("layers.1.", "layers.1._checkpoint_wrapped_module."): tensor
            for name, tensor in state.items()
        },
        "`_checkpoint_wrapped_module.`",
    ),
    "a training script": (
        lambda state: {
            "model": with_prefix("module.", state),
            "optimizer": {"state": {}},
            "step": 5,
        },
        "`module.`",
    ),
}


@each("program", PROGRAMS)
def test_a_training_checkpoint_becomes_the_gguf_of_its_model(
    program: str, state: Mapping[str, Any], expected: bytes, tmp_path: Path
) -> None:
    content, removed = PROGRAMS[program]
    torch.save(content(state), tmp_path / "in.ckpt")
    made = convert(tmp_path / "in.ckpt", tmp_path / "out.gguf", config=TINY)
    assert (tmp_path / "out.gguf").read_bytes() == expected
    notes = "\n".join(made.notes)
    assert (f"removed from the names of tensors: {removed}" in notes) == bool(removed)
    assert ("training state is left out: 60 tensors" in notes) == (program == "Lightning")


def test_a_checkpoint_of_fsdp_becomes_a_model_directory(
    state: Mapping[str, Any], tmp_path: Path
) -> None:
    content = {"app": {"model": dict(state), "optim": {"state": list_moments(state)}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that there is only one process
        from torch.distributed import checkpoint

        checkpoint.save(content, checkpoint_id=tmp_path / "fsdp", no_dist=True)
    refused = weightctl("convert", tmp_path / "fsdp", tmp_path / "out.gguf")
    assert "name the directory of the model with --config DIR" in refused.stderr
    done = weightctl(
        "convert", tmp_path / "fsdp", tmp_path / "out", "--config", TINY / "config.json"
    )
    assert done.returncode == 0, done.stderr
    assert "training state is left out: 60 tensors" in done.stderr
    assert "removed from the names of tensors: `app.model.`" in done.stderr
    beside = {path.name for path in TINY.iterdir() if path.suffix == ".json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} >= beside
    assert [*open_weights(tmp_path / "out").header.tensors] == [*open_weights(TINY).header.tensors]


def test_tensors_in_memory_get_the_config_and_the_tokenizer_of_two_directories(
    state: Mapping[str, Any], expected: bytes, tmp_path: Path
) -> None:
    config, tokenizer = tmp_path / "tiny-llama", tmp_path / "tokenizer"
    for directory, pattern in ((config, "*config.json"), (tokenizer, "token*")):
        directory.mkdir()
        for path in TINY.glob(pattern):
            if path.name.startswith("token") == (directory == tokenizer):
                shutil.copy(path, directory)
    given = {"config": config, "tokenizer": tokenizer / "tokenizer.json"}
    convert(dict(state), tmp_path / "out.gguf", **given)
    assert (tmp_path / "out.gguf").read_bytes() == expected
    convert(dict(state), tmp_path / "out", **given)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "model.safetensors",
        *(path.name for directory in (config, tokenizer) for path in directory.iterdir()),
    }


def test_a_state_dict_without_a_config_does_not_become_a_gguf(
    state: Mapping[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConversionError, match=r"no config\.json states its family") as caught:
        convert(dict(state), tmp_path / "out.gguf")
    assert "config in Python" in caught.value.hint
    given: Any = object()
    with pytest.raises(ArgumentTypeError, match="tokenizer is a path, not a object") as refused:
        convert(dict(state), tmp_path / "out.gguf", config=TINY, tokenizer=given)
    assert "weightctl.to_gguf" in refused.value.hint
    assert [*tmp_path.iterdir()] == []


def test_tensors_beside_the_model_are_an_error_that_names_only_them(
    state: Mapping[str, Any], expected: bytes, tmp_path: Path
) -> None:
    content = with_prefix("net.", state) | {"loss.weight": torch.ones(3)}
    out = tmp_path / "out.gguf"
    with pytest.raises(ArchitectureError, match=r"\n  `loss\.weight` is not a part") as caught:
        convert(content, out, config=TINY)
    assert "--exclude" in caught.value.hint
    convert(content, out, config=TINY, exclude="loss.*")
    assert out.read_bytes() == expected


REFUSED = {
    "--config empty": "is not a directory with config.json, or such a file",
    "--config missing": "is not a directory with config.json, or such a file",
    "--tokenizer empty": "is not a directory with tokenizer.json",
    "--config empty/other.json": "is not a directory with config.json, or such a file",
}


@each("options", REFUSED)
def test_a_directory_without_the_file_is_refused(
    options: str, state: Mapping[str, Any], tmp_path: Path
) -> None:
    torch.save(dict(state), tmp_path / "in.pt")
    (tmp_path / "empty").mkdir(exist_ok=True)
    (tmp_path / "empty" / "other.json").write_text("{}")
    option, name = options.split()
    done = weightctl("convert", tmp_path / "in.pt", tmp_path / "out.gguf", option, tmp_path / name)
    assert (done.returncode, REFUSED[options] in done.stderr) == (2, True)


def test_a_gguf_file_states_its_own_config(tmp_path: Path) -> None:
    convert(TINY, tmp_path / "in.gguf")
    with pytest.raises(ConversionError, match="the input states its own config and tokenizer"):
        convert(tmp_path / "in.gguf", tmp_path / "out", config=TINY)


def test_a_config_that_is_named_replaces_the_one_beside_the_files(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    (model / "config.json").write_text("{}")
    convert(model, tmp_path / "out.gguf", config=TINY)
    assert (
        header_of(open_weights(tmp_path / "out.gguf")).metadata["general.architecture"].content
        == "llama"
    )
