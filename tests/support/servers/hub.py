"""A Hub of Hugging Face with repositories, commits and uploads, and its store Xet."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import struct
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import parse_qs, quote, unquote, urlencode

from servers.base import (
    Blob,
    Entity,
    PlainServer,
    RefusedError,
    Request,
    Response,
    Server,
    answer_json,
    serve,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


# Repositories of the Hub: commits, branches, and files with their identifiers.

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


# A local store of Xet: what `hf_xet` writes to `local:///dir`, found by SHA-256.

_HEADER = 48
_ENTRY = 48
_HAS_VERIFICATION = 1 << 31
_HAS_METADATA = 1 << 30


class XetStore:
    """Files in a directory, in chunks that are stored once. Needs the package hf_xet."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._session: Any = None

    @property
    def url(self) -> str:
        """The URL that clients get instead of that of a CAS server."""
        return f"local://{self.directory}"

    def find(self, sha256: str) -> str | None:
        """Return the Xet hash of the file that has this SHA-256, if it is stored."""
        return next((hash_ for hash_, digest in self._files() if digest == sha256), None)

    def get(self, xet_hash: str, size: int) -> Blob:
        import hf_xet

        with tempfile.TemporaryDirectory(dir=self.directory) as directory:
            path = os.path.join(directory, "file")
            with self._open().new_file_download_group(endpoint=self.url) as group:
                group.start_download_file(hf_xet.XetFileInfo(xet_hash, size), path)
            # The open file outlives its name.
            return Blob.of_file(path)

    @property
    def bytes_stored(self) -> int:
        """The bytes of all stored chunks, which deduplication makes fewer."""
        return sum(
            os.path.getsize(os.path.join(root, name))
            for root, _, names in os.walk(self.directory)
            for name in names
            if name.startswith("default.") and not name.endswith(".tagset")
        )

    def _open(self) -> Any:
        import hf_xet

        if self._session is None:
            self._session = hf_xet.XetSession()
        return self._session

    def _files(self) -> Iterator[tuple[str, str]]:
        """Yield the Xet hash and the SHA-256 of each file in the shards of the store.

        A shard begins with a header and a list of files. A file is a header (hash, flags, number
        of entries), its entries, and if the flags say so as many verifications, and metadata that
        begin with the SHA-256.
        """
        shards = os.path.join(self.directory, "xet", "xorbs", "shards")
        for name in sorted(os.listdir(shards)) if os.path.isdir(shards) else []:
            if not name.endswith(".mdb"):
                continue
            with open(os.path.join(shards, name), "rb") as file:
                content = file.read()
            at = _HEADER
            while (hash_ := content[at : at + 32]) != b"\xff" * 32:
                flags, entries = struct.unpack_from("<II", content, at + 32)
                at += _ENTRY * (1 + entries * (2 if flags & _HAS_VERIFICATION else 1))
                if flags & _HAS_METADATA:
                    yield _hexadecimal(hash_), _hexadecimal(content[at : at + 32])
                    at += _ENTRY


def _hexadecimal(stored: bytes) -> str:
    """Return a hash as text: Xet writes it as four integers of 64 bits."""
    return "".join(f"{word:016x}" for word in struct.unpack("<4Q", stored))


# The Hugging Face Hub: its API for models, and files that it redirects to another host.

WRITER = "hf_test_writer"
READER = "hf_test_reader"


class HubUser(NamedTuple):
    """The owner of a token."""

    name: str
    can_write: bool = True


USERS = {WRITER: HubUser("writer"), READER: HubUser("reader", can_write=False)}


