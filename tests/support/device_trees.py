"""Trees of the services as the kernels hold them, and back."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from foredraft.tree.node_id import signed
from foredraft.tree.token_tree import TokenTree
from foredraft.wire.messages import Source
from kernels.tree_layout import Sequences, Trees


def grow(rng: random.Random, tree: TokenTree, nodes: int, vocab: int) -> None:
    """Add guesses below places that are drawn at random, old ones as often as new ones."""
    for _ in range(nodes):
        parent = rng.choice([tree.root_id, *tree.nodes])
        confidence = torch.tensor(rng.choice([1.0, 0.5, rng.random()])).item()
        tree.add(parent, rng.randrange(vocab), confidence, rng.choice(list(Source)))


def trees_of(trees: Sequence[TokenTree], capacity: int, device: torch.device) -> Trees:
    held = Trees.empty(len(trees), capacity, torch.device("cpu"))
    for slot, tree in enumerate(trees):
        places = {tree.root_id: -1}
        for place, node in enumerate(tree.nodes.values()):
            places[node.id] = place
            held.token[slot, place] = node.token
            held.parent[slot, place] = places[node.parent_id]
            held.depth[slot, place] = node.depth
            held.confidence[slot, place] = node.confidence
            held.survival[slot, place] = node.survival
            held.node_id[slot, place] = signed(node.id)
            held.source[slot, place] = int(node.source)
        held.count[slot] = len(tree)
    return moved(held, device)


def nodes_of(trees: Trees, slot: int, root_id: int) -> dict[int, tuple[object, ...]]:
    """By id: parent's id, token, depth, confidence, survival, source."""
    count = int(trees.count[slot])
    ids = trees.node_id[slot, :count].tolist()
    parents = trees.parent[slot, :count].tolist()
    assert all(parent < place for place, parent in enumerate(parents))
    names = ("token", "depth", "confidence", "survival", "source")
    columns = [getattr(trees, name)[slot, :count].tolist() for name in names]
    above = [signed(root_id) if parent < 0 else ids[parent] for parent in parents]
    return {ids[i]: (above[i], *(column[i] for column in columns)) for i in range(count)}


def nodes_in(tree: TokenTree) -> dict[int, tuple[object, ...]]:
    """The same of a service's tree."""
    return {
        signed(node.id): (
            signed(node.parent_id),
            node.token,
            node.depth,
            node.confidence,
            node.survival,
            int(node.source),
        )
        for node in tree.nodes.values()
    }


def running(lengths: Sequence[int], limits: Sequence[int], device: torch.device) -> Sequences:
    """Sequences that all take part and speculate, with memory for any number of nodes."""
    held = Sequences.empty(len(lengths), torch.device("cpu"))
    held.active.fill_(1)
    held.speculates.fill_(1)
    held.node_limit.fill_(1 << 20)
    held.length.copy_(torch.tensor(lengths))
    held.limit.copy_(torch.tensor(limits))
    return moved(held, device)


def moved(layout, device):
    """A copy of a dataclass of tensors on another device."""
    kind = type(layout)
    return kind(**{name: getattr(layout, name).to(device, copy=True) for name in kind.__slots__})
