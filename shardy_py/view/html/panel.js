// The panel of one value: what it is, its sharding drawn, why it has it, where it moves, what was found.

const CHAIN_HEAD = 8;
const CHAIN_TAIL = 3;

class Panel {
  /** `go(plan, i)` shows a value of a plan. */
  constructor(items, go) {
    this.items = items;
    this.go = go;
    this.box = el("div", { class: "panel", tabindex: -1, "aria-live": "off", role: "region", "aria-label": "chosen value" });
    this.clear();
  }

  clear() {
    this.box.replaceChildren(el("p", { class: "empty" }, "Choose a value to see which device holds which part of it, why, and where it moves."));
  }

  show(item) {
    const { items } = this;
    const [main, m] = items.main(item);
    const parts = [el("h2", { class: "mono" }, main.name(m))];
    if (!items.b) parts.push(this.facts(main, m), ...this.body(main, m, true, false));
    else parts.push(this.pair(item));
    this.box.replaceChildren(...parts.flat(Infinity).filter((part) => part !== null));
    this.box.scrollTop = 0;
  }

  /** Both plans, beside each other where there is room. */
  pair(item) {
    const { items } = this;
    const same = !items.changed(item);
    const side = (plan, i, letter) => el("div", {},
      el("h3", {}, el("span", { class: `side ${letter.toLowerCase()}` }, letter), ` ${plan.data.name}`),
      i < 0 ? el("p", { class: "soft" }, "This plan has no such value.") : [this.facts(plan, i), this.body(plan, i, letter === "A" || !same, true)]);
    const note = same ? "The sharding is the same in both plans." : items.left[item] < 0 ? "Only plan B has this value." : items.right[item] < 0 ? "Only plan A has this value." : "The plans differ here.";
    return [el("p", {}, note), el("div", { class: "sides" }, side(items.a, items.left[item], "A"), side(items.b, items.right[item], "B"))];
  }

  facts(plan, i) {
    const type = plan.type(i), list = el("dl", { class: "facts" });
    const fact = (what, ...value) => list.append(el("dt", {}, what), el("dd", {}, ...value));
    fact("sharding", el("code", {}, type.text));
    if (plan.given(i)) fact("annotated", el("code", {}, plan.given(i).text));
    fact("per device", el("code", {}, `${type.dtype}[${type.local.join(",")}]`), ` ${bytesText(type.bytes)}`);
    fact("whole", bytesText(type.all));
    const depth = plan.depth(i);
    fact("what", plan.kind(i), plan.primitive(i) ? [" of ", el("code", {}, plan.primitive(i))] : "", depth ? `, in ${plural(depth, "nested bod")}`.replace(/bods$/, "bodies").replace(/bod$/, "body") : "");
    if (plan.location(plan.place(i))) fact("written at", el("code", { title: plan.location(plan.place(i), false) }, plan.location(plan.place(i))));
    if (plan.module(plan.place(i))) fact("module", el("code", {}, plan.module(plan.place(i))));
    for (const [input, output, reason, fix] of plan.data.donation) {
      if (input === i) fact("donated", output >= 0 ? ["its memory is reused by ", this.link(plan, output), `: ${reason}`] : `but not reused: ${reason}${fix ? `; ${fix}` : ""}`);
      else if (output === i) fact("memory", "that of ", this.link(plan, input), ", which is donated");
    }
    return list;
  }

  body(plan, i, drawn, narrow) {
    return [
      drawn ? [el("h3", {}, "Which device holds what"), drawSharding(plan, i, narrow)] : null,
      el("h3", {}, "Why"), this.why(plan, i),
      this.section("Where it moves", plan.collectivesOf(i).map((row) => collectiveLine(plan, row))),
      this.section("Findings", plan.findingsOf(i).map((row) => findingLine(plan, row, null))),
    ];
  }

  section(title, lines) {
    return lines.length ? [el("h3", {}, title), el("ul", { class: "plain" }, lines.map((line) => el("li", {}, line)))] : null;
  }

  link(plan, i) {
    return plan.count > i ? el("button", { class: "link", on: { click: () => this.go(plan, i) } }, plan.name(i)) : el("span", { class: "soft" }, plan.name(i));
  }

