"""What the networks of this lab learn: vectors to vectors, by squared loss."""

from dataclasses import dataclass, field

import numpy as np

from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.protocols import ArrayLike
from saddles.transformers.images import load_images


@arguments_explained
@dataclass(frozen=True, eq=False)
class Regression:
    """Fit y_i by f(x_i), with the loss (1/2n) Σ ‖f(x_i) − y_i‖².

    Args:
        inputs: x, one row for each sample.
        targets: y, one row for each sample; the largest entry of a row tells the class, where there are classes.
        test_inputs, test_targets: the same for testing.
        name: words for the record.
    """

    inputs: np.ndarray = field(repr=False)
    targets: np.ndarray = field(repr=False)
    test_inputs: np.ndarray = field(repr=False)
    test_targets: np.ndarray = field(repr=False)
    name: str = "regression"

    def __post_init__(self) -> None:
        for word in ("inputs", "targets", "test_inputs", "test_targets"):
            values: ArrayLike = getattr(self, word)
            matrix = np.asarray(values, dtype=float)
            if matrix.ndim != 2 or not matrix.size:
                raise SaddlesError.must_be(word, "a matrix with one row per sample", np.shape(matrix))
            if not np.isfinite(matrix).all():
                raise SaddlesError(f"`{word}` must be finite; it holds NaN or infinity.")
            object.__setattr__(self, word, matrix)
        pairs = (self.inputs, self.targets), (self.test_inputs, self.test_targets)
        if any(len(one) != len(other) for one, other in pairs):
            raise SaddlesError("`inputs` and `targets` must have one row for each sample; their lengths differ.")
        if any(a.shape[1] != b.shape[1] for a, b in zip(*pairs, strict=True)):
            raise SaddlesError("Training and test data must have the same columns.")

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs) of a network for it."""
        return self.targets.shape[1], self.inputs.shape[1]

    @classmethod
    def from_images(cls, source: str, *, dim: int, samples: int, tests: int = 500, seed: int = 0) -> "Regression":
        """Classify images by regression: x are principal components, y is 1 at the class and 0 elsewhere, centred.

        Components are whitened: each has mean 0 and variance 1 over the training images. A linear network then sees
        ½‖A − A*‖² with A* the least squares fit, which is what the theory of two-layer linear networks treats.

        Args:
            source: as for `saddles.transformers.load_images`.
            dim: components, d.
            samples: training images, drawn at random by `seed`; 0 for all.
            tests: test images, the first of them; 0 for all.
        """
        images = load_images(source)
        rows = np.random.default_rng([seed, 31]).permutation(len(images.train))[: samples or None]
        pictures = images.train[rows].reshape(len(rows), -1) / 255.0
        unseen = images.test[: tests or None].reshape(-1, pictures.shape[1]) / 255.0
        mean = pictures.mean(0)
        _, sizes, directions = np.linalg.svd(pictures - mean, full_matrices=False)
        resolved = int(np.sum(sizes > 1e-6 * sizes[0]))  # pixels that never change leave directions of length 0
        if not 1 <= dim <= resolved:
            raise SaddlesError.must_be("dim", f"between 1 and {resolved}, the components of these images", dim)
        whiten = directions[:dim].T * (np.sqrt(len(rows)) / sizes[:dim])
        classes = np.eye(images.classes)
        middle = classes[images.train_labels[rows]].mean(0)
        return cls(
            (pictures - mean) @ whiten,
            classes[images.train_labels[rows]] - middle,
            (unseen - mean) @ whiten,
            classes[images.test_labels[: tests or None]] - middle,
            f"{images.name}, {dim} components, {len(rows)} images",
        )


def check_task(task: object) -> Regression:
    """Refuse what is not a task of this lab."""
    if not isinstance(task, Regression):
        raise SaddlesError.must_be("task", "a saddles.networks.Regression", task)
    return task
