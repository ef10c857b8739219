"""Errors of the user's own input: each says what is wrong, where, why, and how to put it right."""

from __future__ import annotations

from shardy_py.errors import PeerMissingError, PlanMismatchError, UserError


class StaticArgumentError(UserError):
    """A static argument that cannot be a key of the cache.

    Example:
        >>> issubclass(StaticArgumentError, UserError)
        True
    """


class ArgumentTypeError(UserError, TypeError):
    """An argument that is neither an array nor static; a TypeError in JAX.

    Example:
        >>> import jax.numpy as jnp, shardy_py as sp
        >>> try:
        ...     sp.auto_shard(jnp.sin, mesh={"x": 2})("one")
        ... except TypeError as error:
        ...     print(type(error).__name__, error.what, sep=": ")
        ArgumentTypeError: x is a str, not an array
    """


class ValueMismatchError(PlanMismatchError):
    """The processes of a mesh pass different values for an argument that every process has to pass alike.

    Example:
        >>> issubclass(ValueMismatchError, PlanMismatchError)
        True
    """


class PeerFailedError(PeerMissingError):
    """A process of the mesh failed or ended before it came to compare plans.

    Example:
        >>> issubclass(PeerFailedError, PeerMissingError)
        True
    """


class DonationWarning(UserWarning):
    """A donated buffer that no output can take; it stays alive."""


class OrderedEffectError(UserError):
    """Ordered effects cannot run on several devices.

    Example:
        >>> issubclass(OrderedEffectError, UserError)
        True
    """


class NotAvailableError(UserError, NotImplementedError):
    """A documented option that this version lacks.

    Example:
        >>> issubclass(NotAvailableError, NotImplementedError)
        True
    """
