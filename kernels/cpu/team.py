"""Threads that share the parts of a routine, as many as come.

Whoever calls does all parts that nobody else has taken, so it waits only for parts that are being
computed: on cores that others use, a helper that gets no time costs nothing. OpenMP's teams
wait for every thread, each of which has its share; beside other work a step takes several times as
long with two of them as with one.

Parts are handed out by a ticket, (round, next part) in one number: odd rounds are closed, while
what the round is about is written. Who takes a part by exchanging the ticket for the next one has
read what belongs to that very round. A helper that finds nothing to do spins for some twenty
microseconds, which is longer than a step's routines are apart, and then sleeps until it is called.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import binding, ir

from kernels.cpu.compiled import Compiled
from kernels.cpu.emitter import I32, I64, POINTER, Emitter, Value

PART_KINDS = (POINTER, I64, I64)  # of a routine's parts: its job, number of the part, of the thread

_RUN = "foredraft_run_parts"  # what routines call `_emit_run` by
_LINE = 8  # numbers of 64 bits on one line of the cache
_TICKET, _DONE, _BELL, _ASLEEP, _STOP, _WORK = (place * _LINE for place in range(6))
_JOB, _PARTS = _WORK + 1, _WORK + 2
_NUMBERS = _WORK + _LINE
_ROUND = 1 << 32
_SPINS = 1000  # pauses, of some 20 ns
_PATIENCE = 2000  # pauses until a caller lets others run first
_FUTEX, _WAIT, _WAKE = 202, 128, 129  # Linux on x86-64; both for one process alone


class Team:
    """``threads`` - 1 helpers of the thread that calls; for one caller at a time."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        line = _LINE * 8
        memory = (ctypes.c_int64 * (_NUMBERS + _LINE))()
        self.address = -(-ctypes.addressof(memory) // line) * line
        state = (ctypes.c_int64 * _NUMBERS).from_buffer(
            memory, self.address - ctypes.addressof(memory)
        )
        state[_TICKET] = _ROUND  # closed
        self._state = state  # a call may outlast what closes the team at the interpreter's end
        code = _compiled()
        help_ = code.function("help", 2)
        helpers: list[threading.Thread] = []
        # First: where a helper cannot be started, those before it must end before the memory goes.
        weakref.finalize(self, _close, state, self.address, code["ring"], helpers)
        for number in range(1, threads):
            helper = threading.Thread(target=help_, args=(self.address, number), daemon=True)
            helper.start()
            helpers.append(helper)


def _close(
    state: Any, address: int, ring: Callable[[int], None], helpers: list[threading.Thread]
) -> None:
    state[_STOP] = 1
    ring(address)
    for helper in helpers:
        helper.join()


@cache
def _compiled() -> Compiled:
    module = ir.Module("team")
    for emit in (_emit_help, _emit_ring, _emit_run):
        emit(module)
    return Compiled(module)


def emit_parts(emit: Emitter, work: ir.Function, parts: Value) -> None:
    """Run ``work``, of `PART_KINDS`, for every part with the job at hand; its ``team`` helps."""
    binding.add_symbol(_RUN, _compiled().address("run_parts"))
    run = emit.external(_RUN, ir.VoidType(), POINTER, POINTER, POINTER, I64)
    emit.call(run, emit.address("team"), work, emit.job, parts)


def _emit_run(module: ir.Module) -> None:
    """void (state, work, job, parts): returns when all parts are done."""
    emit = Emitter(module, "run_parts", kinds=(POINTER, POINTER, POINTER, I64))
    state, work, job, parts = emit.arguments
    build = emit.build
    closed = _load(emit, state, _TICKET)
    for place, value in ((_DONE, emit.whole(0)), (_PARTS, parts)):
        _store(emit, state, place, value)
    numbers = [build.ptrtoint(pointer, I64) for pointer in (work, job)]
    for place, number in zip((_WORK, _JOB), numbers, strict=True):
        _store(emit, state, place, number)
    opened = build.and_(emit.add(closed, _ROUND), emit.whole(-_ROUND))
    _store(emit, state, _TICKET, opened)
    _add(emit, state, _BELL, 1)
    with emit.when(build.icmp_signed("!=", _load(emit, state, _ASLEEP), emit.whole(0))):
        _emit_wake(emit, state)
    with emit.forever() as leave:
        part = build.sub(_add(emit, state, _TICKET, 1), opened)
        leave(build.icmp_signed(">=", part, parts))
        _emit_part(emit, numbers[0], numbers[1], part, emit.whole(0))
        _add(emit, state, _DONE, 1)
    spins = emit.variable(emit.whole(0))
    with emit.forever() as leave:
        leave(build.icmp_signed("==", _load(emit, state, _DONE), parts))
        _emit_pause(emit)
        spins.set(emit.add(spins.value, 1))
        with emit.when(build.icmp_signed(">", spins.value, emit.whole(_PATIENCE))):
            emit.call(emit.external("sched_yield", I32))
    _store(emit, state, _TICKET, emit.add(opened, _ROUND))
    emit.finish()


def _emit_help(module: ir.Module) -> None:
    """void (state, number of the thread): helps until the team is closed."""
    emit = Emitter(module, "help", kinds=(POINTER, I64))
    state, number = emit.arguments
    build = emit.build
    spins = emit.variable(emit.whole(0))
    with emit.forever() as leave:
        leave(build.icmp_signed("!=", _load(emit, state, _STOP), emit.whole(0)))
        ticket = _load(emit, state, _TICKET)
        with build.if_else(_has_part(emit, state, ticket)) as (some, none):
            with some:
                work, job = (_load(emit, state, place) for place in (_WORK, _JOB))
                taken = build.cmpxchg(
                    emit.at(state, _TICKET, I64), ticket, emit.add(ticket, 1), "seq_cst"
                )
                with emit.when(build.extract_value(taken, 1)):
                    part = build.and_(ticket, emit.whole(_ROUND - 1))
                    _emit_part(emit, work, job, part, number)
                    _add(emit, state, _DONE, 1)
                spins.set(emit.whole(0))
            with none:
                _emit_pause(emit)
                spins.set(emit.add(spins.value, 1))
        with emit.when(build.icmp_signed(">", spins.value, emit.whole(_SPINS))):
            _emit_sleep(emit, state)
            spins.set(emit.whole(0))
    emit.finish()


def _emit_ring(module: ir.Module) -> None:
    """void (state): wakes all who sleep."""
    emit = Emitter(module, "ring", kinds=(POINTER,))
    _add(emit, emit.arguments[0], _BELL, 1)
    _emit_wake(emit, emit.arguments[0])
    emit.finish()


def _emit_part(emit: Emitter, work: Value, job: Value, part: Value, thread: Value) -> None:
    kind = ir.FunctionType(ir.VoidType(), PART_KINDS).as_pointer()
    address = emit.build.inttoptr(job, POINTER)
    emit.call(emit.build.inttoptr(work, kind), address, part, thread)


def _has_part(emit: Emitter, state: Value, ticket: Value) -> Value:
    build = emit.build
    open_ = build.icmp_signed("==", build.and_(ticket, emit.whole(_ROUND)), emit.whole(0))
    part = build.and_(ticket, emit.whole(_ROUND - 1))
    left = build.icmp_signed("<", part, _load(emit, state, _PARTS))
    return build.and_(open_, left)


def _emit_sleep(emit: Emitter, state: Value) -> None:
    """Until the bell rings; whoever rings sees the sleeper, or the sleeper sees the part."""
    build = emit.build
    heard = build.trunc(_load(emit, state, _BELL), I32)
    _add(emit, state, _ASLEEP, 1)
    stops = build.icmp_signed("!=", _load(emit, state, _STOP), emit.whole(0))
    wanted = build.or_(_has_part(emit, state, _load(emit, state, _TICKET)), stops)
    with emit.when(build.not_(wanted)):
        _futex(emit, state, _WAIT, build.sext(heard, I64))
    _add(emit, state, _ASLEEP, -1)


def _emit_wake(emit: Emitter, state: Value) -> None:
    _futex(emit, state, _WAKE, emit.whole(2**31 - 1))


def _futex(emit: Emitter, state: Value, operation: int, value: Value) -> None:
    kinds = [I64, POINTER, I64, I64, I64, I64, I64]
    call = emit.external("syscall", I64, *kinds)
    nothing = emit.whole(0)
    bell = emit.at(state, _BELL, I64)
    emit.call(
        call, emit.whole(_FUTEX), bell, emit.whole(operation), value, nothing, nothing, nothing
    )


def _emit_pause(emit: Emitter) -> None:
    emit.call(emit.external("llvm.x86.sse2.pause", ir.VoidType()))


def _load(emit: Emitter, state: Value, place: int) -> Value:
    return emit.build.load_atomic(emit.at(state, place, I64), "seq_cst", 8, typ=I64)


def _store(emit: Emitter, state: Value, place: int, value: Value) -> None:
    emit.build.atomic_rmw("xchg", emit.at(state, place, I64), value, "seq_cst")


def _add(emit: Emitter, state: Value, place: int, value: int) -> Value:
    """The number before."""
    target = emit.at(state, place, I64)
    return emit.build.atomic_rmw("add", target, emit.whole(value), "seq_cst")
