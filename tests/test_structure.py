"""The shape of the package: what imports what, what an import costs, and how long a file may get."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter

import pytest

from docs.rooms import DESIGN, picture
from tests.imports import ORDER, PACKAGE, ROOT, imported, imported_late, modules, nodes, room, target_of

CORE = ORDER[: ORDER.index("facade") + 1]

# A plan that was read from a file gives its shardings as JAX's objects when they are asked for, and only then needs JAX. The reshards that
# Shardy would insert are an answer of its passes, which nothing else of a plan needs.
LATE = {("plan", "api"), ("plan", "opt")}

# Circles among modules, imports inside functions and for type checkers counted: a module of each, how many there are, and why. No new
# one is added.
CIRCLES: dict[str, tuple[int, str]] = {}

LONGEST_FILE = 700

WITHOUT_JAX = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"jax", "jaxlib", "flax", "optax"}:
            raise ModuleNotFoundError(f"{name} is not to be imported here", name=name)
        return None

sys.meta_path.insert(0, Blocker())
import types
package = types.ModuleType("shardy_py")
package.__path__ = [sys.argv[1]]
sys.modules["shardy_py"] = package
import importlib
for name in sys.argv[2:]:
    importlib.import_module(name)
print(len(sys.argv) - 2)
"""


def run(source: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", source, *args], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_room_has_its_place() -> None:
    unknown = sorted({room(name) for name, _ in modules()} - set(ORDER))
    assert not unknown, f"no place in ORDER for {unknown}"


def test_imports_point_one_way() -> None:
    exists = {name for name, _ in modules()}
    wrong = []
    for module, path in modules():
        late = imported_late(path)
        for base, name, line in imported(module, path):
            target = target_of(base, name, exists)
            if line in late and (room(module), room(target)) in LATE:
                continue
            if ORDER.index(room(target)) > ORDER.index(room(module)) or (room(target) == "" and room(module) != ""):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {module} imports {target}")
    assert not wrong, "\n".join(wrong)


def circles() -> list[set[str]]:
    """Sets of modules that import each other, in whatever way."""
    files = dict(modules())
    edges: dict[str, set[str]] = {}
    for module, path in files.items():
        targets = {target_of(base, name, files) for base, name, _ in imported(module, path)}
        edges[module] = targets & set(files)
    reached: dict[str, set[str]] = {}
    for start in files:
        seen, stack = set[str](), [start]
        while stack:
            new = edges[stack.pop()] - seen
            seen |= new
            stack += sorted(new)
        reached[start] = seen
    return [
        circle for module in files if module in reached[module]
        if module == min(circle := {other for other in reached[module] if module in reached[other]}) and len(circle) > 1
    ]  # fmt: skip


def test_circles_among_modules() -> None:
    left = dict(CIRCLES)
    for circle in circles():
        (known,) = [name for name in CIRCLES if name in circle] or [""]
        assert known, f"a new circle: {', '.join(sorted(circle))}"
        assert len(circle) <= CIRCLES[known][0], f"{known} is in a larger circle: {', '.join(sorted(circle))}"
        del left[known]
    assert not left, f"these are no circles any more; take them from CIRCLES: {', '.join(left)}"


def test_picture_of_the_rooms_is_of_today() -> None:
    assert picture() in DESIGN.read_text(), "write it by: python -m docs.rooms"


def test_private_modules_stay_in_their_package() -> None:
    wrong = []
    for module, path in modules():
        for base, name, line in imported(module, path):
            private = [part for part in [*base.split("."), name] if part.startswith("_") and not part.startswith("__")]
            if private and room(base) != room(module):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {private[0]} of {base}")
    assert not wrong, "\n".join(wrong)


def test_passes_and_what_they_stand_on_do_not_mention_jax() -> None:
    """`plan` may import jax inside a function that returns JAX's own objects; the rooms before it have no reason to."""
    wrong = []
    for module, path in modules():
        if ORDER.index(room(module)) > ORDER.index("partition"):
            continue
        for node in nodes(path):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            wrong += [f"{path.relative_to(ROOT)}:{node.lineno}: {name}" for name in names if name.split(".")[0] in ("jax", "jaxlib")]
    assert not wrong, "\n".join(wrong)


def test_core_imports_without_jax() -> None:
    core = [name for name, _ in modules() if room(name) in CORE and name != "shardy_py"]
    assert run(WITHOUT_JAX, str(PACKAGE), *core) == str(len(core))


def test_private_jax_is_named_in_one_file() -> None:
    """So that a new version of JAX is met in one place."""
    found = [str(path.relative_to(PACKAGE)) for _, path in modules() if "jax._src" in path.read_text()]
    assert found == ["frontends/_jax.py"]


MOVED_PARAMETERS = {"num_consts", "num_carry", "linear", "ft_in", "ft_out"}
"""Parameters of a scan's equation that not every admitted version of jax has."""


def test_parameters_that_moved_are_named_in_one_file() -> None:
    """Elsewhere `scan_counts` and the like are called."""
    named = [
        str(path.relative_to(PACKAGE))
        for _, path in modules()
        if any(isinstance(node, ast.Constant) and node.value in MOVED_PARAMETERS for node in nodes(path))
    ]
    assert named == ["frontends/_jax.py"]


def test_every_module_imports_and_touches_no_device() -> None:
    names = [name for name, path in modules() if path.name != "__main__.py"]
    source = "import importlib, sys\nfor n in sys.argv[1:]: importlib.import_module(n)\n"
    source += "import jax._src.xla_bridge as bridge; print(bridge.backends_are_initialized())"
    assert run(source, *names) == "False"


def test_no_file_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for _, path in modules()}
    assert not {name: n for name, n in lengths.items() if n > LONGEST_FILE}


def test_tables_have_no_duplicate_keys() -> None:
    """A dict literal with the same constant key twice keeps the last one without a word."""
    wrong = []
    for _, path in modules():
        for node in nodes(path):
            if isinstance(node, ast.Dict):
                keys = [ast.unparse(key) for key in node.keys if isinstance(key, ast.Constant | ast.Attribute | ast.Name)]
                twice = sorted(key for key, count in Counter(keys).items() if count > 1)
                wrong += [f"{path.relative_to(ROOT)}:{node.lineno}: {', '.join(twice)}"] if twice else []
    assert not wrong, "\n".join(wrong)


def test_tables_do_not_overlap() -> None:
    """Families are merged by a function that raises; these are the tables that are looked up one after the other."""
    from shardy_py.rules import registry

    assert not set(registry.RULES) & set(registry.NO_RULE)
    with pytest.raises(ValueError, match="registered twice"):
        registry.merge_tables([{"op": 1}, {"op": 2}])
