"""The pictures of the concepts guide are what pages draw today; `python -m docs.drawings` writes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from docs.drawings import CONCEPTS, DRAWINGS, FOLDER, pictures


def test_the_guide_shows_each_picture() -> None:
    shown = re.findall(r"^!\[.{30,}\]\(drawings/([\w-]+)\.svg\)$", CONCEPTS.read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(DRAWINGS) == sorted(path.stem for path in FOLDER.iterdir())


def heights_aside(picture: str) -> str:
    """A picture without its height and the positions in charts: fonts differ between machines."""
    return re.sub(r'(?<=")[-\d. ]+(?=")|(?<= d=")[^"]+', "", picture)


@pytest.mark.slow
def test_pictures_are_of_today(opened: Callable[..., Any]) -> None:
    for name, picture in pictures(opened).items():
        assert heights_aside((FOLDER / name).read_text()) == heights_aside(picture), name
