"""The protocol, without any I/O: addresses of servers, terms of a lock, and what an answer states as a fact."""

import dataclasses
import functools
import inspect
import json
import math
import re
import urllib.parse
from typing import Any, Callable, Dict, Literal, Mapping, NamedTuple, Optional, TypeVar, cast

POLL = 20.0  # seconds for which one request waits: less than a server's limit, and than proxies allow
MOST = 16 << 20  # bytes of an answer
RENEWAL = 1000  # holds in one renewal
RENEWAL_BYTES = 2 << 20  # of its body
LONGEST = 315_360_000  # seconds of a TTL: what a server takes
SHORTEST, LONGEST_RENEWED = 0.1, 3600  # seconds: what is less or more was meant in another unit

FACTS = frozenset({"held", "lost", "invalid", "unsupported", "denied", "unsent"})

Mode = Literal["exclusive", "write", "read"]
F = TypeVar("F", bound=Callable[..., Any])


class Address(NamedTuple):
    """The parts of a server's URL."""

    scheme: str  # http, https or http+unix
    host: str
    port: int
    path: str  # of the socket, or before the paths of the calls

    @property
    def base(self) -> str:
        return "" if self.scheme == "http+unix" else self.path.rstrip("/")

    @property
    def authority(self) -> str:
        if self.scheme == "http+unix":
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"http+unix://{self.path}" if self.scheme == "http+unix" else f"{self.scheme}://{self.authority}{self.base}"


def parse(url: str) -> Address:
    """Reads a server's URL. Errors don't show what may be a password."""
    try:
        u = urllib.parse.urlsplit(url)
        host, port = u.hostname or "", u.port
        host.encode("idna")
    except (ValueError, AttributeError, TypeError):
        u, host, port = urllib.parse.urlsplit(""), "", None
    good = u.scheme in ("http", "https") and host or u.scheme == "http+unix" and u.path and not u.netloc
    if not good or "@" in u.netloc or u.query or u.fragment or port == 0:
        shown = re.sub("(//)?[^/]*@", r"\1…@", re.split("[?#]", url)[0][:100]) if isinstance(url, str) else url
        raise ValueError(
            f"{shown!r}: want URLs such as http://host:7077, https://host or http+unix:///run/distlock.sock; "
            "a token is an argument of its own"
        )
    path = urllib.parse.unquote(u.path) if u.scheme == "http+unix" else urllib.parse.quote(u.path, safe="/%~")
    return Address(u.scheme, host, port or (443 if u.scheme == "https" else 80), path)


@dataclasses.dataclass(frozen=True)
class Terms:
    """What is wanted of a lock. See Locks.lock."""

    ttl: float = 30.0
    wait: Optional[float] = None
    mode: str = "exclusive"
    limit: Optional[int] = None
    meta: Optional[Mapping[str, str]] = None
    min_hold: float = 0.0
    renew: bool = True
    reentrant: bool = False
    on_lost: Optional[Any] = None

    def __post_init__(self) -> None:
        if not _is_number(self.ttl) or not SHORTEST <= self.ttl <= LONGEST:
            raise ValueError(f"ttl is {self.ttl!r}: want seconds, at least {SHORTEST} and at most {LONGEST}; 30 are ttl=30")
        if self.renew and self.ttl > LONGEST_RENEWED:
            raise ValueError(
                f"ttl is {self.ttl!r} s: want at most {LONGEST_RENEWED} (1 h) for a lease that is renewed; "
                f"for {self.ttl!r} ms write ttl={self.ttl / 1000:g}"
            )
        if self.wait is not None and (not _is_number(self.wait) or not self.wait >= 0):
            raise ValueError(f"wait is {self.wait!r}: want seconds, or None to wait for ever")
        if not _is_number(self.min_hold) or not 0 <= self.min_hold <= LONGEST:
            raise ValueError(f"min_hold is {self.min_hold!r}: want seconds, or 0")
        if not self.renew and self.min_hold > self.ttl:
            raise ValueError(f"min_hold is {self.min_hold!r}, and without renewal the lease ends after {self.ttl!r}")
        if self.mode not in ("exclusive", "write", "read"):
            raise ValueError(f"mode is {self.mode!r}: want exclusive, write or read; a semaphore has a limit")
        if self.limit is not None and (isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1):
            raise ValueError(f"limit is {self.limit!r}: want how many may hold at once, at least 1")
        if self.limit is not None and self.mode != "exclusive":
            raise ValueError(f"mode is {self.mode!r}: want none beside limit, which makes a semaphore")
        for name, value in (("renew", self.renew), ("reentrant", self.reentrant)):
            if not isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}: want True or False")
        check_meta(self.meta)
        check_call("on_lost", self.on_lost)

    @property
    def kind(self) -> str:
        """The mode as the server knows it."""
        return "counted" if self.limit is not None else self.mode


def _is_number(v: Any) -> bool:
    return isinstance(v, (int, float)) and not isinstance(v, bool)


def check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise ValueError(f"the name of the lock is {name!r}: want a str")
    if not name:
        raise ValueError("the name of the lock is empty: want at least one character")
    name.isascii() or name.encode()  # UnicodeEncodeError is a ValueError


