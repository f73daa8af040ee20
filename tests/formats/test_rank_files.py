"""Checkpoints of DeepSpeed and Megatron are read from the files of their ranks.

The files are made here by the definition of their layout: neither library runs without a GPU.
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil
from typing import TYPE_CHECKING, Any

import pytest
from torch.nn import functional

from distributed_files import raw, read_all
from lazy import torch
from weightctl import convert, open_weights
from weightctl.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path

WORLD = 3
# Two groups; no size is a multiple of the number of ranks.
GROUPS = [
    OrderedDict({"layer.0.weight": (5, 4), "layer.1.weight": (7,)}),
    OrderedDict({"norm.weight": (), "head.weight": (2, 3, 2)}),
]


def parameters() -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return {name: torch.randn(shape) for group in GROUPS for name, shape in group.items()}


def pieces_of_group(group: dict[str, Any], tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the parts of a group in stages 1 and 2, which are padded to equal sizes."""
    flat = torch.cat([tensors[name].reshape(-1) for name in group])
    size = ceil(len(flat) / (2 * WORLD)) * 2
    return list(functional.pad(flat, (0, size * WORLD - len(flat))).split(size))


def piece_of_rank(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the part of a parameter in stage 3."""
    flat = tensor.reshape(-1)
    size = ceil(len(flat) / WORLD)
    padded = functional.pad(flat, (0, size * WORLD - len(flat)))
    return padded[rank * size : (rank + 1) * size]


def write(folder: Path, stage: int) -> dict[str, torch.Tensor]:
    """Write a checkpoint of a stage; return its tensors."""
    folder.mkdir(parents=True)
    tensors = parameters()
    buffer, frozen = torch.arange(3), torch.randn(4, 2).bfloat16()
    shapes = [
        OrderedDict((name, torch.Size(shape)) for name, shape in group.items()) for group in GROUPS
    ]
    for rank in range(WORLD):
        if stage == 3:
            key = "fp32_flat_groups"
            groups = [
                torch.cat([piece_of_rank(tensors[name], rank) for name in group])
                for group in GROUPS
            ]
        else:
            key = "single_partition_of_fp32_groups"
            groups = [pieces_of_group(group, tensors)[rank].clone() for group in GROUPS]
        state = {
            "zero_stage": stage,
            "partition_count": WORLD if stage == 3 else [WORLD, WORLD],
            key: groups,
        }
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": state, "ds_version": "0.17"}, folder / name)
        model = {
            "module": {"steps": buffer, "layer.0.weight": torch.zeros(5, 4)},
            "buffer_names": ["steps"],
            "param_shapes": shapes,
            "frozen_param_shapes": OrderedDict({"frozen": torch.Size((4, 2))}),
            "frozen_param_fragments": {"frozen": frozen if stage < 3
                                       else piece_of_rank(frozen, rank).clone()},
            "shared_params": {"tied.weight": "head.weight"},
            "ds_version": "0.17",
        }  # fmt: skip
        if stage == 3:
            torch.save(model, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        elif rank == 0:
            torch.save(model, folder / "mp_rank_00_model_states.pt")
    return {**tensors, "steps": buffer, "frozen": frozen}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_parameters_of_each_stage_are_assembled(stage: int, tmp_path: Path) -> None:
    expected = write(tmp_path / "global_step7", stage)
    (tmp_path / "latest").write_text("global_step7")
    tree = open_weights(tmp_path)
    assert read_all(tree) == {
        name: (tuple(tensor.shape), raw(tensor)) for name, tensor in expected.items()
    }
    assert tree.header.aliases == {"tied.weight": "head.weight"}
    convert(tmp_path, tmp_path / "out.safetensors")
    converted = open_weights(tmp_path / "out.safetensors")
    assert read_all(converted) == read_all(tree)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("zero_pp_rank_1_mp_rank_00_optim_states.pt", "the file of rank 1 is missing"),
        ("zero_pp_rank_2_mp_rank_00_optim_states.pt", "the files of 2 ranks, and 3 ranks wrote it"),
        ("zero_pp_rank_2_mp_rank_00_model_states.pt", "No such file"),
    ],
)
def test_missing_files_are_named(name: str, reason: str, tmp_path: Path) -> None:
    write(tmp_path / "in", 3)
    (tmp_path / "in" / name).unlink()
    with pytest.raises(FormatError, match=reason):
        open_weights(tmp_path / "in")


def test_partitions_that_are_too_small_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", 2)
    path = tmp_path / "in" / "zero_pp_rank_2_mp_rank_00_optim_states.pt"
    saved = torch.load(path)
    groups = saved["optimizer_state_dict"]["single_partition_of_fp32_groups"]
    groups[0] = groups[0][:1].clone()
    torch.save(saved, path)
    with pytest.raises(FormatError, match=r"`layer.1.weight`: the files have 4 of its 28 bytes"):
        open_weights(tmp_path / "in")


@pytest.mark.parametrize("shape", [5, "5", [5, -4], [1 << 40, 1 << 40]])
def test_what_is_not_the_shape_of_a_parameter_is_refused(shape: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", 2)
    path = tmp_path / "in" / "mp_rank_00_model_states.pt"
    saved = torch.load(path)
    saved["param_shapes"][1]["head.weight"] = shape
    torch.save(saved, path)
    with pytest.raises(FormatError, match=r"head\.weight` is not the shape of a parameter"):
        open_weights(tmp_path / "in")


def test_a_checkpoint_of_tensor_parallel_ranks_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", 1)
    source = tmp_path / "in" / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    source.rename(tmp_path / "in" / "zero_pp_rank_0_mp_rank_01_optim_states.pt")
    with pytest.raises(FormatError, match="the model was divided among ranks before ZeRO"):
        open_weights(tmp_path / "in")


def test_the_ranks_of_megatron_are_listed_under_their_names(tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("12\n")
    for rank in ("mp_rank_00", "mp_rank_01"):
        folder = tmp_path / "iter_0000012" / rank
        folder.mkdir(parents=True)
        torch.save({"model": {"a": torch.ones(2)}, "iteration": 12}, folder / "model_optim_rng.pt")
    header = open_weights(tmp_path).header
    assert [*header.tensors] == ["mp_rank_00.model.a", "mp_rank_01.model.a"]
    assert "they are not joined" in header.notes[0]


def test_a_directory_of_orbax_without_metadata_is_called_what_it_is(tmp_path: Path) -> None:
    for name in ("_CHECKPOINT_METADATA", "manifest.ocdbt"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(FormatError, match="it contains an Orbax checkpoint of JAX") as raised:
        open_weights(tmp_path)
    assert "tensorstore" in raised.value.hint
