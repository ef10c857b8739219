"""Rules of CHLO ops, for which the ops that JAX legalises them to are not written out.

Such an op is many elementwise StableHLO ops after `chlo-legalize-to-stablehlo`. It stands here as one op that takes an
operand twice where these use it more than once, or as a few steps of the same name; see `frontends/legalize_chlo.py`.
"""

from __future__ import annotations

from shardy_py.rules.builder import Builder
from shardy_py.rules.elementwise import pointwise

POINTWISE = (
    "chlo.acos",
    "chlo.acosh",
    "chlo.asin",
    "chlo.asinh",
    "chlo.atan",
    "chlo.atanh",
    "chlo.bessel_i1e",
    "chlo.conj",
    "chlo.cosh",
    "chlo.digamma",
    "chlo.erf",
    "chlo.erf_inv",
    "chlo.erfc",
    "chlo.is_inf",
    "chlo.is_neg_inf",
    "chlo.is_pos_inf",
    "chlo.lgamma",
    "chlo.mulhi",
    "chlo.next_after",
    "chlo.polygamma",
    "chlo.sinh",
    "chlo.square",
    "chlo.zeta",
)
"""All operands and results have one shape; they count as elementwise in op priorities."""

RULES: dict[str, Builder] = dict.fromkeys(POINTWISE, pointwise)
