"""What people see at 80 and 200 columns. `python tests/cli/test_screens.py` writes it anew."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # pytest knows these folders
    HERE = Path(__file__).parent
    sys.path += [str(HERE), str(HERE.parent), str(HERE.parent / "support")]

import pytest
import torch

import small_checkpoints
from each import each
from payloads import call, whole
from terminal import on_a_terminal
from weightctl import open_weights
from weightctl.families import recognize
from weightctl.plan.cast import cast
from weightctl.translate import translate
from weightctl.write.save import save

SCREENS = Path(__file__).parent / "screens"
COLUMNS = (80, 200)
COMMANDS = {
    "tree": "ls small",
    "flat": "ls small --flat",
    "long": "ls small split -l",
    "hash": "ls small --hash",
    "meta": "ls small.gguf --meta",
    "mixture": "ls mixture",
    "types": "ls tiny-q4_k_m.gguf",
    "awq": "ls awq",
    "awq-flat": "ls awq --flat",
    "adapter": "ls adapter",
    "tied": "ls tied tied --flat",
    "training": "ls training.pt",
    "scan": "ls --scan attack.pt",
    "stat": "stat tiny-llama",
    "stat-hist": "stat tiny-q4_k.gguf --hist",
    "show": "show tiny-llama model.embed_tokens.weight 0:3",
    "diff": "diff small awq",
    "diff-crossing": "diff tiny-llama tiny.gguf",
    "diff-values": "diff tiny-llama tiny-q4_k.gguf --values --include *layers.[0-1].*",
    "patch": "diff tiny-llama tiny.gguf --patch tiny.patch --force",
    "folded": "ls lightning.ckpt",
    "crossing": "convert tiny-llama out.gguf --quant Q4_K_M --dry-run",
    "back": "convert tiny.gguf out --dry-run",
    "degrees": "shard tiny.gguf --tp auto",
    "shares": "shard tiny-llama out --tp 6 --pp 2 --dry-run",
    "edit": "edit tiny.gguf --set general.name=new --drop blk.1.* --dry-run",
    "check": "check faulty",
    "check-fix": "check faulty --fix --dry-run",
    "tasks": "tasks tiny-llama out.gguf --quant Q4_K_M",
    "tasks-shards": "tasks tiny.gguf out --tp 2 --task-size 1MB",
    "merge": "merge tiny-llama tiny-adapter merged.gguf --dry-run",
    "plan": "convert small out.safetensors --tensor-type proj=f16 --dry-run",
}


def checkpoints(folder: Path) -> None:
    """Write what the commands above are about."""
    small_checkpoints.write_all(folder)
    tiny = translate(recognize(open_weights(folder / "tiny-llama")), "gguf")
    save(tiny.plan("gguf"), folder / "tiny.gguf")
    quantized = cast(tiny.plan("gguf"), "Q4_K")
    save(quantized, folder / "tiny-q4_k.gguf")
    save(cast(tiny.plan("gguf"), "Q4_K_M"), folder / "tiny-q4_k_m.gguf")
    torch.save(lightning(), folder / "lightning.ckpt")
    (folder / "attack.pt").write_bytes(whole(call("os.system", "exit 0"), call("a" * 90 + ".b")))


def lightning() -> dict[str, Any]:
    """Return what Lightning saves, with more values than anybody reads."""
    return {
        "state_dict": {"net.weight": torch.ones(4, 4), "net.bias": torch.ones(4)},
        "epoch": 3,
        "pytorch-lightning_version": "2.1.0",
        "loops": {"fit_loop": {"total": 3, "current": 2}},
        "hyper_parameters": {f"option{number}": {"a": number, "b": 0.5} for number in range(30)},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made_in = tmp_path_factory.mktemp("checkpoints")
    checkpoints(made_in)
    return made_in


def screen(name: str, columns: int, folder: Path) -> str:
    """Return a command as it is typed, and what the terminal shows then."""
    command = COMMANDS[name]
    shown = on_a_terminal(columns, *command.split(), cwd=folder, NO_COLOR="1")
    return f"$ weightctl {command}\n{shown}"


@each("columns", COLUMNS)
@each("name", COMMANDS)
def test_a_screen_is_what_was_agreed(name: str, columns: int, folder: Path) -> None:
    assert screen(name, columns, folder) == (SCREENS / f"{name}-{columns}.txt").read_text()


@each("name", COMMANDS)
def test_a_screen_fits_80_columns(name: str) -> None:
    lines = (SCREENS / f"{name}-80.txt").read_text().splitlines()
    assert [line for line in lines if len(line) > 80] == []


def test_every_screen_belongs_to_a_command() -> None:
    expected = {f"{name}-{columns}.txt" for name in COMMANDS for columns in COLUMNS}
    assert {path.name for path in SCREENS.glob("*.txt")} == expected


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        checkpoints(Path(temporary))
        for old in SCREENS.glob("*.txt"):
            old.unlink()
        for name in COMMANDS:
            for columns in COLUMNS:
                text = screen(name, columns, Path(temporary))
                (SCREENS / f"{name}-{columns}.txt").write_text(text)


if __name__ == "__main__":
    main()
