"""The two Triton programs of `attention`: one head of one image each.

Names ending in _c belong to the class token. Where it is multiplied with a tile of patches, it is a tile of 16 rows,
the smallest of a product, of which the first is the token and the others are 0. What is read again is in the cache, and
not keeping it leaves room for more programs at a time.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

TILE: tl.constexpr = tl.constexpr(16)


@triton.jit
def _places(heads: tl.constexpr, width: tl.constexpr, patches: tl.constexpr):
    """Where this program's head begins in (sample, token, 3, head, width) and in (sample, token, head, width)."""
    sample, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    begin = sample * (patches + 1) * heads * width
    return 3 * begin + head * width, begin + head * width


@triton.jit
def _patches(row: tl.constexpr, width: tl.constexpr, patches: tl.constexpr):
    """Places of the patches, relative to the class token."""
    return (tl.arange(0, patches)[:, None] + 1) * row + tl.arange(0, width)[None, :]


@triton.jit
def _token(place, width: tl.constexpr):
    """The class token as the first row of a tile."""
    rows, columns = tl.arange(0, TILE)[:, None], tl.arange(0, width)[None, :]
    return tl.load(place + 0 * rows + columns, mask=rows == 0, other=0.0)


@triton.jit
def _vector(tile):
    """The class token as a vector."""
    return tl.sum(tile.to(tl.float32), 0)


@triton.jit
def _products(of_patches, of_class):
    """Of every patch with the class token."""
    return tl.sum(tl.dot(of_patches, tl.trans(of_class)), 1)


@triton.jit
def _mixed(of_patches, weights, of_class, weight):
    """The sum of all tokens by their weights."""
    # As 16 rows, of which one counts: the transposed product, 128 × 16, is an illegal access with Triton 3.6.
    row = tl.where(tl.arange(0, TILE)[:, None] == 0, weights[None, :], 0.0)
    return tl.sum(tl.dot(row.to(of_patches.dtype), of_patches), 0) + weight * _vector(of_class)


@triton.jit
def _weights(q, k, q_c, k_c, scale):
    """Softmax of the scores: patches on patches, patches on class, class on patches, class on class."""
    s, s_c = tl.dot(q, tl.trans(k)) * scale, _products(q, k_c) * scale
    top = tl.maximum(tl.max(s, 1), s_c)
    s, s_c = tl.exp(s - top[:, None]), tl.exp(s_c - top)
    total = 1 / (tl.sum(s, 1) + s_c)
    r, r_c = _products(k, q_c) * scale, tl.sum(_vector(q_c) * _vector(k_c), 0) * scale
    top_c = tl.maximum(tl.max(r, 0), r_c)
    r, r_c = tl.exp(r - top_c), tl.exp(r_c - top_c)
    total_c = 1 / (tl.sum(r, 0) + r_c)
    return s * total[:, None], s_c * total, r * total_c, r_c * total_c


@triton.jit
def _store(place, patches_at, patches, token, width: tl.constexpr):
    tl.store(place + patches_at, patches.to(place.dtype.element_ty))
    tl.store(place + tl.arange(0, width), token.to(place.dtype.element_ty))


@triton.jit
def forwards(parts, out, scale, heads: tl.constexpr, width: tl.constexpr, patches: tl.constexpr):
    """Write the outputs of one head."""
    begin, begin_out = _places(heads, width, patches)
    three = _patches(3 * heads * width, width, patches)
    query, out = parts + begin, out + begin_out
    key, value = query + heads * width, query + 2 * heads * width
    q, k, q_c, k_c = tl.load(query + three), tl.load(key + three), _token(query, width), _token(key, width)
    p, p_c, r, r_c = _weights(q, k, q_c, k_c, scale)
    v, v_c = tl.load(value + three), _token(value, width)
    mixed = tl.dot(p.to(v.dtype), v) + p_c[:, None] * _vector(v_c)[None, :]
    _store(out, _patches(heads * width, width, patches), mixed, _mixed(v, r, v_c, r_c), width)


@triton.jit
def backwards(parts, slope, out, scale, heads: tl.constexpr, width: tl.constexpr, patches: tl.constexpr):
    """Write the gradients by queries, keys and values of one head; a name with d is the gradient by what follows it."""
    begin, begin_slope = _places(heads, width, patches)
    three, one = _patches(3 * heads * width, width, patches), _patches(heads * width, width, patches)
    query, slope, d_query = parts + begin, slope + begin_slope, out + begin
    key, value = query + heads * width, query + 2 * heads * width
    q, k, q_c, k_c = tl.load(query + three), tl.load(key + three), _token(query, width), _token(key, width)
    p, p_c, r, r_c = _weights(q, k, q_c, k_c, scale)

    v, v_c, do, do_c = tl.load(value + three), _token(value, width), tl.load(slope + one), _token(slope, width)
    dp, dp_c = tl.dot(do, tl.trans(v)), _products(do, v_c)
    mean = tl.sum(p * dp, 1) + p_c * dp_c
    ds, ds_c = (p * (dp - mean[:, None]) * scale).to(v.dtype), p_c * (dp_c - mean) * scale
    dr, dr_c = _products(v, do_c), tl.sum(_vector(v_c) * _vector(do_c), 0)
    mean_c = tl.sum(r * dr, 0) + r_c * dr_c
    dr, dr_c = r * (dr - mean_c) * scale, r_c * (dr_c - mean_c) * scale

    dv = tl.dot(tl.trans(p.to(v.dtype)), do) + r[:, None] * _vector(do_c)[None, :]
    _store(d_query + 2 * heads * width, three, dv, _mixed(do, p_c, do_c, r_c), width)
    k, k_c = tl.load(key + three), _token(key, width)
    dq = tl.dot(ds, k) + ds_c[:, None] * _vector(k_c)[None, :]
    _store(d_query, three, dq, _mixed(k, dr, k_c, dr_c), width)
    q, q_c = tl.load(query + three), _token(query, width)
    dk = tl.dot(tl.trans(ds), q) + dr[:, None] * _vector(q_c)[None, :]
    _store(d_query + heads * width, three, dk, _mixed(q, ds_c, q_c, dr_c), width)