class LinkServer(PlainServer):
    """The host of LFS files: its links have a signature, which `expire` makes invalid."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._round = 0

    def link(self, file: HubFile) -> str:
        """Return a URL of a file, on another host name than that of the Hub."""
        path = f"/repos/{file.sha256}"
        self.put(path, file.body, etag=f'"{str(file.sha256)[:32]}"')
        return f"{self.other_url}{path}?{urlencode({'Signature': self._round})}"

    def expire(self) -> None:
        """Make all links invalid that were given so far: they are answered with status 403."""
        self._round += 1

    def answer(self, request: Request) -> Response:
        """Answer GET and HEAD. A bearer token is refused: it was not meant for this host."""
        if "authorization" in request.headers:
            raise RefusedError(400, "InvalidArgument", "only one way to authenticate is allowed")
        if request.query.get("Signature") != str(self._round):
            raise RefusedError(403, "AccessDenied", "the link has expired")
        return super().answer(request)


class HubServer(Server):
    """The Hub with its repositories in memory. `page_size` is that of listings of trees.

    With `xet_directory`, clients that have hf_xet upload to a local store there and download from
    it; without it, LFS files come from `links`, another server, and are uploaded through LFS.
    """

    def __init__(
        self,
        *,
        users: Mapping[str, HubUser] = USERS,
        xet_directory: str | None = None,
        page_size: int = 1000,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.users = dict(users)
        self.page_size = page_size
        self.repositories = dict[str, HubRepository]()
        self.links = LinkServer(**options)
        self.xet = XetStore(xet_directory) if xet_directory else None
        self.uploads = dict[str, Blob]()

    def start(self) -> Self:
        """Accept connections, also of the host of LFS files."""
        self.links.start()
        return super().start()

    def stop(self) -> None:
        self.links.stop()
        super().stop()

    def create(self, name: str, **options: Any) -> HubRepository:
        """Create a repository, with the fields of `HubRepository`."""
        with self.lock:
            self.repositories[name] = HubRepository(name, **options)
        return self.repositories[name]

    def refuse(self, request: Request, refusal: RefusedError) -> Response:  # noqa: ARG002
        """Return an error as the Hub does: in JSON, with a code in a header."""
        headers = {"X-Error-Message": refusal.message, "Content-Type": "application/json"}
        if refusal.code in {"RepoNotFound", "RevisionNotFound", "EntryNotFound", "GatedRepo"}:
            headers["X-Error-Code"] = refusal.code
        return answer_json({"error": refusal.message}, refusal.status, headers | refusal.headers)

    def answer(self, request: Request) -> Response:
        user = self.user_of(request)
        # A slash within a revision or a file name is encoded, or is a segment of its own.
        segments = [unquote(each) for each in request.target.partition("?")[0][1:].split("/")]
        match segments:
            case ["api", "repos", "create"]:
                return create_repository(self, request, user)
            case ["api", "whoami-v2"]:
                if user is None:
                    raise RefusedError(401, "Unauthorized", "Invalid username or password.")
                return answer_json({"type": "user", "name": user.name, "orgs": []})
            case ["api", "models", owner, name, *rest]:
                repository = self._visible(f"{owner}/{name}", user)
                return self._answer_api(request, repository, user, rest)
            case ["lfs-upload", oid]:
                return put_lfs(self, request, oid)
            case [owner, name, "info", "lfs", "objects", "batch"]:
                repository = self._visible(f"{owner}/{name.removesuffix('.git')}", user)
                return answer_batch(self, request, repository, user)
            case [owner, name, "resolve", *rest]:
                repository = self._visible(f"{owner}/{name}", user)
                _check_gate(repository, user)
                revision, path = _revision_of(rest)
                return self._resolve(request, repository, revision, "/".join(path))
            case _:
                raise RefusedError(404, "NotFound", "Not Found")

    def user_of(self, request: Request) -> HubUser | None:
        """Return who sends a request. Raises RefusedError with status 401 for a wrong token."""
        header = request.headers.get("authorization")
        if header is None:
            return None
        user = self.users.get(header.removeprefix("Bearer "))
        if user is None:
            raise RefusedError(401, "", "Invalid credentials in Authorization header")
        return user

    def _visible(self, name: str, user: HubUser | None) -> HubRepository:
        repository = self.repositories.get(name)
        if repository is None or (repository.private and not _may_read(repository, user)):
            # Without a token, the Hub does not say whether the repository exists.
            if user is None:
                raise RefusedError(401, "", "Invalid username or password.")
            raise RefusedError(404, "RepoNotFound", "Repository not found")
        return repository

    def _answer_api(
        self, request: Request, repository: HubRepository, user: HubUser | None, rest: list[str]
    ) -> Response:
        blobs = request.query.get("blobs", "").lower() in {"true", "1"}
        match request.method, rest:
            case "GET", []:
                response = answer_json(repository.info("main", blobs=blobs))
            case "GET", ["revision", *where]:
                response = answer_json(repository.info("/".join(where), blobs=blobs))
            case "GET", ["tree", *where]:
                revision, folder = _revision_of(where)
                response = self._list_tree(request, repository, revision, "/".join(folder))
            case "POST", ["paths-info", *where]:
                tree = repository.tree("/".join(where))
                wanted = parse_qs(bytes(request.body).decode()).get("paths", [])
                response = answer_json([tree[path].row(path) for path in wanted if path in tree])
            case "GET", ["xet-read-token" | "xet-write-token" as kind, *_] if self.xet:
                if kind == "xet-write-token":
                    check_writer(user)
                else:
                    _check_gate(repository, user)
                response = _answer_xet_token(self.xet)
            case "POST", ["preupload", *where]:
                response = preupload(request, repository, user, "/".join(where))
            case "POST", ["commit", *where]:
                response = commit(self, request, repository, user, "/".join(where))
            case _:
                raise RefusedError(404, "NotFound", "Not Found")
        return response

    def _list_tree(
        self, request: Request, repository: HubRepository, revision: str, folder: str
    ) -> Response:
        query = request.query
        recursive = query.get("recursive", "").lower() in {"true", "1"}
        rows = repository.rows(revision, folder, recursive=recursive)
        start = int(query.get("cursor", 0))
        stop = start + min(int(query.get("limit", self.page_size)), self.page_size)
        headers = dict[str, str]()
        if stop < len(rows):
            path = request.target.partition("?")[0]
            following = urlencode(query | {"cursor": str(stop)})
            headers["Link"] = f'<{self.url}{path}?{following}>; rel="next"'
        return answer_json(rows[start:stop], headers=headers)

    def _resolve(
        self, request: Request, repository: HubRepository, revision: str, path: str
    ) -> Response:
        oid = repository.resolve(revision)
        file = repository.commits[oid].get(path)
        headers = {"X-Repo-Commit": oid}
        if file is None:
            raise RefusedError(404, "EntryNotFound", "Entry not found", headers)
        if not file.sha256:
            kind = "text/plain; charset=utf-8"
            entity = Entity(file.body, file.etag, repository.modified, kind, headers)
            return serve(request, entity)
        headers |= {
            "Location": self.links.link(file),
            "X-Linked-Size": str(file.body.size),
            "X-Linked-ETag": file.etag,
            "Accept-Ranges": "bytes",
        }
        if file.xet_hash and self.xet:
            route = f"{self.url}/api/models/{quote(repository.id)}/xet-read-token/{oid}"
            headers |= {"X-Xet-Hash": file.xet_hash, "Link": f'<{route}>; rel="xet-auth"'}
        return Response(302, headers, Blob.of(b"Found. Redirecting to another host."))


def _answer_xet_token(store: XetStore) -> Response:
    expires = int(time.time()) + 3600
    content = {"accessToken": "xet-token", "exp": expires, "casUrl": store.url}
    headers = {
        "X-Xet-Cas-Url": store.url,
        "X-Xet-Access-Token": "xet-token",
        "X-Xet-Token-Expiration": str(expires),
    }
    return answer_json(content, headers=headers)


def _revision_of(segments: list[str]) -> tuple[str, list[str]]:
    # The names of references have three segments, if their slashes are not encoded.
    count = 3 if segments[:1] == ["refs"] else 1
    return "/".join(segments[:count]), segments[count:]


def _may_read(repository: HubRepository, user: HubUser | None) -> bool:
    return user is not None and (user.can_write or user.name in repository.readers)


def _check_gate(repository: HubRepository, user: HubUser | None) -> None:
    if repository.gated and not _may_read(repository, user):
        message = f"Access to model {repository.id} is restricted."
        raise RefusedError(401 if user is None else 403, "GatedRepo", message)


# Writes to the Hub: repositories are created, files uploaded and committed.


def create_repository(server: HubServer, request: Request, user: HubUser | None) -> Response:
    owner = check_writer(user)
    asked = _parsed(bytes(request.body))
    name = f"{asked.get('organization') or owner.name}/{asked['name']}"
    url = f"{server.url}/{name}"
    with server.lock:
        if name in server.repositories:
            content = {"error": "You already created this model repo", "url": url}
            return answer_json(content, 409)
        private = asked.get("private") or asked.get("visibility") == "private"
        made = server.create(name, private=bool(private))
    return answer_json({"url": url, "name": name, "id": made.info("main")["_id"]})


def preupload(
    request: Request, repository: HubRepository, user: HubUser | None, revision: str
) -> Response:
    """Answer which files are uploaded outside of Git, and which exist already."""
    check_writer(user)
    tree = repository.tree(revision)
    rows = list[dict[str, Any]]()
    for asked in _parsed(bytes(request.body))["files"]:
        path = asked["path"]
        mode = "lfs" if is_lfs(path, asked["size"]) else "regular"
        row = {"path": path, "uploadMode": mode, "shouldIgnore": False}
        if present := tree.get(path):
            row["oid"] = present.sha256 or present.oid
        rows.append(row)
    return answer_json({"files": rows})


def commit(
    server: HubServer,
    request: Request,
    repository: HubRepository,
    user: HubUser | None,
    revision: str,
) -> Response:
    """Answer a commit, of lines of JSON: a header, and an operation on each further line.

    Raises RefusedError with status 412 if the parent is not the head any more.
    """
    check_writer(user)
    header, *operations = [_parsed(line) for line in bytes(request.body).splitlines() if line]
    if header["key"] != "header":
        raise RefusedError(400, "", "the first line is not a header")
    with server.lock:
        parent = repository.resolve(revision)
        if header["value"].get("parentCommit", parent) != parent:
            message = "A commit has happened since. Please refresh and try again."
            raise RefusedError(412, "", message)
        tree = dict(repository.commits[parent])
        for operation in operations:
            _apply(server, tree, operation["key"], operation["value"])
        content: dict[str, Any] = {"success": True, "hookOutput": ""}
        target = revision
        if request.query.get("create_pr") == "1":
            number = 1 + sum(name.startswith("refs/pr/") for name in repository.refs)
            target = f"refs/pr/{number}"
            content["pullRequestUrl"] = f"{server.url}/{repository.id}/discussions/{number}"
        oid = repository.commit(tree, header["value"]["summary"], target)
    content |= {"commitOid": oid, "commitUrl": f"{server.url}/{repository.id}/commit/{oid}"}
    return answer_json(content)


def answer_batch(
    server: HubServer, request: Request, repository: HubRepository, user: HubUser | None
) -> Response:
    """Answer where LFS files are uploaded to: none of those that are stored."""
    check_writer(user)
    known = {file.sha256 for tree in repository.commits.values() for file in tree.values()}
    rows = list[dict[str, Any]]()
    for asked in _parsed(bytes(request.body))["objects"]:
        row = {"oid": asked["oid"], "size": asked["size"]}
        if asked["oid"] not in known and asked["oid"] not in server.uploads:
            place = {"href": f"{server.url}/lfs-upload/{asked['oid']}"}
            row["actions"] = {"upload": place}
        rows.append(row)
    return answer_json({"transfer": "basic", "objects": rows})


def put_lfs(server: HubServer, request: Request, oid: str) -> Response:
    """Store an LFS file until it is committed. Raises RefusedError if it is another file."""
    if request.method != "PUT" or request.body.hash("sha256").hex() != oid:
        raise RefusedError(400, "BadDigest", "the file does not have this SHA-256")
    server.uploads[oid] = request.body
    return Response(200)


def check_writer(user: HubUser | None) -> HubUser:
    """Return the user. Raises RefusedError without one, or if the token is for reading only."""
    if user is None:
        raise RefusedError(401, "", "Invalid username or password.")
    if not user.can_write:
        raise RefusedError(403, "", "the token does not have the rights to write")
    return user


def _apply(server: HubServer, tree: Tree, key: str, value: dict[str, Any]) -> None:
    path = value["path"]
    match key:
        case "file":
            content = value["content"]
            encoded = value.get("encoding") == "base64"
            body = base64.b64decode(content) if encoded else content.encode()
            tree[path] = HubFile.made("", Blob.of(body))
        case "lfsFile":
            tree[path] = _uploaded(server, path, value)
        case "deletedFile":
            if tree.pop(path, None) is None:
                raise RefusedError(404, "EntryNotFound", f"{path} does not exist")
        case "deletedFolder":
            for name in [name for name in tree if name.startswith(path.rstrip("/") + "/")]:
                del tree[name]
        case _:
            raise RefusedError(400, "", f"unknown operation: {key}")


def _uploaded(server: HubServer, path: str, value: dict[str, Any]) -> HubFile:
    sha256 = value["oid"]
    if sha256 in server.uploads:
        return HubFile.made(path, server.uploads[sha256])
    for repository in server.repositories.values():
        for tree in repository.commits.values():
            for file in tree.values():
                if file.sha256 == sha256:
                    return file
    xet_hash = server.xet.find(sha256) if server.xet else None
    if server.xet is None or xet_hash is None:
        raise RefusedError(400, "", f"the content of {path} was not uploaded: {sha256}")
    return HubFile.made(path, server.xet.get(xet_hash, value["size"]), xet_hash)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise RefusedError(400, "", f"not JSON: {error}") from error
