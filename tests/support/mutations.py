"""Plausible bugs, one small patch each, that the tests must catch: `make mutate`.

Each is put into a copy of the package, and the tests that should notice are run on it, first the one that noticed last
time. Prints one line per bug; exits with 1 if fewer than 95 % are caught. `--record FILE` keeps the table, with the test
that noticed. A row of the list is
(file, what stands there once, what the bug writes instead, tests that should notice, the likeliest first).
"""
# ruff: noqa: E501  (a bug is easier to read on one line)

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "results" / "mutations.json"
"""The table of the last runs."""
CAUGHT = 0.95
"""The share of bugs that must be caught."""
LIMIT = 900
"""Seconds after which a run of tests counts as caught: the bug made it endless."""
EVERYDAY = "not slow and not attack and not docs"
"""What CI runs: the long ones, too."""


class Mutation(NamedTuple):
    """One bug; `old` stands exactly once in the file."""

    file: str
    old: str
    new: str
    tests: str


_ROWS = (
    # linear
    ("linear/task.py", "np.random.default_rng([self.seed, 1]).normal(size=self.shape)", "np.random.default_rng([self.seed, 0]).normal(size=self.shape)", "tests/test_streams.py"),
    ("linear/task.py", "self.probes @ self.target.ravel() + noise)", "self.probes @ self.target.ravel())", "tests/linear/test_exact.py"),
    ("linear/task.py", "return u @ v.T / np.sqrt(self.rank)", "return u @ v.T / self.rank", "tests/linear/test_exact.py"),
    ("linear/task.py", "return 2 * self.scale * (matrix - self.observed) @ self.covariance", "return self.scale * (matrix - self.observed) @ self.covariance", "tests/linear/test_exact.py"),
    ("linear/task.py", "self.mask / self.mask.sum()", "self.mask / self.mask.size", "tests/linear/test_exact.py"),
    ("linear/task.py", "(left * np.asarray(self.spectrum) * np.sqrt(rows * columns)) @ right.T", "(left * np.asarray(self.spectrum) * rows) @ right.T", "tests/linear/test_exact.py"),
    ("solvers/two_layer.py", "-(transposed(gradient) @ outer), -jnp.matmul(gradient, inner)", "-(transposed(gradient) @ outer), -2 * jnp.matmul(gradient, inner)", "tests/linear/test_exact.py"),
    ("linear/simulate.py", "fitted = jnp.linalg.norm(gradient) <= FITTED * self.gradient", "fitted = jnp.linalg.norm(gradient) <= 10 * FITTED * self.gradient", "tests/linear/test_use.py"),
    ("solvers/self_consistent.py", "minus = threshold / np.sqrt(2 * (height + values))", "minus = threshold / np.sqrt(height + values)", "tests/linear/test_theory.py"),
    ("solvers/self_consistent.py", "rest = np.sqrt(threshold)", "rest = threshold", "tests/linear/test_theory.py"),
    ("linear/theory.py", "args = (observer, start.array(2 * start.threshold))", "args = (observer, start.array(start.threshold))", "tests/linear/test_theory.py"),
    ("linear/theory.py", "return 4 * jnp.asarray(observer.cost.weight)", "return 2 * jnp.asarray(observer.cost.weight)", "tests/linear/test_theory.py"),
    ("linear/aligned.py", "/ (x + 1 / y)", "/ (x - 1 / y)", "tests/linear/test_theory.py"),
    ("linear/phases.py", "if 2 * gamma_variance + gamma_w > 0:", "if 2 * gamma_variance + gamma_w + 1 > 0:", "tests/linear/test_theory.py"),
    ("linear/phases.py", "return distance / (4 * min(spectrum)) * dim * math.log(dim)", "return distance / (4 * max(spectrum)) * dim * math.log(dim)", "tests/linear/test_theory.py"),
    ("linear/phases.py", "smallest**2 / max(a**2 - b**2 for a, b in pairs)", "smallest / max(a**2 - b**2 for a, b in pairs)", "tests/linear/test_theory.py"),
    ("measures/modes.py", "strong = np.sqrt(max(matrix.shape[1:]) / width) * norm", "strong = np.sqrt(width / max(matrix.shape[1:])) * norm", "tests/linear/test_measures.py"),
    ("measures/modes.py", "values / np.hypot(values, trajectory[\"threshold\"])", "values / (values + trajectory[\"threshold\"])", "tests/linear/test_measures.py"),
    ("measures/spectra.py", "largest = values.max(\"mode\")", "largest = values.mean(\"mode\")", "tests/linear/test_measures.py"),
    # diagonal
    ("diagonal/task.py", "return inputs, truth, clean + self.noise * np.random", "return inputs, truth, clean + 0 * np.random", "tests/diagonal/test_simulate.py"),
    ("diagonal/task.py", "np.random.default_rng([self.seed, 32])", "np.random.default_rng([self.seed, 30])", "tests/test_streams.py"),
    ("diagonal/assumptions.py", "noise *= radius * draw.uniform() / np.linalg.norm(noise)", "noise *= 0 * draw.uniform() / np.linalg.norm(noise)", "tests/diagonal/test_theory.py"),
    ("diagonal/assumptions.py", "np.linalg.eigvalsh(4 * root[:, None] * (block + block.T) / 2 * root)", "np.linalg.eigvalsh((block + block.T) / 2)", "tests/diagonal/test_theory.py"),
    ("diagonal/method.py", "self.slope_on(weights, own, batches[count])", "self.slope_on(weights, own, batches[0])", "tests/diagonal/test_simulate.py"),
    ("diagonal/perturb.py", "v + noise * draw.normal(size=v.shape)", "v", "tests/diagonal/test_simulate.py"),
    ("diagonal/theory.py", "-other / force)", "log_scale / force)", "tests/diagonal/test_theory.py"),
    ("diagonal/theory.py", "now.log_scale - force * wait)", "now.log_scale)", "tests/diagonal/test_theory.py"),
    ("diagonal/theory.py", "return powers, powers", "return powers, 0 * powers", "tests/diagonal/test_theory.py"),
    ("diagonal/model.py", "jax.nn.softmax(logits, axis=-1), states) * value_output[None, None, :]", "jax.nn.softmax(logits, axis=-2), states) * value_output[None, None, :]", "tests/diagonal/test_simulate.py"),
    ("diagonal/model.py", "return np.repeat(per_head.ravel(), 2 * self.dim)", "return np.tile(per_head.ravel(), 2 * self.dim)", "tests/diagonal/test_theory.py"),
    ("diagonal/rest.py", "& (side * stepper.slope < 0)", "& (side * stepper.slope > 0)", "tests/diagonal/test_theory.py"),
    ("solvers/log_scale.py", "- np.exp(2 * (self.log_q - shift)))", "- np.exp(2 * (self.log_q + shift)))", "tests/solvers/test_log_scale.py"),
    ("solvers/log_scale.py", "return 0.5 * (p + q), 0.5 * (p - q)", "return 0.5 * (p - q), 0.5 * (p + q)", "tests/solvers/test_log_scale.py tests/diagonal/test_simulate.py"),
    ("measures/activations.py", "when = clock[row] + (level - low) / pace", "when = clock[row + 1]", "tests/measures/test_activations.py"),
    # concepts
    ("concepts/task.py", "np.stack([draw.permutation(len(self.latent)) for _ in range(epochs)])", "np.stack([draw.permutation(len(self.latent))] * epochs)", "tests/concepts/test_sgd.py"),
    ("concepts/task.py", "[sigma**2 + mu**2 / self.clusters, ", "[sigma**2 + mu**2, ", "tests/concepts/test_task.py"),
    ("concepts/task.py", "return q * np.sign(np.diag(r))", "return q * np.diag(r)", "tests/concepts/test_task.py"),
    ("concepts/model.py", "edge = 1 / np.sqrt(fan_in)", "edge = 1 / np.sqrt(fan_out)", "tests/concepts/test_sgd.py"),
    ("concepts/model.py", "return draw / np.sqrt(task.size)", "return draw / task.size", "tests/concepts/test_sgd.py"),
    ("concepts/method.py", "epoch, place = count // plan.per_epoch, count % plan.per_epoch", "epoch, place = 0, count % plan.per_epoch", "tests/concepts/test_sgd.py"),
    ("concepts/method.py", "return whole if kind == \"sum\" else whole * (2 / layers[-1][0].shape[0])", "return whole", "tests/concepts/test_sgd.py"),
    ("concepts/theory.py", "return 2 * both - (square + square.T + 2 * weights @ AW)", "return 2 * both - (square + square.T + weights @ AW)", "tests/concepts/test_theory.py"),
    ("concepts/theory.py", "return weights[None] * decay[:, None, :] + rest", "return weights[None] * decay[:, :, None] + rest", "tests/concepts/test_theory.py"),
    ("concepts/observe.py", "return 0.5 * ((gap @ moment) * gap).sum(axis=(-2, -1))", "return ((gap @ moment) * gap).sum(axis=(-2, -1))", "tests/concepts/test_theory.py tests/concepts/test_simulate.py"),
    ("concepts/observe.py", "\"noise_term\": ((row + column) * squares + 2 * weighted) / 2,", "\"noise_term\": ((row + column) * squares + weighted) / 2,", "tests/concepts/test_theory.py"),
    ("measures/concept_space.py", "up = np.flip(np.logical_and.accumulate(np.flip(up, 0)), 0)", "up = np.logical_and.accumulate(up)", "tests/measures/test_concept_space.py"),
    ("measures/loss_curves.py", "np.maximum(depth, high - bottom), depth)", "np.maximum(depth, high - row), depth)", "tests/measures/test_loss_curves.py"),
    # margin
    ("margin/attention.py", "return 0.5 * self.gram @ state", "return self.gram @ state", "tests/margin/test_simulate.py"),
    ("margin/attention.py", "return self.scores[:, :1] - self.scores[:, 1:]", "return self.scores[:, 1:] - self.scores[:, :1]", "tests/margin/test_simulate.py"),
    ("measures/margins.py", "- 1 if rank < min(unit.shape) else 0.0", "* 0 if rank < min(unit.shape) else 0.0", "tests/measures/test_margins.py"),
    ("measures/margins.py", "off = np.maximum(np.abs(push) - 1, 0.0)", "off = np.zeros_like(push)", "tests/measures/test_margins.py"),
    ("measures/margins.py", "entropy = -np.where(share > 0, share * np.log", "entropy = -np.where(share > 0, share**2 * np.log", "tests/measures/test_margins.py"),
    # core
    ("core/compare.py", "float(gaps[-1] / last),", "float(gaps[0] / last),", "tests/core/test_compare.py"),
    ("core/compare.py", "scale = norms.max() if norms.max() > 0 else 1.0", "scale = norms.min() if norms.min() > 0 else 1.0", "tests/core/test_compare.py"),
    ("core/claim.py", "numbers.max() if relation == \"<=\" else numbers.min()", "numbers.min() if relation == \"<=\" else numbers.max()", "tests/core/test_claim.py"),
    ("core/dispatch.py", "for depth in range(len(names), 0, -1):", "for depth in range(1, len(names) + 1):", "tests/test_open_verbs.py tests/linear/test_use.py"),
    # probe and LoRA
    ("probe/layouts/adapters.py", "key, value = head // (number // keys), head // (number // values)", "key, value = head % keys, head % values", "tests/probe/test_adapters.py"),
    ("probe/layouts/adapters.py", "\"K\": begin + each, \"V\": begin + each + 1}", "\"V\": begin + each, \"K\": begin + each + 1}", "tests/probe/test_adapters.py"),
    ("probe/layouts/adapters.py", "\"V\": number + keys + key}", "\"V\": number + key}", "tests/probe/test_adapters.py"),
    ("measures/factored.py", "_triangle(xp.concatenate((left - left_start, left_start), -1))", "_triangle(xp.concatenate((left - left_start, left), -1))", "tests/measures/test_factored.py"),
    ("measures/factored.py", "unit = float(_namespace(stored).finfo(stored.dtype).eps) / 2", "unit = float(_namespace(stored).finfo(stored.dtype).eps) / 200", "tests/measures/test_factored.py"),
    ("measures/factored.py", "entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(-1)", "entropy = -(energy * np.log(np.where(share > 0, share, 1.0))).sum(-1)", "tests/measures/test_factored.py"),
    ("probe/weights/weight_change.py", "matrix.addmm_(block, block.T)", "matrix = block @ block.T", "tests/probe/test_spectra.py tests/probe/test_lora.py"),
    ("probe/lora/planning.py", "return root(norms)", "return float(sum(norms))", "tests/probe/test_lora.py"),
    ("probe/lora/budget.py", "most = min(len(self.lists[first]), budget // self.costs[first])", "most = min(len(self.lists[first]), budget // min(self.costs))", "tests/probe/test_lora.py"),
    ("probe/lora/adapter.py", "(one.left.T, one.right.T) if target.conv1d else (one.right, one.left)", "(one.right, one.left) if target.conv1d else (one.left.T, one.right.T)", "tests/probe/test_lora.py"),
    ("probe/lora/truncation.py", "product = change @ moment @ change.T", "product = change @ change.T", "tests/probe/test_lora_data.py"),
    ("probe/lora/experts.py", "dim=-1).flatten(1)", "dim=1).flatten(1)", "tests/probe/test_lora_coverage.py"),
    # transformers and diffusion
    ("transformers/recipe.py", "return self.rate * (step + 1) / self.warm_up", "return self.rate * step / self.warm_up", "tests/transformers/test_training.py"),
    ("transformers/recipe.py", "done = (step - self.warm_up) / max(self.steps - self.warm_up, 1)", "done = step / self.steps", "tests/transformers/test_training.py"),
    ("transformers/feed.py", "tokens[:, 1:].reshape(-1))", "tokens[:, :-1].reshape(-1))", "tests/transformers/test_training.py tests/transformers/test_text.py"),
    ("transformers/feed.py", "generator = generator_of(self.device, self.seed, ORDER, epoch)", "generator = generator_of(self.device, self.seed, ORDER, 0)", "tests/transformers/test_training.py"),
    ("diffusion/vdm.py", "spread - functional.logsigmoid(last) - 1)", "spread - functional.logsigmoid(-last) - 1)", "tests/diffusion/test_vdm.py"),
    ("diffusion/vdm.py", "share = -torch.expm1(after - before)", "share = -torch.expm1(before - after)", "tests/diffusion/test_vdm.py"),
    ("diffusion/vdm.py", "terms = (0.5 * self.slope.abs() * missed,", "terms = (self.slope.abs() * missed,", "tests/diffusion/test_vdm.py"),
    # networks, incontext, and training with PEFT
    ("networks/heads.py", "forgotten = np.subtract(*laws[0])", "forgotten = -np.subtract(*laws[0])", "tests/networks/test_heads.py"),
    ("networks/heads.py", "\"V\": True, \"O\": False}", "\"V\": True, \"O\": True}", "tests/networks/test_heads.py"),
    ("networks/heads.py", "half + len(half))", "2 * half + 1)", "tests/networks/test_rotary.py"),
    ("networks/theory.py", "kept = jnp.exp(-values * time)", "kept = jnp.exp(-2 * values * time)", "tests/networks/test_linearised.py"),
    ("networks/lazy_or_active.py", "rest = moved - linear", "rest = moved + linear", "tests/networks/test_regime.py"),
    ("incontext/task.py", "square + (square + np.trace(covariance) * covariance) / self.prompt", "square + np.trace(covariance) * covariance / self.prompt", "tests/incontext/test_simulate.py"),
    ("incontext/dormant.py", "self.logs += wait * rates", "self.logs[asleep] += wait * rates", "tests/incontext/test_dormant.py"),
    ("probe/weights/adapted.py", "lefts = [pair.scaling * _double(", "lefts = [_double(", "tests/probe/test_adapted.py"),
    ("probe/weights/adapted.py", "rows = _double(tensors[pair.magnitude])[:, None] * rows / norms", "rows = rows / norms", "tests/probe/test_adapted.py"),
    # claims and solvers that came later
    ("linear/experiments/stuck.py", "left * (np.sign(start) * root))", "left * root)", "tests/linear/test_claims.py"),
    ("linear/experiments/stages.py", "(size.width / dim) ** 0.25", "(size.width / dim) ** 0.5", "tests/linear/test_claims.py"),
    ("diagonal/perturb.py", "jax.vmap(product_slope_on, (0, None, None))(state, mean, chosen)", "jax.vmap(product_slope, (0, None))(state, mean)", "tests/diagonal/test_simulate.py"),
    ("diagonal/perturb.py", "*(there for _, _, there in rows)]", "*(here for _, here, _ in rows)]", "tests/diagonal/test_simulate.py"),
    ("transformers/experiments/runs.py", "gap = (values - begun)", "gap = (begun - values)", "tests/transformers/test_claims.py"),
    ("transformers/experiments/verdicts.py", "above = np.flip(np.logical_and.accumulate(np.flip(share >= 0.5, 0)), 0)", "above = share >= 0.5", "tests/transformers/test_claims.py"),
    ("networks/diagram.py", "_norms(moved - linear) / jnp.maximum(_norms(moved), tiny)", "_norms(moved - linear) / jnp.maximum(_norms(linear), tiny)", "tests/networks/test_phases.py"),
    ("incontext/crossing.py", "part.frozen.any() and part.system.returned(state) > felt", "part.frozen.any() and part.system.returned(state) > 1e9 * felt", "tests/incontext/test_crossing.py"),
    ("incontext/linear_networks.py", "waits.append((1 - grown) / singular[k - 1][0])", "waits.append(1 / singular[k - 1][0])", "tests/incontext/test_theory.py"),
    ("margin/low_rank.py", "bound = lengths.min() / lengths", "bound = np.ones(len(lengths))", "tests/margin/test_low_rank.py"),
    ("margin/low_rank.py", "itertools.product((1.0, -1.0), repeat=task.shape[0] - 1)", "itertools.product((1.0,), repeat=task.shape[0] - 1)", "tests/margin/test_low_rank.py"),
    ("concepts/experiments/depth.py", "concepts.MLP((dim,) * (layers - 1))", "concepts.MLP((dim,) * layers)", "tests/concepts/test_experiments.py"),
)  # fmt: skip

