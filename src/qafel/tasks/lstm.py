"""The paper's recurrent network, for Shakespeare's characters."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn


@final
class CharacterLstm(nn.Module):
    """Embedding of 8, two LSTM layers of 256, and a linear layer on the last position: the next character's scores.

    819,920 parameters for a vocabulary of 80.
    """

    def __init__(self, vocabulary: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(characters))
        scores: Tensor = self.linear(states[:, -1])
        return scores
