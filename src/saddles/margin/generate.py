"""Random data for each assumption of the paper.

Assumption 3 at W = 0 is reached with equal non-optimal scores (0 here) and a gap of at least L ln n: the mean score of
every sequence is then at least ln n. Scaling the head alone need not achieve it.
"""

import numpy as np

from saddles.errors import SaddlesError

Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""X, z, y, head."""


def check_sizes(n: int, length: int, dim: int, assumption: int, seed: int) -> None:
    """Refuse sizes that cannot be drawn, and a seed that no generator takes."""
    for name, value in (("n", n), ("length", length), ("dim", dim), ("seed", seed)):
        if not isinstance(value, int | np.integer) or (name == "seed" and value < 0):
            raise SaddlesError.must_be(name, "a whole number" + " of at least 0" * (name == "seed"), value)
    if min(n, dim) < 1 or length < 2:
        raise SaddlesError(
            f"`n` and `dim` must be at least 1 and `length` at least 2; got n={n}, length={length}, dim={dim}."
        )
    if assumption == 4 and (length % 2 == 0 or n > dim - 2):
        raise SaddlesError(
            "Assumption 4 needs an odd `length` (tokens are paired) and n ≤ dim − 2; "
            f"got n={n}, length={length}, dim={dim}. Try 4, 5, 8."
        )


def plain(n: int, length: int, dim: int, draw: np.random.Generator) -> Parts:
    """Gaussian tokens, queries and head, fair labels."""
    return (
        draw.normal(size=(n, length, dim)),
        draw.normal(size=(n, dim)),
        draw.choice([-1.0, 1.0], size=n),
        draw.normal(size=dim),
    )


def rescored(parts: Parts, scores: np.ndarray) -> Parts:
    """Move every token along the head to the score it shall have."""
    X, z, y, head = parts
    missing = scores - y[:, None] * (X @ head)
    return X + missing[:, :, None] * y[:, None, None] * head / (head @ head), z, y, head


def equal(n: int, length: int, dim: int, draw: np.random.Generator) -> Parts:
    """Assumption 2: the tokens that are not optimal get their mean score."""
    parts = plain(n, length, dim, draw)
    scores = parts[2][:, None] * (parts[0] @ parts[3])
    best = scores.argmax(axis=1)[:, None] == np.arange(length)
    mean = np.where(best, 0.0, scores).sum(axis=1, keepdims=True) / (length - 1)
    return rescored(parts, np.where(best, scores, mean))


def confident(n: int, length: int, dim: int, draw: np.random.Generator) -> Parts:
    """Assumptions 2 and 3: scores 0 and L ln n (1 + u) + u', u and u' uniform in [0.1, 0.5].

    The head has ten times the norm of the largest gap, so that tokens of length √dim move by little more than a tenth
    to get their scores, and stay nearly Gaussian.
    """
    X, z, y, head = plain(n, length, dim, draw)
    gap = length * np.log(n) * (1 + draw.uniform(0.1, 0.5, size=n)) + draw.uniform(0.1, 0.5, size=n)
    head = head * (10 * gap.max() / np.linalg.norm(head))
    best = draw.integers(length, size=n)[:, None] == np.arange(length)
    return rescored((X, z, y, head), np.where(best, gap[:, None], 0.0))


def paired(n: int, length: int, dim: int, draw: np.random.Generator) -> Parts:
    """Assumptions 2, 3 and 4: x_opt = r u_i, z = ±s u_i, v = Σ y_i g_i u_i, the others c x_opt ± e, e ⊥ u_i and v.

    u_i are orthonormal and lie anywhere (a random rotation); c is common, and all optimal scores are g_i r_i = Γ with
    (1 − c)Γ > L ln n. The optimum of `nuclear` is Σ 1/((1 − c) r_i s_i).
    """
    frame = np.linalg.qr(draw.normal(size=(dim, dim)))[0].T[:n]
    r, s = draw.uniform(0.5, 2.0, size=(2, n))
    y, side = draw.choice([-1.0, 1.0], size=(2, n))
    c = draw.uniform(-0.5, 0.5)
    # A fifth above what Assumption 3 asks for, (1 − c)Γ > L ln n; the ½ is for n = 1, where ln n is 0.
    top = (1.2 * length * np.log(n) + 0.5) / (1 - c)
    head = (y * top / r) @ frame
    X = np.empty((n, length, dim))
    for i, u in enumerate(frame):
        noise = draw.normal(size=((length - 1) // 2, dim))
        # With one sequence the head is parallel to u, and QR would fill the second column with rounding.
        basis = np.linalg.qr(np.stack([u, head], axis=1))[0] if n > 1 else u[:, None]
        noise -= (noise @ basis) @ basis.T
        order = draw.permutation(length)
        X[i, order[0]] = r[i] * u
        # Partners sum to 2c x_opt, as Assumption 4 (iii) wants, and e ⊥ v gives all of them the score cΓ.
        X[i, order[1:]] = c * r[i] * u + np.concatenate([noise, -noise])
    return X, (side * s)[:, None] * frame, y, head
