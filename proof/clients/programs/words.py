"""The line protocol of the programs in Python. See program_test.go."""

import sys
import threading
import urllib.parse

output = threading.Lock()


def say(call, *words):
    text = " ".join(str(w) for w in (call, *words))
    with output:
        print(" ".join(text.splitlines()), flush=True)


def fails(call, e):
    say(call, "error", type(e).__name__, e)


def read(line):
    """Returns the number of a call, what it is, and its arguments."""
    call, word, *rest = line.split()
    return call, word, dict(urllib.parse.parse_qsl(rest[0] if rest else "", keep_blank_values=True))


def client(a):
    """Returns the arguments of a client."""
    return a["urls"].split(","), {k: a[k] for k in ("token", "token_file") if k in a}


def terms(a):
    """Returns the arguments of a lock."""
    found = {k: float(a[k]) / 1000 for k in ("ttl", "wait", "min_hold", "max_hold") if k in a}
    if "mode" in a:
        found["mode"] = a["mode"]
    if "limit" in a:
        found["limit"] = int(a["limit"])
    if "renew" in a:
        found["renew"] = a["renew"] == "true"
    return found


# What is wrong in a call of Locks.lock, or in the URL of Locks.
WRONG_TERMS = {
    "ttl in another unit": {"ttl": 30000},
    "ttl of nothing": {"ttl": 0},
    "mode of another library": {"mode": "shared"},
    "timeout": {"timeout": 5},
    "blocking": {"blocking": False},
    "leaseTime": {"lease_time": 30},
    "retryCount": {"retry_count": 3},
}


def wrong(make, locks, case, url):
    """Makes a wrong call, and returns what that returns."""
    if case == "no name":
        return locks.lock("")
    if case == "URL":
        return make(url)
    return locks.lock("wrong", **WRONG_TERMS[case])


def add(file, fence):
    """Adds one to the number in a file, of which the lock is all the protection. The file has the last fence too."""
    with open(file + ".history", "a") as f:
        f.write(f"begin {fence}\n")
    with open(file) as f:
        n, before = map(int, f.read().split())
    assert fence > before, "an older fence"
    with open(file, "w") as f:
        f.write(f"{n + 1} {fence}")
    with open(file + ".history", "a") as f:
        f.write(f"end {fence}\n")
