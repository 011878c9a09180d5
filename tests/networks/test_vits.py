"""Stacked ViTs against single ones and their dense Jacobians, and against the closed form of the linearised run."""

import numpy as np
import pytest
import torch
from torch import nn

from saddles.errors import SaddlesError
from saddles.networks.experiments.vit_regime import middle, thirds
from saddles.networks.vit_beside import beside_vits, curvature
from saddles.networks.vit_grid import measured, trained
from saddles.networks.vits import Pictures, ViTs
from saddles.transformers.vit import ViTShape, make_vit, scaled

SCALES = np.array([0.7, 2.0])
SEED = 5


@pytest.fixture(scope="module")
def pictures():
    return Pictures.of("digits", samples=5, tests=4, seed=SEED)


@pytest.fixture(scope="module")
def vits(pictures):
    return ViTs.of(pictures, 8, SCALES, layers=1, head=4, patches=2, seed=SEED)


class Alone(nn.Module):
    """One ViT as a function of one vector of all that is trained, in float64, without stacking."""

    def __init__(self, scale):
        super().__init__()
        self.vit = make_vit(ViTShape(8, 4, 1, 8, 1, 2, 4, 16, 10), float(scale), SEED).double()
        self.names = scaled(self.vit)
        parameters = dict(self.vit.named_parameters())
        self.start = torch.cat([parameters[name].detach().ravel() for name in self.names])

    def forward(self, vector, images):
        parameters, at = {}, 0
        for name in self.names:
            own = dict(self.vit.named_parameters())[name]
            parameters[name] = vector[at : at + own.numel()].view(own.shape)
            at += own.numel()
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return torch.func.functional_call(self.vit, parameters, (images.double(),))

    def jacobian(self, images):
        """All rows by backward passes: (sample · class, parameter)."""
        found = torch.autograd.functional.jacobian(
            lambda vector: self(vector, images).reshape(-1), self.start, vectorize=True
        )
        assert isinstance(found, torch.Tensor)
        return found

    def vector(self, states, at):
        return torch.cat([states[name][at].double().ravel() for name in self.names])


def without_mean(values):
    return values - values.mean(0, keepdims=True)


def test_measures_are_those_of_the_dense_jacobian(vits, pictures):
    ends, losses, taken = trained(vits, until=0.5, steps=60)
    rows = measured(vits, ends)
    targets = pictures.targets.double().numpy()
    for at, scale in enumerate(SCALES):
        one = Alone(scale)
        change = one.vector(ends, at) - one.start
        moved, linear = [], []
        for images in (pictures.inputs, pictures.unseen):
            with torch.no_grad():
                moved.append((one(one.start + change, images) - one(one.start, images)).numpy())
            linear.append((one.jacobian(images) @ change).reshape(moved[-1].shape).numpy())
        e = np.linalg.norm(without_mean(moved[0] - linear[0])) / np.linalg.norm(without_mean(moved[0]))
        assert rows["linearity"][at] == pytest.approx(e, rel=1e-3)
        assert losses[at] == pytest.approx(
            np.sum((without_mean(moved[0]) - targets) ** 2) / np.sum(targets**2), rel=1e-3
        )
        unseen, straight = (part[1] - part[0].mean(0) for part in (moved, linear))
        assert rows["test_linearity"][at] == pytest.approx(
            np.linalg.norm(unseen - straight) / np.linalg.norm(unseen), rel=1e-3
        )
        shares = pictures.shares.numpy()
        classes, told = (unseen + shares).argmax(1), (straight + shares).argmax(1)
        assert rows["test_accuracy"][at] == np.mean(classes == pictures.labels.numpy())
        assert rows["agreement"][at] == np.mean(classes == told)
        assert rows["moved"][at] == pytest.approx(float(change.norm() / one.start.norm()), rel=1e-3)
    assert (losses <= 0.5).all()
    assert (taken < 60).all()


def test_a_network_is_trained_the_same_alone_and_none_goes_on_below_the_loss(vits, pictures):
    _, losses, taken = trained(vits, until=0.6, steps=40)
    for at, scale in enumerate(SCALES):
        alone = ViTs.of(pictures, 8, np.array([scale]), layers=1, head=4, patches=2, seed=SEED)
        _, loss, steps = trained(alone, until=0.6, steps=40)
        assert steps[0] == taken[at]
        assert loss[0] == pytest.approx(losses[at], rel=1e-3)
        _, before, _ = trained(alone, until=0.6, steps=int(steps[0]) - 1)
        assert loss[0] <= 0.6 < before[0]


def test_the_linearised_run_is_the_closed_form_of_the_dense_kernel(vits, pictures):
    steps = 7
    found, largest = beside_vits(vits, steps), curvature(vits).double().numpy()
    count, classes = pictures.targets.shape
    targets = pictures.targets.double().numpy().reshape(-1)
    projection = np.kron(np.eye(count) - 1 / count, np.eye(classes))
    for at, scale in enumerate(SCALES):
        jacobian = projection @ Alone(scale).jacobian(pictures.inputs).numpy()
        hessian = 2 * jacobian @ jacobian.T / np.sum(targets**2)
        assert largest[at] == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=0.05)
        power = np.linalg.matrix_power(np.eye(len(hessian)) - hessian / largest[at], steps)
        rest = power @ targets
        assert found["linearised_loss"][-1, at] == pytest.approx(np.sum(rest**2) / np.sum(targets**2), rel=1e-3)
    assert found["distance"].shape == (steps + 1, 2)
    assert (found["distance"][0] == 0).all()
    # The first steps are those of the same gradient: what differs is of second order.
    assert (found["distance"][1] < 0.3).all()
    assert found["loss"][0] == pytest.approx(found["linearised_loss"][0])


def test_bad_shapes_are_told(pictures):
    with pytest.raises(SaddlesError, match="`patches` must be"):
        ViTs.of(pictures, 8, SCALES, layers=1, head=4, patches=3, seed=0)
    with pytest.raises(SaddlesError, match="`head` must be"):
        ViTs.of(pictures, 8, SCALES, layers=1, head=3, patches=2, seed=0)


def test_thirds_and_middle():
    values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert thirds(values, np.arange(6)) == pytest.approx(5.5 / 1.5)
    assert middle(values) == pytest.approx(3.5 / 4.5)
