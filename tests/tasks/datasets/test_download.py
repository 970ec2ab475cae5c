"""A download is checked and unpacked, or says what to do by hand. No test reaches the network."""

import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace

import pytest

from qafel.errors import ConfigError, DataError
from qafel.tasks.datasets import download as module
from qafel.tasks.datasets.cifar10 import BINARY_MD5, load_cifar10
from qafel.tasks.datasets.download import ARCHIVES, download, download_if_missing
from tests.tasks.datasets.fake_data import SHAKESPEARE, write_cifar10_binary


def serve(monkeypatch, tmp_path, dataset, content, **changes):
    path = tmp_path / ("archive.zip" if dataset == "shakespeare" else "archive.tar.gz")
    path.write_bytes(content)
    monkeypatch.setitem(ARCHIVES, dataset, replace(ARCHIVES[dataset], url=path.as_uri(), **changes))


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


def test_an_archive_is_fetched_checked_and_unpacked(tmp_path, monkeypatch):
    write_cifar10_binary(tmp_path)
    content = tar_of(tmp_path)
    serve(monkeypatch, tmp_path, "cifar10", content, md5=hashlib.md5(content).hexdigest())
    data = tmp_path / "new"
    download("cifar10", data)
    assert sorted(path.name for path in (data / "cifar-10-batches-bin").iterdir()) == sorted(BINARY_MD5)
    assert len(load_cifar10(data, verify=False).train) == 100


def test_a_damaged_archive_is_refused(tmp_path, monkeypatch):
    write_cifar10_binary(tmp_path)
    serve(monkeypatch, tmp_path, "cifar10", tar_of(tmp_path))
    with pytest.raises(DataError, match="came damaged: its md5 is .* expected c32a1d4a"):
        download("cifar10", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("dataset", ["cifar10", "shakespeare"])
def test_what_is_no_archive_is_refused(tmp_path, monkeypatch, dataset):
    serve(monkeypatch, tmp_path, dataset, b"<html>moved</html>", md5=None)
    with pytest.raises(DataError, match="is not the expected archive"):
        download(dataset, tmp_path / "new")


def test_the_text_is_unpacked_under_the_name_the_reader_knows(tmp_path, monkeypatch):
    serve(monkeypatch, tmp_path, "shakespeare", zip_of("100.txt", SHAKESPEARE))
    download("shakespeare", tmp_path)
    assert (tmp_path / "shakespeare/pg100.txt").read_text() == SHAKESPEARE


def test_another_text_is_refused(tmp_path, monkeypatch):
    serve(monkeypatch, tmp_path, "shakespeare", zip_of("100.txt", "something else"))
    with pytest.raises(DataError, match="expected Project Gutenberg's #100 of 1994"):
        download("shakespeare", tmp_path)


def test_without_a_network_the_message_says_what_to_put_where(tmp_path, monkeypatch):
    def unreachable(*_args, **_kwargs):
        raise OSError("Name or service not known")

    monkeypatch.setattr(module.urllib.request, "urlopen", unreachable)
    with pytest.raises(DataError) as caught:
        download_if_missing("cifar10", tmp_path)
    for words in (
        "cannot be downloaded (Name or service not known)",
        "cifar-10-binary.tar.gz",
        "md5 c32a",
        "data_batch_1.bin",
    ):
        assert words in str(caught.value)


def test_what_is_there_is_not_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "download", lambda *_: pytest.fail("nothing was to be fetched"))
    (tmp_path / "cifar-10-batches-py").mkdir()
    download_if_missing("cifar10", tmp_path)


def test_celeba_is_to_be_fetched_by_hand(tmp_path):
    with pytest.raises(DataError, match="identity_CelebA.txt from https"):
        download("celeba", tmp_path)


def test_an_unknown_dataset_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="choose from cifar10, shakespeare, celeba"):
        download("imagenet", tmp_path)
