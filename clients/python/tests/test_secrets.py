"""Tests tokens and certificates, which are read again."""

import os
import subprocess
import unittest

import distlock
from serving import ServedTest, eventually


class SecretsTest(ServedTest):
    def test_a_token_file_is_read_again(self):
        made = [subprocess.run([self.server._args[0], "token", "ci", "lock,see", "*"], capture_output=True, text=True, check=True).stdout
                for _ in range(2)]
        tokens, lines = ([next(x.split(None, 1)[1] for x in m.splitlines() if x.startswith(k)) for m in made] for k in ("token:", "line:"))
        file, mine = self.folder + "/tokens", self.folder + "/token"

        def write(path, text):
            with open(path + "~", "w") as f:
                f.write(text + "\n")
            os.replace(path + "~", path)

        write(file, lines[0])
        write(mine, tokens[0])
        server = self.serve("--tokens", file)
        locks = self.client(server.url, token_file=mine)
        with locks.lock(self.name, ttl=60) as lease:
            write(file, lines[1])
            write(mine, tokens[1])
            eventually(lambda: self.extends(lease))
        for secret in tokens:
            self.assertNotIn(secret, repr(locks.__dict__))
        with self.assertRaises(distlock.Denied) as caught:
            self.client(server.url, token="wrong").lock(self.name, wait=0)
        self.assertNotIn("wrong", str(caught.exception))

    def extends(self, lease):
        try:
            lease.extend(90)
            return True
        except distlock.Unavailable:
            return False

    def test_certificates_are_read_again(self):
        def sign(path):
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                 "-subj", "/CN=client", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path + ".key~", "-out", path + ".crt~"],
                check=True, capture_output=True)
            for end in ".key", ".crt":
                os.replace(path + end + "~", path + end)

        path = self.folder + "/tls"
        sign(path)
        flags = ("--tls-cert", path + ".crt", "--tls-key", path + ".key", "--client-ca", path + ".crt")
        server = self.serve(*flags, scheme="https")
        locks = self.client(server.url, cert_file=path + ".crt", key_file=path + ".key", ca_file=path + ".crt")
        locks.lock(self.name).release()
        sign(path)
        server.restart()
        locks.lock(self.name, wait=60).release()
        with self.assertRaises(distlock.Unavailable):
            self.client(server.url).lock(self.name, wait=0)  # does not know who has signed the server's

    def test_a_file_that_is_no_certificate_is_named(self):
        for path in self.folder + "/none", __file__:
            with self.assertRaisesRegex(OSError, "want certificates in PEM.*" + path):
                distlock.Locks("https://h", ca_file=path)


if __name__ == "__main__":
    unittest.main()
