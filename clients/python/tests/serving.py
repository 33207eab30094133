"""Starts servers for tests: distlock serve, on SQLite in a folder of the test. DISTLOCK_COMMAND is the command, which is
built with Go if the variable is empty."""

import atexit
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
import warnings

import distlock

SOURCES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def eventually(true, what="it"):
    """Waits for a fact that nothing announces."""
    end = time.monotonic() + 120
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"{what} does not happen")
        time.sleep(0.002)


def fork():
    """Is os.fork without Python 3.12's warning of it beside threads, which is what its tests are about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


_built = os.environ.get("DISTLOCK_COMMAND", "")


def command():
    global _built
    if not _built:
        folder = tempfile.mkdtemp(prefix="distlock-command-")
        atexit.register(shutil.rmtree, folder, True)
        _built = os.path.join(folder, "distlock")
        subprocess.run(["go", "build", "-o", _built, "./cmd/distlock"], cwd=SOURCES, check=True)
    return _built


class Serve:
    """A server process."""

    def __init__(self, folder, *flags, listen="127.0.0.1:0", scheme="http"):
        self._args = [command(), "serve", "--url", f"sqlite:{folder}/locks.db", "--log", "off", "--drain", "100ms", *flags]
        self._scheme = scheme
        if not self.serves(listen):
            raise AssertionError("serve does not start")

    def serves(self, listen):
        """Starts the server, and reports whether it serves."""
        self.process = subprocess.Popen([*self._args, "--listen", listen], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if " serves " not in line:
            self.kill()
            return False
        self.listen = line.split()[0]
        self.url = f"{self._scheme}://{self.listen}"
        return True

    def restart(self):
        """Kills the server, and starts it again at the same address."""
        self.kill()
        while not self.serves(self.listen):  # its port may be a client's for a moment
            time.sleep(0.01)

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait()
        self.process.stdout.close()


class ServedTest(unittest.TestCase):
    """A test with a server, which all tests of a class share."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="distlock-test-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.server = cls.serve(cls)
        cls.url = cls.server.url

    def serve(self, *flags, **kw):
        server = Serve(self.folder, *flags, **kw)
        (self.addClassCleanup if isinstance(self, type) else self.addCleanup)(
            lambda: server.process.poll() is None and server.kill()
        )
        return server

    def setUp(self):
        self.name = self.id()
        self.events = []

    def client(self, *urls, **kw):
        locks = distlock.Locks(*urls or (self.url,), on_event=self.events.append, **kw)
        self.addCleanup(locks.close)
        return locks

    def heard(self, kind, name=None):
        return [e for e in self.events if e.kind == kind and e.name == (name or self.name)]

    def free(self, name=None):
        """Expects that another client gets the lock."""
        with distlock.Locks(self.url) as other:
            other.lock(name or self.name, ttl=5, wait=60).release()

    def broken(self, lease):
        """Unlocks by force."""
        body = json.dumps({"fence": str(lease.fence)}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/v1/locks/{lease.name}/break", body, method="POST")).close()

    def program(self, text, *args, warnings=True):
        """Starts a Python program that has locks, and name."""
        head = "import os, sys, threading, time\nimport distlock\nname = sys.argv[1]\nlocks = distlock.Locks(*sys.argv[2:])\n"
        return subprocess.Popen(
            [sys.executable, *(["-W", "error"] if warnings else []), "-c", head + text, self.name, *(args or (self.url,))], stdout=subprocess.PIPE, text=True
        )


class Off:
    """A host that is off, in one of the ways in which that shows."""

    def __init__(self, test, how):
        self.connections = 0
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self._socket.getsockname()[1]
        test.addCleanup(self._socket.close)
        if how == "refused":
            self._socket.close()
            return
        self._socket.listen(0 if how == "silent" else 100)
        if how == "silent":  # the queue of those that connect is full: the kernel drops what comes
            for _ in range(6):
                c = socket.socket()
                test.addCleanup(c.close)
                c.setblocking(False)
                try:
                    c.connect(self._socket.getsockname())
                except BlockingIOError:
                    pass
            return
        threading.Thread(target=self._accept, args=(how, test), daemon=True).start()

    def _accept(self, how, test):
        while True:
            try:
                c, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            test.addCleanup(c.close)
            if how == "reset":
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                c.close()

