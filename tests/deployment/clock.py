"""A process's own wall clock, which a test can set: what `time()` says and what TLS holds certificates against.

A few lines of C are put before the C library's (LD_PRELOAD) and add an offset to the wall clock. The monotonic clock
stays as it is, as on a machine whose clock is set. No rights are needed, only Linux and a C compiler.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

CANNOT = "" if sys.platform == "linux" and shutil.which("cc") else "setting a process's clock needs Linux and cc"
"""Why clocks cannot be set here; empty if they can."""
_LIBRARY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static const volatile long long *offset;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("QAFEL_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    offset = found == MAP_FAILED ? NULL : found;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    if (!real) begin();
    int failed = real(clock, t);
    if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) t->tv_sec += *offset;
    return failed;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"""


class Clock:
    """A clock for the processes that are started with its `environment`. It is right until it is set."""

    def __init__(self, path: Path) -> None:
        """In a file `path`; the library is built beside it, if it is not there yet."""
        self._library = path.with_name("clock.so")
        if not self._library.exists():
            command = ["cc", "-shared", "-fPIC", "-O1", "-w", "-x", "c", "-", "-o", str(self._library), "-ldl"]
            subprocess.run(command, input=_LIBRARY.encode(), check=True)
        self._path = path
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "LD_PRELOAD": str(self._library), "QAFEL_TEST_CLOCK": str(self._path)}

    def be_off(self, seconds: int) -> None:
        """Be so far from the right time: 0 sets it right."""
        self._offset[:] = struct.pack("<q", seconds)
