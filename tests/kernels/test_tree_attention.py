from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from support.ordered_products import ordered_products
from support.paged_trees import (
    Layout,
    Shape,
    Tree,
    decoded_plainly,
    lay_out,
    random_parents,
    random_tree,
    replayed,
)
from torch import Tensor

from kernels.kv_layout import KVLayer, dequantize
from kernels.tree_attention import tree_attention, tree_attention_reference
from kernels.tree_attention_combine import Partials

_SMALL = Shape(2, 1, 16)


@pytest.fixture(autouse=True)
def _products_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ordered_products(monkeypatch)


@dataclass(frozen=True, slots=True)
class _Bounds:
    splits: int = 2
    most_rows: int | None = None
    most_context: int = 1000


def _attend(
    trees: Sequence[Tree],
    shape: Shape,
    device: torch.device,
    bounds: _Bounds = _Bounds(),
    padding: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """[rows, heads, head_dim]; what nobody writes is 5."""
    laid = lay_out(trees, shape, padding, torch.Generator().manual_seed(9), device)
    return _attend_laid(laid, max(len(tree.parents) for tree in trees), bounds, dtype)


def _attend_laid(
    laid: Layout, most_rows: int, bounds: _Bounds, dtype: torch.dtype = torch.float32
) -> Tensor:
    partials = Partials.empty(bounds.splits, *laid.q.shape, laid.q.device)
    for part in (partials.out, partials.reference, partials.total):
        part.fill_(torch.nan)
    out = torch.full(laid.q.shape, 5.0, dtype=dtype, device=laid.q.device)
    most = bounds.most_rows or most_rows, bounds.most_context
    tree_attention(laid.q, laid.layer, laid.tables, laid.rows, laid.path, partials, out, *most)
    return out


def _every_row_alike(tree: Tree, shape: Shape, device: torch.device) -> None:
    """Each row of the tree, decoded plainly, has the bits it has in the tree."""
    together = _attend([tree], shape, device)
    alone = _attend([decoded_plainly(tree, row) for row in range(len(tree.parents))], shape, device)
    assert torch.equal(alone, together)


def _within_bound(laid: Layout, out: Tensor) -> bool:
    """Within what rounding may do to a mean of values of these sizes.

    On a GPU weights are float16: below 2^-29 of the largest power of two they lose bits.
    """
    parts = laid.tables, laid.rows, laid.path
    exact = tree_attention_reference(laid.q, laid.layer, *parts)
    codes = laid.layer.codes.view(torch.uint8).clone()
    codes[1] &= 0x7F
    sizes = KVLayer(codes.view(torch.float8_e4m3fn), laid.layer.exponents)
    mean = tree_attention_reference(laid.q, sizes, *parts)
    bound = 2**-18 * mean
    if out.is_cuda:  # the interpreter does not round weights
        values = dequantize(laid.layer.codes, laid.layer.exponents, torch.float64)[1]
        tokens = int(laid.rows.position.max()) + 1
        bound = 2**-11 * mean + tokens * 2**-40 * values.nan_to_num().abs().max()
    used = laid.rows.slot >= 0
    return bool(((out.double() - exact).abs() <= bound)[used].all())


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "context"),
    [
        (2, 2, 64, 0),
        (6, 2, 80, 200),
        (4, 1, 96, 127),
        (7, 1, 64, 63),
        (8, 1, 128, 64),
        (9, 3, 32, 17),
    ],
    ids=str,
)
def test_close_to_float64(
    device: torch.device, heads: int, kv_heads: int, head_dim: int, context: int
):
    shape = Shape(heads, kv_heads, head_dim)
    random = torch.Generator().manual_seed(head_dim + context)
    tree = random_tree(shape, context, (-1, 0), random)
    laid = lay_out([tree], shape, 1, random, device)
    assert _within_bound(laid, _attend_laid(laid, 2, _Bounds()))


