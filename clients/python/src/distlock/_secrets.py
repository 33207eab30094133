"""The token and the certificates of a client, which are read again when their files change."""

import os
import ssl
from typing import Any, List, Optional, Tuple

Stamp = Optional[Tuple[int, int, int]]


def _stamp(path: str) -> Stamp:
    try:
        s = os.stat(path)
    except OSError:
        return None
    return s.st_mtime_ns, s.st_size, s.st_ino


class Token:
    """A token, from an argument or a file."""

    def __init__(self, token: Optional[str], file: Optional[str]) -> None:
        if token is not None and file is not None:
            raise ValueError("there are a token and a token_file: want one of them")
        self._file, self._stamp = file, None if file is None else _stamp(file)
        self._value = token if file is None else _read(file)
        if self._value is not None and not _is_token(self._value):
            raise ValueError("the token is empty, no text, or has characters that a header can't have")

    def value(self) -> Optional[str]:
        """Returns the token. A file that can't be read now, or that is half written, leaves the last one."""
        if self._file is not None:
            stamp = _stamp(self._file)
            if stamp is not None and stamp != self._stamp:
                try:
                    value = _read(self._file)
                except (OSError, ValueError):
                    return self._value
                if value and _is_token(value):
                    self._value, self._stamp = value, stamp
        return self._value


def _read(file: str) -> str:
    with open(file, encoding="ascii") as f:
        return f.read(1 << 16).strip()


def _is_token(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and all(" " < c <= "~" for c in value)


def _no_password() -> str:
    raise OSError("the key is encrypted: want one without a password, or tls=")


class Certificates:
    """The TLS context of a client: the user's own, or one of files."""

    def __init__(
        self, tls: Optional[ssl.SSLContext], cert_file: Optional[str], key_file: Optional[str], ca_file: Optional[str]
    ) -> None:
        if tls is not None and (cert_file or key_file or ca_file):
            raise ValueError("there are tls and files of certificates: want one of them")
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise ValueError("tls is no ssl.SSLContext")
        if (cert_file is None) != (key_file is None):
            raise ValueError("want cert_file and key_file together")
        self._own = tls
        self._cert, self._key, self._ca = cert_file, key_file, ca_file
        self._context: Optional[ssl.SSLContext] = None
        self._stamps: List[Stamp] = []
        if cert_file or ca_file:
            self.context()  # tells of bad files at once

    def context(self) -> ssl.SSLContext:
        """Returns the context for a new connection. Files that don't fit together yet leave the last one."""
        if self._own is not None:
            return self._own
        stamps = [_stamp(f) for f in (self._cert, self._key, self._ca) if f is not None]
        if self._context is None or stamps != self._stamps:
            try:
                context = ssl.create_default_context(cafile=self._ca)
                if self._cert is not None:
                    context.load_cert_chain(self._cert, self._key, _no_password)  # it would ask at the terminal
                self._context, self._stamps = context, stamps
            except OSError as e:
                if self._context is None:
                    files = ", ".join(f for f in (self._cert, self._key, self._ca) if f is not None)
                    raise OSError(f"want certificates in PEM, and the key of the first one, in {files}: {e}") from e
        return self._context
