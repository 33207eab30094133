"""Calls over a connection to a server: each acquire and release is a line, which is answered by a line as soon as it is over."""

import asyncio
import json
import os
import socket
import time
from typing import Any, Callable, Dict, List, Optional

from ._wire import FACTS, MOST, Answer, Response

ACQUIRES = 960  # at once over a connection: a server takes 1024, and releases need some
LONGEST_LINE = 60_000  # bytes: a longer one would end the connection
IDLE = 20.0  # seconds after which a silent connection is not trusted
AGAIN, VAIN = 10.0, 300.0  # seconds after which a server is asked for a connection again: one that failed, and one that never worked
PROBE = b'{"index":1}\n'  # is refused at once, so it finds out whether a proxy passes on lines

NO_ANSWER = Answer("unknown", {}, "no answer")


def line_of(index: int, op: str, body: bytes) -> bytes:
    return b'{"index":%d,"%s":%s}\n' % (index, op.encode(), body)


def read(line: bytes) -> Dict[str, Any]:
    """Reads a line. Raises ValueError, of all that no server sends."""
    found = json.loads(line)
    if not isinstance(found, dict) or not isinstance(found.get("index"), int) or not isinstance(found.get("outcome"), str):
        raise ValueError("no answer to a call")
    return found


def stated(line: Dict[str, Any]) -> Optional[Answer]:
    """Returns what a line states as a fact. None: nothing was done, and a request had better find out more."""
    kind, problem = line["outcome"], line.get("problem")
    if kind == "ok" and problem is None:
        return Answer("ok", line.get("grant") or {}, "")
    body = problem if isinstance(problem, dict) else {}
    if kind == "denied" or kind == "unsent" and body.get("spent") is not True:
        return None
    detail = body.get("detail")
    return Answer(kind if kind in FACTS else "unknown", body, detail if isinstance(detail, str) else kind)


def refused(response: Response, request: str, backend: Optional[str]) -> float:
    """Returns for how many seconds no connection is asked for after an answer; 0 if it is one of calls."""
    theirs = response.headers.get("distlock-backend")
    if response.status == 101 and response.headers.get("distlock-request") == request and theirs == backend:
        return 0.0
    return AGAIN if response.status in (401, 403, 421, 429) or response.status >= 500 else VAIN


