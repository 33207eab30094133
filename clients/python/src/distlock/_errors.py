"""What the client raises and tells: errors, holders and events."""

import dataclasses
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence


class Error(Exception):
    """The base of all errors of this package. None shows a token or the owner of a hold."""


class Held(Error):
    """Others hold the lock, and the wait is over.

    holders has what is known of them, perhaps nothing.
    """

    def __init__(self, message: str, holders: Sequence["Holder"] = ()) -> None:
        super().__init__(message)
        self.holders = list(holders)


class Lost(Error):
    """The lock was lost: others may hold it now."""


class Invalid(Error):
    """The server does not accept the request, or its backend can't do that. A retry is useless."""


class Denied(Error):
    """The token or the certificate is missing, unknown, or has no right to this lock."""


class Unavailable(Error):
    """No server gave an answer in time, or the client was closed.

    The lock is not used. One that may have been taken is released, or ends with its TTL.
    """


@dataclasses.dataclass(frozen=True)
class Holder:
    """Describes who holds a lock. What is not known is None.

    mode is exclusive, write, read or counted. fence is the holder's fence. held and left are how long it has been
    holding, and how long it would hold on without a renewal, in seconds. meta is what it says of itself: host, pid,
    program and more. Others wrote that: trust it for messages only.
    """

    mode: Optional[str]
    fence: Optional[int]
    held: Optional[float]
    left: Optional[float]
    meta: Mapping[str, str]

    def __str__(self) -> str:
        program, pid, host = (_printable(self.meta.get(k, "?")) for k in ("program", "pid", "host"))
        return f"{program} (pid {pid} on {host})"


class Event(NamedTuple):
    """Tells on_event what has happened to the lock called name.

    =========  =======================================================  ========================
    kind       what                                                     seconds
    =========  =======================================================  ========================
    waited     others held the lock; taken or failed follows            of the wait
    taken      a lease has begun                                        since the call
    failed     the lock was not taken: held, no server, a refusal, an   since the call
               interrupt
    released   the lease was released                                   for which it was held
    lost       the lease was lost                                       for which it was held
    forgotten  nobody has the lease any more, so it is released         for which it was held
    =========  =======================================================  ========================
    """

    kind: str
    name: str
    seconds: float


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:200]


def held(name: str, found: List[Holder]) -> Held:
    """Returns the error for a lock that others hold."""
    return Held(f"{name!r} is held by {', '.join(map(str, found)) or 'another'}", found)


def holders(found: Any) -> List[Holder]:
    """Reads the holders in an answer. Others may have put anything into it."""
    return [_holder(h) for h in found if isinstance(h, dict)] if isinstance(found, list) else []


def _holder(h: Mapping[str, Any]) -> Holder:
    mode, fence, meta = h.get("mode"), str(h.get("fence")), h.get("meta")
    return Holder(
        mode if isinstance(mode, str) else None,
        int(fence) if fence.isascii() and fence.isdigit() and len(fence) < 20 else None,
        _seconds(h.get("held_ms")),
        _seconds(h.get("left_ms")),
        {str(k): str(v) for k, v in meta.items()} if isinstance(meta, dict) else {},
    )


def _seconds(ms: Any) -> Optional[float]:
    return ms / 1000 if isinstance(ms, (int, float)) and ms >= 0 else None
