"""Every interval and threshold of the sensors, with its unit and why it is what it is. A TOML file may change them.

Intervals are in seconds between two readings; `hold_s` is how long something must last before it is said. ByteRobust
(section 4.1, table 3) reads network cards every 30 s, GPUs every 10 s and the kernel every 2 s; ours read more often where
that costs nothing.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(ge=0.05, le=86400)]
Hold = Annotated[float, Meta(ge=0, le=86400)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=10**12)]
Amount = Annotated[float, Meta(ge=0, le=10**15)]


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all sensors have."""

    on: bool = True
    """Whether it is used."""


class _Polled(_Settings, frozen=True, kw_only=True):
    """What those have that look again and again."""

    timeout_s: Seconds = 10.0
    """A reading that takes longer is an alert by itself: `NAME.hung`."""


class _OfDriver(_Polled, frozen=True, kw_only=True):
    """What those have that ask the GPUs' driver. One that does not answer hangs (ByteRobust: noticed in 10 s)."""

    open_s: Hold = 120.0
    """To open the driver, beyond `timeout_s`: without persistence mode it wakes every GPU."""


class KernelLogSettings(_Settings, frozen=True, kw_only=True):
    """The kernel's log. Records are read as they come."""

    interval_s: Seconds = 0.1
    """Rest between two batches, for storms."""
    wait_s: Seconds = 1.0
    """How long one reading waits for a record. The kernel wakes us at once, from an interrupt that an idle CPU may put off;
    so often we look by ourselves."""
    repeat_s: Hold = 30.0
    """The same of the same subject is said again only after this."""
    trust_programs: bool = False
    """Whether records count that a program wrote to /dev/kmsg, not the kernel. For tests."""


class GpuSettings(_OfDriver, frozen=True, kw_only=True):
    """GPUs that answer, their temperature, throttling and Xid events."""

    interval_s: Seconds = 2.0
    hot_celsius: Amount = 90.0
    """Used where the GPU does not say at which temperature it slows down."""
    hot_hold_s: Hold = 10.0
    throttle_hold_s: Hold = 10.0
    """Throttling for shorter than this is daily business."""


class GpuMemorySettings(_OfDriver, frozen=True, kw_only=True):
    """ECC errors, remapped rows, PCIe and NVLink: a hundred calls for each GPU. What is urgent comes as an Xid event, at once."""

    interval_s: Seconds = 60.0
    timeout_s: Seconds = 20.0
    nvlink_errors: Count = 100
    """New errors of one kind on one link between two readings that are said."""


class NetworkSettings(_Polled, frozen=True, kw_only=True):
    """Network links: down, flapping, errors, drops, retransmits."""

    interval_s: Seconds = 1.0
    down_hold_s: Hold = 0.0
    repeat_s: Hold = 30.0
    """A link that stays down is said again so often (ByteRobust: 30 s)."""
    errors_per_s: Amount = 10.0
    """Receive and transmit errors of one interface."""
    dropped_per_s: Amount = 1000.0
    errors_hold_s: Hold = 5.0
    retransmitted_share: Share = 0.05
    """Of the TCP segments sent, over `retransmit_hold_s`."""
    least_segments_per_s: Amount = 200.0
    """With fewer segments sent a share says nothing."""
    retransmit_hold_s: Hold = 20.0


class InfinibandSettings(_Polled, frozen=True, kw_only=True):
    """InfiniBand and RoCE ports: state and error counters."""

    interval_s: Seconds = 2.0
    repeat_s: Hold = 30.0
    errors_per_s: Amount = 1.0
    """Of symbol errors, receive errors and their like; a healthy link has next to none."""
    errors_hold_s: Hold = 4.0


class TrafficSettings(_Polled, frozen=True, kw_only=True):
    """Silence on the network while training."""

    interval_s: Seconds = 5.0
    silent_s: Hold = 600.0
    """ByteRobust: no RDMA traffic for 10 min."""
    silent_share: Share = 0.01
    """Of the highest rate seen while training: below it the network is silent. Heartbeats flow even then."""
    least_peak_bytes_per_s: Amount = 10e6
    """A job whose peak is lower does not depend on its network."""


class DiskSettings(_Polled, frozen=True, kw_only=True):
    """Space, inodes, file systems gone read-only, I/O errors, I/O that never ends."""

    interval_s: Seconds = 5.0
    timeout_s: Seconds = 20.0
    least_free_share: Share = 0.02
    least_free_bytes: Amount = float(1 << 30)
    """Said where less than both is free."""
    space_repeat_s: Hold = 300.0
    stuck_hold_s: Hold = 20.0
    """Requests in flight and none done for so long."""


