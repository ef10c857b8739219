"""Profile graphs shaped like models with branches, uncompressed: as many nodes and the same wiring, made-up times and sizes."""

from __future__ import annotations

from shardy_py.pipedream import ProfileGraph, ProfileNode


class Builder:
    """Adds layers one by one. What a layer costs follows from its number, so a shape is always the same graph."""

    def __init__(self) -> None:
        self.nodes: list[ProfileNode] = []
        self.edges: list[tuple[str, str]] = []
        self.megabytes = 64.0

    def add(self, description: str, *operands: str, time: float = 0.1, parameters: float = 0.0, size: float = 1.0) -> str:
        number = len(self.nodes)
        wobble = 1 + (number * 37 % 17) / 17
        id = f"node{number + 1}"
        size_bytes = round(self.megabytes * size * 1e6 * wobble / 4) * 4.0
        self.nodes.append(ProfileNode(id, description, time * wobble, 1.5 * time * wobble, (size_bytes,), parameters * wobble))
        self.edges += [(operand, id) for operand in operands]
        return id

    def conv(self, x: str, size: float = 1.0, *, depthwise: bool = False) -> str:
        return self.add("Conv2d", x, time=0.3 if depthwise else 1.0, parameters=2e4 if depthwise else 4e5, size=size)

    def block(self, x: str, count: int = 1, size: float = 1.0) -> str:
        for _ in range(count):
            x = self.add("ReLU", self.add("BatchNorm2d", self.conv(x, size), time=0.2, parameters=2e3, size=size), size=size)
        return x

    def graph(self) -> ProfileGraph:
        return ProfileGraph(tuple(self.nodes), tuple(self.edges))


def inception() -> ProfileGraph:
    """Shaped like inception_v3: 326 nodes."""
    b = Builder()
    x = b.add("Input0", time=0.0)
    channels = [b.add("Add", b.add("Mul", b.add(f"__getitem__({i})", x, size=0.3), size=0.3), size=0.3) for i in range(3)]
    x = b.block(b.add("Concat", *channels), 3)
    x = b.block(b.add("MaxPool2d", x, size=0.5), 2, 0.5)
    x = b.add("MaxPool2d", x, size=0.25)
    b.megabytes = 16.0

    def pooled(x: str) -> str:
        return b.block(b.add("AvgPool2d", x, size=1.0), 1, 0.25)

    for _ in range(3):
        x = b.add("Concat", b.block(x, 1, 0.25), b.block(x, 2, 0.25), b.block(x, 3, 0.35), pooled(x))
    x = b.add("Concat", b.block(x, 1, 0.4), b.block(x, 3, 0.2), b.add("MaxPool2d", x, size=0.4))
    b.megabytes = 12.0
    for _ in range(4):
        x = b.add("Concat", b.block(x, 1, 0.25), b.block(x, 3, 0.25), b.block(x, 5, 0.25), pooled(x))
    x = b.add("Concat", b.block(x, 2, 0.3), b.block(x, 4, 0.3), b.add("MaxPool2d", x, size=0.3))
    b.megabytes = 6.0
    for _ in range(2):
        parts = [b.block(x, 1, 0.15)]
        for count in (1, 2):
            y = b.block(x, count, 0.2)
            parts.append(b.add("Concat", b.block(y, 1, 0.2), b.block(y, 1, 0.2), size=0.4))
        x = b.add("Concat", *parts, pooled(x))
    x = b.add("Dropout", b.add("AvgPool2d", x, size=0.02), size=0.02)
    x = b.add("View", x, b.add("Size", x, time=0.0, size=0.0), time=0.0, size=0.02)
    b.add("Linear", x, parameters=8e6, size=0.01)
    return b.graph()


def nasnet(repeats: int = 6, stem: int = 0) -> ProfileGraph:
    """Shaped like NASNet-A: cells that read the two cells before them; 1,251 nodes for (6, 9)."""
    b = Builder()

    def separable(x: str, size: float) -> str:
        for _ in range(2):
            x = b.add("ReLU", x, size=size)
            x = b.add("BatchNorm2d", b.conv(b.conv(x, size, depthwise=True), size), time=0.2, parameters=2e3, size=size)
        return x

    def entry(x: str) -> str:
        return b.add("BatchNorm2d", b.conv(b.add("ReLU", x), 0.2), time=0.2, parameters=2e3, size=0.2)

    def pool(x: str) -> str:
        return b.add("AvgPool2d", x, size=0.2)

    def plus(x: str, y: str) -> str:
        return b.add("Add", x, y, size=0.2)

    def normal(before: str, x: str) -> str:
        left, right = entry(before), entry(x)
        parts = [
            plus(separable(right, 0.2), separable(left, 0.2)),
            plus(separable(left, 0.2), separable(left, 0.2)),
            plus(pool(right), left),
            plus(pool(left), pool(left)),
            plus(separable(right, 0.2), right),
        ]
        return b.add("Concat", left, *parts)

    def reduction(before: str, x: str) -> str:
        left, right = entry(before), entry(x)
        first = plus(separable(right, 0.2), separable(left, 0.2))
        second = plus(pool(right), separable(left, 0.2))
        third = plus(pool(right), separable(left, 0.2))
        fourth = plus(pool(first), second)
        fifth = plus(separable(first, 0.2), pool(right))
        return b.add("Concat", second, third, fourth, fifth)

    x = b.add("Input0", time=0.0)
    x = b.add("BatchNorm2d", b.conv(x), time=0.2)
    for _ in range(stem):
        x = b.block(x)
    before, x = x, reduction(x, x)
    before, x = x, reduction(before, x)
    for round in range(3):
        b.megabytes = 24.0 / 2**round
        if round:
            before, x = x, reduction(before, x)
        for _ in range(repeats):
            before, x = x, normal(before, x)
    x = b.add("Dropout", b.add("AvgPool2d", b.add("ReLU", x), size=0.02), size=0.02)
    b.add("Linear", x, parameters=16e6, size=0.01)
    return b.graph()
