"""The two Triton programs of `attention`: one head of one image each.

The GPU's copy engine brings the patches as whole tiles and takes the results away. Of the class token, query, key,
value and the gradient by its output are rows of one tile of 16, the smallest of a product. Names ending in _c belong to
it.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

TILE: tl.constexpr = tl.constexpr(16)
# Rows of the class token's tile.
QUERY: tl.constexpr = tl.constexpr(0)
KEY: tl.constexpr = tl.constexpr(1)
VALUE: tl.constexpr = tl.constexpr(2)
SLOPE: tl.constexpr = tl.constexpr(3)


@triton.jit
def _vector(place, width: tl.constexpr):
    return tl.load(place + tl.arange(0, width)).to(tl.float32)


@triton.jit
def _products(of_patches, tokens, row: tl.constexpr):
    """Of every patch with a row of the class token's tile."""
    found = tl.dot(of_patches, tokens.T)
    return tl.sum(tl.where(tl.arange(0, TILE)[None, :] == row, found, 0.0), 1)


@triton.jit
def _plus_outer(total, weights, tokens, row: tl.constexpr):
    """The total and the outer product of the patches' weights with a row of the class token's tile."""
    columns = tl.where(tl.arange(0, TILE)[None, :] == row, weights[:, None], 0.0)
    return tl.dot(columns.to(tokens.dtype), tokens, total)


@triton.jit
def _store_mixed(place, of_patches, weights, tokens, row: tl.constexpr, weight, width: tl.constexpr):
    """Store the sum of all tokens by their weights: those of the patches, and of a row of the class token's tile."""
    # As the first of as many rows as there are patches. The same with the patches transposed, 128 × 64 times 64 × 16,
    # would be less work, but it gives wrong numbers or an illegal access with Triton 3.6 on Hopper.
    patches: tl.constexpr = of_patches.shape[0]
    rows, columns = tl.arange(0, patches)[:, None], tl.arange(0, width)[None, :]
    of_class = tl.where((rows == 0) & (tl.arange(0, TILE)[None, :] == row), weight, 0.0).to(of_patches.dtype)
    wide = tl.where(tl.arange(0, patches)[None, :] == 0, weights[:, None], 0.0).to(of_patches.dtype).T
    mixed = tl.dot(of_class, tokens, tl.dot(wide, of_patches))
    tl.store(place + columns + 0 * rows, mixed.to(place.dtype.element_ty), mask=rows == 0)


@triton.jit
def forwards(
    tiles, parts, out_tiles, out, sums, scale, heads: tl.constexpr, width: tl.constexpr, patches: tl.constexpr
):
    """Write the outputs of one head, and the logarithm of the softmax's sum for every query."""
    sample, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    inner: tl.constexpr = heads * width
    token, query = sample * (patches + 1), head * width
    # In 64 bits: the numbers of a large batch are more than 2³¹.
    parts += token.to(tl.int64) * 3 * inner + query
    rows, columns = tl.arange(0, TILE)[:, None], tl.arange(0, width)[None, :]
    tokens = tl.load(parts + rows * inner + columns, mask=rows < 3, other=0.0)
    q_c, k_c = _vector(parts, width), _vector(parts + inner, width)
    q, k = tiles.load([token + 1, query]), tiles.load([token + 1, query + inner])
    v = tiles.load([token + 1, query + 2 * inner])

    # Logits. Of the patches' queries: s with the patches' keys, s_c with the class token's. Of the class token's query:
    # r with the patches' keys, r_c with its own.
    s, s_c = tl.dot(q, k.T) * scale, _products(q, tokens, KEY) * scale
    r, r_c = _products(k, tokens, QUERY) * scale, tl.sum(q_c * k_c, 0) * scale
    # The largest logit of each query is taken off before the exponential, which then cannot overflow.
    top, top_c = tl.maximum(tl.max(s, 1), s_c), tl.maximum(tl.max(r, 0), r_c)
    p, p_c, r, r_c = tl.exp(s - top[:, None]), tl.exp(s_c - top), tl.exp(r - top_c), tl.exp(r_c - top_c)
    total, total_c = tl.sum(p, 1) + p_c, tl.sum(r, 0) + r_c
    sums += tl.program_id(0) * (patches + 1)
    tl.store(sums, top_c + tl.log(total_c))
    tl.store(sums + 1 + tl.arange(0, patches), top + tl.log(total))

    mixed = _plus_outer(tl.dot((p / total[:, None]).to(v.dtype), v), p_c / total, tokens, VALUE)
    out_tiles.store([token + 1, query], mixed.to(v.dtype))
    _store_mixed(out + token.to(tl.int64) * inner + query, v, r / total_c, tokens, VALUE, r_c / total_c, width)


