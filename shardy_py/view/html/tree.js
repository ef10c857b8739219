// The tree of values. Only the rows in view are elements, so that its size does not matter.

const HEAD = 28;
const ROW = 26;
const TALL = 42; // of a value that differs between two plans
const BEYOND = 8;

/** Groups of values: by the path of inputs and outputs, by module and source line of intermediates. */
function groupsOf(items) {
  const groups = [];
  const add = (label, parent, kind) => {
    const group = { label, kind, parent, level: parent ? parent.level + 1 : 1, groups: [], items: [], byLabel: new Map(), open: false, bytes: 0, size: 0, hits: 0 };
    groups.push(group);
    if (parent) parent.groups.push(group);
    return group;
  };
  const within = (parent, label, kind) => {
    let found = parent.byLabel.get(label);
    if (!found) parent.byLabel.set(label, (found = add(label, parent, kind)));
    return found;
  };
  const roots = { input: add("inputs", null, "root"), output: add("outputs", null, "root"), intermediate: add("intermediates", null, "root") };
  const byPlace = new Map();
  const home = new Array(items.count);
  for (let item = 0; item < items.count; item++) {
    const [plan, i] = items.main(item);
    const kind = plan.kind(i);
    let group;
    if (kind === "intermediate") {
      const place = plan.place(i) * 2 + (plan === items.a ? 0 : 1);
      group = byPlace.get(place);
      if (!group) {
        group = roots.intermediate;
        for (const module of plan.module(plan.place(i)).split("/")) if (module) group = within(group, module, "module");
        group = within(group, plan.location(plan.place(i)) || "(no source line)", "line");
        byPlace.set(place, group);
      }
    } else {
      group = roots[kind];
      for (const part of plan.parts(i).slice(0, -1)) group = within(group, part, "path");
    }
    group.items.push(item);
    home[item] = group;
    const bytes = plan.bytes(i);
    for (let up = group; up; up = up.parent) { up.size++; up.bytes += bytes; }
  }
  for (const root of Object.values(roots)) for (let i = 0; i < root.groups.length; i++) merge(root, i);
  return { roots: Object.values(roots).filter((root) => root.size > 0), groups, home };
}

/** A group that holds nothing but one group of its kind becomes one with it. */
function merge(parent, at) {
  let group = parent.groups[at];
  while (group.items.length === 0 && group.groups.length === 1 && group.groups[0].kind === group.kind) {
    const inner = group.groups[0];
    inner.label = group.label + (group.kind === "module" ? "/" : "") + inner.label;
    inner.parent = parent;
    parent.groups[at] = group = inner;
  }
  group.level = parent.level + 1;
  for (let i = 0; i < group.groups.length; i++) merge(group, i);
}

class Tree {
  /** `choose(item)` is called when a value is chosen. */
  constructor(items, choose) {
    this.items = items;
    this.choose = choose;
    Object.assign(this, groupsOf(items));
    this.hit = null;
    this.bySize = false;
    this.at = 0;
    this.chosen = -1;
    this.drawn = [0, 0];
    this.openFirst(40);
    this.spacer = el("div", { class: "spacer", role: "presentation" });
    this.box = el("div", {
      class: "tree", role: "tree", tabindex: 0, "aria-label": "values", id: "tree",
      on: { scroll: () => this.follow(), keydown: (event) => this.key(event), click: (event) => this.click(event) },
    }, this.heads(), this.spacer);
    const longest = [items.a, items.b].reduce((n, plan) => (plan ? plan.tables.types.reduce((m, type) => Math.max(m, type.text.length), n) : n), 12);
    this.box.style.setProperty("--type", `${Math.min(longest, 90) + (items.b ? 5 : 1)}ch`);
    new ResizeObserver(() => this.follow()).observe(this.box);
    this.flatten();
  }

  heads() {
    return el("div", { class: "heads", "aria-hidden": "true" }, el("span", {}, "value"), el("span", {}, this.items.b ? "sharding in A, and in B where it differs" : "sharding"), el("span", { class: "right" }, "per device"));
  }

  /** Opens groups, the outer ones first, while there are no more than so many rows. */
  openFirst(most) {
    let rows = this.roots.length;
    const waiting = [...this.roots];
    for (const group of waiting) {
      const more = group.groups.length + group.items.length;
      if (rows + more > most && group.kind !== "root") continue;
      if (rows + more > 4 * most) continue;
      group.open = true;
      rows += more;
      waiting.push(...group.groups);
    }
  }

