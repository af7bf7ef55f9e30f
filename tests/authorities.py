"""Certificate authorities of a test, and what they signed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def need_openssl() -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


class Authority:
    """A CA and what it signed, as files."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.ca = str(folder / f"{name}-ca.pem")
        self.ca_key = str(folder / f"{name}-ca.key")
        new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
        openssl("req", "-x509", *new, "-subj", f"/CN={name} CA", "-keyout", self.ca_key, "-out", self.ca)

    def signed(self, name: str) -> tuple[str, str, str]:
        """Return certificate, key and CA for a node, whose name is not where it will be reached."""
        base = self.folder / f"{self.name}-{name}"
        cert, key, request = (str(base.with_suffix(end)) for end in (".pem", ".key", ".csr"))
        new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        openssl("req", *new, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        signer = ("-CA", self.ca, "-CAkey", self.ca_key, "-CAcreateserial", "-days", "2")
        openssl("x509", "-req", "-in", request, *signer, "-out", cert)
        return cert, key, self.ca


def node_options(folder: Path) -> tuple[str, ...]:
    """Make a CA and a certificate of it; return the options for a node."""
    need_openssl()
    names = ("--tls-cert", "--tls-key", "--tls-ca")
    files = Authority(folder, "job").signed("node")
    return tuple(word for pair in zip(names, files, strict=True) for word in pair)