class Stream(asyncio.Protocol):
    """A connection of calls, for an event loop. Each call ends with an Answer, or with None: then it is to be sent as a request."""

    def __init__(self, at: int, connection: Any, watch: Callable[["Stream"], Any], ended: Callable[["Stream", bool], Any]) -> None:
        self.at, self.connection, self._watch, self._ended = at, connection, watch, ended  # the server's index
        self.doubt: Any = None  # a task
        self._transport = connection.transport
        self._loop = asyncio.get_running_loop()
        self._calls: "Dict[int, asyncio.Future[Optional[Answer]]]" = {}  # under way, also those whose callers have gone
        self._ends: Dict[int, float] = {}  # when those are given up
        self._acquires: Dict[int, None] = {}
        self._out: List[bytes] = []
        self._rest = b""
        self._index, self.lines = 0, 0
        self.retired = self.lost = False
        self.seen = time.monotonic()
        self._timer: Optional[asyncio.TimerHandle] = None
        self._timer_at = float("inf")
        self._transport.set_protocol(self)

    def takes(self, acquire: bool) -> bool:
        if not self._calls and time.monotonic() - self.seen > IDLE:
            self.retire()
        return not (self.retired or acquire and len(self._acquires) >= ACQUIRES)

    async def call(self, op: str, body: bytes, timeout: float) -> Optional[Answer]:
        """Makes a call. A caller that is cancelled leaves its acquire, and not its release."""
        if len(body) > LONGEST_LINE:
            return None
        index = self._send(op, body, timeout)
        try:
            return await self._calls[index]
        except asyncio.CancelledError:
            if op == "acquire":
                self._leave(index)
            raise

    def probe(self, timeout: float) -> "asyncio.Future[Optional[Answer]]":
        return self._calls[self._send("", b"", timeout)]

    def _send(self, op: str, body: bytes, timeout: float) -> int:
        self._index += 1
        index, end = self._index, time.monotonic() + timeout
        self._calls[index], self._ends[index] = self._loop.create_future(), end
        if op == "acquire":
            self._acquires[index] = None
        self._write(line_of(index, op, body) if op else PROBE)
        self._look_at(min(end, time.monotonic() + 0.5))
        return index

    def _write(self, line: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)  # calls that are made together share a write
        self._out.append(line)

    def _flush(self) -> None:
        self._transport.write(b"".join(self._out))
        self._out.clear()

    def _leave(self, index: int) -> None:
        if index in self._calls and not self.lost:
            self._write(b'{"index":%d,"leave":true}\n' % index)

    def _look_at(self, when: float) -> None:
        if when < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at, self._timer = when, self._loop.call_later(when - time.monotonic(), self._look)

    def _look(self) -> None:
        """Ends calls whose time is up, and looks for a server that is silent."""
        self._timer, self._timer_at, now = None, float("inf"), time.monotonic()
        for index in [i for i, end in self._ends.items() if end <= now]:
            del self._ends[index]
            self._leave(index)
            _settle(self._calls[index], NO_ANSWER)
        if self._calls and not self.lost:
            self._watch(self)
            self._look_at(min([now + 2.0, *self._ends.values()]))

    def data_received(self, data: bytes) -> None:
        self.seen = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            for line in lines:
                self._answer(read(line))
            if len(self._rest) > MOST:
                raise ValueError("a line without end")
        except (ValueError, RecursionError):
            self.abort()

    def _answer(self, line: Dict[str, Any]) -> None:
        self.lines += 1
        index = line["index"]
        if index == 0 or not 0 < index <= self._index:  # the server drains, or makes no sense
            self.retire()
            return
        future = self._calls.pop(index, None)
        self._ends.pop(index, None)
        self._acquires.pop(index, None)
        if future is not None:
            answer = stated(line)
            if answer is None and line["outcome"] == "denied":
                self.retire()  # there may be another token
            _settle(future, answer)
        if self.retired and not self._calls:
            self.abort()

    def retire(self) -> None:
        """Lets it get no more calls, and closes it once none is under way."""
        self.retired = True
        if not self._calls:
            self.abort()

    def abort(self) -> None:
        self.retired = True
        self.connection.abort()

    def connection_lost(self, _: Optional[Exception]) -> None:
        self.retired = self.lost = True
        calls, self._calls, self._ends, self._acquires = self._calls, {}, {}, {}
        if self.doubt is not None:
            self.doubt.cancel()
        waiting = any(not future.done() for future in calls.values())
        for future in calls.values():
            _settle(future, NO_ANSWER)
        self._ended(self, waiting)


def _settle(future: "asyncio.Future[Optional[Answer]]", answer: Optional[Answer]) -> None:
    if not future.done():
        future.set_result(answer)


class Lane:
    """A connection of calls, for one thread at a time."""

    def __init__(self, at: int, sock: socket.socket, timeout: float) -> None:
        sock.settimeout(timeout)
        self.at = at
        self._sock: Optional[socket.socket] = sock
        self._index, self._rest = 0, b""
        self.used = time.monotonic()
        self.late = False  # a call took too long
        self.last = False  # the server drains, or knows us no more

    def call(self, op: str, body: bytes) -> Optional[Answer]:
        """Makes a call, as Stream.call does. All errors end it."""
        if len(body) > LONGEST_LINE:
            return None
        try:
            sock, self._index = self._sock, self._index + 1
            if sock is None:
                return NO_ANSWER
            sock.sendall(line_of(self._index, op, body))
            answer = stated(self._line(sock))
            self.last = self.last or answer is None
            self.used = time.monotonic()
            return answer
        except (OSError, EOFError, ValueError, RecursionError) as e:
            self.late = isinstance(e, socket.timeout)
            self.close()
            return NO_ANSWER
        except BaseException:
            self.close()
            raise

    def _line(self, sock: socket.socket) -> Dict[str, Any]:
        while True:
            while b"\n" not in self._rest:
                data = sock.recv(65536)
                if not data or len(self._rest) > MOST:
                    raise EOFError
                self._rest += data
            text, self._rest = self._rest.split(b"\n", 1)
            line = read(text)
            if line["index"] == self._index:
                return line
            self.last = True
            if line["index"] != 0:
                raise ValueError("an answer to another call")

    def is_fit(self) -> bool:
        return self._sock is not None and not self.last and time.monotonic() - self.used < IDLE

    def close(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    __del__ = close  # of one that a thread was interrupted in

    def close_inherited(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None and sock.fileno() >= 0:
            os.close(sock.detach())
