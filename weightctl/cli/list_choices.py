"""The options of a run of `weightctl ls`, and which of them do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import WeightctlError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.cli.options import Sort


class ListChoices(NamedTuple):
    """The options of a run; `meta` is empty if --meta has no key, and None without --meta."""

    depth: int | None
    flat: bool
    details: bool
    hashes: bool
    sort: Sort | None
    include: Sequence[str]
    exclude: Sequence[str]
    meta: str | None
    as_json: bool
    quiet: bool
    several: bool
    scan: bool
    values: bool
    fit: str | None
    context: int | None
    kv_type: str | None
    draft: bool

    @property
    def is_flat(self) -> bool:
        """Whether tensors are listed one by one."""
        return self.flat or self.details or self.hashes or self.sort is not None

    def check(self) -> None:
        """Raise `WeightctlError` if options contradict each other."""
        others = (
            self.is_flat, self.depth, self.meta is not None, self.include, self.exclude,
            self.values, self.fit is not None,
        )  # fmt: skip
        if self.scan and any(others):
            raise WeightctlError(
                "--scan lists the globals of pickles, not tensors: it cannot be combined with "
                "--depth, --flat, -l, --sort, --hash, --meta, --values, --fit, --include or "
                "--exclude",
                hint="leave out --scan, or the other options",
            )
        if self.draft and (self.scan or self.several or self.as_json or any(others)):
            raise WeightctlError(
                "--draft-family prints one file, and cannot be combined with other options or "
                "several models",
                hint="leave out the other options, and name one model",
            )
        if self.depth is not None and self.is_flat:
            raise WeightctlError(
                "--depth cannot be combined with --flat, -l, --sort or --hash: they show a list, "
                "not a tree",
                hint="leave out --depth, or the other options",
            )
        if self.values and (self.is_flat or self.meta is not None):
            raise WeightctlError(
                "--values cannot be combined with --flat, -l, --sort, --hash or --meta: they show "
                "a list, not a tree",
                hint="leave out --values, or the other options",
            )
        if self.fit is None and (self.context is not None or self.kv_type is not None):
            raise WeightctlError(
                "--context and --kv-type can only be used with --fit",
                hint="add --fit SIZE, or leave out these options",
            )
        if self.fit is not None and any(others[:-1]):
            raise WeightctlError(
                "--fit is for the whole model and lists no tensors: it cannot be combined with "
                "--depth, --flat, -l, --sort, --hash, --meta, --values, --include or --exclude",
                hint="leave out --fit, or the other options",
            )
        if self.meta is not None and self.is_flat and (self.meta or not self.as_json):
            raise WeightctlError(
                "--meta shows metadata, but --flat, -l, --sort and --hash list tensors",
                hint="leave out --flat, -l, --sort and --hash",
            )
