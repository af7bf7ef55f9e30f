"""A real HDFS on loopback: a NameNode and DataNodes of Apache Hadoop 2.7.3, each a Java process that a test may kill.

By itself, until it is ended: `python hdfs.py FOLDER ADDRESS`, which prints the URL.

The jars are those that lie in the source package of pyspark 2.4.8 on PyPI (220 MB, downloaded once, by pip, into
`~/.cache/robust-run/test-parts` or the folder that ROBUST_TEST_PARTS names). Without Java, or without the package, the test is
skipped.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

#: Read now: tests run without any variable of ours.
PARTS = Path(os.environ.get("ROBUST_TEST_PARTS") or Path.home() / ".cache" / "robust-run" / "test-parts")
PACKAGE = "pyspark==2.4.8"
DOWNLOAD_S = 900
UP_S = 300.0
_JARS = (
    "hadoop-common-2 hadoop-hdfs-2 hadoop-auth-2 hadoop-annotations-2 guava-14 protobuf-java-2 commons- jetty- javax.servlet-api"
    " htrace-core slf4j- log4j-1 netty- xercesImpl leveldbjni jackson-core-asl jackson-mapper-asl xml-apis stax javax.ws.rs-api"
    " javax.inject"
).split()
_OPENED = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.nio", "sun.nio.ch", "java.net")
]
_WEB_APP = '<web-app version="2.4" xmlns="http://java.sun.com/xml/ns/j2ee"></web-app>'
_LOGGING = """log4j.rootLogger=INFO,c
log4j.appender.c=org.apache.log4j.ConsoleAppender
log4j.appender.c.layout=org.apache.log4j.PatternLayout
log4j.appender.c.layout.ConversionPattern=%d %p %c{2}: %m%n
"""


def hadoop_jars() -> Path:
    """Return the folder of the jars, downloaded first where they are not there yet. Skips the test where that fails."""
    jars = PARTS / "hadoop-2.7.3"
    PARTS.mkdir(parents=True, exist_ok=True)
    with (PARTS / "hadoop.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            _download(jars)
    return jars


def _download(jars: Path) -> None:
    with tempfile.TemporaryDirectory(dir=PARTS) as folder:
        constraint = Path(folder, "constraints.txt")
        constraint.write_text("pypandoc==1.5\n")  # newer ones lack what pyspark's setup.py calls
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", PACKAGE, "-d", folder]
        environment = {**os.environ, "PIP_CONSTRAINT": str(constraint), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        environment["PIP_BUILD_CONSTRAINT"] = str(constraint)  # newer pips ask for it by this name
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"no jars of Hadoop: pip download {PACKAGE} took more than {DOWNLOAD_S} s")
        if done.returncode:
            pytest.skip(f"no jars of Hadoop: pip download {PACKAGE} says {done.stderr.strip().splitlines()[-1:]}")
        unpacked = Path(folder, "jars")
        unpacked.mkdir()
        with tarfile.open(next(Path(folder).glob("pyspark-*.tar.gz"))) as archive:
            for member in archive:
                name = os.path.basename(member.name)
                source = (
                    archive.extractfile(member) if name.startswith(tuple(_JARS)) and name.endswith(".jar") else None
                )
                if source is not None:
                    with source, (unpacked / name).open("wb") as target:
                        shutil.copyfileobj(source, target)
        unpacked.rename(jars)


def _java() -> str:
    found = shutil.which("java")
    if found is None:
        pytest.skip("java is not installed (Debian: openjdk-17-jre-headless)")
    return found


class MiniHdfs:
    """A NameNode and some DataNodes, numbered from 1. Dead DataNodes stay in the NameNode's lists for minutes, as they do."""

    def __init__(self, folder: Path, datanodes: int, address: str = "127.0.0.1") -> None:
        self.folder, self.datanodes, self._address = folder, datanodes, address
        self._java, self._jars = _java(), hadoop_jars()
        self._held = [_held_port(address) for _ in range(2 + 3 * datanodes)]
        self._ports = [each.getsockname()[1] for each in self._held]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.url = f"hdfs://{address}:{self._ports[0]}"

    def start(self) -> None:
        """Format it, start all, wait until all DataNodes have reported."""
        for application in ("hdfs", "datanode", "secondary"):
            place = self.folder / "webapps" / application / "WEB-INF"
            place.mkdir(parents=True)
            (place / "web.xml").write_text(_WEB_APP)
        for number in range(self.datanodes + 1):
            self._configure(number)
        formatting = self._command(0, "namenode.NameNode", "-format", "-nonInteractive")
        with (self.folder / "format.log").open("wb") as log:
            subprocess.run(formatting, stdout=log, stderr=log, timeout=UP_S, check=True)
        self._spawn("namenode", self._command(0, "namenode.NameNode"))
        for number in range(1, self.datanodes + 1):
            self.start_datanode(number)
        self.wait_until_live(self.datanodes)

    def start_datanode(self, number: int) -> None:
        """Start one, with the blocks it had."""
        self._spawn(f"datanode{number}", self._command(number, "datanode.DataNode"))

    def restart_datanode(self, number: int) -> None:
        """Start one that was killed, and wait until it serves. (For the NameNode it has been alive all the time.)

        It accepts long before that, and refuses whatever it is asked.
        """
        log = self.folder / f"datanode{number}.log"
        said_before = log.stat().st_size
        self.start_datanode(number)
        give_up_at = time.monotonic() + UP_S
        port = self._ports[2 + 3 * (number - 1)]
        while b"Successfully sent block report" not in log.read_bytes()[said_before:] or not _accepts(
            self._address, port
        ):
            assert time.monotonic() < give_up_at, f"datanode{number} does not serve after {UP_S:g} s"
            time.sleep(0.1)

    def kill_datanode(self, number: int) -> None:
        """End one as a power loss would."""
        process = self._running.pop(f"datanode{number}")
        process.kill()
        process.wait(60)

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """Return "namenode" or "datanode1", for a signal."""
        return self._running[name]

    def wait_until_live(self, count: int) -> None:
        """Wait until so many DataNodes have reported and the NameNode lets files be written."""
        give_up_at = time.monotonic() + UP_S
        while self._state() != (count, "Operational"):
            for name, process in self._running.items():
                assert process.poll() is None, f"{name} ended: {(self.folder / f'{name}.log').read_text()[-2000:]}"
            assert time.monotonic() < give_up_at, f"HDFS is not up after {UP_S:g} s: {self._state()}"
            time.sleep(0.1)

    def _state(self) -> tuple[int, str] | None:
        connection = http.client.HTTPConnection(self._address, self._ports[1], timeout=5)
        try:
            connection.request("GET", "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
            (bean,) = json.loads(connection.getresponse().read())["beans"]
            return bean["NumLiveDataNodes"], bean["FSState"]
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def stop(self) -> None:
        """End all."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
        self._running.clear()
        for each in self._held:
            each.close()

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )

    def _command(self, number: int, program: str, *arguments: str) -> list[str]:
        jars = sorted(str(jar) for jar in self._jars.glob("*.jar"))
        places = ":".join([str(self.folder / f"conf{number}"), str(self.folder), *jars])
        memory = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
        server = f"org.apache.hadoop.hdfs.server.{program}"
        return [self._java, *memory, *_OPENED, "-cp", places, server, *arguments]

    def _configure(self, number: int) -> None:
        """Write the configuration of the NameNode (0) or a DataNode."""
        place = self.folder / f"conf{number}"
        place.mkdir()
        mine = self._ports[2 + 3 * (number - 1) : 5 + 3 * (number - 1)] if number else [0, 0, 0]
        (place / "core-site.xml").write_text(
            _xml({"fs.defaultFS": self.url, "hadoop.tmp.dir": str(self.folder / f"tmp{number}")})
        )
        (place / "hdfs-site.xml").write_text(
            _xml(
                {
                    "dfs.webhdfs.enabled": "false",
                    "dfs.permissions.enabled": "false",
                    "dfs.replication": "2",
                    "dfs.namenode.fs-limits.min-block-size": "65536",
                    "dfs.namenode.name.dir": f"file://{self.folder}/name",
                    "dfs.datanode.data.dir": f"file://{self.folder}/data{number}",
                    "dfs.namenode.http-address": f"{self._address}:{self._ports[1]}",
                    "dfs.datanode.address": f"{self._address}:{mine[0]}",
                    "dfs.datanode.http.address": f"{self._address}:{mine[1]}",
                    "dfs.datanode.ipc.address": f"{self._address}:{mine[2]}",
                    "dfs.datanode.hostname": self._address,
                    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
                }
            )
        )
        (place / "log4j.properties").write_text(_LOGGING)


def _xml(properties: dict[str, str]) -> str:
    lines = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items()]
    return "\n".join(["<configuration>", *lines, "</configuration>"])


def _accepts(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 5).close()
    except OSError:
        return False
    return True


def _held_port(address: str) -> socket.socket:
    """Return a socket that keeps a port for who asks for it by number, as Java does: the kernel gives it to nobody else."""
    held = socket.socket()
    held.setsockopt(
        socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
    )  # with it on both sides, and one that listens, two may have it
    held.bind((address, 0))
    return held


@contextmanager
def running_hdfs(folder: Path, datanodes: int = 3, address: str = "127.0.0.1") -> Iterator[MiniHdfs]:
    """Run one for the length of a block."""
    server = MiniHdfs(folder, datanodes, address)
    try:
        server.start()
        yield server
    finally:
        server.stop()


if __name__ == "__main__":
    with running_hdfs(Path(sys.argv[1]), address=sys.argv[2]) as running:
        print(running.url, flush=True)
        while True:  # whoever started it ends it
            time.sleep(3600)
