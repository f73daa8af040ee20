"""Streams are read as torch reads them."""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pytest
from torch import nn

from lazy import torch
from payloads import Entry, data, mapping, storage, text, torch_zip, whole
from payloads import tensor as tensor_over
from torch_checkpoints import PROTOCOLS, assert_same, saved
from weightctl import open_weights
from weightctl.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")


def test_numbers_of_a_stream_are_where_it_says_however_many_storages_there_are(
    tmp_path: Path,
) -> None:
    tensors = {str(n): torch.full((n % 7,), n, dtype=torch.int16) for n in range(300)}
    assert_same(saved(tmp_path / "many.pt", tensors, "stream"), tensors)


def test_a_stream_with_views_of_storages_as_torch_0_3_wrote_them_is_read(tmp_path: Path) -> None:
    """A storage that is a part of another was written with its offset there."""
    whole = torch.arange(10.0)
    stream = io.BytesIO()
    pickle.dump(0x1950A86A20F9469CFC6C, stream, 2)
    pickle.dump(1001, stream, 2)
    pickle.dump({"little_endian": True}, stream, 2)

    class View:
        def __init__(self, count: int, view: Any) -> None:
            self.identity = ("storage", torch.FloatStorage, "77", "cpu", 10, view)
            self.count = count

        def __reduce__(self) -> Any:
            arguments = (Stored(self.identity), 0, (self.count,), (1,), False, OrderedDict())
            return torch._utils._rebuild_tensor_v2, arguments

    class Stored:
        def __init__(self, identity: Any) -> None:
            self.identity = identity

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return value.identity if isinstance(value, Stored) else None

    Pickler(stream, 2).dump({"whole": View(10, None), "part": View(4, ("78", 3, 4))})
    pickle.dump(["77"], stream, 2)
    stream.write(struct.pack("<q", 10) + whole.numpy().tobytes())
    (tmp_path / "old.pt").write_bytes(stream.getvalue())
    expected = torch.load(tmp_path / "old.pt", weights_only=True)
    assert torch.equal(expected["part"], whole[3:7])
    assert_same(open_weights(tmp_path / "old.pt"), expected)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_a_stream_that_holds_the_classes_of_its_modules_is_read(
    tmp_path: Path, protocol: int
) -> None:
    net = Net()
    weights = saved(tmp_path / "net.pt", net, "stream", pickle_protocol=protocol)
    assert_same(weights, net.state_dict())


# A storage with two descriptions.


def zip_of_two(first: bytes, second: bytes, *members: Entry) -> bytes:
    """Return a zip file whose object is two tensors over storages."""
    return torch_zip(
        whole(mapping(text("a") + tensor_over(first), text("b") + tensor_over(second))),
        data(),
        *members,
    )


@pytest.mark.parametrize("kind", ["torch.HalfStorage", "torch.IntStorage", "torch.LongStorage"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_storage_of_a_zip_with_two_dtypes_is_refused(
    tmp_path: Path, kind: str, *, is_first: bool
) -> None:
    pair = (storage(kind=kind), storage())
    path = tmp_path / "a.pt"
    path.write_bytes(zip_of_two(*(pair if is_first else pair[::-1])))
    with pytest.raises(
        FormatError, match="storage 0 has two different descriptions: 4 elements of"
    ):
        open_weights(path)


def test_a_storage_of_a_zip_that_two_tensors_share_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(zip_of_two(storage(), storage()))
    assert open_weights(path).header.aliases == {"b": "a"}


def test_in_torchscript_each_tensor_says_what_its_storage_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    code = Entry("m/code/__torch__.py", b"")
    path.write_bytes(zip_of_two(storage(), storage(kind="torch.IntStorage"), code))
    tensors = open_weights(path).header.tensors
    assert [info.encoding.name for info in tensors.values()] == ["F32", "I32"]
