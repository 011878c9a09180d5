"""The dynamics of attention under the exact loss: heads with merged or separate keys and queries, and one wide head."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from saddles.incontext.task import Population, Prompts, Regression
from saddles.solvers.dynamics import Dynamics
from saddles.solvers.two_layer import Factor, Matrix, pushed, represented

MergedHeads = tuple[Float[Array, " head"], Float[Array, "head row column"]]
"""v and U."""
SeparateHeads = tuple[Float[Array, " head"], Float[Array, "head dim rank"], Float[Array, "head dim rank"]]
"""v, K and Q."""

CONVERGED = 1e-2
"""A flow has converged when this part of its last possible drop of the loss is left."""


class OnPrompts(eqx.Module):
    """What descent on drawn prompts needs besides the weights."""

    root: Float[Array, "dim dim"]
    """Λ^½, from which prompts are drawn."""
    key: Array
    """Of the drawn prompts."""
    prompt: int = eqx.field(static=True)

    def answer(self, weights: Any, prompts: Prompts) -> Float[Array, " prompt"]:  # weights: of the model's own kind
        """The model's answers."""
        raise NotImplementedError


class Args(OnPrompts):
    """What the dynamics need besides the weights."""

    cost: Population
    goal: Float[Array, ""]
    """The loss at which a flow has converged."""
    matrix: Callable[[Any], Matrix] = eqx.field(static=True)
    """weights -> M."""
    heads: Callable[[Any], Array] | None = eqx.field(static=True)
    """weights -> the norm of each head's part of M."""
    keep: tuple[str, ...] = eqx.field(static=True)

    def answer(self, weights: Any, prompts: Prompts) -> Float[Array, " prompt"]:  # weights: of any of the models
        beta = jnp.einsum("pn,pnd->pd", prompts.outputs, prompts.inputs) / self.prompt
        return jnp.einsum("pd,de,pe->p", beta, self.matrix(weights), prompts.query)


def merged_matrix(state: MergedHeads) -> Matrix:
    """M = Σ v_i U_i."""
    return jnp.einsum("h,hde->de", *state)


def merged_heads(state: MergedHeads) -> Float[Array, " head"]:
    """|v_i| ‖U_i‖."""
    value, weights = state
    return jnp.abs(value) * jnp.sqrt(jnp.sum(weights**2, axis=(1, 2)))


def merged_slope(state: MergedHeads, args: Args) -> MergedHeads:
    """−∇L of Σ v_i U_i."""
    value, weights = state
    push = -args.cost.gradient(merged_matrix(state))
    return jnp.einsum("hde,de->h", weights, push), value[:, None, None] * push[None]


def separate_matrix(state: SeparateHeads) -> Matrix:
    """M = Σ v_i K_i Q_iᵀ."""
    return jnp.einsum("h,hdr,her->de", *state)


def separate_heads(state: SeparateHeads) -> Float[Array, " head"]:
    """|v_i| ‖K_i Q_iᵀ‖."""
    value, key, query = state
    return jnp.abs(value) * jnp.sqrt(jnp.sum(jnp.einsum("hdr,her->hde", key, query) ** 2, axis=(1, 2)))


def separate_slope(state: SeparateHeads, args: Args) -> SeparateHeads:
    """−∇L of Σ v_i K_i Q_iᵀ."""
    value, key, query = state
    push = -args.cost.gradient(separate_matrix(state))
    seen = jnp.einsum("de,her->hdr", push, query)
    scale = value[:, None, None]
    return jnp.sum(key * seen, axis=(1, 2)), scale * seen, scale * jnp.einsum("de,hdr->her", push, key)


def wide_slope(state: Factor, args: Args) -> Factor:
    """−∇L of K Qᵀ, through a factor of the keys and queries."""
    return pushed(state, args.cost.gradient(represented(state)))


def observe(state: Any, args: Args) -> dict[str, Array]:  # state: the weights of any of the models
    """Loss, M, the norm of each head's part, and on request the weights."""
    matrix = args.matrix(state)
    seen = {"loss": args.cost(matrix), "matrix": jnp.asarray(matrix)}
    if args.heads is not None:
        seen["head_norm"] = args.heads(state)
    if "weights" in args.keep:
        names = ("value", "key", "query") if len(state) == 3 else ("value", "key_query")
        seen |= dict(zip(names, state, strict=True))
    return seen


def _rested(state: Any, args: Args) -> Bool[Array, ""]:  # state: as above
    return args.cost(args.matrix(state)) <= args.goal


def key_of(seed: int) -> Array:
    """A key for drawn prompts. JAX has none for seeds of 2⁶³ and more: those are mixed first, as NumPy does it."""
    mixed = seed if seed < 2**63 else int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]) >> 1
    return jax.random.key(mixed)


def goal_of(task: Regression, rank: int) -> float:
    """The loss at which `rank` learned directions count as learned."""
    plateaus = task.plateaus
    last = min(rank, task.dim)
    return float(plateaus[last] + CONVERGED * (plateaus[last - 1] - plateaus[last]))


def dynamics_of(
    start: tuple[np.ndarray, ...], task: Regression, kind: str, rank: int, keep: tuple[str, ...], seed: int,
    precision: str,
) -> Dynamics:  # fmt: skip
    """The training problem from given weights, ready for a method.

    Args:
        kind: "merged", "separate" or "wide".
        rank: how many directions the model can learn.
    """
    matrix, slope, heads = {
        "merged": (merged_matrix, merged_slope, merged_heads),
        "separate": (separate_matrix, separate_slope, separate_heads),
        "wide": (represented, wide_slope, None),
    }[kind]
    cost, goal, root = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, dtype=precision),
        (task.cost, goal_of(task, rank), np.linalg.cholesky(task.matrix)),
    )
    args = Args(root, key_of(seed), task.prompt, cost, goal, matrix, heads, keep)
    state = tuple(jnp.asarray(part, dtype=precision) for part in start)
    # The largest eigenvalue drives everything at the rate 2λ² times the weights; no growth is faster.
    pace = 1 / (2 * task.frame[0][0] ** 2)
    # Separate heads from a start of size s wait for a time of order 1/s, which may lie far beyond the usual limit of
    # 1e12.
    return Dynamics(state, args, slope, observe, rested=_rested, pace=float(pace), limit=1e18)
