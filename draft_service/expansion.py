"""Which guesses become nodes, and which nodes the draft model could look at.

Both go best first by survival: the product of calibrated confidences along the path. A threshold
on survival ends it; the bounds only guard memory and time.
"""

from __future__ import annotations

from draft_service.sequence import DraftSequence
from foredraft.wire.messages import DraftBudget

Frontier = list[tuple[float, int]]  # (worth, node id), best first


def grow(sequence: DraftSequence, budget: DraftBudget) -> None:
    """Make nodes of all options that survive well enough, best first.

    What is left waits in ``sequence.open``, so that a call costs no more than what is new.
    """
    tree, waiting = sequence.tree, sequence.open
    max_depth = sequence.depth_limit(budget.max_depth)
    max_nodes = min(budget.max_nodes_per_sequence, tree.max_nodes)
    _open_changed(sequence, max_depth, budget)
    while len(tree.nodes) < max_nodes:
        best = waiting.pop(budget.min_survival)
        if best is None:
            return
        parent_id, option, survival = best
        above = tree.survival(parent_id)
        # Siblings share what is certain: a later one gets what the earlier have left.
        confidence = min(survival / above, sequence.open_mass(parent_id))
        if confidence <= 0.0:
            continue
        if above * confidence < budget.min_survival:
            waiting.push(above * confidence, tree.depth(parent_id) + 1, parent_id, option)
            continue
        node_id = sequence.add(parent_id, option, confidence)
        if node_id is not None and tree.nodes[node_id].depth < max_depth:
            _open_changed(sequence, max_depth, budget)


def _open_changed(sequence: DraftSequence, max_depth: int, budget: DraftBudget) -> None:
    """File the options of places that are new, or of which the model has told more."""
    tree = sequence.tree
    floor = min(budget.min_survival, budget.ahead_survival or 1.0)
    estimate = sequence.calibration.estimate
    for parent_id in sequence.take_changed():
        depth = tree.depth(parent_id) + 1
        if depth > max_depth:
            continue
        above = tree.survival(parent_id)
        for option in sequence.open_options(parent_id, budget.min_survival):
            survival = above * estimate(option.bucket, depth)
            if survival >= floor:
                sequence.open.push(survival, depth, parent_id, option)


def frontier(sequence: DraftSequence, budget: DraftBudget) -> Frontier:
    """Nodes that the draft model has not seen and should.

    A node is worth the probability that the target gets there and then leaves the tree.
    """
    tree = sequence.tree
    if len(tree) >= min(budget.max_nodes_per_sequence, tree.max_nodes):
        return []
    max_depth = sequence.depth_limit(budget.max_depth)
    seen = sequence.evaluated
    places = [
        (node.survival, node_id)
        for node_id, node in tree.nodes.items()
        if node.depth < max_depth and node_id not in seen and not sequence.is_end(node_id)
    ]
    if max_depth > 0 and tree.root_id not in seen:
        places.insert(0, (1.0, tree.root_id))
    worths = [(survival * sequence.open_mass(node_id), node_id) for survival, node_id in places]
    wanted = [entry for entry in worths if entry[0] > 0 and entry[0] >= budget.min_survival]
    return sorted(wanted, key=lambda entry: -entry[0])