class FsyncSettings(_Polled, frozen=True, kw_only=True):
    """How long a small write takes to be durable."""

    interval_s: Seconds = 30.0
    timeout_s: Seconds = 30.0
    slow_s: Seconds = 2.0
    slow_in_row: Count = 2
    """One slow one is a checkpoint being written."""


class MemorySettings(_Polled, frozen=True, kw_only=True):
    """Processes killed for memory, in the job's cgroup and on the node."""

    interval_s: Seconds = 0.5


class PressureSettings(_Polled, frozen=True, kw_only=True):
    """How much work waits for memory, CPU and I/O (PSI), free memory, swapping, CPU limits."""

    interval_s: Seconds = 5.0
    memory_percent: Amount = 10.0
    """Of the last 10 s in which all work waited for memory."""
    cpu_percent: Amount = 60.0
    """Of the last 10 s in which some work waited for a CPU."""
    io_percent: Amount = 60.0
    """Of the last 10 s in which all work waited for I/O."""
    hold_s: Hold = 30.0
    least_free_memory_share: Share = 0.02
    swap_pages_per_s: Amount = 2000.0
    throttled_share: Share = 0.25
    """Of the time in which the job's cgroup was not let run (cpu.max)."""


class NeighbourSettings(_Polled, frozen=True, kw_only=True):
    """Processes that are not the job's and take its CPUs; looked for only while work waits for CPUs."""

    interval_s: Seconds = 30.0
    cpu_percent: Amount = 40.0
    """Looked for while some work waited for a CPU for so much of the last 10 s."""
    cores: Amount = 1.5
    """One process group that takes as many cores."""
    hold_s: Hold = 25.0


class MountSettings(_Polled, frozen=True, kw_only=True):
    """Network file systems that do not answer or answer ESTALE. Each mount has a sensor of its own."""

    interval_s: Seconds = 10.0
    most_mounts: Annotated[int, Meta(ge=1, le=256)] = 32


class ClockSettings(_Polled, frozen=True, kw_only=True):
    """A wall clock that jumps or is not synchronised."""

    interval_s: Seconds = 10.0
    jump_s: Amount = 0.5
    most_error_s: Amount = 1.0
    """The kernel's own bound of how wrong its clock is; unsynchronised clocks drift over it."""
    hold_s: Hold = 60.0


class StoreSettings(_Polled, frozen=True, kw_only=True):
    """How long a small operation on a store (HDFS, HTTP, ...) takes."""

    interval_s: Seconds = 60.0
    timeout_s: Seconds = 30.0
    open_s: Hold = 60.0
    """To load the client and connect, beyond `timeout_s`."""
    slow_s: Seconds = 5.0
    in_row: Count = 2
    """One slow or failed operation is daily business."""


class TrainingSettings(_Polled, frozen=True, kw_only=True):
    """What the script says about its training: `robust_run.report`, or event files of TensorBoard and wandb."""

    interval_s: Seconds = 1.0
    timeout_s: Seconds = 20.0
    nan_losses: Count = 1
    """So many losses in a row that are NaN or infinite are said."""
    nan_grad_norms: Count = 5
    """More than one: mixed precision finds its loss scale by gradients that overflow."""
    jump_ratio: Annotated[float, Meta(gt=1, le=10**6)] = 5.0
    """Of the median of the last values (ByteRobust: 5); near zero and below see `metrics.judging`."""
    jumps: Count = 2
    """So many in a row: one spike alone is clipped and forgotten."""
    jump_stays: Annotated[int, Meta(ge=2, le=49)] = 20
    """So many in a row: it is no batch of odd data, the numbers stay there."""
    slow_ratio: Annotated[float, Meta(gt=1, le=10**6)] = 1.5
    """Of what a step takes as a rule (medians of 20 steps)."""
    slow_hold_s: Hold = 60.0
    most_series: Count = 64


class SensorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All sensors, by name."""

    kernel_log: KernelLogSettings = KernelLogSettings()
    gpu: GpuSettings = GpuSettings()
    gpu_memory: GpuMemorySettings = GpuMemorySettings()
    network: NetworkSettings = NetworkSettings()
    infiniband: InfinibandSettings = InfinibandSettings()
    traffic: TrafficSettings = TrafficSettings()
    disk: DiskSettings = DiskSettings()
    fsync: FsyncSettings = FsyncSettings()
    memory: MemorySettings = MemorySettings()
    pressure: PressureSettings = PressureSettings()
    neighbours: NeighbourSettings = NeighbourSettings()
    mount: MountSettings = MountSettings()
    clock: ClockSettings = ClockSettings()
    store: StoreSettings = StoreSettings()
    training: TrainingSettings = TrainingSettings()
