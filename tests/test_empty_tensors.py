"""Tensors without elements work in every command, in every format."""

from __future__ import annotations

import json
import os
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

from build import F32, I32, Gguf, Tensor, safetensors_of
from each import each, usual
from lazy import torch
from weightctl.cli import app
from weightctl.dtype.types import ENCODINGS
from weightctl.errors import ShardingError
from weightctl.plan.type_names import block_types
from weightctl.sharding.plan_file import STRATEGIES

if TYPE_CHECKING:
    from pathlib import Path

Stored = tuple[str, tuple[int, ...], bytes]

EMPTY: dict[str, Stored] = {
    "vector": ("F32", (0,), b""),
    "no_rows": ("F32", (0, 32), b""),
    "no_columns": ("F32", (32, 0), b""),
    "stack": ("F32", (3, 0, 5), b""),
    "whole_blocks.weight": ("F32", (0, 256), b""),
    "integers": ("I32", (0, 32), b""),
}
FULL: dict[str, Stored] = {
    "matrix.weight": ("F32", (8, 256), np.arange(2048, dtype=np.float32).tobytes()),
    "bias": ("F32", (4,), np.ones(4, np.float32).tobytes()),
}
FORMATS = ("safetensors", "gguf", "pt", "stream.pt")
MIXED = {"some": EMPTY | FULL, "all": EMPTY, **{name: {name: EMPTY[name]} for name in EMPTY}}


def written(path: Path, tensors: dict[str, Stored]) -> Path:
    """Write tensors in the format of a path's suffix."""
    if path.suffix == ".safetensors":
        path.write_bytes(safetensors_of(tensors))
    elif path.suffix == ".gguf":
        kinds = {"F32": F32, "I32": I32}
        path.write_bytes(
            Gguf().file(
                Tensor(name, shape, kinds[dtype], raw)
                for name, (dtype, shape, raw) in tensors.items()
            )
        )
    else:
        kinds = {"F32": np.float32, "I32": np.int32}
        state = {
            name: torch.from_numpy(np.frombuffer(raw, kinds[dtype]).reshape(shape).copy())
            for name, (dtype, shape, raw) in tensors.items()
        }
        is_zip = not path.name.endswith(".stream.pt")
        torch.save(state, path, _use_new_zipfile_serialization=is_zip)
    return path


def ran(*arguments: str | Path) -> str:
    """Run a command that must succeed; return its output."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"{arguments}: {done.exception}") from done.exception
    assert done.exit_code == 0, (arguments, done.output)
    return done.stdout


@pytest.fixture(params=FORMATS)
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A checkpoint with empty and ordinary tensors, in each format."""
    return written(tmp_path / f"a.{request.param}", EMPTY | FULL)


@each(
    "options", ["", "--flat", "-l", "--hash", "--json --hash", "--meta", "--sort size", "--depth 1"]
)
def test_they_are_listed(path: Path, options: str) -> None:
    assert ran("ls", path, *options.split())


def test_they_are_compared_with_every_other_format(path: Path, tmp_path: Path) -> None:
    for suffix in FORMATS:
        other = written(tmp_path / f"b.{suffix}", EMPTY | FULL)
        ran("diff", path, other)
        ran("diff", path, other, "--hash")
        ran("verify", path, "--against", other, "--check", "values", "--check", "finite")


@pytest.mark.parametrize("suffix", ["html", "md", "json"])
def test_they_are_verified_with_a_report(path: Path, tmp_path: Path, suffix: str) -> None:
    report = tmp_path / f"report.{suffix}"
    options = ("--skip", "forward", "--skip", "structure", "--report", report)
    ran("verify", path, "--against", path, *options)
    assert report.stat().st_size


@each("suffix", ["safetensors", "gguf", "pt"])
@each(
    "options", ["", "--dtype bf16", "--dtype f64 --json", "--max-shard-size 1B", "--align 4096 -n"]
)
def test_they_are_converted_to_every_format(
    path: Path, tmp_path: Path, suffix: str, options: str
) -> None:
    ran("convert", path, tmp_path / f"out.{suffix}", *options.split())


