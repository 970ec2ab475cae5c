"""The picture shows what the partition is."""

import numpy as np
import pytest

from qafel.drawing.printed import save_figure
from qafel.errors import ConfigError
from qafel.rng import Stream
from qafel.tasks.datasets.partition import split
from qafel.tasks.datasets.partition_figure import partition_figure

LABELS = np.random.default_rng(0).integers(0, 10, 2000)
CLASSES = [f"class {number}" for number in range(10)]


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.1", "power:0.1", "shards:2", "dirichlet-sizes:0.1"])
def test_the_shares_of_each_client_add_up_to_one(spec):
    partition = split(spec, LABELS, 100, Stream.named(0, "partition"))
    figure = partition_figure(partition, LABELS, CLASSES, shown=100)
    bars = figure.axes[0].patches
    assert sum(bar.get_height() for bar in bars) == pytest.approx(100)


def test_classes_are_named_and_sizes_told():
    partition = split("iid", LABELS, 100, Stream.named(0, "partition"))
    figure = partition_figure(partition, LABELS, CLASSES)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == CLASSES
    assert "median 20, mean 20, largest 20" in figure.get_supxlabel()
    assert "40 of 100 clients" in figure.axes[0].get_xlabel()


def test_many_labels_share_a_colour():
    labels = np.arange(400) % 80
    figure = partition_figure(split("iid", labels, 3, Stream.named(0, "partition")), labels)
    assert figure.legends[0].get_texts()[-1].get_text() == "others"
    looks = {bar.get_facecolor() for bar in figure.axes[0].patches}
    assert len(looks) == 12
    assert sum(bar.get_height() for bar in figure.axes[0].patches) == pytest.approx(3)


def test_one_client_is_a_picture_too(tmp_path):
    figure = partition_figure(split("iid", LABELS, 1, Stream.named(0, "partition")), LABELS)
    assert save_figure(figure, tmp_path / "partition.png").stat().st_size > 5000
    with pytest.raises(ConfigError, match="at least one client"):
        partition_figure(split("iid", LABELS, 1, Stream.named(0, "partition")), LABELS, shown=0)
