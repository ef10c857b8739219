from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.api.name_rules import matches, slash_path
from shardy_py.plan.checks.specs import sharding_text

STATE = {
    "params": {"layers": [{"kernel": np.ones((8, 8)), "bias": np.ones(8)} for _ in range(2)], "embed": np.ones((16, 8))},
    "mu": {"layers": [{"kernel": np.ones((8, 8)), "bias": np.ones(8)} for _ in range(2)], "embed": np.ones((16, 8))},
}


def plan(rules, in_shardings=None):
    return sp.auto_shard(lambda state: 0, mesh={"fsdp": 2, "tp": 4}, rules=rules, in_shardings=in_shardings).plan(STATE)


@pytest.mark.parametrize(
    ("pattern", "path", "yes"),
    [
        ("layers/*/kernel", "state/params/layers/0/kernel", True),
        ("layers/*/kernel", "layers/0/kernel", True),
        ("layers/*/kernel", "layers/0/attn/kernel", False),
        ("layers/**/kernel", "layers/0/attn/kernel", True),
        ("kernel", "a/kernel", True),
        ("kernel", "a/my_kernel", False),
        ("*kernel", "a/my_kernel", True),
        ("w?", "a/w1", True),
        ("w.", "a/w1", False),
        ("state/params/**", "state/params/a/b", True),
        ("params", "params/a", False),
    ],
)
def test_matches(pattern, path, yes):
    assert matches(pattern, path) is yes


@pytest.mark.parametrize(
    ("pattern", "path", "end"),
    [("*a" * 10 + "b", "a" * 60, "b"), ("**/" * 8 + "bias", "block/" * 400, "bias"), ("*" * 30 + "b", "a" * 40, "b")],
)
def test_many_wildcards_take_no_longer(pattern, path, end):
    """With a regular expression these take minutes to hours."""
    assert matches(pattern, path + end)
    assert not matches(pattern, path + end + "c")


def test_slash_path():
    assert slash_path("state.params['layers'][0]['kernel'].value") == "state/params/layers/0/kernel"


def test_first_match_wins_and_moments_follow():
    p = plan([("layers/*/kernel", P("fsdp", "tp")), ("**/kernel", P("tp"))])
    (state,) = p.input_shardings
    for part in ("params", "mu"):
        assert [tuple(layer["kernel"].spec) for layer in state[part]["layers"]] == [("fsdp", "tp")] * 2
        assert tuple(state[part]["layers"][0]["bias"].spec) == ()


def test_unmatched_and_unused_are_findings():
    p = plan([("layers/*/kernel", P("fsdp", "tp")), ("**/kernel", P("tp")), ("head/kernel", P("tp"))])
    kinds = [(f.kind, f.path) for f in p.findings]
    assert ("unmatched-rule", "state['params']['embed']") in kinds
    messages = [f.message for f in p.findings if f.kind == "unused-rule"]
    assert messages == [
        "rule 1, '**/kernel', is not used: every leaf it matches is taken by rule 0, 'layers/*/kernel'",
        "rule 2, 'head/kernel', is not used: it matches no argument",
    ]
    with pytest.raises(ValueError, match="unused-rule"):
        p.check(strict=True)
    assert p.check() == p.findings


@pytest.mark.parametrize("spec", [P("fsdb"), NamedSharding(AbstractMesh((2,), ("fsdb",)), P("fsdb")), P("tp", "tp")])
def test_a_rule_that_matches_nothing_is_checked_against_the_mesh(spec):
    with pytest.raises(sp.SpecError, match=r"rules\[1\] \('head/kernel'\): .*(fsdb|twice)") as caught:
        plan([("layers/*/kernel", P("fsdp", "tp")), ("head/kernel", spec)])
    assert caught.value.fix


def test_none_in_a_rule_leaves_it_to_propagation():
    p = plan([("bias", None), ("**", P("tp"))])
    (state,) = p.input_shardings
    assert tuple(state["params"]["layers"][0]["bias"].spec) == ()
    assert tuple(state["params"]["embed"].spec) == ("tp",)


def test_a_rule_that_does_not_fit_names_itself():
    with pytest.raises(ValueError, match=r"rules\[0\] \('bias'\): .*2 entries for a value of rank 1"):
        plan([("bias", P("fsdp", "tp"))])


