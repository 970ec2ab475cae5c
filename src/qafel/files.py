"""Files: reads that neither wait nor grow without bound, atomic writes, one lock, and files with a checksum."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Self, final

import xxhash

from qafel.errors import DataError, OutputError, QafelError

if sys.platform != "win32":
    import fcntl

_DIGEST_BYTES = 8
_WORD_BYTES = 1000


@contextmanager
def writing(what: str, then: str = "") -> Iterator[None]:
    """A context in which an `OSError` becomes an `OutputError`: "cannot write {what}: the reason{then}"."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {what}: {error.strerror or error}{then}") from None


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file to read, as a context.

    `FileNotFoundError` if there is none. `DataError` if it cannot be read, or is something else, such as a pipe or a
    device: its reader could wait forever.
    """
    try:
        # Without O_NONBLOCK, a pipe would block here until somebody writes.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError(f"{path} is not a regular file: remove it")
            yield file
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check its kind and its permissions") from None


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file; the errors are those of `open_regular`, and one for more than `most_bytes`."""
    with open_regular(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise DataError(f"{path} is larger than {most_bytes:,} bytes, which no such file should be")
    return data


def make_private(folder: Path, *, even_if_there: bool = True) -> None:
    """Make a folder, with those above it, that only its owner can enter, whatever the umask; one that is there already
    becomes so, too, unless told otherwise.
    """
    if folder.exists():
        if even_if_there:
            folder.chmod(0o700)
        return
    make_private(folder.parent, even_if_there=False)
    folder.mkdir(0o700, exist_ok=True)
    folder.chmod(0o700)


def open_private(path: Path, flags: int) -> int:
    """Open or make a file that only its owner can read, whatever the umask."""
    handle = os.open(path, flags | os.O_CREAT, 0o600)
    os.fchmod(handle, 0o600)
    return handle


def write_atomically(path: Path, data: bytes, make_folder: bool = False, lasting: bool = True) -> None:
    """Replace the file `path` by `data`, or leave it as it was; `make_folder` makes the folder that it lies in.

    What need not outlive a power cut is not `lasting`, and is written without waiting for the disk.
    """
    beside = path.with_name(f".{path.name}.part")
    with writing(str(path)):
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("wb") as file:
                file.write(data)
                file.flush()
                if lasting:
                    os.fsync(file.fileno())
            beside.replace(path)
        except OSError:
            with suppress(OSError):
                beside.unlink()  # half a file, on a disk that may be full
            raise


def sync_folder(folder: Path) -> None:
    """Make the names of new files last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_word(path: Path, word: str) -> None:
    """Replace the file `path` by one word and its checksum, so that it lasts."""
    write_atomically(path, _with_checksum(word.encode()))
    sync_folder(path.parent)


def read_word(path: Path) -> str | None:
    """The word of such a file; None if there is none, `DataError` if it is damaged."""
    try:
        data = read_regular(path, _WORD_BYTES)
    except FileNotFoundError:
        return None
    word = data.split(b":")[0]
    if word.isalnum() and data == _with_checksum(word):
        return word.decode("ascii")
    raise DataError(f"{path} is damaged")


def _with_checksum(word: bytes) -> bytes:
    return b"%s: %016x\n" % (word, xxhash.xxh3_64_intdigest(word))


def write_checked(path: Path, kind: str, version: int, data: bytes) -> None:
    """Replace the file `path` by `data` behind a header: its kind, the version of its format, a checksum of it all."""
    head = f"qafel {kind} {version}\n".encode()
    write_atomically(path, head + _digest(head, data) + data, make_folder=True)


def read_checked(path: Path, kind: str, version: int) -> bytes:
    """The data of such a file; `DataError` if it is missing, damaged, or of another kind or version."""
    expected = f"qafel {kind} {version}\n".encode()
    try:
        with open_regular(path) as file:
            head = file.readline(2 * len(expected))
            # A file of another kind, however large, is not read.
            digest, data = (file.read(_DIGEST_BYTES), file.read()) if head == expected else (b"", b"")
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    if head != expected and head.startswith(f"qafel {kind} ".encode()):
        found = head.decode(errors="replace").split()[-1]
        raise DataError(
            f"{path} has version {found} of its format, and this qafel reads version {version}: use the qafel "
            "that wrote it, or begin anew in another folder"
        )
    if head != expected or digest != _digest(expected, data):
        raise DataError(f"{path} is damaged, or an older version of qafel wrote it: its checksum differs")
    return data


def _digest(head: bytes, data: bytes) -> bytes:
    hasher = xxhash.xxh3_64(head)
    hasher.update(data)
    return hasher.digest()


@final
class Lock:
    """A context that at most one process is in: an advisory lock on a file, which ends with the process.

    Where the system or the file system has no locks, it keeps nobody out.
    """

    def __init__(self, path: Path, busy: QafelError, *, patience_s: float = 0.0, beside: Path | None = None) -> None:
        """Lock the file `path`; raise `busy` if another process has it for longer than `patience_s`.

        It protects the folder that it lies in, or the folder `beside`, which may be moved or replaced meanwhile: then
        the file is deleted at the end.
        """
        self._path = path
        self._busy = busy
        self._patience_s = patience_s
        self._folder = beside or path.parent
        self._remove = beside is not None
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        deadline = time.monotonic() + self._patience_s
        while self._file is None:
            with writing(f"to {self._folder}", "; choose another folder"):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                file = self._path.open("ab")
            try:
                if self._take(file):
                    self._file = file
                    continue
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.close()
                    raise self._busy from None
                time.sleep(0.05)
            file.close()
        return self

    def _take(self, file: IO[bytes]) -> bool:
        if sys.platform == "win32":
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who had it before may have removed the file since it was opened here: then it keeps nobody out.
            return os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except BlockingIOError:
            raise
        except FileNotFoundError:
            return False
        except OSError:  # a file system without locks
            return True

    def fileno(self) -> int:
        """The handle that holds the lock: a child process that inherits it keeps the lock until it ends."""
        if self._file is None:
            raise ValueError("the lock is not held")
        return self._file.fileno()

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            if self._remove:
                with suppress(OSError):
                    self._path.unlink()
            self._file.close()
            self._file = None
