"""Random pipelines over every pass of the table."""

from __future__ import annotations

import random

from shardy_py.opt.table import PASSES
from shardy_py.passes.base import Option

_NAMES = tuple(PASSES)
_WHOLE = tuple(name for name in _NAMES if name.endswith("-pipeline"))


def draw_pipeline(draw: random.Random, number: int) -> str:
    """A pipeline of one to three passes with options.

    Args:
        draw: Where choices come from.
        number: Passes come in turn, so that as many numbers as there are passes reach each of them.
    """
    names = [_NAMES[number % len(_NAMES)]]
    if draw.random() < 0.3:
        names.append(draw.choice(_NAMES))
    if draw.random() < 0.2:
        names.insert(0, draw.choice(_WHOLE))
    return ",".join(name + _options(draw, PASSES[name].options()) for name in names)


def _options(draw: random.Random, options: tuple[Option, ...]) -> str:
    chosen = [f"{option.name}={_value(draw, option)}" for option in options if draw.random() < 0.35]
    return f"{{{' '.join(chosen)}}}" if chosen else ""


def _value(draw: random.Random, option: Option) -> str:
    if isinstance(option.default, bool):
        return draw.choice(["true", "false"])
    return draw.choice(option.choices) if option.choices else option.shown_default
