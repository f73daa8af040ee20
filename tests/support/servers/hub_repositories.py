"""Repositories of the Hub: commits, branches, and files with their identifiers."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from servers.blobs import Blob
from servers.messages import RefusedError

# As the `.gitattributes` of a new repository says.
LFS_NAMES = re.compile(
    r"\.(safetensors|gguf|bin|pt|pth|ckpt|onnx|h5|msgpack|npy|npz|pickle|pkl|zip|tar|gz|model)$"
)
LFS_SIZE = 10 << 20
FIRST_COMMIT = "initial commit"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a commit. `oid` is that of Git; `sha256` is set for LFS files only."""

    body: Blob
    oid: str
    sha256: str | None = None
    xet_hash: str | None = None

    @classmethod
    def made(cls, path: str, body: Blob, xet_hash: str | None = None) -> HubFile:
        """Make a file, which is an LFS file if its name or size says so."""
        if not is_lfs(path, body.size):
            return cls(body, git_oid(bytes(body)))
        digest = body.hash("sha256").hex()
        return cls(body, git_oid(pointer(digest, body.size)), digest, xet_hash)

    @property
    def etag(self) -> str:
        """The identifier that the Hub sends as ETag, with quotes."""
        return f'"{self.sha256 or self.oid}"'

    def row(self, path: str) -> dict[str, Any]:
        """Return the file as a listing of a tree has it."""
        row: dict[str, Any] = {"type": "file", "oid": self.oid, "size": self.body.size}
        row["path"] = path
        if self.sha256:
            size = len(pointer(self.sha256, self.body.size))
            row["lfs"] = {"oid": self.sha256, "size": self.body.size, "pointerSize": size}
        if self.xet_hash:
            row["xetHash"] = self.xet_hash
        return row


Tree = dict[str, HubFile]


@dataclass(slots=True)
class HubRepository:
    """A model repository. `gated` ones give files to `readers` only: names of users."""

    id: str
    private: bool = False
    gated: bool = False
    readers: set[str] = field(default_factory=set[str])
    refs: dict[str, str] = field(default_factory=dict[str, str])
    commits: dict[str, Tree] = field(default_factory=dict[str, Tree])
    messages: list[str] = field(default_factory=list[str])
    modified: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.commit({}, FIRST_COMMIT)

    def commit(self, tree: Tree, message: str, revision: str = "main") -> str:
        """Make a commit the head of a branch; return its hash."""
        text = f"{self.id} {len(self.messages)} {message} {sorted(tree)}"
        oid = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.commits[oid] = dict(tree)
        self.refs[revision] = oid
        self.messages.append(message)
        self.modified = time.time()
        return oid

    def resolve(self, revision: str) -> str:
        """Return the hash of the commit. Raises RefusedError RevisionNotFound."""
        oid = self.refs.get(revision, revision)
        if oid not in self.commits:
            raise RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return oid

    def tree(self, revision: str = "main") -> Tree:
        """Return the files of a revision by path."""
        return self.commits[self.resolve(revision)]

    def put(
        self,
        path: str,
        content: Blob | bytes,
        *,
        revision: str = "main",
        xet_hash: str | None = None,
    ) -> str:
        """Commit one file; return the hash of the commit."""
        file = HubFile.made(path, Blob.of(content), xet_hash)
        tree = self.tree(revision) if revision in self.refs else {}
        return self.commit(tree | {path: file}, f"Upload {path}", revision)

    def __getitem__(self, path: str) -> bytes:
        return bytes(self.tree()[path].body)

    def rows(self, revision: str, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
        """Return the listing of a folder. Raises RefusedError EntryNotFound."""
        prefix = folder.strip("/") + "/" if folder.strip("/") else ""
        rows = dict[str, dict[str, Any]]()
        for path, file in sorted(self.tree(revision).items()):
            if not path.startswith(prefix):
                continue
            names = path[len(prefix) :].split("/")
            depth = len(names) if recursive else min(len(names), 2)
            for count in range(1, depth):
                inner = prefix + "/".join(names[:count])
                oid = git_oid(inner.encode())
                rows[inner] = {"type": "directory", "oid": oid, "size": 0, "path": inner}
            if recursive or len(names) == 1:
                rows[path] = file.row(path)
        if prefix and not rows:
            raise RefusedError(404, "EntryNotFound", f"{folder} does not exist on {revision}")
        return list(rows.values())

    def info(self, revision: str, *, blobs: bool = False) -> dict[str, Any]:
        """Return what the Hub says about the model at a revision."""
        oid = self.resolve(revision)
        siblings = list[dict[str, Any]]()
        for path, file in sorted(self.commits[oid].items()):
            sibling: dict[str, Any] = {"rfilename": path}
            if blobs:
                row = file.row(path)
                sibling |= {"size": row["size"], "blobId": row["oid"]}
                if "lfs" in row:
                    lfs = row["lfs"]
                    sibling["lfs"] = {
                        "sha256": lfs["oid"],
                        "size": lfs["size"],
                        "pointerSize": lfs["pointerSize"],
                    }
            siblings.append(sibling)
        moment = datetime.fromtimestamp(self.modified, UTC).isoformat(timespec="milliseconds")
        return {
            "_id": git_oid(self.id.encode())[:24],
            "id": self.id,
            "modelId": self.id,
            "author": self.id.partition("/")[0],
            "sha": oid,
            "lastModified": moment.replace("+00:00", "Z"),
            "private": self.private,
            "gated": "manual" if self.gated else False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": siblings,
        }


def is_lfs(path: str, size: int) -> bool:
    """Return whether the Hub stores a file outside of Git. Empty files are always in Git."""
    return bool(size and (LFS_NAMES.search(path) or size >= LFS_SIZE))


def git_oid(content: bytes) -> str:
    """Return the hash that Git gives to a file."""
    head = f"blob {len(content)}\0".encode()
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest()


def pointer(sha256: str, size: int) -> bytes:
    """Return the text that Git stores in place of an LFS file."""
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
    return text.encode()
