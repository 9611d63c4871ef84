"""Times steps on the device of every width at start-up."""

from __future__ import annotations

import math
import time

import numpy as np

from foredraft.engine.fp8.device_step import DeviceStep, StepBucket
from foredraft.engine.fp8.runner import Fp8Runner
from foredraft.engine.fp8.step_buckets import StepBuckets
from foredraft.engine.fp8.upload import upload
from foredraft.policy.cost import StepCost
from foredraft.tree.node_id import child_id, signed

_CONTEXT = 128
_ROUNDS = 5
_ROOT = 1  # any id


def profile_buckets(runner: Fp8Runner, step: DeviceStep, buckets: StepBuckets) -> StepCost:
    """Cost of a greedy step of one sequence by its number of rows, padding included.

    The quickest time of each width counts: a moment in which the machine is busy with something
    else must not make it look dear.
    """
    context = min(_CONTEXT, runner.info.context_length // 2)
    own = [bucket for bucket in buckets if bucket.slots == 1]
    blocks = runner.kv.allocate(runner.kv.blocks_for(context + 1 + own[-1].nodes))
    for start in range(0, context, runner.chunk):
        runner.prefill(blocks, [0] * min(runner.chunk, context - start), start)
    upload(step.tables[0, : len(blocks)], np.array(blocks, np.int32))
    quickest = dict.fromkeys(own, math.inf)
    for _ in range(_ROUNDS):
        for bucket in own:
            quickest[bucket] = min(
                quickest[bucket], _time_step(step, bucket, context, runner.info.vocab_size)
            )
    upload(step.tables[0, : len(blocks)], np.zeros(len(blocks), np.int32))
    runner.kv.free(blocks)
    return StepCost.from_profile((1 + bucket.nodes, quickest[bucket]) for bucket in own)


def _time_step(step: DeviceStep, bucket: StepBucket, context: int, vocab: int) -> float:
    """Milliseconds of a step with as many guesses as ``bucket`` has, from telling to reading."""
    told = {name: tensor.numpy() for name, tensor in step.told().items()}
    for name in ("changed", "active", "speculates", "root_token"):
        told[name][0] = 1
    told["length"][0], told["limit"][0] = context + 1, step.limits.context
    told["root_id"][0] = signed(_ROOT)
    told["allowed"][0], told["starts"][1:] = bucket.nodes, bucket.nodes
    ids = [_ROOT]
    for number in range(bucket.nodes):  # a binary tree
        parent = ids[number // 2]
        told["parent_id"][number], told["token"][number] = signed(parent), number % vocab
        told["confidence"][number] = 1.0
        ids.append(child_id(parent, number % vocab))
    started = time.perf_counter()
    step.commits(step.launch(bucket))
    return (time.perf_counter() - started) * 1000
