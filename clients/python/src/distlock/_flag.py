"""An event that may be set from anywhere."""

import threading
from typing import Any, Dict, Optional


class Flag(threading.Event):
    """A threading.Event whose set waits for no other thread.

    Python's own has a lock. A thread that is interrupted in wait at the wrong instruction, or that is not in a forked child, keeps
    that for ever, and set would then stop the thread that serves all leases.
    """

    def __init__(self) -> None:
        self._flag = False  # as Event has it, which makes its lock beside it
        self._turns: "Dict[Any, None]" = {}  # a taken lock for each thread that waits

    def is_set(self) -> bool:
        return self._flag

    isSet = is_set

    def set(self) -> None:
        self._flag = True
        for turn in list(self._turns):
            try:
                turn.release()
            except RuntimeError:
                pass  # another thread has done it

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: Optional[float] = None) -> bool:
        turn = threading.Lock()
        turn.acquire()
        self._turns[turn] = None
        try:
            if not self._flag:
                turn.acquire(True, -1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))
            return self._flag
        finally:
            self._turns.pop(turn, None)
