"""Which guesses become nodes, and which nodes the draft model could look at.

Both go best first by survival: the product of calibrated confidences along the path. A threshold
on survival ends it; the bounds only guard memory and time.
"""

from __future__ import annotations

from operator import itemgetter

from draft_service.sequence import DraftSequence
from foredraft.tree.token_tree import Place
from foredraft.wire.messages import DraftBudget

Frontier = list[tuple[float, int]]  # (worth, node id), best first


def grow(sequence: DraftSequence, budget: DraftBudget) -> None:
    """Make nodes of all options that survive well enough, best first.

    What is left waits in ``sequence.open``, so that a call costs no more than what is new.
    """
    tree, waiting, least = sequence.tree, sequence.open, budget.min_survival
    nodes, root = tree.nodes, tree.root
    max_depth = sequence.depth_limit(budget.max_depth)
    max_nodes = min(budget.max_nodes_per_sequence, tree.max_nodes)
    _open_changed(sequence, max_depth, budget)
    while len(nodes) < max_nodes:
        best = waiting.pop(least)
        if best is None:
            return
        parent_id, option, survival = best
        parent = nodes.get(parent_id, root)
        above = parent.survival
        # Siblings share what is certain: a later one gets what the earlier have left.
        confidence = min(survival / above, 1.0 - parent.taken)
        if confidence <= 0.0:
            continue
        if above * confidence < least:
            waiting.push(above * confidence, parent.depth + 1, parent_id, option)
            continue
        node = sequence.add(parent, option, confidence)
        if node is not None and node.depth < max_depth:
            _open_changed(sequence, max_depth, budget)


def _open_changed(sequence: DraftSequence, max_depth: int, budget: DraftBudget) -> None:
    """File what are no nodes yet of places that are new, or of which the model has told more."""
    nodes, root, push = sequence.tree.nodes, sequence.tree.root, sequence.open.push
    floor = min(budget.min_survival, budget.ahead_survival or 1.0)
    estimates = sequence.calibration.estimates
    for parent_id in sequence.take_changed():
        parent = nodes.get(parent_id, root)
        depth = parent.depth + 1
        if depth > max_depth:
            continue
        options = sequence.open_options(parent_id, budget.min_survival)
        if options:
            above, chances = parent.survival, estimates(depth)
            known = [nodes[child].token for child in parent.children]
            for option in options:
                survival = above * chances[option.bucket]
                if survival >= floor and option.token not in known:
                    push(survival, depth, parent_id, option)


def frontier(sequence: DraftSequence, budget: DraftBudget, reach: int) -> Frontier:
    """Nodes that the draft model has not seen and should, no deeper than ``reach``.

    A node is worth the probability that the target gets there and then leaves the tree.
    """
    tree, seen, least = sequence.tree, sequence.evaluated, budget.min_survival
    if len(tree.nodes) >= min(budget.max_nodes_per_sequence, tree.max_nodes):
        return []
    deepest = min(sequence.depth_limit(budget.max_depth) - 1, reach)
    places: list[Place] = [] if deepest < 0 or tree.root.id in seen else [tree.root]
    if deepest > 0:
        places += [
            node
            for node_id, node in tree.nodes.items()
            if node_id not in seen and node.depth <= deepest and node.survival >= least
            if node.token not in sequence.ends
        ]
    worths = [(place.survival * (1.0 - place.taken), place.id) for place in places]
    wanted = [entry for entry in worths if entry[0] > 0.0 and entry[0] >= least]
    wanted.sort(key=itemgetter(0), reverse=True)
    return wanted