@pytest.mark.parametrize(
    "kind", [kind for kind in block_types() if not ENCODINGS[kind].needs_importance]
)
def test_they_are_quantized_to_every_block_type(tmp_path: Path, kind: str) -> None:
    source, out = written(tmp_path / "a.safetensors", EMPTY | FULL), tmp_path / "out.gguf"
    ran("convert", source, out, "--quant", kind)
    ran("convert", source, out, "--force", "--tensor-type", f".*={kind}", "--nonfinite", "zero")
    ran("convert", out, tmp_path / "back.safetensors", "--dtype", "f32")
    ran("verify", out, "--against", source, "--check", "values", "--check", "finite")


@pytest.mark.parametrize("which", MIXED)
def test_a_checkpoint_of_them_alone_is_converted(tmp_path: Path, which: str) -> None:
    source = written(tmp_path / "a.safetensors", MIXED[which])
    arguments = ("--tensor-type", ".*=Q4_0", "--nonfinite", "zero")
    ran("convert", source, tmp_path / "out.gguf", *arguments)
    ran("ls", tmp_path / "out.gguf", "--json", "--hash")
    ran("verify", source, "--check", "finite")


@pytest.mark.parametrize(
    ("which", "strategy"),
    usual(product(["some", "all"], STRATEGIES), product(MIXED, STRATEGIES)),
)
def test_a_plan_cuts_them_or_leaves_nothing_behind(
    tmp_path: Path, which: str, strategy: str
) -> None:
    source = written(tmp_path / "a.safetensors", MIXED[which])
    (plan := tmp_path / "plan.toml").write_text(f"[tensors]\n'.*' = {_line(strategy)}\n")
    for ranks in ("1", "2"):
        out = tmp_path / ranks
        done = CliRunner().invoke(
            app, ["shard", str(source), str(out), "--tp", ranks, "--plan", str(plan)]
        )
        assert "please report it" not in f"{done.output}{done.exception}"
        if done.exit_code:
            assert type(done.exception).__module__ == "weightctl.errors", done.exception
            assert {*os.listdir(tmp_path)} <= {"1", "a.safetensors", "plan.toml"}
            continue
        whole = tmp_path / f"{ranks}.safetensors"
        ran("shard", "--gather", out, whole)
        ran("diff", "--hash", source, whole)
        whole.unlink()


def _line(strategy: str) -> str:
    values: dict[str, Any] = {
        "axis": 0, "sizes": [0, 0], "heads": 2, "kv_heads": 2, "head_dim": 16
    }  # fmt: skip
    needed = "".join(f", {key} = {json.dumps(values[key])}" for key in STRATEGIES[strategy].needed)
    return f"{{ strategy = '{strategy}'{needed} }}"


@pytest.mark.parametrize(("shape", "ranks"), [((0, 5), "1"), ((0, 5), "2"), ((4, 5), "2")])
def test_blocks_that_cross_rows_are_not_cut(
    tmp_path: Path, shape: tuple[int, int], ranks: str
) -> None:
    source = tmp_path / "a.safetensors"
    raw = bytes(shape[0] * shape[1] // 2)
    source.write_bytes(safetensors_of(FULL | {"pairs": ("F4", shape, raw)}))
    (plan := tmp_path / "plan.toml").write_text("[tensors]\n'pairs' = 'gate_up'\n")
    done = CliRunner().invoke(
        app, ["shard", str(source), str(tmp_path / "out"), "--tp", ranks, "--plan", str(plan)]
    )
    assert isinstance(done.exception, ShardingError)
    assert not (tmp_path / "out").exists()


def test_an_empty_tensor_of_an_unknown_type_is_listed_and_left_out(tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    source.write_bytes(safetensors_of(FULL | {"new": ("F3", (0, 4), b"")}))
    ran("ls", source)
    ran("diff", source, source)
    ran("convert", source, tmp_path / "out.safetensors", "--exclude", "new")