  /** Shows only these items, or all for null; `hit` has one number per item, not 0 for those to show. */
  filter(hit) {
    this.hit = hit;
    if (hit) {
      for (const group of this.groups) group.hits = 0;
      const count = (group) => {
        group.hits = group.items.reduce((n, item) => n + hit[item], 0);
        for (const inner of group.groups) group.hits += count(inner);
        return group.hits;
      };
      this.roots.forEach(count);
    }
    this.flatten();
    this.at = Math.min(this.at, Math.max(0, this.rows.length - 1));
    this.box.scrollTop = 0;
    this.draw();
  }

  sort(bySize) {
    this.bySize = bySize;
    this.flatten();
    this.draw();
  }

  /** The rows to show: groups, and items as numbers. While a filter is on, groups that it leaves small are open. */
  flatten() {
    this.rows = [];
    this.levels = [];
    const bytes = (item) => { const [plan, i] = this.items.main(item); return plan.type(i).bytes; };
    const visit = (group) => {
      if (this.hit && !group.hits) return;
      this.rows.push(group);
      this.levels.push(group.level);
      if (!this.isOpen(group)) return;
      const inner = this.bySize ? [...group.groups].sort((x, y) => y.bytes - x.bytes) : group.groups;
      inner.forEach(visit);
      const own = this.bySize ? [...group.items].sort((x, y) => bytes(y) - bytes(x)) : group.items;
      for (const item of own) if (!this.hit || this.hit[item]) { this.rows.push(item); this.levels.push(group.level + 1); }
    };
    this.roots.forEach(visit);
    this.tops = new Float64Array(this.rows.length + 1);
    this.rows.forEach((row, r) => { this.tops[r + 1] = this.tops[r] + (typeof row === "number" && this.items.changed(row) ? TALL : ROW); });
    this.spacer.style.height = `${this.tops[this.rows.length]}px`;
  }

  /** The row at a height. */
  rowAt(y) {
    let low = 0, high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tops[middle + 1] <= y) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  isOpen(group) {
    if (!this.hit) return group.open;
    if (group.shut === this.hit) return false;
    return group.opened === this.hit || group.hits <= 500 || group.level <= 1;
  }

  toggle(group, open) {
    if (this.hit) { group.shut = open ? null : this.hit; group.opened = open ? this.hit : null; } else group.open = open;
    this.flatten();
    this.at = Math.max(0, this.rows.indexOf(group));
    this.draw();
  }

  /** The rows in view and some beyond. */
  inView() {
    const height = this.box.clientHeight - HEAD;
    return [Math.max(0, this.rowAt(this.box.scrollTop) - BEYOND), Math.min(this.rows.length, this.rowAt(this.box.scrollTop + height) + 1 + BEYOND)];
  }

  /** Draws where other rows are in view than are drawn: events of the browser come after the page has drawn what it scrolled to itself. */
  follow() {
    const [first, last] = this.inView();
    if (first !== this.drawn[0] || last !== this.drawn[1]) this.draw();
  }

  draw() {
    const [first, last] = this.drawn = this.inView();
    const made = [];
    for (let r = first; r < last; r++) made.push(this.row(r));
    this.spacer.replaceChildren(...made);
    if (this.at >= first && this.at < last) this.box.setAttribute("aria-activedescendant", `row-${this.at}`);
    else this.box.removeAttribute("aria-activedescendant");
  }

  row(r) {
    const entry = this.rows[r], level = this.levels[r];
    const isGroup = typeof entry === "object";
    const row = el("div", {
      class: `row${isGroup ? " group" : ""}${r === this.at ? " here" : ""}`, id: `row-${r}`, role: "treeitem",
      "aria-level": level, "aria-selected": !isGroup && entry === this.chosen, "aria-expanded": isGroup ? this.isOpen(entry) : null, "data-row": r,
    });
    row.style.transform = `translateY(${this.tops[r]}px)`;
    row.style.height = `${this.tops[r + 1] - this.tops[r]}px`;
    const name = el("div", { class: "name" });
    name.style.paddingLeft = `${8 + (level - 1) * 14}px`;
    row.append(name);
    if (isGroup) {
      const shown = this.hit ? entry.hits : entry.size;
      name.append(el("span", { class: "twisty", "aria-hidden": "true" }, this.isOpen(entry) ? "▼" : "▶"), el("span", { class: "label", title: entry.label }, entry.label), el("span", { class: "note" }, grouped(shown)));
      row.append(el("span", {}), el("span", { class: "much" }, entry.kind === "path" || (entry.kind === "root" && entry.label !== "intermediates") ? bytesText(entry.bytes) : ""));
    } else this.item(row, name, entry);
    return row;
  }

