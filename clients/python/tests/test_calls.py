"""Tests calls over one connection, through a proxy that fails as each test says."""

import asyncio
import os
import socket
import threading
import time
import unittest
import unittest.mock

import distlock
from distlock import aio
from serving import ServedTest, eventually, fork


class Proxy:
    """A proxy for TCP. passes(upstream, data) returns what it passes on; None cuts the connection."""

    def __init__(self, test, url, passes=lambda up, data: data):
        self._where = url.split("//")[1].split(":")
        self.passes, self.connections, self.upgrades = passes, [], 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self._listener.getsockname()[1]
        test.addCleanup(self.close)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client = self._listener.accept()[0]
                server = socket.create_connection((self._where[0], int(self._where[1])))
            except OSError:
                return
            for c in client, server:
                c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections.append((client, server))
            for up, a, b in (True, client, server), (False, server, client):
                threading.Thread(target=self._copy, args=(up, a, b), daemon=True).start()

    def _copy(self, up, a, b):
        try:
            while True:
                data = a.recv(65536)
                self.upgrades += up and data.startswith(b"GET /v1/calls ")
                data = self.passes(up, data) if data else None
                if data is None:
                    break
                b.sendall(data)
        except OSError:
            pass
        end((a, b))

    def cut(self):
        """Ends all connections."""
        for pair in list(self.connections):
            end(pair)
        self.connections.clear()

    def close(self):
        self._listener.close()
        self.cut()


def end(sockets):
    for c in sockets:
        try:
            c.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        c.close()


def warm(locks, name):
    """Makes so many calls that they are made over connections of calls from then on."""
    eventually(lambda: locks.lock(name + "/warm").release() or locks._worker.client._servers._lanes, "a connection of calls")


