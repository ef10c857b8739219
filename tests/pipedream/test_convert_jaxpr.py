"""Stage functions written from a jaxpr give what the traced function gives."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardy_py.pipedream import ConversionError, convert_jaxpr


def attention(params: Any, x: jax.Array) -> jax.Array:
    q, k, v = (x @ params[name] for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("bth,bsh->bts", q, k) / 2.0)
    scores = jnp.where(jnp.tril(jnp.ones((4, 4), bool)), scores, 0.0)
    x = jax.nn.gelu(jnp.einsum("bts,bsh->bth", scores, v)) + x
    return jnp.mean((x - x.mean(-1, keepdims=True)) ** 2)


def loops(params: Any, x: jax.Array) -> Any:
    x, rows = jax.lax.scan(lambda c, w: (jax.nn.relu(c @ w), c.sum()), x, params["layers"])
    n, y = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 0.5), (0, x))
    y = jax.lax.cond(rows[0] > 0, lambda z: z + 1, lambda z: z - params["layers"][0, 0], y)
    return jnp.sort(y, -1), n, jnp.take(params["table"], jnp.array([0, 2]), axis=0), jnp.argmax(y), jnp.cumsum(y, 1)


def picture(params: Any, x: jax.Array) -> jax.Array:
    x = jax.lax.conv_general_dilated(x, params["w"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = jnp.concatenate([x, jnp.pad(x[:, :, :, :1], ((0, 0),) * 3 + ((0, 1),))], -1)
    return jnp.log1p(jnp.abs(x)).max((1, 2)) + np.arange(4.0, dtype=np.float32)


def cases() -> dict[str, tuple[Any, Any, Any]]:
    random = np.random.default_rng(0)

    def f32(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    return {
        "attention": (attention, {name: f32(8, 8) for name in "qkv"}, f32(2, 4, 8)),
        "gradient": (jax.value_and_grad(attention), {name: f32(8, 8) for name in "qkv"}, f32(2, 4, 8)),
        "loops": (loops, {"layers": f32(3, 4, 4), "table": f32(5, 2)}, f32(2, 4)),
        "picture": (picture, {"w": f32(3, 3, 3, 2)}, f32(2, 8, 8, 3)),
    }


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", cases())
def test_functions(tmp_path: pathlib.Path, name: str, count: int) -> None:
    function, params, x = cases()[name]
    traced = jax.make_jaxpr(function)(params, x)
    size = len(traced.jaxpr.eqns)
    package = convert_jaxpr(traced, [i * count // size for i in range(size)], tmp_path, arch="net")
    module = package.load()
    inputs = jax.tree.leaves((params, x))
    expected = jax.tree.leaves(function(params, x))
    found = jax.tree.leaves(module.full_model()(*inputs))
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert module.arch() == "net"
    assert len(module.model(None)) == count + 1
    assert all(len(line) <= 100 for path in tmp_path.glob("*.py") for line in path.read_text().split("\n"))


def test_stages_by_name_and_backward(tmp_path: pathlib.Path) -> None:
    function, params, x = cases()["attention"]
    traced = jax.make_jaxpr(function)(params, x)
    size = len(traced.jaxpr.eqns)
    module = convert_jaxpr(traced, [2 * i // size for i in range(size)], tmp_path, arch="net").load()

    def staged(params: Any) -> jax.Array:
        values = {"params_q": params["q"], "params_k": params["k"], "params_v": params["v"], "x": x}
        *stages, (_, (result,), _) = module.model(None)
        for stage, takes, gives in stages:
            out = stage(*(values[each] for each in takes))
            values.update(zip(gives, (out,) if len(gives) == 1 else out, strict=True))
        return values[result]

    for a, b in zip(jax.tree.leaves(jax.grad(staged)(params)), jax.tree.leaves(jax.grad(function)(params, x))):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    text = (tmp_path / "stage0.py").read_text()
    assert "def stage0(params_k, params_q, params_v, x):" in text
    assert "# x: float32[2,4,8]" in text


def test_what_cannot_be_written_is_named(tmp_path: pathlib.Path) -> None:
    @jax.custom_vjp
    def odd(x: jax.Array) -> jax.Array:
        return x * 2

    odd.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 3,))
    with pytest.raises(ConversionError, match="'custom_vjp_call"):
        convert_jaxpr(jax.make_jaxpr(lambda x: odd(x) + 1)(1.0), [0, 1], tmp_path / "a", arch="net")
    with pytest.raises(ConversionError, match="pure_callback"):
        convert_jaxpr(
            jax.make_jaxpr(lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), jnp.float32), x))(jnp.float32(1)),
            [0],
            tmp_path / "a",
            arch="net",
        )
    assert not (tmp_path / "a").exists()


def test_wrong_stages(tmp_path: pathlib.Path) -> None:
    traced = jax.make_jaxpr(lambda x: jnp.sin(jnp.cos(x)))(1.0)
    for stages, message in (
        ([0], "the jaxpr has 2"),
        ([1, 0], "needs a value of stage 1"),
        ([0, 2], "no equation is in stage 1"),
        ([-1, 0], "-1"),
    ):
        with pytest.raises(ConversionError, match=message):
            convert_jaxpr(traced, stages, tmp_path, arch="net")
    with pytest.raises(ConversionError, match="is not an identifier"):
        convert_jaxpr(traced, [0, 0], tmp_path, arch="a b")
