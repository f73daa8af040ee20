"""A conversion that fails on its way leaves the old output, and nothing of its own."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import weights_of
from old_outputs import EACH_KIND, old_output, untouched
from outcomes import random_weights
from weightctl import Plan
from weightctl.errors import ConversionError
from weightctl.store import save

if TYPE_CHECKING:
    from pathlib import Path

    from outcomes import Kind

# So little that a conversion of a few megabytes reads and writes in several pieces.
LITTLE = 4_000_000


def stop(_: int) -> None:
    raise RuntimeError("the caller has seen enough")


@EACH_KIND
def test_a_number_that_cannot_be_converted_leaves_the_old_output(
    kind: Kind, tmp_path: Path
) -> None:
    old_output(kind, tmp_path, tensors=2)
    rows = np.ones((1024, 1024), np.float32)
    damaged = rows.copy()
    damaged[-1, -1] = np.nan
    arrays = {"layers.0.weight": rows, "layers.1.weight": damaged}
    blocks = kind._replace(encoding="Q8_0", name="out.gguf")
    plan, where = blocks.plan(weights_of(arrays), tmp_path)
    named = r"`layers\.1\.weight` has nan at element 1048575"
    with untouched(tmp_path), pytest.raises(ConversionError, match=named):
        save(plan, where, force=True, memory=LITTLE)


@EACH_KIND
def test_an_error_of_the_callers_own_leaves_the_old_output(kind: Kind, tmp_path: Path) -> None:
    old_output(kind, tmp_path, tensors=2)
    plan, where = kind.plan(random_weights(2, 64), tmp_path)
    with untouched(tmp_path), pytest.raises(RuntimeError, match="seen enough"):
        save(plan, where, force=True, progress=stop)


@EACH_KIND
def test_no_thread_and_no_open_file_outlives_a_conversion_that_fails(
    kind: Kind, tmp_path: Path
) -> None:
    plan, where = kind.plan(random_weights(4, 512), tmp_path)
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeError, match="seen enough"):
        save(plan, where, memory=LITTLE, progress=stop)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_tensor_that_comes_out_short_is_no_output(tmp_path: Path) -> None:
    plan = Plan.copy(random_weights(1), "gguf")
    item = plan.items[0]
    longer = item.info._replace(shape=(512, 1024))
    plan = plan.with_items((item.__class__(longer, item.source),))
    with pytest.raises(ConversionError, match="came out as 1048576 bytes, where 2097152 belong"):
        save(plan, tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == []


@EACH_KIND
def test_names_that_collide_are_refused_before_anything_is_written(
    kind: Kind, tmp_path: Path
) -> None:
    plan, where = kind.plan(random_weights(3, 8), tmp_path)
    save(plan, where)
    same = plan.items[0].info.name
    items = (plan.items[0], *(replace(i, info=i.info._replace(name=same)) for i in plan.items[1:]))
    collision = pytest.raises(ConversionError, match=rf"3 tensors would be called `{same}`")
    with untouched(tmp_path), collision:
        save(plan.with_items(items), where, force=True)