class CallsTest(ServedTest):
    def test_a_wait_takes_no_place_from_others(self):
        async def main():
            async with aio.Locks(self.url, connections=2) as locks, aio.Locks(self.url) as other:
                held, second = await other.lock(self.name), await other.lock(self.name + "2")
                waits = [asyncio.create_task(locks.lock(self.name)) for _ in range(100)]
                await asyncio.sleep(0.3)
                late = asyncio.create_task(locks.lock(self.name + "2"))
                await asyncio.sleep(0.3)
                await second.release()
                await (await late).release()  # while the others wait on
                self.assertFalse(any(w.done() for w in waits))
                held.check()
                await held.release()
                for w in asyncio.as_completed(waits):
                    await (await w).release()

        asyncio.run(main())

    def test_more_waits_than_a_connection_takes(self):
        async def main():
            async with aio.Locks(self.url, connections=2) as locks, aio.Locks(self.url) as other:
                held = await other.lock(self.name)
                with unittest.mock.patch("distlock._calls.ACQUIRES", 10):
                    waits = [asyncio.create_task(locks.lock(self.name)) for _ in range(30)]
                    while not locks._client or len(locks._client._servers._streams) < 3:
                        await asyncio.sleep(0.01)
                    await held.release()
                    for w in asyncio.as_completed(waits):
                        await (await w).release()
                self.assertLessEqual(len(locks._client._servers._streams), 4)

        asyncio.run(main())

    def test_threads_use_few_connections(self):
        proxy = Proxy(self, self.url)
        locks = self.client(proxy.url)
        warm(locks, self.name)
        before = len(proxy.connections)
        for n in range(50):
            with locks.lock(f"{self.name}/{n}") as lease:
                lease.check()
        self.assertLessEqual(len(proxy.connections), before + 1)
        eventually(lambda: len([e for e in self.events if e.kind == "released" and "warm" not in e.name]) == 50)

    def test_a_proxy_that_passes_no_upgrade_is_found_out_once(self):
        def passes(up, data):  # as nginx without proxy_set_header Upgrade
            return data.replace(b"Upgrade: distlock-calls\r\n", b"") if up else data

        proxy = Proxy(self, self.url, passes)
        locks = self.client(proxy.url)
        eventually(lambda: locks.lock(self.name).release() or proxy.upgrades)
        for _ in range(20):
            locks.lock(self.name).release()
        self.assertEqual(1, proxy.upgrades)

    def test_a_proxy_that_keeps_lines_back_is_found_out_once(self):
        kept = threading.Event()

        def passes(up, data):
            if up and data.startswith(b'{"index":'):
                kept.set()
                return b""
            return data

        proxy = Proxy(self, self.url, passes)
        locks = self.client(proxy.url)
        eventually(lambda: locks.lock(self.name).release() or kept.is_set())
        eventually(lambda: not locks._worker.client._servers.opening)
        for _ in range(20):
            locks.lock(self.name).release()
        self.assertEqual(1, proxy.upgrades)

    def test_a_lost_answer_is_no_no(self):
        locks, state = None, {"cut": b""}

        def passes(up, data):
            if not up and state["cut"] and b'"index"' in data and (state["cut"] in state["asked"]):
                state["cut"] = b""
                return None
            if up:
                state["asked"] = data
            return data

        state["asked"] = b""
        proxy = Proxy(self, self.url, passes)
        locks = self.client(proxy.url)
        for what in b'"acquire"', b'"release"':
            warm(locks, self.name)
            state["cut"] = what
            with locks.lock(self.name) as lease:
                lease.check()
            self.assertEqual(b"", state["cut"])
            self.assertIsNone(locks.holder(self.name))

        async def main():
            async with aio.Locks(proxy.url) as locks:
                for what in b'"acquire"', b'"release"':
                    while not (locks._client and locks._client._servers._streams):
                        await (await locks.lock(self.name)).release()
                    state["cut"] = what
                    async with locks.lock(self.name) as lease:
                        lease.check()
                    self.assertEqual(b"", state["cut"])
                    self.assertIsNone(await locks.holder(self.name))

        asyncio.run(main())

    def test_connections_that_are_cut_cost_no_lock(self):
        proxy, over = Proxy(self, self.url), threading.Event()
        locks, inside, errors, counts = self.client(proxy.url), [], [], [0] * 6

        def work(n):
            while not over.is_set():
                try:
                    with locks.lock(f"{self.name}/{n % 2}", ttl=60, wait=100) as lease:
                        inside.append(n % 2)
                        if inside.count(n % 2) > 1:
                            errors.append("two holders")
                        lease.check()
                        inside.remove(n % 2)
                    counts[n] += 1
                except Exception as e:
                    errors.append(e)

        async def tasks():
            async with aio.Locks(proxy.url) as locks:
                async def task():
                    while not over.is_set():
                        async with locks.lock(f"{self.name}/{n % 2}", ttl=60, wait=100) as lease:
                            inside.append(n % 2)
                            if inside.count(n % 2) > 1:
                                errors.append("two holders")
                            lease.check()
                            await asyncio.sleep(0)
                            inside.remove(n % 2)
                        counts[n] += 1

                n = 5
                await asyncio.gather(task(), task())

        threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
        threads.append(threading.Thread(target=lambda: asyncio.run(tasks())))
        for t in threads:
            t.start()
        for _ in range(20):
            seen = list(counts)
            eventually(lambda: errors or all(a > b for a, b in zip(counts, seen)), "a turn of each")
            proxy.cut()
        over.set()
        for t in threads:
            t.join()
        self.assertEqual([], errors)
        for n in range(2):
            self.free(f"{self.name}/{n}")

    def test_a_server_that_stops_while_many_wait(self):
        second = self.serve()
        locks, held, took = self.client(self.url, second.url), self.client(second.url).lock(self.name, ttl=60), []
        warm(locks, self.name)

        def wait():
            with locks.lock(self.name):
                took.append(1)

        threads = [threading.Thread(target=wait) for _ in range(8)]
        for t in threads:
            t.start()
        time.sleep(0.3)
        self.server.process.send_signal(19)
        self.addCleanup(self.server.process.send_signal, 18)
        held.release()
        for t in threads:
            t.join(100)
        self.assertEqual(8, len(took))
        self.server.process.send_signal(18)

    def test_a_restarted_server(self):
        server = self.serve()
        locks = self.client(server.url)
        warm(locks, self.name)
        with locks.lock(self.name, ttl=60):
            server.restart()
        self.assertIsNone(locks.holder(self.name))

    def test_a_fork_disturbs_no_call(self):
        locks = self.client()
        warm(locks, self.name)
        child = fork()
        if child == 0:
            with locks.lock(self.name + "child"):
                os._exit(0 if locks.locked(self.name + "child") else 1)
        for _ in range(20):
            with locks.lock(self.name) as lease:
                lease.check()
        self.assertEqual(0, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def test_a_lease_of_a_thread_is_renewed_and_lost(self):
        locks, lost = self.client(), threading.Event()
        warm(locks, self.name)
        with locks.lock(self.name, ttl=6) as lease:
            short = locks.lock(self.name + "short", ttl=1.5, renew=False, on_lost=lambda _: lost.set())
            self.assertTrue(lost.wait(60))
            self.assertRaises(distlock.Lost, short.check)
            time.sleep(7)
            lease.check()
        self.assertEqual(1, len(self.heard("lost", self.name + "short")))
        with self.assertLogs("distlock", "WARNING"):
            locks.lock(self.name)
            eventually(lambda: self.heard("forgotten"))
        self.free()


if __name__ == "__main__":
    unittest.main()
