import numpy as np
import pytest

from saddles import SaddlesError
from saddles.concepts import Identity


@pytest.mark.parametrize("zero_cluster", [False, True])
def test_second_moment_is_that_of_many_samples(zero_cluster):
    task = Identity((1.0, 2.0), (0.3, 0.7), dim=4, samples=200_000, zero_cluster=zero_cluster)
    np.testing.assert_allclose(task.moment, task.limit().moment, atol=0.02)
    expected = np.array([0.09 + 1 / task.clusters, 0.49 + 4 / task.clusters, 0, 0])
    np.testing.assert_allclose(task.strengths, expected, rtol=1e-14)
    assert task.clusters == 2 + zero_cluster


def test_rotation_turns_data_and_test_point_together():
    plain = Identity((1.0, 2.0), 0.1, dim=5, samples=50, seed=3)
    turned = Identity((1.0, 2.0), 0.1, dim=5, samples=50, seed=3, rotate=True)
    np.testing.assert_allclose(turned.rotation.T @ turned.rotation, np.eye(5), atol=1e-14)
    np.testing.assert_allclose(turned.data() @ turned.rotation, plain.data(), atol=1e-13)
    np.testing.assert_allclose(turned.rotation.T @ turned.test_point, plain.test_point, atol=1e-14)
    data = turned.data()
    np.testing.assert_allclose(data.T @ data / len(data), turned.second_moment, atol=1e-13)


def test_one_seed_gives_the_same_noise_whatever_the_setting():
    one = Identity((1.0, 2.0), (0.1, 0.1), samples=20, seed=5)
    other = Identity((3.0, 2.0), (0.2, 0.1), samples=20, seed=5)
    np.testing.assert_allclose(one.latent[:, 1], other.latent[:, 1], rtol=1e-14)
    np.testing.assert_allclose(2 * (one.latent[20:, 0]), other.latent[20:, 0], rtol=1e-12)


def test_hierarchy_lists_every_combination():
    names, points = Identity((1.0, 2.0, 3.0), 0.1, dim=4).hierarchy()
    assert len(names) == 8
    assert names[0] == "000"
    assert names[-1] == "111"
    for name, point in zip(names, points, strict=True):
        np.testing.assert_array_equal(point, [int(name[0]), 2 * int(name[1]), 3 * int(name[2]), 0])


def test_variance_is_the_square_of_sigma():
    np.testing.assert_allclose(
        Identity((1.0,), variance=0.05).strengths, Identity((1.0,), sigma=0.05**0.5).strengths, rtol=1e-15
    )


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"mu": (1.0, 2.0, 3.0), "sigma": 0.1, "dim": 2}, "`dim` must be at least 3"),
        ({"mu": (-1.0, 2.0), "sigma": 0.1}, "not negative"),
        ({"mu": (1.0, 2.0), "sigma": -0.1}, "not negative"),
        ({"mu": (1.0, 2.0)}, "exactly one"),
        ({"mu": (1.0, 2.0), "sigma": 0.1, "variance": 0.01}, "exactly one"),
        ({"mu": (1.0, 2.0), "sigma": (0.1, 0.2, 0.3)}, "each concept; got 3"),
        ({"mu": (1.0, 0.0), "sigma": (0.1, 0.0)}, "signal or a spread"),
        ({"mu": (1.0, 2.0), "sigma": 0.1, "samples": 0}, "at least 1"),
        ({"mu": (float("nan"),), "sigma": 0.1}, "not negative"),
    ],
)
def test_bad_input_is_named(arguments, word):
    with pytest.raises(SaddlesError, match=word):
        Identity(**arguments)


def test_infinite_tasks_have_no_points():
    with pytest.raises(SaddlesError, match="infinitely many"):
        Identity((1.0,), 0.1).data()