# Words of other libraries, in lower case and without "_".
_TTL, _WAIT = "ttl=30 is for how many seconds the lock outlives a process that died", "wait=10 waits for at most ten seconds"
_TRY = "wait=0 is one try, and try_lock makes one"
_HINTS = {
    "timeout": f"{_WAIT}, {_TTL}", "blocking": _TRY, "nonblocking": _TRY, "shared": 'mode="read" is a shared lock',
    **dict.fromkeys(("blockingtimeout", "acquiretimeout", "waittime", "maxwait", "retrycount", "retrytimes", "retrydelay", "sleep"), _WAIT),
    **dict.fromkeys(("expire", "expires", "expiration", "ex", "px", "lease", "leasetime", "duration", "locktimeout"), _TTL),
    **dict.fromkeys(("autorenewal", "autorenew", "autoextend"), "leases are renewed; renew=False is without"),
    **dict.fromkeys(("permits", "value", "maxleases", "count"), "limit=3 makes it a semaphore with three permits"),
}


def hinted(f: F) -> F:
    """Lets a function say what is right in place of a word of another library."""
    words = set(inspect.signature(f).parameters)

    @functools.wraps(f)
    def checked(*args: Any, **kw: Any) -> Any:
        for word in kw:
            if word not in words:
                hint = _HINTS.get(word.replace("_", "").lower(), "it has " + ", ".join(sorted(words - {"self", "name", "names"})))
                raise TypeError(f"{f.__name__} has no argument {word!r}: {hint}")
        return f(*args, **kw)

    return cast(F, checked)


def check_meta(meta: Any) -> None:
    if meta is not None and not isinstance(meta, Mapping):
        raise ValueError(f"meta is {meta!r}: want a dict of texts")
    for key, value in (meta or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"meta has {key!r}: {value!r}: want a text for a text")


def check_call(what: str, call: Any, wanted: bool = False) -> None:
    if (call is not None or wanted) and not callable(call):
        raise ValueError(f"{what} is {call!r}: want a function")


def margin(ttl: float) -> float:
    """How long before the end of the TTL a lease is lost: for clocks of different speed, and time to stop."""
    return min(ttl / 10, 1.0)


def patience(ttl: float) -> float:
    """How long one request may take, beside the time that it waits for the lock."""
    return min(ttl / 3, 5.0)


def milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def encode(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def segment(name: str) -> str:
    """Escapes a lock's name as one segment of a path."""
    return urllib.parse.quote(name, safe="").replace(".", "%2E")


class Response(NamedTuple):
    """An HTTP answer. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    """What an answer states: ok, one of FACTS, unknown, or other for a server before another backend.

    unsure says that the request was sent twice, and that the first one may have had its effect.
    """

    kind: str
    body: Dict[str, Any]
    detail: str
    unsure: bool = False
    lines: bytes = b""


def judge(server: Address, response: Response, request: str, backend: Optional[str]) -> Answer:
    """Returns what an answer states as a fact, for a client that has seen this backend first."""
    detail = f"{server}: status {response.status}"
    if response.status == 400 and b"HTTPS server" in response.body:
        return Answer("unsent", {}, f"{server} speaks TLS: want https://")
    if response.headers.get("distlock-request") != request:  # a proxy's, or to another request
        return Answer("unknown", {}, f"{detail}, and not from a distlock server")
    renewed = response.status == 200 and "ndjson" in response.headers.get("content-type", "")
    body: Any = {}
    if response.status != 204 and not renewed:
        try:
            body = json.loads(response.body)
        except (ValueError, RecursionError):
            return Answer("unknown", {}, f"{detail}, and no JSON")
    if not isinstance(body, dict):
        return Answer("unknown", {}, detail)
    kind, theirs = body.get("distlock"), response.headers.get("distlock-backend")
    if isinstance(body.get("detail"), str):
        detail = body["detail"]
    if response.status == 421 and kind is not None:  # not the server that is meant
        return Answer("other", {}, detail)
    if theirs is None:  # the server doesn't know us
        return Answer("denied" if response.status == 401 and kind == "denied" else "unknown", {}, detail)
    if backend is not None and theirs != backend:
        return Answer("other", {}, f"{server} is before another backend than the first server: {theirs}, not {backend}")
    if response.status in (200, 204):
        return Answer("ok", body, detail, lines=response.body if renewed else b"")
    return Answer(kind if kind in FACTS else "unknown", body, detail)


def outcomes(answer: Answer) -> Dict[int, str]:
    """Returns what became of the holds of a renewal, by their index. Those that are not in it are unknown."""
    found: Dict[int, str] = {}
    for line in answer.lines.splitlines():
        try:
            renewed = json.loads(line)
            found[renewed["index"]] = renewed["outcome"]
        except (ValueError, KeyError, TypeError, RecursionError):
            pass  # half a line is no fact
    return found


class Grant(NamedTuple):
    """What a server has granted. end is by the monotonic clock: trust nothing after it."""

    fence: int
    end: float


def granted(answer: Answer, ttl: float, start: float, now: float) -> Optional[Grant]:
    """Reads a grant to a request that was sent at start. None if it is over already, or makes no sense."""
    try:
        waited = min(answer.body["waited_ms"] / 1000, now - start)  # no server has waited for longer than its answer took
        end = start + waited + answer.body["ttl_ms"] / 1000 - margin(ttl)
        fence = int(answer.body["fence"])
    except (KeyError, TypeError, ValueError):
        return None
    return Grant(fence, end) if now < end else None
