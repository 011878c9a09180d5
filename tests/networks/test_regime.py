"""Linearity and kernel drift, against dense Jacobians, closed forms, and networks that are lazy by construction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from saddles import networks
from saddles.errors import SaddlesError
from saddles.networks import differentiable
from saddles.networks.jax_network import JaxNetwork
from saddles.networks.lazy_or_active import drift_error
from saddles.networks.torch_network import TorchNetwork


def _mlp(parameters, inputs):
    first, second = parameters
    return jnp.tanh(inputs @ first.T) @ second.T


def _draw(seed=0, scale=1.0):
    draw = np.random.default_rng(seed)
    return tuple(jnp.asarray(scale * draw.normal(size=shape)) for shape in ((5, 4), (3, 5)))


INPUTS = jnp.asarray(np.random.default_rng(9).normal(size=(6, 4)))
START, END = _draw(0), jax.tree.map(lambda a, b: a + 0.3 * b, _draw(0), _draw(1))


def _jacobian(parameters):
    parts = jax.tree.leaves(jax.jacobian(lambda at: _mlp(at, INPUTS).reshape(-1))(parameters))
    return np.concatenate([np.asarray(part).reshape(18, -1) for part in parts], axis=1)


def _flat(parameters):
    return np.concatenate([np.asarray(part).ravel() for part in parameters])


def test_linearity_is_that_of_the_dense_jacobian():
    moved = np.asarray(_mlp(END, INPUTS) - _mlp(START, INPUTS)).ravel()
    rest = moved - _jacobian(START) @ (_flat(END) - _flat(START))
    expected = np.linalg.norm(rest) / np.linalg.norm(moved)
    assert networks.linearity(_mlp, START, END, INPUTS) == pytest.approx(expected, rel=1e-10)


def test_kernel_drift_is_that_of_dense_kernels_and_its_sketch_is_close():
    early, late = (_jacobian(at) @ _jacobian(at).T for at in (START, END))
    expected = 1 - np.sum(early * late) / np.linalg.norm(early) / np.linalg.norm(late)
    exact = networks.regime(_mlp, START, END, INPUTS, probes=18)
    assert float(exact["kernel_drift"]) == pytest.approx(expected, rel=1e-9)
    assert float(exact["kernel_drift_error"]) == 0
    assert float(exact["kernel_growth"]) == pytest.approx(np.linalg.norm(late) / np.linalg.norm(early), rel=1e-9)
    sketches = [networks.regime(_mlp, START, END, INPUTS, probes=12, seed=s) for s in range(8)]
    off = [(float(one["kernel_drift"]) - expected) / float(one["kernel_drift_error"]) for one in sketches]
    assert max(map(abs, off)) < 5
    assert 0.1 < np.std(off) < 3


@pytest.mark.parametrize("probes", [2, 4, 16])
def test_the_error_of_a_sketch_covers_the_drift_as_often_as_it_says(probes):
    draw = np.random.default_rng(5)
    jacobian = draw.normal(size=(40, 120))
    early, late = (j @ j.T for j in (jacobian, jacobian + 0.7 * draw.normal(size=jacobian.shape)))
    exact = 1 - np.sum(early * late) / np.linalg.norm(early) / np.linalg.norm(late)
    inside = []
    for _ in range(3000):
        signs = draw.choice([-1.0, 1.0], size=(probes, 40))
        ours, theirs = signs @ late, signs @ early
        rows = np.stack([(ours * theirs).sum(1), (ours**2).sum(1), (theirs**2).sum(1)], axis=1)
        drift = 1 - rows[:, 0].sum() / np.sqrt(rows[:, 1].sum() * rows[:, 2].sum())
        inside.append(abs(drift - exact) < drift_error(rows))
    assert np.mean(inside) == pytest.approx(0.683, abs=0.03)  # of the plain standard error: 0.49, 0.61, 0.66


class _Torch(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5, bias=False), nn.Linear(5, 3, bias=False)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def _state(parameters):
    names = ("first.weight", "second.weight")
    return {name: torch.tensor(np.asarray(part)) for name, part in zip(names, parameters, strict=True)}


def test_torch_and_jax_agree():
    ours = networks.regime(_mlp, START, END, INPUTS)
    module = _Torch().double()
    theirs = networks.regime(module, _state(START), _state(END), torch.tensor(np.asarray(INPUTS)))
    for name in ours.data_vars:
        assert float(theirs[name]) == pytest.approx(float(ours[name]), rel=1e-9), name


def test_blocks_do_not_change_the_numbers(monkeypatch):
    whole = networks.regime(_mlp, START, END, INPUTS, probes=4)
    push = JaxNetwork.push

    def short(self, at, along, rows):
        if len(range(*rows.indices(self.samples))) > 2:
            raise MemoryError
        return push(self, at, along, rows)

    monkeypatch.setattr("saddles.networks.jax_network.JaxNetwork.push", short)
    parts = networks.regime(_mlp, START, END, INPUTS, probes=4)
    for name in whole.data_vars:
        assert float(parts[name]) == pytest.approx(float(whole[name]), rel=1e-10), name
    monkeypatch.setattr("saddles.networks.jax_network.JaxNetwork.push", _starved)
    with pytest.raises(SaddlesError, match="One sample alone does not fit into memory"):
        networks.linearity(_mlp, START, END, INPUTS)


def test_blocks_of_torch_may_differ_between_start_and_end(monkeypatch):
    module, batch = _Torch().double(), torch.tensor(np.asarray(INPUTS))
    whole = networks.regime(module, _state(START), _state(END), batch, probes=4)
    push, calls = TorchNetwork.push, []

    def short(self, at, along, rows):
        calls.append(len(range(*rows.indices(self.samples))))
        if calls[-1] > 1 + len(calls) % 5:  # memory that is now there and now not
            raise MemoryError
        return push(self, at, along, rows)

    monkeypatch.setattr(TorchNetwork, "push", short)
    parts = networks.regime(module, _state(START), _state(END), batch, probes=4)
    assert len(set(calls)) > 2
    for name in whole.data_vars:
        assert float(parts[name]) == pytest.approx(float(whole[name]), rel=1e-10), name


def test_sums_over_outputs_are_in_double_precision(monkeypatch):
    """10⁶ outputs of float32 around 1: a sum in float32 would be off by more, and pieces must be added up."""
    monkeypatch.setattr("saddles.networks.torch_network.PIECE", 1000)
    values = 1 + 0.1 * torch.rand(1000, 1003, generator=torch.Generator().manual_seed(0))
    network = TorchNetwork.on(_Torch(), {}, torch.ones(2, 4))
    exact = float(np.sum(network.array(values) ** 2))
    assert network.dot(values, values) == pytest.approx(exact, rel=1e-13)


def _starved(self, at, along, rows):
    raise MemoryError


def test_a_linear_model_is_lazy_and_a_quadratic_one_has_a_known_e():
    assert networks.linearity(lambda w, x: x @ w, jnp.ones((4, 2)), jnp.zeros((4, 2)), INPUTS) < 1e-14
    # f = w² from w = 1 to 1 + h: change 2h + h², remainder h².
    h = 0.5
    e = networks.linearity(lambda w, x: x * w**2, jnp.ones(()), jnp.asarray(1 + h), INPUTS)
    assert e == pytest.approx(h**2 / (2 * h + h**2), rel=1e-12)


def test_output_scale_makes_a_network_lazy():
    """Trained to the same targets, a network scaled by α moves by 1/α: e falls as 1/α (Chizat, Oyallon, Bach)."""
    targets = jnp.asarray(np.random.default_rng(3).normal(size=(6, 3)))
    base = _mlp(START, INPUTS)
    found = []
    for alpha in (10.0, 100.0):

        def scaled(at, x, alpha=alpha):
            return alpha * (_mlp(at, x) - _mlp(START, x))

        def loss(at, scaled=scaled):
            return jnp.sum((scaled(at, INPUTS) - targets) ** 2)

        at, step = START, jax.jit(jax.grad(loss))
        for _ in range(200):
            at = jax.tree.map(lambda w, g, alpha=alpha: w - 0.005 / alpha**2 * g, at, step(at))
        found.append(networks.linearity(scaled, START, at, INPUTS))
    assert base.shape == targets.shape
    assert found[0] / found[1] == pytest.approx(10, rel=0.2)


class Rounded(torch.autograd.Function):
    """An operation without a forward derivative."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, *grads):
        return grads[0]


