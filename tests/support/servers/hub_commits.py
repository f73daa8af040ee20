"""Writes to the Hub: repositories are created, files uploaded and committed."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from servers.blobs import Blob
from servers.hub_repositories import HubFile, HubRepository, Tree, is_lfs
from servers.messages import RefusedError, Request, Response, answer_json

if TYPE_CHECKING:
    from servers.hub import HubServer, HubUser


def create_repository(server: HubServer, request: Request, user: HubUser | None) -> Response:
    """Answer the creation of a repository: 409 if there is one."""
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