def test_rules_as_a_mapping():
    assert plan({"embed": P("fsdp")}).as_text() == plan([("embed", P("fsdp"))]).as_text()


def test_a_pattern_that_matches_nothing_is_shown_one_that_would():
    p = plan([("layers/*/kernal", P("fsdp", "tp"))])
    (finding,) = [f for f in p.findings if f.kind == "unused-rule"]
    assert finding.fix == "drop it, or write a pattern for the end of a path, such as 'layers/0/kernel'"


def test_state_of_other_dimensions_follows_its_parameter():
    params = {"enc": {"up": jnp.ones((256, 512)), "bias": jnp.ones(512)}, "up": jnp.ones((128, 256))}

    optax = pytest.importorskip("optax")
    rules = [("up", P("data", "model")), ("bias", P("model"))]
    for optimizer in (optax.adafactor(1e-3), optax.lbfgs(memory_size=6)):
        state = jax.eval_shape(optimizer.init, params)
        step = sp.auto_shard(lambda p, s: (p, s), mesh={"data": 4, "model": 2}, rules=rules)
        plan = step.plan(params, state)
        shardings = {v.path: sharding_text(v.sharding) for v in plan.inputs}
        assert shardings["p['enc']['up']"] == shardings["p['up']"] == "P('data', 'model')"
        for value in plan.inputs:
            if value.path.endswith("['enc']['up']") and value.shape == (6, 256, 512):
                assert shardings[value.path] == "P(None, 'data', 'model')"
            if value.path.endswith("['enc']['up']") and value.shape in ((256,), (512,)):
                assert shardings[value.path] == ("P('data')" if value.shape == (256,) else "P('model')")


def test_a_rule_that_does_not_fit_another_parameter_stays_an_error():
    params = {"enc": {"up": jnp.ones((8, 8))}, "up": jnp.ones(8)}
    with pytest.raises(sp.SpecError, match=r"rules\[0\] \('up'\).*2 entries for a value of rank 1"):
        sp.auto_shard(lambda p: p, mesh={"data": 4, "model": 2}, rules=[("up", P("data", "model"))]).plan(params)


def test_rules_match_classes_that_hold_one_array():
    @jax.tree_util.register_pytree_node_class
    class Named:
        def __init__(self, array, axes):
            self.array, self.axes = array, axes

        def tree_flatten(self):
            return (self.array,), self.axes

        @classmethod
        def tree_unflatten(cls, axes, leaves):
            return cls(leaves[0], axes)

    params = {"qkv": {"weight": Named(jnp.ones((8, 16)), "a")}, "out": {"weight": Named(jnp.ones((16, 8)), "b")}}
    step = sp.auto_shard(lambda p: p, mesh={"data": 4, "model": 2}, rules=[("qkv/weight", P(None, "model"))])
    assert [sharding_text(v.sharding) for v in step.plan(params).inputs] == ["P()", "P(None, 'model')"]


KERNELS = [("up", P(None, "model")), ("down", P("model")), ("bias", P("model")), ("**", P())]


def initial(key, optimizer):
    params = {"up": jax.random.normal(key, (256, 512)), "bias": jnp.zeros(512), "down": jax.random.normal(key, (512, 256))}
    return {"params": params, "opt": optimizer.init(params)}


