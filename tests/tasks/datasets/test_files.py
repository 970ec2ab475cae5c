"""A download is checked and unpacked, or says what to do by hand; the cache is built once and notices damage.

No test reaches the network: archives come from a server in this process.
"""

import contextlib
import hashlib
import http.server
import io
import multiprocessing
import os
import tarfile
import threading
import tracemalloc
import zipfile
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import requests

from qafel.errors import DataError
from qafel.tasks.datasets import cifar10, shakespeare
from qafel.tasks.datasets.cifar10 import BINARY_MD5, find_cifar10, load_cifar10
from qafel.tasks.datasets.files import Archive, cached, download
from qafel.tasks.datasets.shakespeare import find_shakespeare
from tests.tasks.datasets.fake_data import SHAKESPEARE, write_cifar10_binary


class Served(http.server.BaseHTTPRequestHandler):
    content = b""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(self.content)

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def serve():
    """Serve some content; returns its address."""
    servers = []

    def start(content):
        handler = type("Fixed", (Served,), {"content": content})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/archive"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def tar_of(folder):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        tar.add(folder / "cifar-10-batches-bin", "cifar-10-batches-bin")
    return content.getvalue()


def zip_of(name, text):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as opened:
        opened.writestr(name, text)
    return content.getvalue()


def test_an_archive_is_fetched_checked_and_unpacked(tmp_path, monkeypatch, serve):
    write_cifar10_binary(tmp_path)
    content = tar_of(tmp_path)
    archive = replace(cifar10.ARCHIVE, url=serve(content), md5=hashlib.md5(content).hexdigest())
    monkeypatch.setattr(cifar10, "ARCHIVE", archive)
    data = tmp_path / "new"
    assert {path.name for path in find_cifar10(data, fetch=True)} == set(BINARY_MD5)
    assert sorted(path.name for path in (data / "cifar-10-batches-bin").iterdir()) == sorted(BINARY_MD5)
    assert os.listdir(data) == ["cifar-10-batches-bin"], "the archive does not stay"
    assert len(load_cifar10(data, verify=False).train) == 100


def test_a_damaged_archive_is_refused(tmp_path, serve):
    write_cifar10_binary(tmp_path)
    with pytest.raises(DataError, match="c32a1d4a"):
        download(replace(cifar10.ARCHIVE, url=serve(tar_of(tmp_path))), tmp_path / "new")
    assert not os.listdir(tmp_path / "new")


@pytest.mark.parametrize("archive", [cifar10.ARCHIVE, shakespeare.ARCHIVE], ids=lambda archive: archive.dataset)
@pytest.mark.parametrize("content", [b"<html>moved</html>", zip_of("other.txt", "text")], ids=["page", "other"])
def test_what_is_not_the_archive_is_refused(tmp_path, serve, archive, content):
    with pytest.raises(DataError, match="is not the expected archive"):
        download(replace(archive, url=serve(content), md5=None), tmp_path / "new")
    assert not os.listdir(tmp_path / "new")


def test_the_text_is_unpacked_under_the_name_the_reader_knows(tmp_path, monkeypatch, serve):
    url = serve(zip_of("100.txt", SHAKESPEARE))
    monkeypatch.setattr(shakespeare, "ARCHIVE", replace(shakespeare.ARCHIVE, url=url))
    assert find_shakespeare(tmp_path, fetch=True) == [tmp_path / "shakespeare/pg100.txt"]
    assert (tmp_path / "shakespeare/pg100.txt").read_text() == SHAKESPEARE


def test_another_text_is_refused(tmp_path, monkeypatch, serve):
    url = serve(zip_of("100.txt", "something else"))
    monkeypatch.setattr(shakespeare, "ARCHIVE", replace(shakespeare.ARCHIVE, url=url))
    with pytest.raises(DataError, match="expected Project Gutenberg's #100 of 1994"):
        find_shakespeare(tmp_path, fetch=True)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_large_archive_is_never_whole_in_memory(tmp_path, serve, kind):
    size = 40 << 20
    content = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as opened:
            opened.writestr("big", bytes(size))
    else:
        with tarfile.open(fileobj=content, mode="w") as tar:
            member = tarfile.TarInfo("big")
            member.size = size
            tar.addfile(member, io.BytesIO(bytes(size)))
    archive = Archive("Big", serve(content.getvalue()), None, {"big": "big/file"})
    tracemalloc.start()
    try:
        download(archive, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "big/file").stat().st_size == size
    assert peak < size / 2


