"""Tensors of pickled modules and optimizers have the names of their `state_dict()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torch import fx, nn

from lazy import torch
from torch_checkpoints import FORMS, assert_same, here, look, saved

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:Couldn't retrieve source code"),
]


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size, bias=False)
        self.norm = nn.BatchNorm1d(size)
        self.register_buffer("kept", torch.arange(3))
        self.register_buffer("scratch", torch.arange(4), persistent=False)
        self.register_parameter("nothing", None)
        self.register_buffer("no buffer", None)
        self.cache = {"tensor": torch.ones(7)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(3) for _ in range(2))
        self.shared = self.blocks[1]
        self.table = nn.ParameterDict({"a": torch.randn(2), "b": torch.randn(3)})
        self.items = nn.ParameterList([torch.randn(1), torch.randn(2)])
        self.rnn = nn.LSTM(3, 2)
        self.attention = nn.MultiheadAttention(4, 2)
        self.head = nn.Linear(3, 3)
        self.head.weight = self.blocks[0].linear.weight


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("protocol", range(6))
def test_a_whole_module_has_the_names_of_its_state_dict(
    tmp_path: Path, form: str, protocol: int
) -> None:
    net = Net()
    weights = saved(tmp_path / "net.pt", net, form, pickle_protocol=protocol)
    assert_same(weights, net.state_dict())
    assert look(weights, "") == (here(Net), "")
    assert look(weights, "blocks.0") == (here(Block), "")
    assert here(Net) in weights.header.notes[0]


def test_a_whole_module_stands_below_its_name_in_a_checkpoint(tmp_path: Path) -> None:
    net = Net()
    averaged = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    weights = saved(tmp_path / "net.pt", {"model": net, "ema": averaged, "epoch": 1})
    expected = {f"model.{name}": tensor for name, tensor in net.state_dict().items()}
    expected |= {f"ema.{name}": tensor for name, tensor in averaged.state_dict().items()}
    assert_same(weights, expected)
    assert weights.metadata["epoch"].content == 1


def test_an_fx_graph_module_has_the_names_of_its_state_dict(tmp_path: Path) -> None:
    traced = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.BatchNorm1d(2)))
    weights = saved(tmp_path / "graph.pt", traced)
    assert_same(weights, traced.state_dict())
    weights = saved(tmp_path / "graph.pt", {"model": traced})
    assert_same(weights, {f"model.{name}": each for name, each in traced.state_dict().items()})


def test_a_whole_optimizer_and_its_schedule_are_read(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    weights = saved(tmp_path / "optimizer.pt", {"optimizer": optimizer, "model": model})
    shapes = sorted(info.shape for info in weights.header.tensors.values())
    # Two parameters, and for each of them two averages and a step.
    assert shapes == [(), (), (2,), (2,), (2,), (2, 3), (2, 3), (2, 3)]
    assert weights.header.aliases["model.weight"] == "optimizer.param_groups.0.params.0"
    weights = saved(tmp_path / "schedule.pt", schedule.state_dict())
    assert weights.metadata["step_size"].content == 10