_SLOW_CONTEXTS = [
    pytest.param(context, marks=pytest.mark.slow) for context in (0, 14, 62, 126, 254)
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rows"),
    [(9, 3, 64, 2), (9, 3, 128, 2), (8, 8, 96, 1), (32, 8, 128, 1), (7, 1, 64, 9), (7, 1, 80, 5)],
    ids=str,
)
def test_long_and_short_contexts_meet(
    device: torch.device, heads: int, kv_heads: int, head_dim: int, rows: int
):
    """Contexts on both sides of a block's end, and a long one."""
    shape = Shape(heads, kv_heads, head_dim)
    random = torch.Generator().manual_seed(heads + head_dim)
    trees = [
        random_tree(shape, context, random_parents(count, random), random)
        for context, count in [(0, 1), (14, 2), (15, rows), (16, 1), (999, rows)]
    ]
    laid = lay_out(trees, shape, 1, random, device)
    bounds = _Bounds(splits=8, most_context=1008)
    assert _within_bound(laid, _attend_laid(laid, max(rows, 2), bounds))


@pytest.mark.parametrize("context", [318, 382, *_SLOW_CONTEXTS], ids=str)
def test_a_node_has_the_bits_of_plain_decoding(device: torch.device, context: int):
    """Across a block, a tile, the first far tile, a split, and a change of the splits' size."""
    random = torch.Generator().manual_seed(context)
    _every_row_alike(random_tree(_SMALL, context, (-1, 0, 0, 1), random), _SMALL, device)