  /** One chain of reasons per axis of each dimension. */
  why(plan, i) {
    const type = plan.type(i), dims = plan.dims(type);
    const axes = dims.flatMap((list, d) => list.map((axis) => [d, plan.axisName(axis, plan.tables.meshes[plan.tables.shardings[type.sharding].mesh])]));
    const there = new Set(dims.flat().map((axis) => (typeof axis === "number" ? axis : axis[0])));
    const absent = plan.mesh.axes.map(([name], n) => [name, n]).filter(([, n]) => !there.has(n)).map(([name]) => name);
    const hint = i < plan.count && type.shape.length && absent.length && plan.data.links ? this.absent(plan, i, absent) : null;
    if (!axes.length) return [el("p", { class: "soft" }, type.shape.length ? "No axis is on it: it is replicated." : "It has no dimensions."), hint];
    if (!plan.data.links) return el("p", { class: "soft" }, "The plan was made without a record of its propagation.");
    return [axes.map(([d, axis], n) => this.chain(plan, plan.chain(i, n), d, axis)), hint];
  }

  /** Why axes are not there, as far as the page knows it, and how to ask for the rest. */
  absent(plan, i, names) {
    const told = plan.absencesOf(i), rest = names.filter((name) => !told.some((row) => row[1] === name));
    const lines = told.map(([, axis, message, fix]) => el("li", {}, "No ", el("span", { class: "tag" }, axis), `: ${message}.`, fix ? el("div", { class: "soft" }, "to have it: ", fix) : null));
    const ask = el("code", {}, `plan.explain(${quoted(plan.name(i))}, axis=${quoted(rest[0] || names[0])})`);
    return [
      lines.length ? el("ul", { class: "plain says absent" }, lines) : null,
      el("p", { class: "soft" }, rest.length ? `Why not ${rest.join(", ")}? Ask ` : "More: ", ask),
    ];
  }

  chain(plan, links, dim, axis) {
    const title = el("div", {}, "Dimension ", String(dim), " has ", el("span", { class: "tag" }, axis));
    const list = el("ol", { class: "chain" });
    const drawn = (some) => some.map((link) => this.reason(plan, link));
    const hidden = links.length > CHAIN_HEAD + CHAIN_TAIL + 1 ? links.slice(CHAIN_HEAD, -CHAIN_TAIL) : [];
    if (!hidden.length) list.append(...drawn(links));
    else {
      const more = el("li", {}, el("button", { on: { click: () => more.replaceWith(...drawn(hidden)) } }, `show ${plural(hidden.length, "more step")}`));
      list.append(...drawn(links.slice(0, CHAIN_HEAD)), more, ...drawn(links.slice(-CHAIN_TAIL)));
    }
    return el("div", {}, title, list);
  }

  reason(plan, link) {
    const where = plan.location(link.place) ? [" at ", el("code", { title: plan.location(link.place, false) }, plan.location(link.place))] : "";
    const head = [this.link(plan, link.value), ` dim ${link.dim}: `];
    const user = link.user ? `user priority ${link.user}` : "";
    if (!link.needs) return el("li", { class: "start" }, head, "given by ", el("b", {}, link.annotation || "an annotation"), where, user ? el("span", { class: "soft" }, ` (${user})`) : null);
    const through = link.through ? el("span", { class: "tag" }, link.through) : "";
    const words = {
      propagated: ["through ", through], entry: ["by entry of ", through], carry: ["by carry of ", through], exit: ["by exit of ", through],
      barrier: ["through the barrier ", through], group: ["by its sharding group"], result: ["by what the function returns"],
      constraint: ["by the constraint ", through], priority: ["set aside before"],
    };
    const ranks = [`step ${link.step}`, user, link.op >= 0 ? `op priority ${link.op}` : "", link.needs > 1 ? "needs several of the steps below" : ""].filter(Boolean).join(", ");
    const rule = link.rule ? el("details", {}, el("summary", {}, link.factor ? `rule, along ${link.factor}` : "rule"), el("code", {}, link.rule)) : null;
    return el("li", {}, head, words[link.cause] || [`by ${link.cause}`], where, el("span", { class: "soft" }, ` (${ranks})`), rule);
  }
}