def test_without_a_network_the_message_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "ARCHIVE", replace(cifar10.ARCHIVE, url="http://127.0.0.1:9/cifar-10-binary.tar.gz"))
    with pytest.raises(DataError) as caught:
        find_cifar10(tmp_path, fetch=True)
    for words in (
        "cannot be downloaded (no connection to 127.0.0.1:9)",
        "cifar-10-binary.tar.gz",
        "md5 c32a",
        "data_batch_1.bin",
    ):
        assert words in str(caught.value)


def test_a_server_that_refuses_is_quoted(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "get", mock.Mock(side_effect=requests.HTTPError("404 Client Error: Not Found")))
    with pytest.raises(DataError, match="cannot be downloaded \\(404 Client Error: Not Found"):
        download(cifar10.ARCHIVE, tmp_path)


def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path):
    (tmp_path / "data").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="set QAFEL_DATA"):
        download(cifar10.ARCHIVE, tmp_path / "data")


@pytest.mark.parametrize(
    ("find", "place"),
    [
        (find_cifar10, "cifar-10-batches-py/data_batch_1"),
        (find_cifar10, "cifar-10-batches-bin/data_batch_1.bin"),
        (find_shakespeare, "shakespeare/pg100.txt"),
        (find_shakespeare, "shakespeare/data/train/all.json"),
    ],
)
def test_what_is_there_is_not_fetched(tmp_path, monkeypatch, find, place):
    for module in (cifar10, shakespeare):
        monkeypatch.setattr(module, "download", lambda *_: pytest.fail("nothing was to be fetched"))
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text("{}")
    with contextlib.suppress(DataError):  # not all of it is there, which is for the reader to say
        find(tmp_path, fetch=True)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_text("1 2 3")
    return path


def build_from(source, calls):
    def build():
        calls.append(1)
        return {"numbers": np.array(source.read_text().split(), np.int64)}

    return build


def test_the_second_use_maps_what_the_first_built(tmp_path, source):
    calls = []
    for _ in range(2):
        arrays = cached(tmp_path, "set", [source], build_from(source, calls))
        assert isinstance(arrays["numbers"], np.memmap)
        assert arrays["numbers"].tolist() == [1, 2, 3]
    assert calls == [1]
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name.startswith(".")], (
        "nothing unfinished stays"
    )


def test_a_changed_source_or_setting_is_built_again(tmp_path, source):
    calls = []
    cached(tmp_path, "set", [source], build_from(source, calls))
    source.write_text("4 5")
    assert cached(tmp_path, "set", [source], build_from(source, calls))["numbers"].tolist() == [4, 5]
    cached(tmp_path, "set", [source], build_from(source, calls), "other")
    assert calls == [1, 1, 1]


@pytest.mark.parametrize("damage", ["flip", "truncate", "no manifest", "bad manifest"])
def test_a_damaged_cache_is_built_again(tmp_path, source, damage):
    calls = []
    cached(tmp_path, "set", [source], build_from(source, calls))
    (folder,) = (tmp_path / "cache").iterdir()
    content = (folder / "numbers.npy").read_bytes()
    if damage == "flip":
        (folder / "numbers.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "truncate":
        (folder / "numbers.npy").write_bytes(content[:-8])
    elif damage == "no manifest":
        (folder / "manifest.json").unlink()
    else:
        (folder / "manifest.json").write_text("[]")
    assert cached(tmp_path, "set", [source], build_from(source, calls))["numbers"].tolist() == [1, 2, 3]
    assert calls == [1, 1]


def _build_in_a_process(folder, source, barrier):
    def build():
        barrier.wait(30)  # both are building now
        return {"numbers": np.arange(3)}

    assert cached(folder, "set", [source], build)["numbers"].tolist() == [0, 1, 2]


def test_two_processes_may_build_at_once(tmp_path, source):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    workers = [context.Process(target=_build_in_a_process, args=(tmp_path, source, barrier)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_missing_source_says_which(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        cached(tmp_path, "set", [tmp_path / "nowhere"], dict)


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path, source):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="QAFEL_CACHE"):
        cached(tmp_path, "set", [source], lambda: {"numbers": np.arange(3)})


def test_a_failed_build_leaves_nothing(tmp_path, source):
    def fail():
        raise DataError("damaged")

    with pytest.raises(DataError, match="damaged"):
        cached(tmp_path, "set", [source], fail)
    assert not os.path.exists(tmp_path / "cache") or not os.listdir(tmp_path / "cache")
