"""Files: bounded reads, atomic writes, a lock, and files with a checksum."""

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
    """Turn an `OSError` into an `OutputError`: "cannot write {what}: the reason{then}"."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {what}: {error.strerror or error}{then}") from None


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading, as a context.

    Raises `FileNotFoundError`, or `DataError` if the file cannot be read or is not a regular file: reading a pipe or a
    device could block forever.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would block until a process writes to it.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError(f"{path} is not a regular file: remove it")
            yield file
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror}): check its type and permissions") from None


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file of at most `most_bytes`. Raises the errors of `open_regular`."""
    with open_regular(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise DataError(f"{path} has more than {most_bytes:,} bytes, the limit for such a file: replace it")
    return data


def make_private(folder: Path, *, even_if_there: bool = True) -> None:
    """Create a folder and its parents that only the owner can enter, regardless of the umask.

    even_if_there   also restrict an existing folder
    """
    if folder.exists():
        if even_if_there:
            folder.chmod(0o700)
        return
    make_private(folder.parent, even_if_there=False)
    folder.mkdir(0o700, exist_ok=True)
    folder.chmod(0o700)


def open_private(path: Path | str, flags: int) -> int:
    """Open or create a file that only its owner can read, regardless of the umask."""
    handle = os.open(path, flags | os.O_CREAT, 0o600)
    os.fchmod(handle, 0o600)
    return handle


def write_atomically(
    path: Path, data: bytes, make_folder: bool = False, lasting: bool = True, private: bool = False
) -> None:
    """Replace the file `path` by `data`, or leave it unchanged.

    make_folder   create its folder
    lasting       wait for the disk, so that the file survives a power failure
    private       only the owner can read the file, regardless of the umask
    """
    beside = path.with_name(f".{path.name}.part")
    with writing(str(path)):
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(beside, "wb", opener=open_private if private else None) as file:
                file.write(data)
                file.flush()
                if lasting:
                    os.fsync(file.fileno())
            beside.replace(path)
        except OSError:
            with suppress(OSError):
                beside.unlink()  # a partial file: the disk may be full
            raise


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names of new files survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_word(path: Path, word: str) -> None:
    """Replace the file `path` by one word and its checksum, durably."""
    write_atomically(path, _with_checksum(word.encode()))
    sync_folder(path.parent)


def read_word(path: Path) -> str | None:
    """Return the word that `write_word` wrote, or None without a file. Raises `DataError` if it is damaged."""
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
    """Replace the file `path` by `data` behind a header: kind, format version and a checksum of everything."""
    head = f"qafel {kind} {version}\n".encode()
    write_atomically(path, head + _digest(head, data) + data, make_folder=True)


def read_checked(path: Path, kind: str, version: int) -> bytes:
    """Return the data that `write_checked` wrote. Raises `DataError` if it is missing, damaged or of another format."""
    expected = f"qafel {kind} {version}\n".encode()
    try:
        with open_regular(path) as file:
            head = file.readline(2 * len(expected))
            # A file of another kind is not read: it may be large.
            digest, data = (file.read(_DIGEST_BYTES), file.read()) if head == expected else (b"", b"")
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    if head != expected and head.startswith(f"qafel {kind} ".encode()):
        found = head.decode(errors="replace").split()[-1]
        raise DataError(
            f"{path} has format version {found}, this qafel reads version {version}: use the qafel that wrote it, "
            "or start again in another folder"
        )
    if head != expected or digest != _digest(expected, data):
        raise DataError(f"{path} is damaged: its checksum differs")
    return data


def _digest(head: bytes, data: bytes) -> bytes:
    hasher = xxhash.xxh3_64(head)
    hasher.update(data)
    return hasher.digest()


@final
class Lock:
    """A context for at most one process: an advisory lock on a file, released when the process ends.

    It has no effect on systems and file systems without locks.
    """

    def __init__(self, path: Path, busy: QafelError, *, patience_s: float = 0.0, beside: Path | None = None) -> None:
        """Lock the file `path`. Raise `busy` if another process holds the lock for longer than `patience_s`.

        The lock protects the folder of the file, or the folder `beside` it, which may be moved meanwhile. In the second
        case the file is deleted at the end.
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
            # The previous holder may have removed the file after this process opened it: then the lock has no effect.
            return os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except BlockingIOError:
            raise
        except FileNotFoundError:
            return False
        except OSError:  # a file system without locks
            return True

    def fileno(self) -> int:
        """Return the file descriptor of the lock. A child process that inherits it keeps the lock until it ends."""
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
