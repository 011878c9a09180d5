"""Sleeping neurons against the exponential of their matrix."""

import jax.numpy as jnp
import numpy as np
from scipy.linalg import expm

from saddles.incontext.dormant import LinearSleep
from saddles.incontext.neurons import Output, Sum


class Pairs(Output):
    """Products of two weights each, in coordinates that are not those of the eigenvectors."""

    def __call__(self, theta):
        return jnp.stack([theta[0] * theta[1], theta[1] * theta[2], theta[0] * theta[0] - theta[2] * theta[2]])


def test_those_awake_follow_the_same_equation_as_those_asleep():
    """θ' = Aθ holds for every neuron, so that one that lies down later has grown meanwhile in all other directions."""
    start, push = np.random.default_rng(3).normal(size=(3, 3)), jnp.array([0.7, -0.4, 0.2])
    network = Sum(Pairs(), jnp.sum, 2, start, -20.0)
    sleep = LinearSleep(network)
    wait, who = sleep.wake(push, np.array([False, True, True]), -2.0)
    matrix = np.array([[0.4, 0.7, 0.0], [0.7, 0.0, -0.4], [0.0, -0.4, -0.4]])  # the Hessian of ⟨push, output⟩
    there = start @ expm(matrix * wait)
    np.testing.assert_allclose(np.log(np.linalg.norm(there[who[0]])) - 20.0, -2.0, atol=1e-9)
    for neuron in range(3):
        unit = there[neuron] / np.linalg.norm(there[neuron])
        np.testing.assert_allclose(sleep.direction(neuron), unit, atol=1e-9)
