"""Tests of this folder run without gradients, as inference does."""

from tests.support.fixtures import no_grad

__all__ = ["no_grad"]
