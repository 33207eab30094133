"""Executes lock calls with redis-py: one line of JSON in, one out.

lock:   {"do": "lock", "name": …, "ttl": ms, "wait": true or false} -> {"id": …} or {"error": "busy"}
unlock: {"do": "unlock", "id": …}                                   -> {} or {"error": "not held"}
extend: {"do": "extend", "id": …, "ttl": ms}                        -> {} or {"error": "not held"}
"""

import json
import sys

import redis
from redis.exceptions import LockError

host, port = sys.argv[1].rsplit(":", 1)
client = redis.Redis(host=host, port=int(port))
locks = {}


def acquire(call):
    lock = client.lock(call["name"], timeout=call["ttl"] / 1000, sleep=0.005, thread_local=False)
    if not lock.acquire(blocking=call["wait"]):
        return {"error": "busy"}
    locks[len(locks)] = lock
    return {"id": len(locks) - 1}


def release(call):
    locks[call["id"]].release()
    return {}


def extend(call):
    locks[call["id"]].extend(call["ttl"] / 1000, replace_ttl=True)
    return {}


calls = {"lock": acquire, "unlock": release, "extend": extend}

for line in sys.stdin:
    call = json.loads(line)
    try:
        answer = calls[call["do"]](call)
    except LockError:  # also LockNotOwnedError
        answer = {"error": "not held"}
    except Exception as e:
        answer = {"error": repr(e)}
    print(json.dumps(answer), flush=True)