def test_rows_on_both_sides_of_a_change_of_splits_use_both(device: torch.device):
    """Of two splits, the first takes three of five far tiles, and two of four."""
    random = torch.Generator().manual_seed(3)
    tree = random_tree(_SMALL, 6 * 64 - 1, (-1, 0), random)
    laid = lay_out([tree], _SMALL, 0, random, device)
    assert (laid.rows.position // 64 - 1).unique().tolist() == [4, 5]
    out = _attend_laid(laid, 2, _Bounds())
    assert _within_bound(laid, out)
    other = _attend_laid(laid, 2, _Bounds(splits=1))
    assert not torch.equal(out, other)  # the cut can be seen in the bits


def test_a_node_has_the_bits_of_its_replay(device: torch.device):
    random = torch.Generator().manual_seed(4)
    tree = random_tree(_SMALL, 190, (-1, 0, 0, 2), random)
    chain = replayed(tree, 3, back=3)
    out = _attend([tree], _SMALL, device)
    again = _attend([chain], _SMALL, device)
    assert torch.equal(again[-1], out[3])
    assert torch.equal(again[-2], out[2])


def test_the_deepest_row_may_stand_a_tile_below_its_root(device: torch.device):
    random = torch.Generator().manual_seed(5)
    tree = random_tree(_SMALL, 127, tuple(range(-1, 64)), random)
    laid = lay_out([tree], _SMALL, 0, random, device)
    laid.rows.slot[:-1] = -1  # the others need not be computed
    out = _attend_laid(laid, 65, _Bounds())
    assert torch.equal(out[-1:], _attend([decoded_plainly(tree, 64)], _SMALL, device))


def test_eight_ragged_trees_do_not_feel_each_other(device: torch.device):
    random = torch.Generator().manual_seed(6)
    sizes = [(0, 0), (130, 1), (5, 2), (0, 1), (200, 2), (64, 1), (0, 0), (33, 3)]
    trees = [
        random_tree(_SMALL, context, random_parents(rows, random), random)
        for context, rows in sizes
    ]
    out = _attend(trees, _SMALL, device, padding=2)
    assert (out[-2:] == 5).all()
    start = 0
    for slot, tree in enumerate(trees):
        rows = slice(start, start := start + len(tree.parents))
        if slot in (1, 4, 7):  # enough to see it
            assert torch.equal(out[rows], _attend([tree], _SMALL, device))


def test_one_program_may_take_several_splits(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    """Beside others a sequence gets fewer programs than it has splits; one, and two."""
    random = torch.Generator().manual_seed(13)
    trees = [random_tree(_SMALL, context, (-1, 0), random) for context in (400, 330, 3)]
    bounds = _Bounds(splits=8, most_context=401)
    with monkeypatch.context() as few:
        few.setattr("kernels.tree_attention.pieces_of", lambda *_: 3)
        out = _attend(trees, _SMALL, device, bounds)
    for slot, tree in enumerate(trees):
        assert torch.equal(out[2 * slot : 2 * slot + 2], _attend([tree], _SMALL, device, bounds))


@pytest.mark.parametrize("most_rows", [pytest.param(12, marks=pytest.mark.slow), 100], ids=str)
def test_neither_buckets_nor_bounds_change_bits(device: torch.device, most_rows: int):
    random = torch.Generator().manual_seed(7)
    tree = random_tree(_SMALL, 300, (-1, 0), random)
    out = _attend([tree], _SMALL, device, _Bounds(most_context=301))
    other = _Bounds(most_rows=most_rows, most_context=4000)
    assert torch.equal(out, _attend([tree], _SMALL, device, other))


def test_where_nodes_lie_changes_no_bits(device: torch.device):
    random = torch.Generator().manual_seed(8)
    tree = random_tree(_SMALL, 62, (-1, 0, 0, 1, 2), random)
    order = [0, 2, 1, 4, 3]
    moved = Tree((-1, 0, 0, 1, 2), tree.committed, tree.entries[order], tree.q[order])
    out, other = (_attend([one], _SMALL, device) for one in (tree, moved))
    assert torch.equal(out[order], other)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN
def test_what_is_not_finite_reaches_its_descendants_only(device: torch.device):
    random = torch.Generator().manual_seed(9)
    tree = random_tree(_SMALL, 20, (-1, 0, 0, 1, 3), random)
    entries, q = tree.entries.clone(), tree.q.clone()
    entries[1, 0, 0, 3] = torch.nan  # a key
    q[2, 1, 5] = torch.nan
    out, broken = (
        _attend([one], _SMALL, device) for one in (tree, replace(tree, entries=entries, q=q))
    )
    assert broken.isnan().flatten(1).all(dim=1).tolist() == [False, True, False, True, True]
    assert torch.equal(broken[0], out[0])
    assert torch.equal(broken[2, 0], out[2, 0])
    assert broken[2, 1].isnan().all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about infinities
def test_a_row_with_an_infinite_query_is_nan(device: torch.device):
    """Even where all its scores are the lowest there are; its neighbours do not feel it."""
    random = torch.Generator().manual_seed(14)
    tree = random_tree(_SMALL, 200, (-1, 0), random)
    tree.committed[0, ..., 0], tree.entries[:, 0, :, 0] = -1.0, -1.0
    tree.q[1, 0, 0] = torch.inf
    out = _attend([tree], _SMALL, device)
    assert out[1, 0].isnan().all()
    assert out.isnan().flatten(2).any(dim=2).tolist() == [[False, False], [True, False]]


@pytest.mark.parametrize("spread", [2, 20], ids=str)
def test_values_of_any_size_meet(device: torch.device, spread: int):
    """A value's power of two is applied before sums, a key's before the softmax."""
    random = torch.Generator().manual_seed(10)
    tree = random_tree(_SMALL, 80, (-1,), random)
    sizes = 10.0 ** torch.randint(-spread, spread, (80, 1), generator=random)
    tree.committed[1] *= sizes
    tree.committed[0] *= 10.0 ** torch.randint(-20, 1, (80, 1), generator=random)
    laid = lay_out([tree], _SMALL, 0, random, device)
    assert _within_bound(laid, _attend_laid(laid, 1, _Bounds()))


def test_bfloat16_is_float32_rounded(device: torch.device):
    random = torch.Generator().manual_seed(11)
    tree = random_tree(_SMALL, 10, (-1, 0), random)
    out = _attend([tree], _SMALL, device)
    assert torch.equal(_attend([tree], _SMALL, device, dtype=torch.bfloat16), out.bfloat16())


def test_what_does_not_fit_is_named():
    random = torch.Generator().manual_seed(12)
    cpu = torch.device("cpu")
    laid = lay_out([random_tree(_SMALL, 5, (-1, 0), random)], _SMALL, 0, random, cpu)
    with pytest.raises(ValueError, match=r"q must be contiguous torch.bfloat16"):
        _attend_laid(replace(laid, q=laid.q.float()), 2, _Bounds())
    with pytest.raises(ValueError, match="heads of q must be 1 to 16 times the 1 KV heads, not 17"):
        _attend_laid(replace(laid, q=laid.q[:, :1].repeat(1, 17, 1)), 2, _Bounds())
    with pytest.raises(ValueError, match="path must have at most 65 columns, not 66"):
        _attend_laid(replace(laid, path=torch.zeros(2, 66).int()), 2, _Bounds())
    with pytest.raises(ValueError, match="bounds must be at least 1"):
        _attend_laid(laid, 2, _Bounds(most_context=0))