MUTATIONS = tuple(Mutation(*row) for row in _ROWS)


def noticed(mutation: Mutation, before: str = "") -> str:
    """The test that fails on a copy of the package with the bug in it, "" if none does.

    Args:
        before: the test that noticed last time.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        file = source / "saddles" / mutation.file
        file.write_text(file.read_text("utf-8").replace(mutation.old, mutation.new), "utf-8")
        for tests in ([before] if "::" in before else [], mutation.tests.split()):
            found = _first_failure(tests, source) if tests else ""
            if found:
                return found
    return ""


def _first_failure(tests: list[str], source: Path) -> str:
    """The first of these tests that fails on the package in a folder, "" if none does."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", EVERYDAY]
    try:
        done = subprocess.run(
            [*command, *tests], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(source)}, capture_output=True,
            timeout=LIMIT, check=False, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "does not end"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if not failed:  # pytest itself broke: that says nothing about the bug
        raise RuntimeError(done.stdout + done.stderr)
    return failed[1].split("[")[0]


def main() -> int:
    """Try all bugs, or those whose file contains a word."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("word", nargs="?", default="", help="only bugs of files whose name contains it")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments.add_argument("--record", type=Path, help="JSON file for the table; rows of other bugs in it are kept")
    chosen = arguments.parse_args()
    tried = [mutation for mutation in MUTATIONS if chosen.word in mutation.file]
    before = {(row["file"], row["bug"]): row["noticed"] for row in _stored(RECORD)}
    hints = [before.get((mutation.file, mutation.new), "") for mutation in tried]
    rows = []
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for mutation, test in zip(tried, pool.map(noticed, tried, hints), strict=True):
            print(f"{'caught' if test else 'SURVIVED':9}{mutation.file}: {mutation.new}  {test}", flush=True)
            rows.append({"file": mutation.file, "right": mutation.old, "bug": mutation.new, "noticed": test})
            if chosen.record:
                _record(rows, chosen.record)
    caught = sum(bool(row["noticed"]) for row in rows)
    print(f"{caught} of {len(tried)} bugs caught.")
    return int(caught < CAUGHT * len(tried))


def _stored(file: Path) -> list[dict[str, str]]:
    """The rows of a table that is kept."""
    return json.loads(file.read_text("utf-8"))["records"]["table"]["bugs"] if file.exists() else []


def _record(rows: list[dict[str, str]], file: Path) -> None:
    """Put rows into a file of docs/results, in the order of the list; bugs that are no longer in the list leave it."""
    known = {(row["file"], row["bug"]): row for row in [*_stored(file), *rows]}
    table = [known[key] for key in ((mutation.file, mutation.new) for mutation in MUTATIONS) if key in known]
    record = {
        "command": "python tests/support/mutations.py --record docs/results/mutations.json",
        "machine": f"{os.cpu_count()} cores",
        "date": datetime.date.today().isoformat(),
        "values": {"bugs": len(table), "caught": sum(bool(row["noticed"]) for row in table)},
        "bugs": table,
    }
    whole = json.loads(file.read_text("utf-8")) if file.exists() else {"records": {}}
    whole["records"]["table"] = record
    file.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
