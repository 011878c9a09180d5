"""What a quantised matrix is to those who read it; the formats are in `saddles.probe.weights.quantised`."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Grid(ABC):
    """How one matrix is quantised."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The format."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of the matrix."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of the numbers that the model computes with."""

    @abstractmethod
    def read(self, rows: slice = slice(None)) -> Tensor:
        """Some rows as numbers."""

    @abstractmethod
    def variance(self, rows: slice = slice(None)) -> Tensor:
        """h²/12 of each entry in some rows, h the distance between the middles to its neighbours, in float64."""

    @abstractmethod
    def again(self, matrix: Tensor) -> Tensor:
        """Other numbers, quantised in the same way."""