@triton.jit
def backwards(
    tiles, parts, slope_tiles, slope, sums, out_tiles, out, scale,
    heads: tl.constexpr, width: tl.constexpr, patches: tl.constexpr,
):  # fmt: skip
    """Write the gradients by queries, keys and values of one head; a name with d is the gradient by what follows it."""
    sample, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    inner: tl.constexpr = heads * width
    token, query = sample * (patches + 1), head * width
    parts += token.to(tl.int64) * 3 * inner + query
    slope += token.to(tl.int64) * inner + query
    out += token.to(tl.int64) * 3 * inner + query
    rows, columns = tl.arange(0, TILE)[:, None], tl.arange(0, width)[None, :]
    tokens = tl.load(parts + rows * inner + columns, mask=rows < 3, other=0.0)
    tokens += tl.load(slope + 0 * rows + columns, mask=rows == SLOPE, other=0.0)
    q_c, k_c, v_c = _vector(parts, width), _vector(parts + inner, width), _vector(parts + 2 * inner, width)
    do_c = _vector(slope, width)
    sums += tl.program_id(0) * (patches + 1)
    sum_c, sum = tl.load(sums), tl.load(sums + 1 + tl.arange(0, patches))
    q, k = tiles.load([token + 1, query]), tiles.load([token + 1, query + inner])
    v, do = tiles.load([token + 1, query + 2 * inner]), slope_tiles.load([token + 1, query])

    # The forward pass kept the logarithm of each softmax's sum: shares are made again from it, already normalised.
    p = tl.exp(tl.dot(q, k.T) * scale - sum[:, None])
    p_c = tl.exp(_products(q, tokens, KEY) * scale - sum)
    r, r_c = tl.exp(_products(k, tokens, QUERY) * scale - sum_c), tl.exp(tl.sum(q_c * k_c, 0) * scale - sum_c)
    dp, dp_c = tl.dot(do, v.T), _products(do, tokens, VALUE)
    # Backwards through the softmax: ds = p (dp − Σ p dp), the sum over all keys of a query.
    mean = tl.sum(p * dp, 1) + p_c * dp_c
    ds, ds_c = (p * (dp - mean[:, None]) * scale).to(v.dtype), p_c * (dp_c - mean) * scale
    dr, dr_c = _products(v, tokens, SLOPE), tl.sum(v_c * do_c, 0)
    mean_c = tl.sum(r * dr, 0) + r_c * dr_c
    dr, dr_c = r * (dr - mean_c) * scale, r_c * (dr_c - mean_c) * scale

    dv = _plus_outer(tl.dot(p.to(v.dtype).T, do), r, tokens, SLOPE)
    out_tiles.store([token + 1, query + 2 * inner], dv.to(v.dtype))
    _store_mixed(out + 2 * inner, do, p_c, tokens, SLOPE, r_c, width)
    dq = _plus_outer(tl.dot(ds, k), ds_c, tokens, KEY)
    out_tiles.store([token + 1, query], dq.to(v.dtype))
    _store_mixed(out, k, dr, tokens, KEY, dr_c, width)
    dk = _plus_outer(tl.dot(ds.T, q), dr, tokens, QUERY)
    out_tiles.store([token + 1, query + inner], dk.to(v.dtype))
    _store_mixed(out + inner, q, ds_c, tokens, QUERY, dr_c, width)
