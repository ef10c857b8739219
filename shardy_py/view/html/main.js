// Puts the page together: header, tabs, search, keys, light and dark.

function themeButton() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  let chosen = null;
  const button = el("button", { id: "theme", title: "light or dark", on: { click: () => { chosen = root.dataset.theme === "dark" ? "light" : "dark"; set(); } } });
  const set = () => {
    root.dataset.theme = chosen || (dark.matches ? "dark" : "light");
    button.textContent = root.dataset.theme === "dark" ? "☀ light" : "☾ dark";
  };
  dark.addEventListener("change", set);
  set();
  return button;
}

function meshText(plan, last) {
  const mesh = plan.mesh;
  const devices = mesh.axes.reduce((n, [, size]) => n * size, 1);
  const axes = mesh.axes.flatMap(([name, size], a) => [a ? " × " : "", el("b", {}, `${name}=${grouped(size)}`)]);
  return ["mesh ", axes, `, ${plural(devices, "device")}${mesh.ids ? " in an order of their own" : ""}, lowered by ${plan.data.lowering}${last ? "; figures are per device and call" : ""}`];
}

function summary(plans) {
  const card = (what, texts) => el("div", { class: "card" }, el("div", { class: "what" }, what),
    texts.map((text, side) => el("div", { class: `much${plans.length > 1 ? " pair" : ""}` }, plans.length > 1 ? [el("span", { class: `side ${side ? "b" : "a"}` }, side ? "B" : "A"), " "] : null, text)));
  const each = (text) => plans.map(text);
  const found = (plan) => {
    const counts = ["error", "warning", "info"].map((s) => [byFinding(plan.data.findings).filter(([f]) => f[0] === s).length, s === "info" ? "note" : s]);
    return counts.filter(([n]) => n).map(([n, what]) => plural(n, what)).join(", ") || "none";
  };
  const cards = [
    card("inputs", each((p) => bytesText(p.total(0, p.inputs)))),
    card("outputs", each((p) => bytesText(p.total(p.firstOutput, p.count)))),
    card("communication", each((p) => { const [sum, exact] = p.communication; return `${exact ? "" : "at least "}${bytesText(sum)}`; })),
  ];
  if (plans.some((p) => p.data.search)) {
    cards.push(card("planned step", each((p) => (p.data.search ? [secondsText(p.data.search.seconds), p.data.search.gap].filter(Boolean).join(", ") : "not planned"))));
  }
  if (plans.some((p) => p.data.memory)) cards.push(card("peak memory", each((p) => (p.data.memory ? bytesText(p.data.memory.peak) : "not known"))));
  for (const [what, texts] of extras(plans)) cards.push(card(what, texts));
  cards.push(card("findings", each(found)));
  return el("div", { class: "cards" }, cards);
}

/** Figures that a plan may have besides: `[what, text per plan]`. */
function extras(plans) {
  const names = [...new Set(plans.flatMap((p) => (p.data.figures || []).map(([what]) => what)))];
  return names.map((what) => [what, plans.map((p) => ((p.data.figures || []).find(([w]) => w === what) || [what, "not known"])[1])]);
}

/** For each item 1 where every word of the query is found in its path, primitive, place, module or sharding, and the rest holds too. */
function matching(items, query, only) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const hit = new Uint8Array(items.count);
  const memo = [items.a, items.b].map((plan) => (plan ? {
    types: words.map((w) => plan.tables.types.map((t) => t.text.toLowerCase().includes(w))),
    strings: words.map((w) => plan.strings.map((s) => s.toLowerCase().includes(w))),
    places: words.map((w) => plan.tables.places.map((p, n) => plan.location(n, false).toLowerCase().includes(w) || plan.module(n).toLowerCase().includes(w))),
    replicated: plan.tables.types.map((t) => t.shape.length > 0 && (t.sharding < 0 || plan.tables.shardings[t.sharding].dims.every((axes) => !axes.length))),
  } : null));
  const fits = (plan, side, i) => words.every((w, k) => {
    const v = plan.data.values;
    return memo[side].types[k][v.types[i]] || memo[side].strings[k][v.primitives[i]] || memo[side].places[k][v.places[i]] || plan.name(i).toLowerCase().includes(w);
  });
  const wanted = {
    all: () => true,
    replicated: (plan, side, i) => memo[side].replicated[plan.data.values.types[i]],
    moving: (plan, side, i) => plan.collectivesOf(i).length > 0,
    found: (plan, side, i) => plan.findingsOf(i).length > 0,
    changed: (plan, side, i, item) => items.changed(item),
  }[only];
  for (let item = 0; item < items.count; item++) {
    const sides = [[items.a, 0, items.left[item]]];
    if (items.b) sides.push([items.b, 1, items.right[item]]);
    hit[item] = Number(sides.some(([plan, side, i]) => i >= 0 && wanted(plan, side, i, item) && fits(plan, side, i)));
  }
  return hit;
}

