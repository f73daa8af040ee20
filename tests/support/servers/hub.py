"""The Hugging Face Hub: its API for models, and files that it redirects to another host."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import parse_qs, quote, unquote, urlencode

from servers import hub_commits
from servers.base import Server
from servers.blobs import Blob
from servers.entities import Entity, serve
from servers.hub_repositories import HubFile, HubRepository
from servers.messages import RefusedError, Request, Response, answer_json
from servers.plain import PlainServer
from servers.xet import XetStore

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        """Stop both servers."""
        self.links.stop()
        super().stop()

    def create(self, name: str, **options: Any) -> HubRepository:
        """Create a repository, with the fields of `HubRepository`."""
        with self.lock:
            self.repositories[name] = HubRepository(name, **options)
        return self.repositories[name]

    def put_xet(self, repository: HubRepository, path: str, content: bytes) -> str:
        """Commit a file to the store of Xet; return the hash of the commit."""
        if self.xet is None:
            raise ValueError("the server has no xet_directory")
        return repository.put(path, content, xet_hash=self.xet.put(content))

    def refuse(self, request: Request, refusal: RefusedError) -> Response:  # noqa: ARG002
        """Return an error as the Hub does: in JSON, with a code in a header."""
        headers = {"X-Error-Message": refusal.message, "Content-Type": "application/json"}
        if refusal.code in {"RepoNotFound", "RevisionNotFound", "EntryNotFound", "GatedRepo"}:
            headers["X-Error-Code"] = refusal.code
        return answer_json({"error": refusal.message}, refusal.status, headers | refusal.headers)

    def answer(self, request: Request) -> Response:
        """Answer a request for the API or for a file."""
        user = self.user_of(request)
        # A slash within a revision or a file name is encoded, or is a segment of its own.
        segments = [unquote(each) for each in request.target.partition("?")[0][1:].split("/")]
        match segments:
            case ["api", "repos", "create"]:
                return hub_commits.create_repository(self, request, user)
            case ["api", "whoami-v2"]:
                if user is None:
                    raise RefusedError(401, "Unauthorized", "Invalid username or password.")
                return answer_json({"type": "user", "name": user.name, "orgs": []})
            case ["api", "models", owner, name, *rest]:
                repository = self._visible(f"{owner}/{name}", user)
                return self._answer_api(request, repository, user, rest)
            case ["lfs-upload", oid]:
                return hub_commits.put_lfs(self, request, oid)
            case [owner, name, "info", "lfs", "objects", "batch"]:
                repository = self._visible(f"{owner}/{name.removesuffix('.git')}", user)
                return hub_commits.answer_batch(self, request, repository, user)
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
                    hub_commits.check_writer(user)
                else:
                    _check_gate(repository, user)
                response = _answer_xet_token(self.xet)
            case "POST", ["preupload", *where]:
                response = hub_commits.preupload(request, repository, user, "/".join(where))
            case "POST", ["commit", *where]:
                response = hub_commits.commit(self, request, repository, user, "/".join(where))
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
