"""No payload passes a scan, in any container or compression, with any trick, two levels deep."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from payloads import CONTAINERS, TRICKS, ran
from weightctl.formats.scanning import scan_file
from weightctl.storage.location import open_reader

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("a.bin", "a.pt", "a.joblib", "a", "a.txt")


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: object) -> object:
        return pid


def is_clean(path: Path, raw: bytes) -> bool:
    path.write_bytes(raw)
    return not any(
        each.names.problem or not all(map(each.is_known, (name.path for name in each.names.named)))
        for each in scan_file(open_reader(str(path)))
    )


@pytest.mark.parametrize("outer", CONTAINERS)
def test_no_two_containers_hide_a_payload(outer: str, tmp_path: Path) -> None:
    for inner in CONTAINERS:
        raw = CONTAINERS[inner].wrap(TRICKS["a call"])
        assert not is_clean(tmp_path / "a", CONTAINERS[outer].wrap(raw)), inner


@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    trick=st.sampled_from([*TRICKS]),
    layers=st.lists(st.sampled_from([*CONTAINERS]), max_size=2),
    name=st.sampled_from(NAMES),
)
def test_no_trick_passes_in_any_layers(
    trick: str, layers: list[str], name: str, tmp_path: Path
) -> None:
    raw = TRICKS[trick]
    for layer in layers:
        raw = CONTAINERS[layer].wrap(raw)
    unwrapped = raw
    for layer in reversed(layers):
        unwrapped = CONTAINERS[layer].unwrap(unwrapped)
    assert ran(lambda: _Unpickler(io.BytesIO(unwrapped)).load())
    assert not is_clean(tmp_path / name, raw)
