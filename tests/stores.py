"""Models of the places where candidates meet: etcd as far as it is asked, and a folder. Reached through a `virtual.Host`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
from virtual import Host, UnreachedError

from robust_run.launcher.controller.leadership.etcd_messages import (
    Compare,
    Empty,
    EtcdHeader,
    KeyValue,
    LeaseAlive,
    LeaseGrant,
    LeaseGrantReply,
    LeaseKeepAlive,
    LeaseKeepAliveReply,
    LeaseRevoke,
    Operation,
    OperationReply,
    Range,
    RangeReply,
    Txn,
    TxnReply,
)
from robust_run.launcher.controller.leadership.types import CoordinatorRefused, CoordinatorUnreachable


class EtcdModel:
    """The majority's view of an etcd cluster."""

    def __init__(self) -> None:
        self.revision = 1
        self.raft_term = 2
        self.keys: dict[bytes, tuple[KeyValue, int]] = {}
        """Key to its value and lease."""
        self.leases: dict[int, tuple[int, float]] = {}
        """Lease to its length and end."""
        self._next_lease = 7000

    def elect(self) -> None:
        """Let etcd's members choose another leader, which gives every lease its full length anew."""
        self._expire()
        self.raft_term += 1
        now_s = asyncio.get_running_loop().time()
        self.leases = {lease: (ttl, now_s + ttl) for lease, (ttl, _) in self.leases.items()}

    def answer(self, request: msgspec.Struct) -> msgspec.Struct:
        """Carry a request out at this moment."""
        self._expire()
        now_s = asyncio.get_running_loop().time()
        if isinstance(request, LeaseGrant):
            self._next_lease += 1
            ttl = max(2, request.ttl)
            self.leases[self._next_lease] = (ttl, now_s + ttl)
            return LeaseGrantReply(id=self._next_lease, ttl=ttl)
        if isinstance(request, LeaseKeepAlive):
            ttl, _ = self.leases.get(request.id, (0, 0.0))
            if ttl:
                self.leases[request.id] = (ttl, now_s + ttl)
            return LeaseKeepAliveReply(result=LeaseAlive(header=self._header(), ttl=ttl))
        if isinstance(request, LeaseRevoke):
            if self.leases.pop(request.id, None) is None:
                raise CoordinatorRefused("etcdserver: requested lease not found")
            self._expire()
            return Empty()
        if isinstance(request, Range):
            return self._range(request)
        assert isinstance(request, Txn)
        return self._txn(request)

    def _txn(self, request: Txn) -> TxnReply:
        succeeded = all(self._holds(condition) for condition in request.compare)
        operations = request.success if succeeded else request.failure
        for operation in operations:
            put = operation.request_put
            if put is not None and put.lease and put.lease not in self.leases:
                raise CoordinatorRefused("etcdserver: requested lease not found")
        if any(operation.request_range is None for operation in operations):
            self.revision += 1
        replies = tuple(self._operate(operation) for operation in operations)
        return TxnReply(header=self._header(), succeeded=succeeded, responses=replies)

    def _holds(self, condition: Compare) -> bool:
        now = self.keys[condition.key][0] if condition.key in self.keys else KeyValue(key=condition.key)
        if condition.target == "CREATE":
            return now.create_revision == condition.create_revision
        return now.mod_revision == condition.mod_revision

    def _operate(self, operation: Operation) -> OperationReply:
        if operation.request_range is not None:
            return OperationReply(response_range=self._range(operation.request_range))
        put, delete = operation.request_put, operation.request_delete_range
        if put is not None:
            old, lease = self.keys.get(put.key, (None, 0))
            made = old.create_revision if old else self.revision
            value = old.value if put.ignore_value and old else put.value
            pair = KeyValue(key=put.key, value=value, create_revision=made, mod_revision=self.revision)
            self.keys[put.key] = (pair, lease if put.ignore_lease else put.lease)
        if delete is not None:
            for key in self._between(delete.key, delete.range_end):
                del self.keys[key]
        return OperationReply()

    def _range(self, request: Range) -> RangeReply:
        found = self._between(request.key, request.range_end)
        limit = request.limit or len(found)
        pairs = tuple(self.keys[key][0] for key in found[:limit])
        return RangeReply(header=self._header(), kvs=pairs, more=len(found) > limit)

    def _between(self, start: bytes, end: bytes) -> list[bytes]:
        return sorted(key for key in self.keys if (start <= key < end if end else key == start))

    def _header(self) -> EtcdHeader:
        return EtcdHeader(revision=self.revision, raft_term=self.raft_term)

    def _expire(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self.leases = {lease: (ttl, end_s) for lease, (ttl, end_s) in self.leases.items() if end_s > now_s}
        gone = [key for key, (_, lease) in self.keys.items() if lease and lease not in self.leases]
        for key in gone:
            del self.keys[key]
        self.revision += bool(gone)


class ModelTransport:
    """A `Transport` from a host to the model. For a while its keepalives may reach a member that the majority has left
    behind, which answers them although they mean nothing; other requests find a member that knows better."""

    def __init__(self, model: EtcdModel, host: Host) -> None:
        self._model = model
        self._host = host
        self.stale_until_s = 0.0
        self.stale_raft_term = 0

    async def call(self, path: str, request: msgspec.Struct, reply: Any, timeout_s: float) -> Any:
        try:
            return await self._host.reach(lambda: self._answer(request), timeout_s)
        except UnreachedError as error:
            raise CoordinatorUnreachable(f"no answer to {path}") from error

    def _answer(self, request: msgspec.Struct) -> msgspec.Struct:
        if isinstance(request, LeaseKeepAlive) and self.stale_until_s > asyncio.get_running_loop().time():
            header = EtcdHeader(raft_term=self.stale_raft_term)
            return LeaseKeepAliveReply(result=LeaseAlive(header=header, ttl=2))
        return self._model.answer(request)

    async def close(self) -> None:
        pass


class ModelFolder:
    """A folder as a file server has it."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}


class ModelFiles:
    """`Files` from a host to the model."""

    def __init__(self, folder: ModelFolder, host: Host) -> None:
        self._contents = folder.contents
        self._host = host

    async def names(self, timeout_s: float, fresh: bool = False) -> list[str]:
        return await self._reach(lambda: list(self._contents), timeout_s)

    async def read(self, name: str, timeout_s: float) -> bytes | None:
        return await self._reach(lambda: self._contents.get(name), timeout_s)

    async def create(self, name: str, data: bytes, timeout_s: float) -> bool:
        def create() -> bool:
            return name not in self._contents and self._contents.setdefault(name, data) is data

        return await self._reach(create, timeout_s)

    async def replace(self, name: str, data: bytes, timeout_s: float) -> None:
        await self._reach(lambda: self._contents.update({name: data}), timeout_s)

    async def remove(self, names: Iterable[str], timeout_s: float) -> None:
        def remove() -> None:
            for name in tuple(names):
                self._contents.pop(name, None)

        await self._reach(remove, timeout_s)

    async def _reach(self, act: Any, timeout_s: float) -> Any:
        try:
            return await self._host.reach(act, timeout_s)
        except UnreachedError as error:
            raise CoordinatorUnreachable("the folder hangs") from error
