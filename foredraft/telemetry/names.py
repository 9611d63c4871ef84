"""Every name that appears in a trace.

The ``gen_ai`` names follow one version of OpenTelemetry's semantic conventions, the schema below;
they still change between versions, so all of them stand here and nowhere else. Names of our own
start with ``foredraft``; those on events, of which a span has many, are short. Times are
durations in microseconds.
"""

from __future__ import annotations

TRACER = "foredraft"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"

# Spans. The span of a request has the conventions' name: operation and model.
CHAT = "chat"
TEXT_COMPLETION = "text_completion"
VERIFY_SEQUENCE = "verify.sequence"
VERIFY_STEP = "verify.step"
DRAFT_SEQUENCE = "draft.sequence"
DRAFT_WORK = "draft.work"

# Events of a request's span: it was handed to the target whole, a step came back, its last choice
# was finished; a target was heard for the last time, before it was lost or the request given up.
OPENED = "opened"
STEP = "step"
FINISHED = "finished"
SILENCE = "silence"
# Event of a verify.sequence: its prompt is in the KV memory.
PREFILLED = "prefilled"

# GenAI semantic conventions.
OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
ERROR_TYPE = "error.type"

PROVIDER = "foredraft"

# Totals of a request, on its span.
SPECULATION = "foredraft.speculation"
STEPS = "foredraft.steps"
HIT_STEPS = "foredraft.hit_steps"
TOKENS_PER_STEP = "foredraft.tokens_per_step"
VERIFIED_NODES = "foredraft.verified_nodes"
ACCEPTED_NODES = "foredraft.accepted_nodes"
CHOICES = "foredraft.choices"
FINISHES = "foredraft.finishes."  # and a finish reason: how many choices ended so
STEPS_SHOWN = "foredraft.steps_shown"
FIRST_TOKEN_US = "foredraft.first_token_us"
HELD_US = "foredraft.held_us"
QUEUE_US = "foredraft.queue_us"
FORWARD_US = "foredraft.forward_us"
SAMPLE_US = "foredraft.sample_us"
HOP_US = "foredraft.hop_us"

# On a step's event.
STEP_NUMBER = "step"
STEP_TOKENS = "tokens"
STEP_HELD_US = "held_us"
STEP_QUEUE_US = "queue_us"
STEP_FORWARD_US = "forward_us"
STEP_SAMPLE_US = "sample_us"
STEP_HOP_US = "hop_us"

# Names a sequence at a worker, and on the request's span the one that was heard last.
SEQUENCE = "foredraft.sequence"
INCARNATION = "foredraft.incarnation"

# On the event of a silence: how long it was, and what that target's steps had told before it.
SILENCE_US = "silent_us"
HEARD_INCARNATION = "incarnation"
HEARD_STEPS = "steps"
HEARD_VERIFY_US = "verify_us"
HEARD_HELD_US = "held_us"
HEARD_WAIT_US = "wait_us"

# Totals of a sequence at a worker.
PROMPT_TOKENS = "foredraft.prompt_tokens"
PREFILL_US = "foredraft.prefill_us"
VERIFY_US = "foredraft.verify_us"
OTHERS_US = "foredraft.others_us"
SUFFIX_US = "foredraft.suffix_us"
MODEL_US = "foredraft.model_us"
NODES = "foredraft.nodes"
ROUNDS = "foredraft.rounds"

# A step of the target, and what decided how it was made.
STEP_INDEX = "foredraft.step"
SEQUENCES = "foredraft.sequences"
ROWS = "foredraft.rows"
PERIOD_US = "foredraft.period_us"
PREPARE_US = "foredraft.prepare_us"
COMMIT_US = "foredraft.commit_us"
PUBLISH_US = "foredraft.publish_us"
PREEMPTED = "foredraft.preempted"
SCHEDULE = "foredraft.policy.schedule"
MAX_NODES = "foredraft.policy.max_nodes"
HOLD_LIMIT_US = "foredraft.policy.hold_limit_us"
WAITED_FOR = "foredraft.policy.waited_for"
DRAFTING = "foredraft.policy.drafting"

# Drafting since the span before, and what the drafter was told; also MAX_NODES, here of a tree.
PASSES = "foredraft.passes"
MAX_DEPTH = "foredraft.policy.max_depth"
MIN_SURVIVAL = "foredraft.policy.min_survival"
AHEAD_SURVIVAL = "foredraft.policy.ahead_survival"

# On the link from a step or a piece of drafting to a request.
LINK_TOKENS = "tokens"
LINK_NODES = "nodes"
LINK_ACCEPTED = "accepted"
