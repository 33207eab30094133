"""The one thread of a client: it runs the client's event loop, for all leases and for the threads that wait."""

import asyncio
import atexit
import functools
import os
import queue
import threading
import time
import weakref
from typing import Any, Callable, Coroutine, Dict, List, Optional

from ._client import Client, log
from ._errors import Event, Invalid, Unavailable
from ._flag import Flag
from ._hold import BaseLease

_serving: Dict[int, None] = {}  # the threads of clients
_OURS = "distlock"  # begins the names of this package's threads
_CLOSED = "the client was closed"
SLICE = 0.5 if os.name == "nt" else 5.0  # seconds for which a thread waits before it looks whether the worker lives, and, in
# Windows, whether it is interrupted


def serves() -> bool:
    """Reports whether this is the thread of a client, which must not wait for one."""
    return threading.get_ident() in _serving


class Worker:
    """Runs a client in a daemon thread, until nothing refers to the worker any more.

    A signal's handler runs in the main thread, so that nothing here is ever interrupted.
    """

    def __init__(self, make: Callable[[], Client]) -> None:
        self.client = make()
        self.loop = _Loop()
        self.client.submit = functools.partial(_submit, self.loop)  # not a method, which would keep this
        self._stop = weakref.finalize(self, _stop, self.loop)
        self._stop.atexit = False
        self._thread = threading.Thread(target=_serve, args=(self.loop, self.client), name=_OURS, daemon=True)
        self._thread.start()

    def lives(self) -> bool:
        return self._thread.is_alive()

    def submit(self, call: Callable[..., Any], *args: Any) -> bool:
        """Lets the loop call something, unless it has ended: then nothing is renewed."""
        return _submit(self.loop, call, *args)

    def wait(self, begin: Callable[..., "asyncio.Task[Any]"], *args: Any, timeout: Optional[float] = None) -> Any:
        """Lets the loop begin a task, and waits for its result."""
        if serves():
            raise Invalid("the garbage collector has called this in a client's own thread, which can't wait: do it elsewhere")
        done = _Done()
        end = None if timeout is None else time.monotonic() + timeout
        lives = self.submit(_begin, done, begin, args)
        while lives and not done.wait(SLICE if end is None else min(SLICE, end - time.monotonic())):
            lives = self.lives() and (end is None or time.monotonic() < end)
        if not done.is_set():
            raise Unavailable(_CLOSED)
        try:
            if done.error is not None:
                raise done.error
            return done.result
        finally:
            del done  # else the error would refer to itself by this frame, and so keep the leases in others for a while

    def run(self, work: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        """Lets the loop do work, and waits for its result. The work goes on if the caller is interrupted."""
        return self.wait(lambda: self.client.run(work(*args)))

    def later(self, work: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Lets the loop do work, for whose result nobody waits."""
        self.submit(lambda: self.client.run(work(*args)))

    def close(self, release: bool = True) -> None:
        """Closes the client, and ends the thread."""
        if serves():
            self.submit(lambda: self.client.run(self.client.close(release)).add_done_callback(lambda _: self._stop()))
            return
        try:
            self.wait(lambda: self.client.run(self.client.close(release)), timeout=3.0)
        except Unavailable:
            pass
        self._stop()

    def abandon(self) -> None:
        """Leaves the thread to the process that has forked this one. To touch the loop would disturb it."""
        self._stop.detach()
        self.client.close_inherited()
        _inherited.append(self)


def _submit(loop: asyncio.AbstractEventLoop, call: Callable[..., Any], *args: Any) -> bool:
    try:
        loop.call_soon_threadsafe(call, *args)
        return True
    except RuntimeError:
        return False


class _Loop(asyncio.SelectorEventLoop):
    """A loop beside which another may run in the same thread, as where gevent or eventlet make one of all threads."""

    def _process_events(self, events: Any) -> None:
        asyncio._set_running_loop(self)
        super()._process_events(events)  # type: ignore[misc]


_inherited: List[Worker] = []  # kept, since the end of a loop would disturb its process


class _Done(Flag):
    """Is set with what came of a task."""

    result: Any = None
    error: Optional[BaseException] = None


def _begin(done: _Done, begin: Callable[..., "asyncio.Task[Any]"], args: Any) -> None:
    def copy(task: "asyncio.Task[Any]") -> None:
        if task.cancelled():
            done.error = Unavailable(_CLOSED)
        else:
            done.error = task.exception()
            done.result = None if done.error else task.result()
        done.set()

    try:
        begin(*args).add_done_callback(copy)
    except BaseException as e:
        done.error = e
        done.set()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    _submit(loop, loop.stop)


def _serve(loop: asyncio.AbstractEventLoop, client: Client) -> None:
    me = threading.get_ident()
    _serving[me] = None
    try:
        asyncio._set_running_loop(None)
        loop.run_forever()
        asyncio._set_running_loop(None)
        loop.run_until_complete(client.disconnect())
        loop.close()
    finally:
        _serving.pop(me, None)


def call_on_lost(lease: BaseLease) -> None:
    """Calls on_lost in a thread of its own: it may take its time."""
    call = lease._hold.terms.on_lost
    try:
        threading.Thread(target=call, args=(lease,), name=f"{_OURS} on_lost", daemon=True).start()
    except RuntimeError:
        log.error("on_lost of %r could not be called: no thread starts", lease.name)


class Teller:
    """Calls on_event in a thread of its own, so that a slow one holds up no renewal."""

    def __init__(self, call: Callable[[Event], Any]) -> None:
        self._call = call
        self._events: "queue.SimpleQueue[Event]" = queue.SimpleQueue()
        self._started = False
        self._first = [True]  # pop decides which of the threads starts it

    def tell(self, event: Event) -> None:
        self._events.put(event)
        if not self._started:
            try:
                self._first.pop()
            except IndexError:
                return
            self._started = True
            try:
                threading.Thread(target=_tell, args=(self._events, self._call), name=f"{_OURS} on_event", daemon=True).start()
            except RuntimeError:
                self._started = False  # the interpreter ends
                self._first.append(True)


def _tell(events: "queue.SimpleQueue[Event]", call: Callable[[Event], Any]) -> None:
    while True:
        tell_one(call, events.get())


def tell_one(call: Callable[[Event], Any], event: Event) -> None:
    """Calls on_event, whose exceptions harm nothing."""
    try:
        call(event)
    except Exception:
        log.exception("on_event failed")


class Process:
    """Ends the clients with the process: in its forked children, and when the interpreter ends."""

    def __init__(self) -> None:
        self._clients: "weakref.WeakSet[Any]" = weakref.WeakSet()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._exit)

    def add(self, client: Any) -> None:
        self._clients.add(client)

    def _forked(self) -> None:
        for client in list(self._clients):
            client._forked()

    def _exit(self) -> None:
        # A daemon thread may still work under a lease: what it holds ends with its TTL.
        idle = not any(
            t.daemon and t is not threading.current_thread() and not t.name.startswith(_OURS) for t in threading.enumerate()
        )
        for client in list(self._clients):
            client._exit(idle)


process = Process()
