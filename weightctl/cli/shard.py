"""`weightctl shard`: split a checkpoint for several ranks, and join the shards."""

from __future__ import annotations

import json
import os
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightctl.cli.costs import document_network
from weightctl.cli.gathered import gather_into
from weightctl.cli.options import (
    Anonymous,
    DryRun,
    Force,
    From,
    HeaderRoom,
    Json,
    On,
    Quiet,
    TaskSize,
    Threads,
    examples,
    exit_codes,
    locate,
)
from weightctl.cli.planned import plan_shards, require_out
from weightctl.cli.progress import progress_bar
from weightctl.cli.render import Cell, columns, is_terminal, note, show_lines, show_table, show_text
from weightctl.cli.report import note_when_stopped, planned_resumption
from weightctl.cli.shares import document, share_rows, summary
from weightctl.cli.splits import join_ranks
from weightctl.cli.wrapping import hung
from weightctl.errors import ConversionError, TensorSplitError
from weightctl.formats.open.opening import open_weights
from weightctl.sharding.plan_file import read_rules
from weightctl.sharding.possible import possible
from weightctl.text.wording import printable
from weightctl.weights.tree import header_of
from weightctl.write.executors.worker import DEFAULT_TASK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.sharding.planning import CutRulesLike
    from weightctl.sharding.possible import Possible
    from weightctl.weights.tree import Checkpoint

# The numbers of ranks to try: those of one machine, and of several machines together.
COUNTS = (*range(1, 17), 32, 64)
_CUT = "Ranks"
_FILES = "Files"
_AUTO = "auto"

app = typer.Typer(add_completion=False)


class RankFileLayout(Enum):
    """The arrangement of the files of ranks."""

    RANKS = "ranks"
    VLLM = "vllm"


def _degrees() -> list[str]:
    return [_AUTO]


def _formats() -> list[str]:
    return ["safetensors", "gguf"]