/** The number of collectives that have every word of the query. */
function movesWith(items, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = [items.a, items.b].flatMap((plan) => (plan ? plan.data.collectives.map(
    ([, name, kind, axes, , operand, , , primitive, place]) => [name, `${kind}(${axes.join(",")})`, operand, plan.strings[primitive], plan.location(place, false)],
  ) : []));
  return texts.map((text) => text.join("\n").toLowerCase()).filter((text) => words.every((word) => text.includes(word))).length;
}

function valuesView(items, panel, tree, openMoves) {
  const found = el("div", { class: "found", role: "status" });
  const none = el("div", { class: "empty none hidden" });
  const search = el("input", { type: "search", id: "search", placeholder: "path, primitive, line, sharding ( / )", "aria-label": "search values", spellcheck: false, autocomplete: "off" });
  const choice = (value, text) => el("option", { value }, text);
  const only = el("select", { id: "only", "aria-label": "which values" }, choice("all", "all values"), items.b ? choice("changed", "differences") : null, choice("replicated", "replicated"), choice("moving", "resharded"), choice("found", "with findings"));
  const order = el("select", { id: "order", "aria-label": "order" }, choice("program", "program order"), choice("size", "largest first"));
  const apply = () => {
    const all = !search.value.trim() && only.value === "all";
    const hit = all ? null : matching(items, search.value, only.value);
    const n = hit ? hit.reduce((sum, h) => sum + h, 0) : items.count;
    const changed = items.b ? items.left.reduce((sum, _, item) => sum + Number(items.changed(item)), 0) : 0;
    found.textContent = hit ? `${grouped(n)} of ${plural(items.count, "value")}` : `${plural(items.count, "value")}${items.b ? `, ${grouped(changed)} of them different` : ""}`;
    tree.filter(hit);
    none.replaceChildren(...(hit && !n ? nothing() : []));
    none.classList.toggle("hidden", !hit || n > 0);
  };
  const nothing = () => {
    const query = search.value.trim(), moves = query ? movesWith(items, query) : 0;
    const filter = only.value === "all" ? "" : ` among those that are chosen (${only.selectedOptions[0].textContent})`;
    const link = el("button", { class: "link", on: { click: openMoves } }, "Data movement");
    return [
      el("p", {}, query ? `No value${filter} has “${query}” in its path, primitive, source line, module or sharding.` : `There is no value${filter}.`),
      el("p", {}, moves ? `Among collectives there are ${grouped(moves)}: ` : "What moves between devices is under ", link, "."),
    ];
  };
  let waiting = 0;
  search.addEventListener("input", () => { clearTimeout(waiting); if (items.count > 20000) waiting = setTimeout(apply, 120); else apply(); });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "ArrowDown") { event.preventDefault(); tree.box.focus(); }
  });
  only.addEventListener("change", apply);
  order.addEventListener("change", () => tree.sort(order.value === "size"));
  apply();
  const clear = () => { search.value = ""; only.value = "all"; apply(); };
  const view = el("section", { id: "values", class: items.b ? "two" : null }, el("div", { class: "left" }, el("div", { class: "tools" }, search, only, order, found), none, tree.box), panel.box);
  return { view, search, clear };
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const plans = data.plans.map((each) => new Plan(each));
  const items = new Items(plans[0], plans[1] || null, data.partners);
  const go = (plan, i) => { open("values"); tree.reveal(items.of(plan, i)); };
  const panel = new Panel(items, go);
  const tree = new Tree(items, (item) => {
    panel.show(item);
    const [plan, i] = items.main(item);
    try { history.replaceState(null, "", `#${encodeURIComponent(plan.name(i))}`); } catch { /* pages in a sandbox have no history */ }
  });
  const values = valuesView(items, panel, tree, () => open("moves"));
  const perPlan = (view) => () => plans.flatMap((plan, side) => [plans.length > 1 ? el("h2", {}, el("span", { class: `side ${side ? "b" : "a"}` }, side ? "B" : "A"), ` ${plan.data.name}`) : null, ...view(plan, go)]);
  const views = {
    values: { title: "Values", section: values.view },
    moves: { title: "Data movement", section: el("section", { class: "pad" }), fill: perPlan(movesView) },
    charts: { title: "Charts", section: el("section", { class: "pad" }), fill: () => chartsView(plans, go), sized: true },
    ...(plans.some((plan) => plan.data.search) ? { search: { title: "Planner", section: el("section", { class: "pad" }), fill: perPlan(searchView), sized: true } } : {}),
    findings: { title: "Findings", section: el("section", { class: "pad" }), fill: perPlan(findingsView) },
  };
  const names = Object.keys(views);
  const tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "views" });
  const open = (name) => {
    for (const [other, view] of Object.entries(views)) {
      const chosen = other === name;
      view.tab.setAttribute("aria-selected", String(chosen));
      view.tab.tabIndex = chosen ? 0 : -1;
      view.section.classList.toggle("hidden", !chosen);
      if (chosen && view.fill && view.width !== (view.sized ? window.innerWidth : 0)) {
        view.width = view.sized ? window.innerWidth : 0;
        view.section.replaceChildren(...view.fill().filter(Boolean));
      }
    }
    if (name === "values") tree.draw();
  };
  for (const [name, view] of Object.entries(views)) {
    view.tab = el("button", { role: "tab", id: `tab-${name}`, "aria-controls": `view-${name}`, on: { click: () => open(name) } }, view.title);
    if (name !== "values") { view.section.id = `view-${name}`; view.section.tabIndex = 0; } else view.tab.setAttribute("aria-controls", "values");
    view.section.setAttribute("role", "tabpanel");
    view.section.setAttribute("aria-labelledby", `tab-${name}`);
    tabs.append(view.tab);
  }
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const now = names.findIndex((name) => views[name].tab === document.activeElement);
    const next = names[(now + step + names.length) % names.length];
    open(next);
    views[next].tab.focus();
  });
  const titles = plans.map((plan, side) => el("div", {}, el("h1", {}, plans.length > 1 ? [el("span", { class: `side ${side ? "b" : "a"}` }, side ? "B" : "A"), " "] : "Plan of ", plan.data.name), el("div", { class: "mesh" }, meshText(plan, plans.length === 1))));
  const header = el("header", {}, el("div", { class: "top" }, el("div", { class: "titles" }, titles), themeButton()), summary(plans), tabs);
  document.body.append(header, el("main", {}, names.map((name) => views[name].section)));
  open("values");
  window.addEventListener("resize", () => {
    for (const [name, view] of Object.entries(views)) if (view.sized && !view.section.classList.contains("hidden")) open(name);
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) { event.preventDefault(); open("values"); values.search.focus(); values.search.select(); }
    if (event.key === "Escape") { values.clear(); open("values"); tree.box.focus(); }
  });
  const wanted = decodedHash();
  const i = wanted ? plans[0].find(wanted) : -1;
  if (i >= 0) tree.reveal(i);
  else if (items.count) tree.reveal(largest(items), false);
  document.documentElement.dataset.ready = "yes";
  performance.mark("ready");
}

/** What the page shows first: the value that takes the most memory among inputs and outputs, else the first one. */
function largest(items) {
  let best = 0, most = -1;
  for (let item = 0; item < items.count; item++) {
    const [plan, i] = items.main(item);
    if (plan.kind(i) === "intermediate" || plan.type(i).bytes <= most) continue;
    most = plan.type(i).bytes;
    best = item;
  }
  return best;
}

function decodedHash() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
}

start();