class _Odd(_Torch):
    def forward(self, x):
        return Rounded.apply(super().forward(x))


@jax.custom_vjp
def _odd(x):
    return x


_odd.defvjp(lambda x: (x, None), lambda _, g: (g,))


def _nan(parameters):
    return jax.tree.map(lambda one: one.at[0].set(jnp.nan), parameters)


@pytest.mark.parametrize(
    ("f", "start", "end", "batch", "words"),
    [
        (_mlp, START, (END[0], END[1][:2]), INPUTS, "same shapes"),
        (_mlp, START, END[:1], INPUTS, "structures differ"),
        (_mlp, START, _nan(END), INPUTS, "`end` holds numbers that are not finite"),
        (_mlp, START, END, INPUTS[:0], "at least one sample"),
        (_mlp, START, END, INPUTS.at[0].set(jnp.nan), "`batch` holds numbers"),
        (_mlp, START, START, INPUTS, "undefined"),
        (lambda p, x: jnp.sum(p[0]), START, END, INPUTS, "one row per sample"),
        (lambda p, x: _odd(_mlp(p, x)), START, END, INPUTS, "_odd, which JAX cannot differentiate forward"),
        (lambda p, x: _mlp(p, x) / 0.0, START, END, INPUTS, "outputs at `start` are not finite"),
        ("network", START, END, INPUTS, "`f` must be"),
    ],
)  # fmt: skip
def test_bad_input_of_jax(f, start, end, batch, words):
    with pytest.raises(SaddlesError, match=words):
        networks.linearity(f, start, end, batch)