@app.command(
    epilog="\n\n".join(
        [
            exit_codes("success"),
            examples(
                [
                    "weightctl shard model/ --tp auto",
                    "weightctl shard model/ model-tp2/ --tp 2",
                    "weightctl shard model/ model-tp2-pp2/ --tp 2 --pp 2 --dry-run",
                    "weightctl shard model/ model-rules/ --tp 2 --plan rules.toml",
                    "weightctl shard model/ model-vllm/ --tp 2 --layout vllm",
                    "weightctl shard --gather model-tp2/ model-joined/",
                ]
            ),
        ]
    ),
)
def shard(
    *,
    path: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="The checkpoint to read, as a path or URL. With --gather: the directory that "
            "contains the shards.",
            callback=locate,
        ),
    ],
    out: Annotated[
        str | None,
        typer.Argument(
            metavar="[OUT]",
            help="The directory to write; with --gather, a directory or a file. Not used with --tp "
            "auto.",
        ),
    ] = None,
    tensor: Annotated[
        str | None,
        typer.Option(
            "--tp",
            metavar="N",
            help="Tensor parallelism: split the tensors of each layer across N ranks. --tp auto "
            "writes nothing, and lists the possible values of N.",
            rich_help_panel=_CUT,
            autocompletion=_degrees,
        ),
    ] = None,
    experts: Annotated[
        int | None,
        typer.Option(
            "--ep",
            metavar="N",
            min=1,
            help="Expert parallelism: distribute whole experts over N groups of ranks.",
            rich_help_panel=_CUT,
        ),
    ] = None,
    stages: Annotated[
        int | None,
        typer.Option(
            "--pp",
            metavar="N",
            min=1,
            help="Pipeline parallelism: distribute layers over N stages.",
            rich_help_panel=_CUT,
        ),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="Split tensors by the rules in a TOML file: a table [tensors] with lines of the "
            "form 'REGEX' = 'STRATEGY'. Tensors that match no rule are split by the rules of the "
            "model family, or replicated if the family is not supported.",
            rich_help_panel=_CUT,
        ),
    ] = None,
    layout: Annotated[
        RankFileLayout | None,
        typer.Option(
            help="Arrangement of the files. ranks: one directory for each rank; vllm: the files "
            "that vLLM's sharded-state loader reads. [default: ranks]",
            rich_help_panel=_FILES,
        ),
    ] = None,
    gather: Annotated[
        bool,
        typer.Option(
            "--gather",
            help="Join the shards in MODEL back into one checkpoint.",
            rich_help_panel=_FILES,
        ),
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="Write FORMAT (safetensors or gguf). [default: gguf if MODEL is GGUF, else "
            "safetensors]",
            rich_help_panel=_FILES,
            autocompletion=_formats,
        ),
    ] = None,
    header_room: HeaderRoom = None,
    source: From = None,
    force: Force = False,
    dry_run: DryRun = False,
    threads: Threads = None,
    on: On = None,
    task_size: TaskSize = f"{DEFAULT_TASK >> 30}GiB",
    anonymous: Anonymous = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Split a checkpoint into shards for several ranks, or join shards back into one checkpoint.

    The number of ranks is the product of --tp, --ep and --pp. Attention heads and quantization
    blocks are never split. --tp splits each expert; --ep distributes whole
    experts. Values are copied unchanged.

    To resume an interrupted run, run the same command again.
    """
    del anonymous  # its callback has taken effect
    options = dict(locals())
    axes = {"--tp": tensor, "--ep": experts, "--pp": stages}
    if gather:
        given = {**axes, "--plan": rules, "--layout": layout, "--from": source}
        _refuse(given, "--gather", "it reads from the manifest how the tensors are split")
        gather_into(
            path,
            require_out(out, "--gather DIR OUT"),
            to,
            force=force,
            dry_run=dry_run,
            threads=threads,
            on=on,
            task_size=task_size,
            as_json=as_json,
            quiet=quiet,
        )
        return
    if tensor == _AUTO:
        given = {"OUT": out, **axes, "--tp": None, "--layout": layout, "--to": to}
        _refuse(given, "--tp auto", "it writes nothing, and lists which N work for --layout ranks")
        found = possible(_open_with_notes(path, source, quiet=quiet), COUNTS, rules=_rules(rules))
        show_possible(path, found, as_json=as_json)
        return
    sharded = plan_shards(options)
    target = require_out(out, "MODEL OUT --tp N")
    for text in () if quiet else sharded.notes:
        note(text)
    if not dry_run:
        with (
            note_when_stopped(sharded.outcome.where),
            progress_bar(
                sharded.outcome.tensor_bytes, quiet=quiet, has_workers=on is not None
            ) as advance,
        ):
            sharded = sharded.save(
                force=force, threads=threads, progress=advance, on=on, task_size=task_size
            )
    plan, outcome, saved = sharded.plan, sharded.outcome, sharded.saved
    if as_json:
        show_text(json.dumps(document(path, target, plan, outcome, saved)) + "\n")
    elif not quiet:
        if dry_run:
            show_table(share_rows(plan))
            show_lines([[]])
        show_lines(summary(path, target, plan, outcome, saved))
        if dry_run:
            show_lines(planned_resumption(sharded.kept_bytes))
    if dry_run:
        # If the plan cannot be carried out, it is shown before the error.
        outcome.refuse(force=force)


def _open_with_notes(path: str, source: str | None, *, quiet: bool) -> Checkpoint:
    weights = open_weights(path, source)
    for text in () if quiet else header_of(weights).notes:
        note(text)
    return weights


def _rules(path: str | None) -> CutRulesLike | None:
    return None if path is None else read_rules(path)


def _refuse(given: Mapping[str, object], action: str, why: str) -> None:
    """Raise `ConversionError` if one of the given options has no effect with `action`."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        options = " and ".join(names)
        raise ConversionError(
            f"{action} cannot be combined with {options}: {why}", hint=f"remove {options}"
        )


def show_possible(path: str, found: Sequence[Possible], *, as_json: bool) -> None:
    """Print which numbers of ranks work, and the tensor and reason that prevent the others."""
    if as_json:
        show_text(json.dumps(_document(path, found)) + "\n")
        return
    reasons: dict[str, list[int]] = {}
    for each in found:
        reasons.setdefault(_reason(each), []).append(each.ranks)
    counts = {reason: join_ranks(ranks) for reason, ranks in reasons.items()}
    room = max(map(len, counts.values()))
    # Lines for a pipe are not wrapped, unless COLUMNS sets their length.
    wraps = is_terminal() or "COLUMNS" in os.environ
    lines = [[Cell(printable(path), "bold"), Cell(" can be split with --tp")], list[Cell]()]
    for reason, numbers in counts.items():
        head = Cell(f"  {numbers:<{room}}  ", "" if reason else "green")
        lines += hung([head], reason or "works", columns() if wraps else None)
    show_lines(lines)


def _reason(each: Possible) -> str:
    """Return why a number of ranks does not work, in words that do not depend on the number.

    The text is empty if the number works.
    """
    match each.refusal:
        case None:
            return ""
        case TensorSplitError(summary=summary):
            return summary
        case refusal:
            return refusal.message


def _document(path: str, found: Sequence[Possible]) -> dict[str, Any]:
    return {
        "input": path,
        "possible": [
            {
                "tp": each.ranks,
                "works": each.refusal is None,
                "reason": each.refusal.message if each.refusal else None,
            }
            for each in found
        ],
        **document_network(),
    }