  item(row, name, item) {
    const { items } = this;
    const [plan, i] = items.main(item);
    const whole = plan.name(i);
    const label = plan.kind(i) === "intermediate" ? whole : plan.parts(i).slice(-1)[0];
    name.append(el("span", { class: "twisty" }), el("span", { class: "label", title: whole }, label));
    if (plan.primitive(i)) name.append(el("span", { class: "note" }, plan.primitive(i)));
    if (plan.collectivesOf(i).length) name.append(el("span", { class: "mark moves", title: `${plural(plan.collectivesOf(i).length, "collective")}` }, "⇄"));
    const found = plan.findingsOf(i);
    if (found.length) name.append(el("span", { class: `mark ${found[0][0]}`, title: found.map((f) => f[1]).join(", ") }, "!"));
    const type = plan.type(i);
    if (!items.changed(item)) {
      row.append(el("span", { class: "type" }, type.text), el("span", { class: "much" }, bytesText(type.bytes)));
      return;
    }
    row.classList.add("changed");
    const types = [[items.a, items.left[item]], [items.b, items.right[item]]].map(([side, j]) => (j < 0 ? null : side.type(j)));
    const letter = (n) => el("span", { class: `side ${n ? "b" : "a"}` }, n ? "B" : "A");
    row.append(
      el("span", { class: "type" }, types.map((t, n) => el("span", { class: "of" }, letter(n), t ? t.text : "no such value"))),
      el("span", { class: "much" }, types.map((t) => el("span", { class: "of" }, t ? bytesText(t.bytes) : "—"))));
  }

  click(event) {
    const row = event.target.closest("[data-row]");
    if (!row) return;
    this.at = Number(row.dataset.row);
    this.act();
  }

  /** Opens or closes the group under the cursor, or chooses the value there. */
  act() {
    const entry = this.rows[this.at];
    if (entry === undefined) return;
    if (typeof entry === "object") this.toggle(entry, !this.isOpen(entry));
    else { this.chosen = entry; this.draw(); this.choose(entry); }
  }

  move(to) {
    if (!this.rows.length) return;
    this.at = Math.min(Math.max(to, 0), this.rows.length - 1);
    const top = this.tops[this.at], bottom = this.tops[this.at + 1] + HEAD;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (bottom > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = bottom - this.box.clientHeight;
    const entry = this.rows[this.at];
    if (typeof entry === "number" && entry !== this.chosen) { this.chosen = entry; this.choose(entry); }
    this.draw();
  }

  key(event) {
    const entry = this.rows[this.at];
    const group = typeof entry === "object" ? entry : null;
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 2);
    const keys = {
      ArrowDown: () => this.move(this.at + 1),
      ArrowUp: () => this.move(this.at - 1),
      PageDown: () => this.move(this.at + page),
      PageUp: () => this.move(this.at - page),
      Home: () => this.move(0),
      End: () => this.move(this.rows.length - 1),
      Enter: () => this.act(),
      " ": () => this.act(),
      ArrowRight: () => (group && !this.isOpen(group) ? this.toggle(group, true) : this.move(this.at + 1)),
      ArrowLeft: () => {
        if (group && this.isOpen(group)) return this.toggle(group, false);
        let r = this.at - 1;
        while (r >= 0 && this.levels[r] >= this.levels[this.at]) r--;
        return this.move(r);
      },
    };
    if (!keys[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  }

  /** Opens the groups around a value, scrolls to it where it is out of view or `centred`, and chooses it. */
  reveal(item, centred = true) {
    if (this.hit && !this.hit[item]) this.filter(null);
    for (let up = this.home[item]; up; up = up.parent) { up.open = true; up.shut = null; up.opened = this.hit; }
    this.flatten();
    this.at = this.rows.indexOf(item);
    this.chosen = item;
    if (centred || this.tops[this.at + 1] > this.box.clientHeight - HEAD) this.box.scrollTop = Math.max(0, this.tops[this.at] - this.box.clientHeight / 2);
    this.draw();
    this.choose(item);
  }
}
