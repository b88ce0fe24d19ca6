"""The time of one host, the same for all of its processes, and the pauses of callers that wait.

Owns reading a clock that goes on from boot to shutdown, through all changes of the wall clock, and knowing when a boot
is another one. Refuses to know what is timed.
"""

from __future__ import annotations

import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = Path("/proc/self/ns/time")


class HostClock:
    """This machine's clocks. Subclass it in tests."""

    def boot(self) -> str:
        """Names the boot since which `since_boot_s` counts; empty if the system does not say."""
        try:
            boot = _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return ""
        try:
            return f"{boot} {_TIME_NAMESPACE.readlink()}"  # a container may count from another start
        except OSError:
            return boot

    def since_boot_s(self) -> float:
        """Seconds since this boot, the same in all processes; never goes back, counts while the machine sleeps."""
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if clock is None else time.clock_gettime(clock)

    def wall_s(self) -> float:
        """Unix time; may jump."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Pause the calling thread."""
        time.sleep(seconds)