def test_bad_input_of_torch():
    module, batch = _Torch().double(), torch.tensor(np.asarray(INPUTS))
    start, end = _state(START), _state(END)
    cases = [
        (_Odd().double(), end, batch, r"operation (Rounded|in line \d+ of test_regime\.py), which"),
        (module, {**end, "second.weight": torch.zeros(2, 5)}, batch, "second.weight has \\(2, 5\\)"),
        (module, {"first.weight": end["first.weight"]}, batch, "no second.weight"),
        (module, {**end, "first.weight": end["first.weight"] * float("nan")}, batch, "not finite, in first.weight"),
        (module, end, batch[:0], "at least one sample"),
        (module, end, "text", "`batch` must be a tensor"),
        (module, 3, batch, "`end` must be a state dict"),
        (nn.ReLU(), end, batch, "no parameters"),
    ]
    for f, state, inputs, words in cases:
        with pytest.raises(SaddlesError, match=words):
            networks.linearity(f, start, state, inputs)


def test_attention_dropout_and_training_mode_are_left_as_they_were():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True).train()
    start = {name: value.clone() for name, value in layer.state_dict().items()}
    end = {name: value + 0.01 * torch.randn_like(value) for name, value in start.items()}
    batch = torch.randn(3, 5, 8)
    assert networks.linearity(layer, start, end, batch) == networks.linearity(layer, start, end, batch)
    assert layer.training
    assert layer.self_attn.training
    assert torch.equal(layer.state_dict()["linear1.weight"], start["linear1.weight"])


def test_rounding_gives_the_floor():
    """A change as small as rounding has an e of the floor; one of a known size is far above it."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    start = {name: value.detach().clone() for name, value in layer.named_parameters()}
    batch = torch.randn(3, 5, 8)
    for size, low, high in ((3e-7, 0.4, 2.5), (1e-2, 1e-6, 1e-2)):
        end = {name: value * (1 + size * torch.randn_like(value)) for name, value in start.items()}
        found = networks.regime(layer, start, end, batch, probes=0)
        assert low < float(found["linearity_floor"] / found["linearity"]) < high

    class Half(_Torch):
        def forward(self, x):  # as Llama's norms, which are in float32 whatever the weights
            return self.second(torch.tanh(self.first(x).float()).double())

    end = {name: value * (1 + 1e-7) for name, value in _state(START).items()}
    found = networks.regime(Half().double(), _state(START), end, torch.tensor(np.asarray(INPUTS)), probes=0)
    assert 0.1 < float(found["linearity_floor"] / found["linearity"]) < 10


def test_narrow_float_in_a_program_of_jax_is_seen():
    found = networks.regime(
        lambda at, x: _mlp(at, x).astype(jnp.float32), START, jax.tree.map(lambda one: one * (1 + 1e-7), START), INPUTS
    )
    assert 0.1 < float(found["linearity_floor"] / found["linearity"]) < 10


def test_numpy_states_other_types_and_switched_off_gradients():
    module, batch = _Torch().double(), torch.tensor(np.asarray(INPUTS))
    expected = networks.linearity(module, _state(START), _state(END), batch)
    start, end = ({name: value.numpy() for name, value in _state(at).items()} for at in (START, END))
    assert networks.linearity(module, start, end, batch) == expected
    with torch.no_grad():
        switched = networks.regime(module, _state(START), _state(END), batch.float(), probes=2)
    assert float(switched["linearity"]) == pytest.approx(expected, rel=1e-5)
    half = networks.linearity(_Torch().half(), _state(START), _state(END), batch.half())
    assert half == pytest.approx(expected, rel=1e-2)
    with pytest.raises(SaddlesError, match="device meta"):
        networks.linearity(_Torch().to("meta"), _state(START), _state(END), batch)
    turned = _Torch()
    turned.first.weight = nn.Parameter(torch.ones(5, 4, dtype=torch.complex64))
    with pytest.raises(SaddlesError, match=r"first\.weight is complex"):
        networks.linearity(turned, _state(START), _state(END), batch)


def test_gradient_checkpointing_stays_as_it_was():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, bos_token_id=0, eos_token_id=0))
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    end = {name: value + 0.05 * torch.randn_like(value) for name, value in start.items()}
    batch = {"input_ids": torch.randint(0, 16, (2, 5))}
    plain = float(networks.regime(model, start, end, batch, probes=1)["linearity"])
    model.gradient_checkpointing_enable()
    hooks = [len(part._forward_hooks) for part in model.modules()]
    assert float(networks.regime(model, start, end, batch, probes=1)["linearity"]) == plain
    assert [len(part._forward_hooks) for part in model.modules()] == hooks


def test_protocol():
    assert isinstance(differentiable.network_of(_mlp, START, INPUTS), differentiable.Differentiable)
