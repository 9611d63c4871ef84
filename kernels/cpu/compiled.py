"""LLVM's code made into the processor's."""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import binding, ir


class Compiled:
    """Machine code of a module, for this very processor.

    It lives as long as the process: others hold addresses in it, where nothing holds this object,
    and while the interpreter ends a thread may be running it.
    """

    def __init__(self, module: ir.Module) -> None:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        module.triple = binding.get_process_triple()
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        machine = _target_machine()
        passes = binding.create_pass_builder(
            machine, binding.create_pipeline_tuning_options(speed_level=2)
        )
        passes.getModulePassManager().run(parsed, passes)
        engine = binding.create_mcjit_compiler(parsed, machine)
        engine.finalize_object()
        names = [function.name for function in module.functions if not function.is_declaration]
        self._addresses: dict[str, int] = {n: engine.get_function_address(n) for n in names}
        engine.detach()  # or it gives the code back
        self._functions: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """The function ``name`` of a job's address; Python's lock is free while it runs."""
        return self.function(name, 1)

    def function(self, name: str, arguments: int) -> Any:
        """The function ``name`` of as many integers; it returns nothing."""
        if name not in self._functions:
            kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)
            self._functions[name] = kind(self.address(name))
        return self._functions[name]

    def address(self, name: str) -> int:
        return self._addresses[name]


def _target_machine() -> Any:
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
    )
