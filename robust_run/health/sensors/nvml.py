"""Talks to NVIDIA's driver through NVML (nvidia-ml-py). A call may hang with the driver: only sensor threads make any.

What one GPU does not support is None in a sample; only a GPU that the driver calls lost is an error.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable
from typing import Any

import msgspec

from robust_run.health.sensors.job.own_gpus import used
from robust_run.health.sensors.types import AbsentError, SensorWorld
from robust_run.health.signs.visible_gpus import Gpu
from robust_run.health.signs.xids import gpu_name

MOST_GPUS = 64
#: Of nvml.h: a GPU that fell off the bus, or that answers nothing before it is reset.
_LOST = (15, 16)
_NVLINK_COUNTERS = ("replays", "recoveries", "CRC errors in flits", "CRC errors in data")
#: Of nvml.h: what all links of a GPU have sent and received, in KiB.
_NVLINK_MOVED, _ALL_LINKS = (138, 139), 0xFFFFFFFF
#: NVML_NVLINK_MAX_LINKS of nvml.h.
_MOST_LINKS = 18
_MOST_XIDS = 64


class GpuMoment(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, as it is now."""

    gpu: str
    lost: bool = False
    celsius: int | None = None
    slows_at_celsius: int | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    busy_percent: int | None = None
    """Of the driver's last sampling period (up to 1 s), in how much of it any kernel ran."""
    throttling: int | None = None
    """Why clocks are lower than they could be: NVML's bits."""
    sm_clock_mhz: int | None = None
    watts: float | None = None
    nvlink_bytes: int | None = None
    """Sent and received over all NVLinks so far."""


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs, and the Xid errors since the last sample."""

    gpus: tuple[GpuMoment, ...]
    xids: tuple[tuple[str, int], ...] = ()


class GpuCounters(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU has counted so far."""

    gpu: str
    lost: bool = False
    uncorrected: int | None = None
    """ECC errors since the driver was loaded."""
    corrected: int | None = None
    remapped: int | None = None
    """Rows of memory that were replaced for uncorrectable errors."""
    remap_pending: bool = False
    remap_failed: bool = False
    pcie_width: int | None = None
    pcie_most_width: int | None = None
    pcie_generation: int | None = None
    pcie_most_generation: int | None = None
    busy: bool = False
    """At its highest performance state; an idle GPU slows its PCIe link by itself."""
    links: tuple[tuple[bool, tuple[int, ...]], ...] = ()
    """By NVLink: whether it is active, and its errors by kind (`_NVLINK_COUNTERS`)."""


