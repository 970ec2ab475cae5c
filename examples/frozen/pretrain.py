"""Pretrain the backbone on the classes that clients do not have, and save it in backbone.pt."""

import torch
from frozen import BACKBONE_CLASSES, FEATURES, backbone, of_classes, prepare
from torch import nn
from torch.nn.functional import cross_entropy

from qafel.tasks.datasets.cifar10 import load_cifar10
from qafel.tasks.datasets.files import data_folder


def pretrain(path="backbone.pt", steps=400, batch_size=64, lr=2e-3):
    """Train on random batches, and return the accuracy on 1,000 test images of the same classes."""
    torch.manual_seed(0)
    found = load_cifar10(data_folder())
    images, labels = of_classes(found.train, BACKBONE_CLASSES)
    body = backbone()
    module = nn.Sequential(body, nn.Linear(FEATURES, len(BACKBONE_CLASSES)))
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr)
    for step in range(steps):
        rows = torch.randint(0, len(images), (batch_size,)).numpy()
        loss = cross_entropy(module(prepare(images[rows], "cpu")), torch.from_numpy(labels[rows]).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    module.eval()
    images, labels = of_classes(found.test, BACKBONE_CLASSES, 1000)
    with torch.no_grad():
        correct = module(prepare(images, "cpu")).argmax(dim=1) == torch.from_numpy(labels)
    torch.save(body.state_dict(), path)
    return correct.float().mean().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"accuracy on the backbone's classes: {pretrain():.3f}. Saved in backbone.pt")
