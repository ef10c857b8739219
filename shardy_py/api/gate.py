"""Gates, which the processes of a mesh pass together when a program is about to run: in traced programs, and in compiled ones.

A call under `jax.jit` is written down, and what is written down may run later, or never, or in one process only: nobody can be waited for
while it is traced. So the results of a planned function pass a gate, and the processes agree where that is lowered. Tangents and cotangents
pass it as well, for a derivative may need nothing else of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from shardy_py.api.agreement import Agreement
from shardy_py.frontends.context import is_lowered_ahead, is_staged

agreed_p = Primitive("agreed")
"""One operand, given back; `agreement` is between the processes of a mesh."""


def gated(agreement: Agreement, results: Sequence[Any]) -> list[Any]:
    """Results of a traced function, behind a gate."""
    return [agreed_p.bind(x, agreement=agreement) for x in results]


def _run(x: Any, *, agreement: Agreement) -> Any:
    agreement.settle_within()
    return x


def _lower(ctx: Any, x: Any, *, agreement: Agreement) -> list[Any]:
    agreement.settle_within(ahead=is_lowered_ahead())
    return [x]


agreed_p.def_impl(_run)
agreed_p.def_abstract_eval(lambda x, **_: x)
mlir.register_lowering(agreed_p, _lower, cacheable=False)
ad.deflinear2(agreed_p, lambda ct, _, agreement: [agreed_p.bind(ct, agreement=agreement)])
batching.defvectorized(agreed_p)


class AgreedStage:
    """A lowered or compiled stage of JAX; the processes agree before the compiled one runs for the first time."""

    def __init__(self, stage: Any, agreement: Agreement) -> None:
        self._stage = stage
        self._agreement = agreement

    def __getattr__(self, name: str) -> Any:
        if name in ("_stage", "_agreement"):  # while it is copied
            raise AttributeError(name)
        return getattr(self._stage, name)

    def compile(self, *args: Any, **options: Any) -> AgreedStage:
        """As `jax.stages.Lowered.compile`."""
        return AgreedStage(self._stage.compile(*args, **options), self._agreement)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.stages.Compiled.__call__`."""
        if not self._agreement.settled and not is_staged():
            self._agreement.settle(jax.tree.leaves((args, kwargs)), lambda: None)
        return self._stage(*args, **kwargs)