@pytest.mark.parametrize(
    ("optimizer", "returned"),
    [
        ("adam", lambda state: (state["params"], state["opt"])),
        ("adafactor", lambda state: state["params"]),
        ("adafactor", lambda state: state),
        ("lbfgs", lambda state: state),
    ],
)
def test_rules_reach_what_an_init_function_returns(optimizer, returned):
    """Parameters and optimizer state are sharded from the first, as the step that takes them plans them, and are as without sharding."""
    optax = pytest.importorskip("optax")
    chosen = optax.lbfgs(memory_size=6) if optimizer == "lbfgs" else getattr(optax, optimizer)(1e-3)

    def init(key):
        return returned(initial(key, chosen))

    run = sp.auto_shard(init, mesh={"data": 2, "model": 4}, rules=KERNELS)
    state = run(jax.random.key(0))
    assert not [f for f in run.plan(jax.random.key(0)).findings if f.kind in ("unused-rule", "unmatched-rule")]
    parameters = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    cut = {path.rpartition("['")[2]: leaf.sharding.spec for path, leaf in parameters.items() if leaf.ndim == 2 and 6 not in leaf.shape}
    assert cut == {"up']": P(None, "model"), "down']": P("model")}
    step = sp.auto_shard(lambda state: state, mesh={"data": 2, "model": 4}, rules=KERNELS)
    shardings = jax.tree.leaves(step.plan(jax.eval_shape(init, jax.random.key(0))).input_shardings)
    assert all(leaf.sharding.is_equivalent_to(s, leaf.ndim) for leaf, s in zip(jax.tree.leaves(state), shardings, strict=True))
    jax.tree.map(np.testing.assert_array_equal, state, jax.jit(init)(jax.random.key(0)))


def test_rules_and_results_of_other_kinds():
    """A result without a name, a number called as a parameter is, what `out_shardings` says, and patterns of wildcards alone."""

    def step(params, x):
        return params, x, {"up": jnp.mean(params["up"]), "norms": {"down": jnp.ones(6)}, "logits": x @ params["up"]}

    rules = [("x", P("data")), *KERNELS]
    arguments = {"up": jnp.ones((8, 16)), "down": jnp.ones((16, 8))}, jnp.ones((32, 8))
    run = sp.auto_shard(step, mesh={"data": 2, "model": 4}, rules=rules)
    plan = run.plan(*arguments)
    shardings = {v.path: sharding_text(v.sharding) for v in plan.outputs}
    assert shardings["result[0]['up']"] == "P(None, 'model')"
    assert shardings["result[1]"] == "P('data')"
    assert shardings["result[2]['logits']"] == "P('data', 'model')"
    assert shardings["result[2]['up']"] == "P()"
    run = sp.auto_shard(step, mesh={"data": 2, "model": 4}, out_shardings=({"up": P("data"), "down": None}, None, None), rules=rules)
    assert {v.path: sharding_text(v.sharding) for v in run.plan(*arguments).outputs}["result[0]['up']"] == "P('data')"
    with pytest.raises(sp.SpecError, match=r"rules\[0\] \('down'\): dimension 0 of size 6 is not divisible by 4"):
        sp.auto_shard(lambda: {"down": jnp.ones((6, 2))}, mesh={"model": 4}, rules=[("down", P("model"))]).plan()


def test_a_rule_for_results_that_matches_nothing_is_said():
    def init():
        return {"kernel": jnp.ones((8, 8))}

    (finding,) = sp.auto_shard(init, mesh={"model": 4}, rules=[("kernal", P("model"))]).plan().findings
    assert finding.kind == "unused-rule"
    assert "it matches no argument and no result" in finding.message
    assert finding.fix == "drop it, or write a pattern for the end of a path, such as 'kernel'"


@pytest.mark.parametrize("spec", [P("y"), P(), P("x", "y")], ids=str)
def test_an_argument_that_lies_otherwise_overrules_its_rule_and_is_told(spec):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    w = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(mesh, spec))
    product = sp.auto_shard(lambda w, x: x @ w, mesh=mesh, rules={"w": P(None, "x"), "x": P("y")})
    plan = product.plan(w, jnp.ones((8, 8)))
    (finding,) = [f for f in plan.findings if f.kind == "overruled-rule"]
    assert (finding.path, finding.severity) == ("w", "warning")
    assert finding.message.startswith("rules[0] ('w') says P(None, 'x'); the argument is committed to P(")
    moved = product.replace(options=sp.Options(misplaced="move")).plan(w, jnp.ones((8, 8)))
    assert moved.inputs[0].given_by == "rules[0] ('w')"
    assert "overruled-rule" not in [f.kind for f in moved.findings]


def test_an_argument_that_lies_as_its_rule_says_is_not_told():
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    w = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(mesh, P(None, "x")))
    plan = sp.auto_shard(lambda w: w * 2, mesh=mesh, rules={"w": P(None, "x")}).plan(w)
    assert "overruled-rule" not in [f.kind for f in plan.findings]
