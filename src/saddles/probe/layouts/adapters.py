"""Adapters: from names and shapes to heads, by structure.

A family is recognised by how the names of its projections end, whatever precedes, and by their shapes. Nothing here
opens a tensor.

- `separate`: four matrices per block. Grouped-query attention shows in the shapes: fewer rows in K and V than in Q,
  and query head h pairs with key head h // (query heads per key head).
- `fused`: one matrix holds Q, K and V, one after the other (`"blocks"`) or head by head (`"interleaved"`).
- `crossed`: Q is apart and one matrix holds K, then V.
- `latent`: keys and values, and mostly queries, are read from a narrow latent: a factor is a chain of two matrices.

Whether heads are read right can be checked on a live model: `saddles.probe.verify`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from saddles.probe.layouts.head_counts import NO_COUNT, Config, head_counts, stated
from saddles.probe.layouts.layout import Factor

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Attention:
    """One block as an adapter found it.

    Args:
        name: the block's module.
        family: the adapter's name.
        heads: for each query head its factors K, Q, V, O.
        conv1d: its matrices are stored as (in, out).
    """

    name: str
    family: str
    heads: tuple[Mapping[str, Factor], ...]
    conv1d: bool = False


@dataclass(frozen=True)
class Refused:
    """A block that looked right but could not be read, and why."""

    name: str
    reason: str


Order = Callable[[int, int, int], Mapping[str, int]]
"""(query head, query heads, key heads) -> where its Q, K and V begin in the joint matrix, in heads."""

Adapter = Callable[[Shapes, Config, Mapping[str, int]], Iterator[Attention | Refused]]
"""(shapes, configuration, head counts by module) -> blocks, found or refused with a reason."""


class _NotUnderstood(Exception):  # noqa: N818
    """The reason why a block is refused."""


def separate(family: str, q: str, k: str, v: str, o: str) -> Adapter:
    """An adapter for blocks with four matrices of torch.nn.Linear, named by how their parameters end."""

    def find(shapes: Shapes, config: Config, counts: Mapping[str, int]) -> Iterator[Attention | Refused]:
        for block in _blocks(shapes, (q, k, v, o)):
            names = {kind: block + end for kind, end in zip("QKVO", (q, k, v, o), strict=True)}
            stored = {kind: shapes[name] for kind, name in names.items()}
            try:
                # Qwen3-Next and kin keep a gate of each head behind its query: twice as many rows as O takes in.
                stride = 2 if _has_gates(block, stored, config, counts) else 1
                number, width = _heads(block, stored["Q"][0] // stride, config, counts)
                heads = _separate_heads(names, stored, number, width, stride)
                _check_keys(block, stored["K"][0] // width, config)
            except _NotUnderstood as problem:
                yield Refused(block.rstrip("."), str(problem))
                continue
            yield Attention(block.rstrip("."), family, heads)

    return find


def _has_gates(block: str, stored: Mapping[str, tuple[int, ...]], config: Config, counts: Mapping[str, int]) -> bool:
    number, width = head_counts(block, config, counts)
    return stored["Q"][0] == 2 * stored["O"][1] and number is not None and number * (width or 0) == stored["O"][1]


def _separate_heads(
    names: Mapping[str, str], stored: Mapping[str, tuple[int, ...]], number: int, width: int, stride: int = 1
) -> tuple[Mapping[str, Factor], ...]:
    # Heads of V and O may have another width than those of Q and K: it comes from the output matrix.
    out = _part(stored["O"][1], number, "columns of the output matrix")
    keys = _part(stored["K"][0], width, "rows of the key matrix")
    values = _part(stored["V"][0], out, "rows of the value matrix")
    if number % keys or number % values:
        raise _NotUnderstood(f"{number} query heads cannot share {keys} key heads and {values} value heads evenly")

    def one(head: int) -> Mapping[str, Factor]:
        key, value = head // (number // keys), head // (number // values)
        return {
            "K": Factor(names["K"], rows=(key * width, (key + 1) * width), transposed=True),
            "Q": Factor(names["Q"], rows=(stride * head * width, (stride * head + 1) * width), transposed=True),
            "V": Factor(names["V"], rows=(value * out, (value + 1) * out), transposed=True),
            "O": Factor(names["O"], columns=(head * out, (head + 1) * out)),
        }

    return tuple(one(head) for head in range(number))


def _blocks_order(head: int, number: int, keys: int) -> Mapping[str, int]:
    key = head // (number // keys)
    return {"Q": head, "K": number + key, "V": number + keys + key}


def _interleaved(head: int, number: int, keys: int) -> Mapping[str, int]:
    each = number // keys
    group, place = divmod(head, each)
    begin = group * (each + 2)
    return {"Q": begin + place, "K": begin + each, "V": begin + each + 1}


ORDERS: dict[str, Order] = {"blocks": _blocks_order, "interleaved": _interleaved}


def fused(family: str, qkv: str, o: str, order: str | Order = "blocks") -> Adapter:
    """An adapter for blocks whose Q, K and V share one matrix.

    Args:
        qkv, o: how the two parameters' names end.
        order: "blocks" for all of Q, then K, then V (K and V may have fewer heads); "interleaved" for Q, K and V of
            the first head, then of the second (with fewer key heads: the queries that share one, then K and V); or a
            function of your own.

    A matrix stored as (in, out), as in GPT-2, is recognised by its shape.
    """
    begins = ORDERS[order] if isinstance(order, str) else order

    def find(shapes: Shapes, config: Config, counts: Mapping[str, int]) -> Iterator[Attention | Refused]:
        for block in _blocks(shapes, (qkv, o)):
            if f"{block}q_attn.weight" in shapes:
                continue  # the joint matrix holds K and V alone
            # GPT-BigCode names its matrices as GPT-2 does, and interleaves them where every query has its own key.
            here = _interleaved if config.get("multi_query") is False else begins
            try:
                heads, conv1d = _fused_heads(block, (block + qkv, block + o), shapes, config, counts, here)
            except _NotUnderstood as problem:
                yield Refused(block.rstrip("."), str(problem))
                continue
            yield Attention(block.rstrip("."), family, heads, conv1d)

    return find


def crossed(family: str, q: str, kv: str, o: str) -> Adapter:
    """An adapter for cross-attention whose K and V share one matrix of (in, out), K first, as in GPT-2."""

    def find(shapes: Shapes, config: Config, counts: Mapping[str, int]) -> Iterator[Attention | Refused]:
        for block in _blocks(shapes, (q, kv, o)):
            inner = shapes[block + q][1]
            try:
                number, width = _heads(block, inner, config, counts)
                if shapes[block + kv][1] != 2 * inner:
                    raise _NotUnderstood("its joint matrix of keys and values is not twice as wide as its queries")
            except _NotUnderstood as problem:
                yield Refused(block.rstrip("."), str(problem))
                continue
            spans = [(head * width, (head + 1) * width) for head in range(number)]
            heads = tuple(
                {
                    "K": Factor(block + kv, columns=span),
                    "Q": Factor(block + q, columns=span),
                    "V": Factor(block + kv, columns=(inner + span[0], inner + span[1])),
                    "O": Factor(block + o, rows=span, transposed=True),
                }
                for span in spans
            )
            yield Attention(block.rstrip("."), family, heads, conv1d=True)

    return find


def latent(family: str, q: tuple[str, ...], kv: tuple[str, str], o: str) -> Adapter:
    """An adapter for multi-head latent attention, as in DeepSeek v2 and v3.

    Args:
        q: how the matrices of the queries end: one, or the one into a latent and the one out of it.
        kv: the matrix into the latent of keys and values, whose last rows are the rotary part of the keys, and the one
            out of it, in which the keys and then the values of each head stand together.
        o: the output matrix.

    The product W_K W_Qᵀ is that of the part without positions. The rotary part of the keys is shared by all heads and
    passes no norm, so that the two cannot be weighed against each other without knowing the input: it is left out.
    """

    def find(shapes: Shapes, config: Config, counts: Mapping[str, int]) -> Iterator[Attention | Refused]:
        for block in _blocks(shapes, (*kv, *q, o)):
            stored = {end: shapes[block + end] for end in (*q, *kv, o)}
            try:
                heads = _latent_heads(block, stored, (q, kv, o), config, counts)
            except _NotUnderstood as problem:
                yield Refused(block.rstrip("."), str(problem))
                continue
            yield Attention(block.rstrip("."), family, heads)

    return find


def _latent_heads(
    block: str,
    stored: Mapping[str, tuple[int, ...]],
    ends: tuple[tuple[str, ...], tuple[str, str], str],
    config: Config,
    counts: Mapping[str, int],
) -> tuple[Mapping[str, Factor], ...]:
    q, (into, out), o = ends
    last = block + q[-1]
    number, _ = head_counts(block, config, counts)
    if number is None:
        raise _NotUnderstood(f"{NO_COUNT}: pass a configuration with num_attention_heads")
    rank = stored[out][1]
    value = _part(stored[o][1], number, "columns of the output matrix")
    key = _part(stored[out][0], number, "rows of the matrix out of the latent") - value
    query = _part(stored[q[-1]][0], number, "rows of the query matrix")
    rotary = stored[into][0] - rank
    if key <= 0 or rotary < 0 or query != key + rotary or (len(q) > 1 and stored[q[0]][0] != stored[q[1]][1]):
        raise _NotUnderstood(
            f"latent attention of an unknown form: queries of width {query}, keys of {key}, a shared part of {rotary}"
        )
    latent = Factor(block + into, rows=(0, rank), transposed=True)
    before = Factor(block + q[0], transposed=True) if len(q) > 1 else None

    def one(head: int) -> Mapping[str, Factor]:
        first = head * (key + value)
        return {
            "K": Factor(block + out, rows=(first, first + key), transposed=True, through=latent),
            "Q": Factor(last, rows=(head * query, head * query + key), transposed=True, through=before),
            "V": Factor(block + out, rows=(first + key, first + key + value), transposed=True, through=latent),
            "O": Factor(block + o, columns=(head * value, (head + 1) * value)),
        }

    return tuple(one(head) for head in range(number))


def _fused_heads(
    block: str,
    names: tuple[str, str],
    shapes: Shapes,
    config: Config,
    counts: Mapping[str, int],
    order: Order,
) -> tuple[tuple[Mapping[str, Factor], ...], bool]:
    qkv, o = names
    first, second = shapes[qkv]
    # Stored as (in, out), the joint side is the second and longer than the model is wide; (out, in) has it first.
    conv1d = second > first and second > max(shapes[o])
    # Joint rows are those of Q, as many as the output matrix takes in, and then equally many of K and of V.
    joint, inner = (second, shapes[o][0]) if conv1d else (first, shapes[o][1])
    number, width = _heads(block, inner, config, counts)
    keys = _part(joint - inner, 2 * width, "rows beyond the queries in the joint matrix")
    if number % keys:
        raise _NotUnderstood(f"{number} query heads cannot share {keys} key heads evenly")
    _check_keys(block, keys, config)

    def one(head: int) -> Mapping[str, Factor]:
        places = order(head, number, keys)
        joined = {kind: (place * width, (place + 1) * width) for kind, place in places.items()}
        own = (head * width, (head + 1) * width)
        if conv1d:
            inputs = {kind: Factor(qkv, columns=span) for kind, span in joined.items()}
            return inputs | {"O": Factor(o, rows=own, transposed=True)}
        inputs = {kind: Factor(qkv, rows=span, transposed=True) for kind, span in joined.items()}
        return inputs | {"O": Factor(o, columns=own)}

    return tuple(one(head) for head in range(number)), conv1d


def _blocks(shapes: Shapes, ends: tuple[str, ...]) -> Iterator[str]:
    """Names of the blocks that have a matrix with each of these endings, with their final dot."""
    for name, shape in shapes.items():
        if not (name == ends[0] or name.endswith("." + ends[0])):
            continue
        block = name[: len(name) - len(ends[0])]
        if all(len(shapes.get(block + end, ())) == 2 for end in ends) and len(shape) == 2:
            yield block


def _heads(block: str, inner: int, config: Config, counts: Mapping[str, int]) -> tuple[int, int]:
    """Number of query heads and their width."""
    number, width = head_counts(block, config, counts)
    if number is None:
        raise _NotUnderstood(f"{NO_COUNT}: pass a configuration with num_attention_heads")
    measured = _part(inner, number, "rows of the query matrix")
    if width is not None and width != measured:
        raise _NotUnderstood(f"its heads have width {measured}, but the configuration says head_dim = {width}")
    return number, measured


def _check_keys(block: str, keys: int, config: Config) -> None:
    said = stated(block, config, ("num_key_value_heads",))
    if said is not None and keys != said:
        raise _NotUnderstood(f"it has {keys} key heads, but the configuration says num_key_value_heads = {said}")


def _part(whole: int, parts: int, what: str) -> int:
    """A whole number of rows or heads, or the block is refused."""
    if whole <= 0 or whole % parts:
        raise _NotUnderstood(f"{whole} {what} cannot be divided by {parts}")
    return whole // parts


def xlnet(shapes: Shapes, config: Config, counts: Mapping[str, int]) -> Iterator[Attention | Refused]:
    """XLNet keeps Q, K, V and O as tensors (width, head, width of a head), which say all by themselves."""
    for name, shape in shapes.items():
        block = name.removesuffix(".q")
        names = {kind: f"{block}.{kind.lower()}" for kind in "QKVO"}
        alike = all(shapes.get(other) == shape for other in names.values())
        if name == f"{block}.q" and len(shape) == 3 and f"{block}.r" in shapes and alike:
            heads = (
                {kind: Factor(other, index=head, axis=1) for kind, other in names.items()} for head in range(shape[1])
            )
            yield Attention(block, "XLNet", tuple(heads))


CODEGEN_PIECES = 4
"""CodeGen keeps its joint matrix as the four accelerators held it that it was trained on: Q, V and K of a quarter."""


def _codegen(head: int, number: int, keys: int) -> Mapping[str, int]:
    each = number // CODEGEN_PIECES
    piece, place = divmod(head, each)
    begin = 3 * each * piece + place
    return {"Q": begin, "V": begin + each, "K": begin + 2 * each}


LATENT = ("kv_a_proj_with_mqa.weight", "kv_b_proj.weight")
"""Keys and values of multi-head latent attention, into the latent and out of it."""

_registry: list[Adapter] = [
    latent("DeepSeek", ("q_a_proj.weight", "q_b_proj.weight"), LATENT, "o_proj.weight"),
    latent("DeepSeek", ("q_proj.weight",), LATENT, "o_proj.weight"),
    crossed("GPT-2", "q_attn.weight", "c_attn.weight", "c_proj.weight"),
    fused("GPT-2", "c_attn.weight", "c_proj.weight"),
    fused("GPT-NeoX, Bloom, Falcon", "query_key_value.weight", "dense.weight", order="interleaved"),
    separate("Llama, Qwen, ViT", "q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"),
    separate("OPT", "q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"),
    separate("Phi", "q_proj.weight", "k_proj.weight", "v_proj.weight", "dense.weight"),
    fused("Phi-3", "qkv_proj.weight", "o_proj.weight"),
    fused("CodeGen", "qkv_proj.weight", "out_proj.weight", order=_codegen),
    separate("BERT", "self.query.weight", "self.key.weight", "self.value.weight", "output.dense.weight"),
    separate("ViT", "attention.query.weight", "attention.key.weight", "attention.value.weight", "output.dense.weight"),
    separate("ALBERT", "query.weight", "key.weight", "value.weight", "dense.weight"),
    separate(
        "DeBERTa v2", "self.query_proj.weight", "self.key_proj.weight", "self.value_proj.weight", "output.dense.weight"
    ),
    fused("DeBERTa", "self.in_proj.weight", "output.dense.weight", order="interleaved"),
    separate("DistilBERT, XLM", "q_lin.weight", "k_lin.weight", "v_lin.weight", "out_lin.weight"),
    separate("T5, MPNet", "q.weight", "k.weight", "v.weight", "o.weight"),
    separate("Llama of Meta", "wq.weight", "wk.weight", "wv.weight", "wo.weight"),
    separate("CTRL", "Wq.weight", "Wk.weight", "Wv.weight", "dense.weight"),
    fused("ModernBERT", "Wqkv.weight", "Wo.weight"),
    fused("MPT", "Wqkv.weight", "out_proj.weight"),
    separate("Conformer", "linear_q.weight", "linear_k.weight", "linear_v.weight", "linear_out.weight"),
    separate("ModernBERT decoder", "q_proj.weight", "k_proj.weight", "v_proj.weight", "Wo.weight"),
    separate("ProphetNet", "query_proj.weight", "key_proj.weight", "value_proj.weight", "out_proj.weight"),
    separate("InternVL", "q_proj.weight", "k_proj.weight", "v_proj.weight", "projection_layer.weight"),
    separate("Kimi", "q_proj.weight", "k_proj.weight", "v_proj.weight", "proj.weight"),
    separate("V-JEPA 2, PVT v2", "query.weight", "key.weight", "value.weight", "proj.weight"),
    separate(
        "Moshi, Gemma 4", "q_proj.linear.weight", "k_proj.linear.weight", "v_proj.linear.weight", "o_proj.linear.weight"
    ),
    fused("TimeSformer", "attention.qkv.weight", "output.dense.weight"),
    fused("Bark", "att_proj.weight", "out_proj.weight"),
    fused("timm", "qkv.weight", "proj.weight"),
    xlnet,
    fused("torch", "in_proj_weight", "out_proj.weight"),
    separate("torch", "q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"),
]


def register(adapter: Adapter) -> Adapter:
    """Add an adapter of your own; it is tried before the others. Also a decorator."""
    _registry.insert(0, adapter)
    return adapter


def adapters() -> tuple[Adapter, ...]:
    """All adapters, in the order in which they are tried."""
    return tuple(_registry)
