"""HTTP/1.1 over asyncio: a connection, and the pool of those to one server."""

import asyncio
import ipaddress
import os
import socket
import ssl
import threading
import time
from typing import Any, Awaitable, Callable, Dict, List, Optional, Set, Tuple, TypeVar

from ._secrets import Certificates
from ._wire import MOST, Address, Response

IDLE = 20.0  # seconds after which an unused connection is not trusted: a firewall may have forgotten it

T = TypeVar("T")


class NoAnswerError(Exception):
    """A request that was sent, perhaps in part, has no answer. stale: the connection had ended before it was used."""

    def __init__(self, stale: bool) -> None:
        super().__init__("no answer")
        self.stale = stale


async def within(seconds: float, work: Awaitable[T], discard: Callable[[T], None]) -> T:
    """Waits for work, and raises TimeoutError if it lasts longer. What comes of it later is discarded.

    Before Python 3.12 asyncio.wait_for may swallow a cancellation.
    """

    def late(task: "asyncio.Future[T]") -> None:
        if not task.cancelled() and task.exception() is None:
            discard(task.result())

    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise TimeoutError
    except BaseException:
        task.cancel()
        task.add_done_callback(late)
        raise
    return task.result()


class Connection:
    """A connection to a server. It carries one request at a time."""

    def __init__(self, sock: socket.socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sock, self._reader, self._writer = sock, reader, writer
        self.transport = writer.transport
        self.used = False
        self.idle_since = 0.0
        self.keep = True  # after the answer

    def is_fit(self) -> bool:
        return not (self._reader.at_eof() or self._writer.is_closing()) and time.monotonic() - self.idle_since < IDLE

    def abort(self) -> None:
        """Ends the connection, and a request under way."""
        self.keep = False
        self.transport.abort()

    def close_inherited(self) -> None:
        """Closes a forked child's copy of the connection, of which its parent must not notice anything."""
        fd = self.sock.detach()
        if fd >= 0:
            os.close(fd)

    async def exchange(self, request: bytes) -> Response:
        stale, self.used = self.used, True
        try:
            self._writer.write(request)
            head = await self._reader.readuntil(b"\r\n\r\n")
            stale = False
            return await self._response(head)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as e:
            self.abort()
            raise NoAnswerError(stale and not getattr(e, "partial", b"")) from e
        except BaseException:
            self.abort()
            raise

    async def _response(self, head: bytes) -> Response:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, *_ = first.split(" ", 2)
        if not version.startswith("HTTP/1."):
            raise ValueError("not HTTP")
        if status.startswith("1") and status != "101":
            return await self._response(await self._reader.readuntil(b"\r\n\r\n"))
        headers: Dict[str, str] = {}
        for line in filter(None, lines):
            key, _, value = line.partition(":")
            headers[key.strip().lower()] = value.strip()
        if version == "HTTP/1.0" or "close" in headers.get("connection", "").lower():
            self.keep = False
        if status in ("101", "204", "304"):
            return Response(int(status), headers, b"")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return Response(int(status), headers, await self._chunks())
        if "content-length" in headers:
            return Response(int(status), headers, await self._reader.readexactly(_size(headers["content-length"], 10)))
        self.keep = False
        body = await self._reader.read(MOST)
        return Response(int(status), headers, body)

    async def _chunks(self) -> bytes:
        body = bytearray()
        while True:
            size = _size((await self._reader.readuntil(b"\r\n")).split(b";")[0].decode("ascii"), 16)
            if size == 0:
                break
            if len(body) + size > MOST:
                raise ValueError("a body without end")
            body += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        while await self._reader.readuntil(b"\r\n") != b"\r\n":
            pass  # a trailer
        return bytes(body)


def _size(text: str, base: int) -> int:
    size = int(text.strip(), base)
    if not 0 <= size <= MOST:
        raise ValueError("a body without end")
    return size


class Server:
    """One of the servers of a client, with the connections to it that are kept open."""

    def __init__(self, address: Address, certificates: Certificates, most: int) -> None:
        self.address = address
        self._certificates, self._most = certificates, most
        self._idle: List[Connection] = []
        self._open: Set[Connection] = set()
        self._found: List[Tuple[int, Any]] = []  # where the host was the last time
        self.seen = float("-inf")  # by the monotonic clock: its last answer
        self.probing: Optional["asyncio.Task[bool]"] = None
        self.again = 0.0  # when a connection of calls may be asked for

    def take(self) -> Optional[Connection]:
        """Returns an open connection that is not in use."""
        while self._idle:
            c = self._idle.pop()
            if c.is_fit():
                return c
            self.drop(c)
        return None

    def give(self, c: Connection) -> None:
        """Takes a connection back after its answer."""
        if c.keep and len(self._idle) < self._most:
            c.idle_since = time.monotonic()
            self._idle.append(c)
        else:
            self.drop(c)

    def drop(self, c: Connection) -> None:
        self.forget(c)
        c.abort()

    def forget(self, c: Connection) -> None:
        self._open.discard(c)

    def distrust(self) -> None:
        """Drops all connections that are not in use."""
        while self._idle:
            self.drop(self._idle.pop())

    def close_inherited(self) -> None:
        for c in self._open:
            c.close_inherited()

    async def connect(self, seconds: float) -> Connection:
        """Makes a connection. Raises OSError, of which TimeoutError is one."""
        c = await within(seconds, self._connect(seconds), Connection.abort)
        self._open.add(c)
        return c

    async def _connect(self, seconds: float) -> Connection:
        a, tls, name = self.address, None, None
        if a.scheme == "https":
            tls, name = self._certificates.context(), a.host
        found = [(getattr(socket, "AF_UNIX", 0), a.path)] if a.scheme == "http+unix" else await self._where()
        error: OSError = OSError("the name of the host has no address")
        for family, where in found:
            try:
                return await _connection(family, where, tls, name, seconds / len(found))
            except OSError as e:
                error = e
        raise error

    async def _where(self) -> List[Tuple[int, Any]]:
        """Looks the host's name up, and takes the last addresses if that is not to be had now."""
        host, port = self.address.host, self.address.port
        try:
            ip = ipaddress.ip_address(host)
            return [(socket.AF_INET if ip.version == 4 else socket.AF_INET6, (host, port))]
        except ValueError:
            pass
        try:
            self._found = await _look_up(host, port)
        except (OSError, RuntimeError) as e:  # RuntimeError: no thread starts while the interpreter ends
            if not self._found:
                raise OSError(f"the name of the host is not known: {e}") from e
        return self._found


async def _connection(
    family: int, where: Any, tls: Optional[ssl.SSLContext], name: Optional[str], seconds: float
) -> Connection:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await within(seconds, asyncio.get_running_loop().sock_connect(sock, where), lambda _: None)
        if family == getattr(socket, "AF_UNIX", None):
            reader, writer = await asyncio.open_unix_connection(sock=sock)
        else:
            reader, writer = await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=name)
    except BaseException:
        sock.close()
        raise
    return Connection(sock, reader, writer)


async def _look_up(host: str, port: int) -> List[Tuple[int, Any]]:
    """Is getaddrinfo in a thread of its own: the loop's would make the program's end wait for a dead name server."""
    loop = asyncio.get_running_loop()
    future: "asyncio.Future[List[Tuple[int, Any]]]" = loop.create_future()

    def tell(found: List[Tuple[int, Any]], error: Optional[OSError]) -> None:
        if not future.done():
            if error is None:
                future.set_result(found)
            else:
                future.set_exception(error)

    def look() -> None:
        found: List[Tuple[int, Any]] = []
        error: Optional[OSError] = None
        try:
            found = [(int(f[0]), f[4]) for f in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except (OSError, UnicodeError) as e:
            error = e if isinstance(e, OSError) else OSError(str(e))
        try:
            loop.call_soon_threadsafe(tell, found, error)
        except RuntimeError:
            pass  # the loop has ended

    threading.Thread(target=look, name="distlock looks up a host", daemon=True).start()
    return await future
