"""Statistics that only the driver of a network interface has (`ethtool -S`): frames of priority flow control, for one.

Priority flow control (PFC, IEEE 802.1Qbb) makes a network without loss: who cannot take in more asks its peer to pause. A host
that sends many of these frames drains its own NIC too slowly, and everybody behind the same switch waits; Minder (arXiv
2411.01791, section 4.3) finds it the most telling of all metrics. What the frames are called differs from driver to driver.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping

import msgspec

SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_SET_OF_STATISTICS = 1
_NAME_BYTES, _LONGEST_INTERFACE = 32, 15
#: Cards with many queues have some thousands.
MOST_STATISTICS = 1 << 15
#: The kernel writes as many as there are, whatever room it was told of; queues may be added between two questions.
_MORE = 4

#: rx_prio3_pause (mlx5), rx_pfc_ena_frames_pri3 (bnxt), rx_priority_3_xoff and port.rx_priority_3_xoff (ice, i40e).
_BY_PRIORITY = re.compile(r"(?:port\.)?(rx|tx)_(?:prio\d_pause|pfc_ena_frames_pri\d|priority_\d_xoff)(?:\.nic)?")
#: What asks for a pause of all traffic: of cards whose switch does not tell priorities apart.
_OF_ALL = re.compile(r"(?:port\.)?(rx|tx)_(?:pause_ctrl_phy|pause_frames|pause|link_xoff|flow_control_xoff)(?:\.nic)?")

Ioctl = Callable[[str, bytearray], bytes]
"""Takes the interface and a request, and returns the answer. Raises OSError."""


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """Frames that ask for a pause, counted since the driver was loaded."""

    sent: int
    """By this host: it cannot take in more."""
    received: int
    """By its peer, the switch."""


class DriverStatistics:
    """Reads them; names of statistics are asked for once, and again when their number has changed."""

    def __init__(self, ioctl: Ioctl | None = None) -> None:
        self._ioctl = ioctl or _ioctl
        self._names: dict[str, tuple[str, ...]] = {}

    def __call__(self, interface: str) -> Mapping[str, int]:
        """Return the statistics of an interface by name; none where the driver has none, or there is no such interface."""
        try:
            count = self._count(interface)
            if not 0 < count <= MOST_STATISTICS:
                return {}
            names = self._names.get(interface, ())
            if len(names) != count:
                names = self._names[interface] = self._read_names(interface, count)
            request = bytearray(struct.pack("=II", _GSTATS, count)) + bytes(8 * (_MORE * count + MOST_STATISTICS))
            answer = self._ioctl(interface, request)
            return dict(zip(names, struct.unpack_from(f"={count}Q", answer, 8), strict=True))
        except (OSError, struct.error, ValueError):
            return {}

    def _count(self, interface: str) -> int:
        request = bytearray(struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SET_OF_STATISTICS, 0))
        _, _, mask, count = struct.unpack_from("=IIQI", self._ioctl(interface, request))
        return int(count) if mask else 0

    def _read_names(self, interface: str, count: int) -> tuple[str, ...]:
        request = bytearray(struct.pack("=III", _GSTRINGS, _SET_OF_STATISTICS, count))
        request += bytes(_NAME_BYTES * (_MORE * count + MOST_STATISTICS))
        answer = self._ioctl(interface, request)
        raw = (answer[12 + _NAME_BYTES * place :][:_NAME_BYTES] for place in range(count))
        return tuple(name.split(b"\0", 1)[0].decode("ascii", "replace") for name in raw)


def pauses(statistics: Mapping[str, int]) -> Pauses | None:
    """Return the frames that ask for a pause, of all priorities together; None where the driver does not count them. Pure."""
    for pattern in (_BY_PRIORITY, _OF_ALL):
        found = {"rx": 0, "tx": 0}
        ways = [(match[1], count) for name, count in statistics.items() if (match := pattern.fullmatch(name))]
        for way, count in ways:
            found[way] += count
        if ways:
            return Pauses(sent=found["tx"], received=found["rx"])
    return None


def _ioctl(interface: str, request: bytearray) -> bytes:
    import ctypes
    import fcntl
    import socket

    name = interface.encode()
    if len(name) > _LONGEST_INTERFACE:
        return b""
    buffer = (ctypes.c_char * len(request)).from_buffer(request)
    question = struct.pack("16sP", name, ctypes.addressof(buffer)) + bytes(16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        fcntl.ioctl(channel, SIOCETHTOOL, question)
    return bytes(buffer)