class Driver:
    """An open NVML. Raises AbsentError where there is no driver, no library or no GPU."""

    def __init__(self, world: SensorWorld) -> None:
        self._nvml = _load(world)
        try:
            self._nvml.nvmlInit()
            count = min(self._nvml.nvmlDeviceGetCount(), MOST_GPUS)
        except self._nvml.NVMLError as error:
            raise AbsentError(f"NVML cannot be used: {error}") from error
        if not count:
            raise AbsentError("the NVIDIA driver shows no GPU")
        self._gpus: list[tuple[str, Any]] = self._own([self._find(index) for index in range(count)], world)
        self._slows_at = {name: self._slow_threshold(handle) for name, handle in self._gpus}
        self._events = self._register()

    def _find(self, index: int) -> tuple[str, Any]:
        """Return a GPU's name and handle; None for one that is lost already."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            bus_id = self._nvml.nvmlDeviceGetPciInfo(handle).busId
        except self._nvml.NVMLError:
            return f"GPU {index}", None
        return gpu_name(bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id), handle

    def _own(self, found: list[tuple[str, Any]], world: SensorWorld) -> list[tuple[str, Any]]:
        """Return those that the job may use: what is wrong with others is not its business. Raises AbsentError for none."""
        chosen = world.visible_gpus
        if chosen is None:
            return found
        listed = [Gpu(name, self._uuid(handle)) for name, handle in found]
        own = used(listed, ",".join(self._whole(word.strip()) for word in chosen.split(",")))
        if own is None:
            raise AbsentError(f"it is not known which GPUs the job uses (CUDA_VISIBLE_DEVICES={chosen[:200]})")
        kept = [(name, handle) for name, handle in found if gpu_name(name) in own]
        if not kept:
            raise AbsentError(f"the job uses no GPU of this node (CUDA_VISIBLE_DEVICES={chosen[:200]})")
        return kept

    def _uuid(self, handle: Any) -> str:
        found = self._ask("nvmlDeviceGetUUID", handle)[0] if handle is not None else None
        return found.decode("ascii", "replace") if isinstance(found, bytes) else found or ""

    def _whole(self, word: str) -> str:
        """Return the GPU that a MIG instance is part of; anything else as it is."""
        if not word.startswith("MIG-") or word.startswith("MIG-GPU-"):
            return word
        part, _ = self._ask("nvmlDeviceGetHandleByUUID", word)
        whole, _ = (
            self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", part) if part is not None else (None, False)
        )
        return (self._uuid(whole) if whole is not None else "") or word

    def _slow_threshold(self, handle: Any) -> int | None:
        if handle is None:
            return None
        slow = self._nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        celsius: int | None = self._ask("nvmlDeviceGetTemperatureThreshold", handle, slow)[0]
        return celsius

    def _register(self) -> Any:
        """Ask for Xid events; None where the driver has none (the kernel's log has them too)."""
        try:
            events = self._nvml.nvmlEventSetCreate()
        except self._nvml.NVMLError:
            return None
        for _, handle in self._gpus:
            try:
                if handle is not None:
                    self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, events)
            except self._nvml.NVMLError:
                continue
        return events

    def moments(self) -> GpuSample:
        """Return all GPUs as they are now."""
        return GpuSample(gpus=tuple(self._moment(*gpu) for gpu in self._gpus), xids=tuple(self._xids()))

    def counters(self) -> tuple[GpuCounters, ...]:
        """Return what all GPUs have counted."""
        return tuple(self._counters(*gpu) for gpu in self._gpus)

    def _ask(self, function: str, *arguments: Any) -> tuple[Any, bool]:
        """Return an answer, None where there is none, and whether the GPU is lost."""
        call: Callable[..., Any] | None = getattr(self._nvml, function, None)
        if call is None:
            return None, False
        try:
            return call(*arguments), False
        except self._nvml.NVMLError as error:
            return None, error.value in _LOST

    def _moment(self, name: str, handle: Any) -> GpuMoment:
        if handle is None:
            return GpuMoment(gpu=name, lost=True)
        celsius, lost = self._ask("nvmlDeviceGetTemperature", handle, self._nvml.NVML_TEMPERATURE_GPU)
        throttling, lost_too = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        memory, _ = self._ask("nvmlDeviceGetMemoryInfo", handle)
        rates, _ = self._ask("nvmlDeviceGetUtilizationRates", handle)
        milliwatts, _ = self._ask("nvmlDeviceGetPowerUsage", handle)
        return GpuMoment(
            gpu=name,
            lost=lost or lost_too,
            celsius=celsius,
            memory_used_bytes=int(memory.used) if memory is not None else None,
            memory_bytes=int(memory.total) if memory is not None else None,
            busy_percent=int(rates.gpu) if rates is not None else None,
            slows_at_celsius=self._slows_at[name],
            throttling=throttling,
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, self._nvml.NVML_CLOCK_SM)[0],
            watts=milliwatts / 1e3 if milliwatts is not None else None,
            nvlink_bytes=self._moved(handle),
        )

    def _moved(self, handle: Any) -> int | None:
        fields, _ = self._ask("nvmlDeviceGetFieldValues", handle, [(each, _ALL_LINKS) for each in _NVLINK_MOVED])
        if fields is None or any(field.nvmlReturn != 0 for field in fields):
            return None
        return 1024 * sum(int(field.value.ullVal) for field in fields)

    def _xids(self) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        names = {ctypes.cast(handle, ctypes.c_void_p).value: name for name, handle in self._gpus if handle is not None}
        while self._events is not None and len(found) < _MOST_XIDS:
            data, _ = self._ask("nvmlEventSetWait_v2", self._events, 0)
            if data is None:
                break
            if data.eventType == self._nvml.nvmlEventTypeXidCriticalError:
                name = names.get(ctypes.cast(data.device, ctypes.c_void_p).value, "")
                found.append((name, int(data.eventData)))
        return found

    def _counters(self, name: str, handle: Any) -> GpuCounters:
        if handle is None:
            return GpuCounters(gpu=name, lost=True)
        nvml = self._nvml
        corrected, lost = self._ask("nvmlDeviceGetTotalEccErrors", handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, 0)
        uncorrected, _ = self._ask("nvmlDeviceGetTotalEccErrors", handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 0)
        rows, _ = self._ask("nvmlDeviceGetRemappedRows", handle)
        _, remapped, pending, failed = rows or (None, None, 0, 0)
        return GpuCounters(
            gpu=name,
            lost=lost,
            uncorrected=uncorrected,
            corrected=corrected,
            remapped=remapped,
            remap_pending=bool(pending),
            remap_failed=bool(failed),
            pcie_width=self._ask("nvmlDeviceGetCurrPcieLinkWidth", handle)[0],
            pcie_most_width=self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle)[0],
            pcie_generation=self._ask("nvmlDeviceGetCurrPcieLinkGeneration", handle)[0],
            pcie_most_generation=self._ask("nvmlDeviceGetMaxPcieLinkGeneration", handle)[0],
            busy=self._ask("nvmlDeviceGetPerformanceState", handle)[0] == 0,
            links=tuple(self._links(handle)),
        )

    def _links(self, handle: Any) -> list[tuple[bool, tuple[int, ...]]]:
        links = []
        for link in range(_MOST_LINKS):
            active, _ = self._ask("nvmlDeviceGetNvLinkState", handle, link)
            if active is None:
                break
            errors = [
                self._ask("nvmlDeviceGetNvLinkErrorCounter", handle, link, kind)[0] or 0
                for kind in range(len(_NVLINK_COUNTERS))
            ]
            links.append((bool(active), tuple(errors)))
        return links


def _load(world: SensorWorld) -> Any:
    """Return nvidia-ml-py's module, its library loaded. Raises AbsentError."""
    if world.nvml_library:
        try:
            ctypes.CDLL(world.nvml_library, ctypes.RTLD_GLOBAL)  # found again by its name, libnvidia-ml.so.1
        except OSError as error:
            raise AbsentError(f"NVML's library cannot be loaded: {error}") from error
    elif not os.path.exists(f"{world.proc}/driver/nvidia/version") and not os.path.exists("/dev/nvidiactl"):
        raise AbsentError("there is no NVIDIA driver")
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise AbsentError("nvidia-ml-py is not installed: pip install nvidia-ml-py") from error


def nvlink_counter(kind: int) -> str:
    """Return what one of a link's counters counts."""
    return _NVLINK_COUNTERS[kind]
