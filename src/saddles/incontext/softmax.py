"""Softmax attention, measured: trained on drawn prompts from the start of the linear models, with no theory.

A head with keys and queries U (merged: U itself, separate: K Qᵀ) and value v answers

    v Σ_n softmax_n(xᵀ_n U x_q) y_n

instead of v Σ_n (xᵀ_n U x_q) y_n / N. For a small U that is linear attention with β centred, (1/N) Σ (x_n − x̄) y_n, so
that both leave the start together but for a factor 1 − 1/N.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.incontext.method import PromptDescent
from saddles.incontext.model import Merged, Separate
from saddles.incontext.simulate import MergedHeads, OnPrompts, SeparateHeads, key_of
from saddles.incontext.task import Prompts, check_task
from saddles.runtime.device import on_device
from saddles.runtime.precision import in_double_precision
from saddles.solvers.dynamics import Dynamics

SEEN = 1024
"""Prompts, the same all along a run, from which its loss is measured; no step is taken on them."""


class Args(OnPrompts):
    """Pairs and queries on which the loss is measured; their mean over w is exact, since an answer is linear in w."""

    inputs: Float[Array, "prompt pair dim"]
    query: Float[Array, "prompt dim"]
    values: Float[Array, " direction"]
    vectors: Float[Array, "dim direction"]

    def answer(self, weights: MergedHeads | SeparateHeads, prompts: Prompts) -> Float[Array, " prompt"]:
        return jnp.einsum("pn,pn->p", attended(weights, prompts.inputs, prompts.query), prompts.outputs)


def attended(
    weights: MergedHeads | SeparateHeads, inputs: Array | np.ndarray, query: Array | np.ndarray
) -> Float[Array, "prompt pair"]:
    """Σ_i v_i softmax_n(xᵀ_n U_i x_q)."""
    value, *rest = weights
    merged = rest[0] if len(rest) == 1 else jnp.einsum("hdr,her->hde", *rest)
    scores = jnp.einsum("pnd,hde,pe->hpn", inputs, merged, query)
    return jnp.einsum("h,hpn->pn", value, jax.nn.softmax(scores, axis=-1))


def _observe(weights: MergedHeads | SeparateHeads, args: Args) -> dict[str, Array]:
    answered = jnp.einsum("pn,pnd->pd", attended(weights, args.inputs, args.query), args.inputs)  # ŷ = wᵀ answered
    along = jnp.mean((answered @ args.vectors) * (args.query @ args.vectors), axis=0)
    loss = jnp.mean(jnp.sum((args.query - answered) ** 2, axis=1))
    return {"loss": loss, "learned": along / args.values, "value": weights[0]}


def _slope(weights: MergedHeads | SeparateHeads, args: Args) -> MergedHeads | SeparateHeads:
    """The loss over all prompts has no closed form: only steps on drawn ones are taken."""
    raise SaddlesError("Softmax attention is trained by incontext.PromptDescent; its exact flow is not known.")


@arguments_explained
@dataclass(frozen=True)
class Softmax:
    """Softmax attention with the start of a linear model; trained by `PromptDescent`.

    Args:
        linear: `Merged` or `Separate`, one start (no list).
    """

    linear: Merged | Separate

    def __post_init__(self) -> None:
        if not isinstance(self.linear, Merged | Separate):
            raise SaddlesError.must_be("linear", "a model Merged or Separate", self.linear)
        if np.ndim(self.linear.scale):
            raise SaddlesError.must_be("linear", "a model with one start, not a list", self.linear)

    @in_double_precision
    def simulate(
        self,
        task: object,
        method: object,
        *,
        times: np.ndarray | None = None,
        seed: int = 0,
        device: str | None = None,
        precision: str = "float64",
    ) -> Trajectory:
        """Train on drawn prompts.

        Variables are `loss` (over 1,024 fresh prompts and all w, the same all along), `learned`, the part of each
        direction u of Λ, from the largest eigenvalue down, that is in the answers: E ŷ (wᵀu)(x_qᵀu) / λ, for linear
        attention λuᵀMu, and `value`, the v of every head.
        """
        problem = check_task(task)
        if not isinstance(method, PromptDescent):
            raise SaddlesError(f"Softmax attention is trained by incontext.PromptDescent; got {type(method).__name__}.")
        drawn, root = problem.draw(SEEN, seed), np.linalg.cholesky(problem.matrix)
        # Queries are stretched to have exactly the covariance Λ: the loss of the start is then tr Λ without noise.
        sample = np.linalg.cholesky(drawn.query.T @ drawn.query / SEEN)
        query = np.linalg.solve(sample, drawn.query.T).T @ root.T
        start, *rest = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, dtype=precision),
            (self.linear.start(problem, seed), root, drawn.inputs, query, *problem.frame),
        )
        args = Args(rest[0], key_of(seed), problem.prompt, *rest[1:])
        with on_device(device):
            path = method.follow(Dynamics(start, args, _slope, _observe), times)
        dims = {"loss": ("time",), "learned": ("time", "direction"), "value": ("time", "head")}
        return make_trajectory(
            {name: (dims[name], rows) for name, rows in path.saved.items()}, path.times,
            coords={**path.coords, "eigenvalue": ("direction", problem.frame[0])}, lab="incontext", model=self,
            task=problem, kind="simulated", method=method, seed=seed, **path.facts,
        )  # fmt: skip
