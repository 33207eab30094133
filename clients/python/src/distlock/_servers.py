"""The servers of a client: one is in use, and the next one when that gives no answer."""

import asyncio
import math
import os
import ssl
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence

from ._calls import AGAIN, VAIN, Lane, Stream, refused
from ._http import Connection, NoAnswerError, Server, within
from ._secrets import Certificates, Token
from ._wire import Answer, Response, encode, judge, outcomes, parse

# A host that is off costs about a second: that of connecting to it, or that of a request without an answer in DOUBT and a
# probe of PROBE beside it. With one server there is nothing to be gained by haste.
CONNECT, CONNECT_ONLY = 1.0, 3.0
DOUBT, DOUBT_AGAIN = 0.5, 2.0
PROBE, PROBE_ONLY = 0.7, 3.0

CLOSE = 1.0  # seconds between two calls for which a connection of calls pays

NO_FACT = ("unknown", "unsent", "other")


class Slots:
    """Bounds how many requests are under way at once. The others wait in their order."""

    def __init__(self, n: int) -> None:
        self._free = n
        self._queue: "Deque[asyncio.Future[bool]]" = deque()

    def take_now(self) -> bool:
        """Takes a slot if one is free."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    async def take(self, seconds: float = math.inf) -> bool:
        """Waits for a slot, and reports whether there was one in time."""
        if self.take_now():
            return True
        loop = asyncio.get_running_loop()
        turn: "asyncio.Future[bool]" = loop.create_future()
        self._queue.append(turn)
        timer = loop.call_later(min(seconds, 1e6), _refuse, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.give()
            raise
        finally:
            timer.cancel()

    def refuse_all(self) -> None:
        while self._queue:
            _refuse(self._queue.popleft())

    def give(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1


def _refuse(turn: "asyncio.Future[bool]") -> None:
    if not turn.done():
        turn.set_result(False)


class Servers:
    """Sends requests, in one event loop. The server in use stays that until it fails."""

    def __init__(self, urls: Sequence[str], token: Token, certificates: Certificates, connections: int) -> None:
        if not urls:
            raise ValueError("Locks wants the URL of a server")
        if isinstance(connections, bool) or not isinstance(connections, int) or connections < 1:
            raise ValueError(f"connections is {connections!r}: want a number, at least 1")
        self._servers = [Server(parse(u), certificates, connections) for u in urls]
        self._token, self._most = token, connections
        self._at = 0
        self._backend: Optional[str] = None  # the name of the first one seen
        self.let_in = False  # some server has let this client in
        self.waits, self._calls = Slots(connections), Slots(connections)  # requests that wait for a lock, and short ones
        self._last, self._row = float("-inf"), 0  # when the last call was made, and how many before it were close together
        self._streams: List[Stream] = []
        self.opening: "Optional[asyncio.Task[None]]" = None  # opens a stream
        self._lanes: List[Lane] = []  # that no thread uses
        self._all_lanes: "weakref.WeakSet[Lane]" = weakref.WeakSet()
        self._closed = False

    def __len__(self) -> int:
        return len(self._servers)

    def close(self) -> None:
        self._closed = True
        if self.opening is not None:
            self.opening.cancel()
        for stream in list(self._streams):
            stream.abort()
        for lane in list(self._lanes):
            lane.close()
        for s in self._servers:
            s.distrust()

    def close_inherited(self) -> None:
        for lane in list(self._all_lanes):
            lane.close_inherited()
        for s in self._servers:
            s.close_inherited()

    async def acquire(self, body: Mapping[str, Any], timeout: float, waits: bool) -> Answer:
        """Asks for a lock. A caller for whom the server shall wait has one of the slots for that."""
        if waits:
            return await self._call("POST", "/v1/acquire", encode(body), timeout)
        return await self._short("POST", "/v1/acquire", encode(body), timeout)

    async def release(self, body: Mapping[str, Any], timeout: float) -> Answer:
        text, stream = encode(body), self.stream(False)
        answer = None if stream is None else await self.over(stream, "release", text, timeout)
        return answer or await self._short("POST", "/v1/release", text, timeout)

    # Connections of calls

    async def over(self, stream: Stream, op: str, body: bytes, timeout: float) -> Optional[Answer]:
        """Makes a call over a stream. None: it is to be made as a request."""
        answer = await stream.call(op, body, timeout)
        if answer is not None and answer.kind in NO_FACT:
            self._leave(stream.at)
        return answer

    def stream(self, acquire: bool) -> Optional[Stream]:
        """Returns a stream to the server in use. If calls come close together, one is opened."""
        self._called()
        for stream in self._streams:
            if stream.at == self._at and stream.takes(acquire):
                return stream
        if self._row > 0:
            self.open(False)
        return None

    def _called(self) -> None:
        """Notes a call, and how many before it were close together."""
        now = time.monotonic()
        self._row, self._last = self._row + 1 if now - self._last < CLOSE else 0, now

    def open(self, lane: bool) -> None:
        """Opens a connection of calls to the server in use, unless that has refused one lately."""
        server, now = self._servers[self._at], time.monotonic()
        if now >= server.again and self._backend is not None and self.opening is None and not self._closed:
            server.again = now + AGAIN
            self.opening = asyncio.get_running_loop().create_task(self._open(self._at, server, lane))

    async def _open(self, at: int, server: Server, lane: bool) -> None:
        try:
            await within(PROBE_ONLY, self._opened(at, server, lane), lambda _: None)
        except (OSError, ValueError, NoAnswerError):
            pass
        finally:
            self.opening = None
            self.waits.refuse_all()  # they look for the stream

    async def _opened(self, at: int, server: Server, lane: bool) -> None:
        c = await server.connect(CONNECT)
        try:
            request = os.urandom(12).hex()
            wait = refused(await c.exchange(self._message(server, request, "GET", "/v1/calls", None)), request, self._backend)
            server.again = time.monotonic() + (wait or VAIN)
            if wait == 0 and lane:
                new = Lane(at, c.sock.dup(), DOUBT)
                self._all_lanes.add(new)
                self.give_lane(new)
                server.again = 0.0
            elif wait == 0:
                stream = Stream(at, c, self._watch, self._ended)
                answer = await stream.probe(PROBE)
                if answer is not None and answer.kind == "invalid" and not stream.retired:
                    server.again = 0.0
                    self._streams.append(stream)
                    return
        except BaseException:
            server.drop(c)
            raise
        server.drop(c)

    def _watch(self, stream: Stream) -> None:
        server = self._servers[stream.at]
        server.seen = max(server.seen, stream.seen)
        stream.doubt = asyncio.get_running_loop().create_task(self._doubt_stream(server, stream))

    async def _doubt_stream(self, server: Server, stream: Stream) -> None:
        if not await self._lives(server):
            stream.abort()

    def _ended(self, stream: Stream, waiting: bool) -> None:
        self._servers[stream.at].forget(stream.connection)
        if stream in self._streams:
            self._streams.remove(stream)
            if waiting:
                self._leave(stream.at)

    def lane(self, submit: Callable[..., Any]) -> Optional[Lane]:
        """Returns a connection of calls to the server in use, for a thread that is the only one to use it until give_lane."""
        while self._lanes:
            try:
                lane = self._lanes.pop()
            except IndexError:
                break
            if lane.at == self._at and lane.is_fit():
                self._called()
                return lane
            self.end_lane(lane)
        # A stream has shown that there is a way for lines. Of TLS, a thread can't take over a connection of the loop.
        plain = self._servers[self._at].address.scheme != "https"
        if plain and self._streams and self._row > 3 and len(self._all_lanes) < self._most and self.opening is None:
            submit(self.open, True)
        return None

    def give_lane(self, lane: Lane) -> None:
        """Takes a connection back after an answer."""
        if lane.is_fit() and not self._closed:
            self._lanes.append(lane)
        else:
            self.end_lane(lane)

    def end_lane(self, lane: Lane) -> None:
        lane.close()
        self._all_lanes.discard(lane)
        if lane.late:
            self._servers[lane.at].again = time.monotonic() + AGAIN

    async def renew(self, holds: List[bytes], timeout: float) -> Dict[int, str]:
        """Renews holds in one request, for which it waits behind no other. Returns what became of each that is known."""
        at = self._at
        answer = await self._call("POST", "/v1/renew", b'{"holds":[' + b",".join(holds) + b"]}", timeout)
        found = outcomes(answer) if answer.kind == "ok" else {}
        if not any(kind in ("ok", "lost") for kind in found.values()):  # the server works, and its backend does not
            self._leave(at)
        return found

    async def ask(self, path: str, timeout: float) -> Answer:
        """Sends a request that changes nothing, to all servers until one answers."""
        answer = await self._short("GET", path, None, timeout)
        for _ in self._servers[1:]:
            if answer.kind in NO_FACT:
                answer = await self._short("GET", path, None, timeout)
        return answer

    def _leave(self, at: int) -> None:
        if self._at == at:
            self._at = (at + 1) % len(self._servers)

    async def _short(self, method: str, path: str, body: Optional[bytes], timeout: float) -> Answer:
        await self._calls.take()
        try:
            return await self._call(method, path, body, timeout)
        finally:
            self._calls.give()

    async def _call(self, method: str, path: str, body: Optional[bytes], timeout: float) -> Answer:
        """Sends one request to the server in use, and makes the next one that if it gives no answer."""
        at = self._at
        answer = await self._exchange(self._servers[at], method, path, body, timeout)
        if answer.kind in NO_FACT:
            self._leave(at)
        return answer

    async def _exchange(self, server: Server, method: str, path: str, body: Optional[bytes], timeout: float) -> Answer:
        end = time.monotonic() + timeout
        unsure = False
        while True:
            c = server.take()
            try:
                if c is None:
                    c = await server.connect(min(timeout, CONNECT if len(self) > 1 else CONNECT_ONLY))
            except (OSError, ValueError) as e:  # ssl has errors that are ValueErrors
                return Answer("unknown" if unsure else "unsent", {}, f"{server.address}: {_reason(e)}")
            request = os.urandom(12).hex()
            try:
                response = await self._send(server, c, self._message(server, request, method, path, body), end)
            except NoAnswerError as e:
                if e.stale:  # the server has closed an unused connection, as it may; the request is sent again
                    unsure = True
                    continue
                server.distrust()
                return Answer("unknown", {}, f"{server.address}: no answer")
            answer = judge(server.address, response, request, self._backend)
            if answer.kind not in NO_FACT and not (answer.kind == "denied" and response.status == 401):
                self._backend = self._backend or response.headers["distlock-backend"]
                self.let_in = self.let_in or answer.kind != "denied"
            return answer._replace(unsure=unsure)

    async def _send(self, server: Server, c: Connection, message: bytes, end: float) -> Response:
        loop = asyncio.get_running_loop()
        doubt: Optional["asyncio.Task[None]"] = None

        def begin() -> None:
            nonlocal doubt
            doubt = loop.create_task(self._doubt(server, c))

        timer = loop.call_later(max(0.0, end - time.monotonic()), c.abort)
        doubts = loop.call_later(DOUBT, begin)
        try:
            response = await c.exchange(message)
            server.seen = time.monotonic()
            return response
        finally:
            timer.cancel()
            doubts.cancel()
            if doubt is not None:
                doubt.cancel()
            server.give(c)

    async def _doubt(self, server: Server, c: Connection) -> None:
        """Ends a request whose server shows no sign of life. One that waits for a lock takes its time."""
        while await self._lives(server):
            await asyncio.sleep(DOUBT_AGAIN)
        c.abort()

    async def _lives(self, server: Server) -> bool:
        if time.monotonic() - server.seen < DOUBT:
            return True
        if server.probing is None:
            server.probing = asyncio.get_running_loop().create_task(self._probe(server))
        return await asyncio.shield(server.probing)

    async def _probe(self, server: Server) -> bool:
        """Asks the server for anything, on a connection of its own: an old one may lead nowhere."""
        try:
            end = time.monotonic() + (PROBE if len(self) > 1 else PROBE_ONLY)
            c = await server.connect(end - time.monotonic())
            request = os.urandom(12).hex()
            timer = asyncio.get_running_loop().call_later(max(0.0, end - time.monotonic()), c.abort)
            try:
                response = await c.exchange(self._message(server, request, "GET", "/v1", None))
            finally:
                timer.cancel()
                server.give(c)
            if response.headers.get("distlock-request") != request:
                return False
            server.seen = time.monotonic()
            return True
        except (OSError, ValueError, NoAnswerError):
            return False
        finally:
            server.probing = None

    def _message(self, server: Server, request: str, method: str, path: str, body: Optional[bytes]) -> bytes:
        a = server.address
        lines = [f"{method} {a.base}{path} HTTP/1.1", f"Host: {a.authority}", f"Distlock-Request: {request}"]
        token = self._token.value()
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        if self._backend is not None:
            lines.append(f"Distlock-Backend: {self._backend}")
        if path == "/v1/calls":
            lines += ["Connection: Upgrade", "Upgrade: distlock-calls"]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join(lines + ["", ""]).encode("latin-1") + (body or b"")


def _reason(e: Exception) -> str:
    if isinstance(e, ssl.SSLError) and e.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "the server does not speak TLS: want http://"
    return "no connection in time" if isinstance(e, TimeoutError) else f"{type(e).__name__}: {e}"
