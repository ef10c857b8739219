// A sharding drawn: the array cut into tiles with the devices that hold each, and the mesh with the tile that each device holds.

const MOST_DEVICES = 16; // of one row, or of one axis of a grid, before some are left out

/** The tiles of a value and who holds them. */
class Layout {
  constructor(plan, i) {
    const type = plan.type(i);
    const row = type.sharding < 0 ? { mesh: 0, dims: type.shape.map(() => []) } : plan.tables.shardings[type.sharding];
    this.plan = plan;
    this.shape = type.shape;
    this.local = type.local;
    this.mesh = plan.tables.meshes[row.mesh];
    this.row = row;
    this.sizes = this.mesh.axes.map(([, size]) => size);
    this.devices = this.sizes.reduce((n, size) => n * size, 1);
    this.dims = this.shape.map((_, d) => (row.dims[d] ?? []).map((axis) => this.axis(axis)));
    this.cuts = this.dims.map((axes) => axes.reduce((n, axis) => n * axis.size, 1));
    this.tiles = this.cuts.reduce((n, cut) => n * cut, 1);
    this.unreduced = (row.unreduced || []).map((axis) => this.axis(axis));
    this.named = (dim) => row.dims[dim].map((axis) => plan.axisName(axis, this.mesh)).join(", ");
  }

  axis(axis) {
    if (typeof axis === "number") return { at: axis, size: this.sizes[axis], minor: 1 };
    const [at, before, size] = axis;
    return { at, size, minor: this.sizes[at] / (before * size) };
  }

  /** Where a position stands along each axis of the mesh, the first axis being the major one. */
  place(position) {
    const at = new Array(this.sizes.length);
    for (let a = this.sizes.length - 1; a >= 0; a--) { at[a] = position % this.sizes[a]; position = Math.floor(position / this.sizes[a]); }
    return at;
  }

  static along(axes, at) {
    return axes.reduce((index, axis) => index * axis.size + (Math.floor(at[axis.at] / axis.minor) % axis.size), 0);
  }

  /** The index of the tile along each dimension, at a place of the mesh. */
  tileAt(at) { return this.dims.map((axes) => Layout.along(axes, at)); }

  number(tile) { return tile.reduce((n, index, d) => n * this.cuts[d] + index, 0); }

  device(position) { return this.mesh.ids ? this.mesh.ids[position] : position; }

  /** Devices that hold a tile, found once for all tiles. */
  holders(tile) {
    if (!this.byTile) {
      this.byTile = Array.from({ length: this.tiles }, () => []);
      for (let p = 0; p < this.devices; p++) this.byTile[this.number(this.tileAt(this.place(p)))].push(this.device(p));
    }
    return this.byTile[this.number(tile)];
  }

  /** The part of a dimension that a tile has: 0:256. */
  part(d, index) {
    if (this.cuts[d] === 1) return ":";
    const from = Math.min(index * this.local[d], this.shape[d]), to = Math.min(from + this.local[d], this.shape[d]);
    return from === to ? "none" : `${from}:${to}`;
  }

  /** The part of the array that a tile is: [0:256, :]. */
  slice(tile) { return `[${tile.map((index, d) => this.part(d, index)).join(", ")}]`; }

  get splitDims() { return this.cuts.flatMap((cut, d) => (cut > 1 ? [d] : [])); }

  tileName(tile) {
    const split = this.splitDims;
    return split.length ? split.map((d) => tile[d]).join(",") : "all";
  }
}

/** Numbers 0 to n-1 with those left out that are too many, as -1. */
function some(n, most) {
  if (n <= most) return Array.from({ length: n }, (_, i) => i);
  return [...Array.from({ length: most - 2 }, (_, i) => i), -1, n - 1];
}

function product(lists) {
  return lists.reduce((all, list) => all.flatMap((head) => list.map((entry) => [...head, entry])), [[]]);
}

/** A grid of cells over the last two of some directions, and one sheet per index of the others; one direction alone runs on in rows. */
function gridOf(sizes, name, cell, narrow) {
  const n = sizes.length;
  const most = (n <= 2 ? 10 : 6) - (narrow && n > 1 ? 4 : 0);
  const across = n ? some(sizes[n - 1], n === 1 ? MOST_DEVICES : most) : [0];
  const rows = n > 1 ? some(sizes[n - 2], most) : [0];
  const outer = product(sizes.slice(0, Math.max(0, n - 2)).map((size) => some(size, n === 3 ? 5 : 3)));
  const sheets = outer.map((head) => {
    if (head.includes(-1)) return el("div", { class: "sheet gap" }, "⋯");
    const grid = el("div", { class: n > 1 ? "cells" : "cells run" });
    if (n > 1) {
      grid.style.gridTemplateColumns = `auto repeat(${across.length}, minmax(${across.length > 6 ? 42 : 50}px, 1fr))`;
      grid.append(el("span", { class: "head" }, ""), ...across.map((c) => el("span", { class: "head" }, c < 0 ? "⋯" : name(n - 1, c))));
    }
    for (const r of rows) {
      if (n > 1) grid.append(el("span", { class: "head" }, r < 0 ? "⋮" : name(n - 2, r)));
      for (const c of across) {
        const index = [...head, ...(n > 1 ? [r] : []), ...(n ? [c] : [])];
        grid.append(index.includes(-1) ? el("div", { class: "cell gap", "aria-hidden": "true" }, r < 0 ? "⋮" : "⋯") : cell(index));
      }
    }
    const which = head.map((index, k) => name(k, index, true)).join(", ");
    return el("div", { class: n > 1 ? "sheet" : "sheet whole" }, which ? el("div", { class: "which" }, which) : null, grid);
  });
  return el("div", { class: "sheets" }, sheets);
}

/** One cell that can be pointed at, chosen and reached with the keyboard. */
function cellOf(title, detail, layout, number, label) {
  const cell = el("div", { class: "cell", role: "button", tabindex: -1, "data-tile": number, title: label, "aria-label": label }, el("b", {}, title), detail);
  if (layout.tiles === 1) { cell.style.background = "var(--neutral)"; cell.style.color = "var(--neutral-text)"; } else paint(cell, colourOf(number, layout.tiles));
  return cell;
}

/** The drawing of a value's sharding. */
function drawSharding(plan, i, narrow) {
  const layout = new Layout(plan, i);
  if (plan.type(i).dtype === "token") return el("p", { class: "soft" }, "A token has no elements.");
  const split = layout.splitDims;
  const says = el("div", { class: "says", role: "status" });
  const describe = (tile) => {
    const held = layout.holders(tile);
    return `Tile ${layout.tileName(tile)} is ${layout.slice(tile)}, on ${plural(held.length, "device")}: ${ranges(held, 12)}`;
  };
  const copies = layout.devices / layout.tiles;
  const dims = split.map((d) => `dimension ${d} of ${grouped(layout.shape[d])} in ${layout.cuts[d]} by ${layout.named(d)}`);
  const array = gridOf(split.map((d) => layout.cuts[d]), (k, index, alone) => `${alone ? `dim ${split[k]}, ` : ""}${layout.part(split[k], index).replace(":", ":\u200b")}`, (index) => {
    const tile = layout.cuts.map(() => 0);
    split.forEach((d, k) => { tile[d] = index[k]; });
    const held = layout.holders(tile);
    const all = ranges(held);
    const on = all.length <= 8 ? `d${all}` : plural(held.length, "device");
    return cellOf(split.length ? `tile ${layout.tileName(tile)}` : "everything", split.length === 1 ? [layout.part(split[0], tile[split[0]]), el("br", {}), on] : on, layout, layout.number(tile), describe(tile));
  }, narrow);
  const axes = layout.mesh.axes;
  const devices = gridOf(layout.sizes, (k, index, alone) => (alone ? `${axes[k][0]} ${index}` : String(index)), (index) => {
    const position = index.reduce((n, at, a) => n * layout.sizes[a] + at, 0);
    const tile = layout.tileAt(index);
    const device = layout.device(position);
    const part = layout.unreduced.length ? `, part ${Layout.along(layout.unreduced, index) + 1} of the sum` : "";
    return cellOf(`d${device}`, split.length ? `tile ${layout.tileName(tile)}` : "all", layout, layout.number(tile), `Device ${device} holds ${layout.slice(tile)}${part}`);
  }, narrow);
  const rows = axes.length > 1 ? `${axes[axes.length - 2][0]} down, ${axes[axes.length - 1][0]} across` : axes.length ? `along ${axes[0][0]}` : "one device";
  const figure = el("div", { class: "drawing" },
    el("figure", {}, el("figcaption", {}, el("b", {}, "The array"), `: ${dims.length ? dims.join("; ") : "not cut, every device has all of it"}.`, dims.length ? ` Each of ${plural(layout.tiles, "tile")} lies on ${plural(copies, "device")}.` : ""), array),
    el("figure", {}, el("figcaption", {}, el("b", {}, "The mesh"), ` of ${plural(layout.devices, "device")}: ${rows}${layout.mesh.ids ? "; devices in the order given" : ""}.`), devices),
    layout.unreduced.length ? el("p", { class: "soft" }, `Each device has one part of a sum that is still to be taken over ${plan.tables.shardings[plan.type(i).sharding].unreduced.map((a) => plan.axisName(a, layout.mesh)).join(", ")}.`) : null,
    says,
    layout.devices > MOST_DEVICES ? asker(layout, says) : null);
  const light = (number, text) => {
    for (const cell of figure.querySelectorAll("[data-tile]")) {
      const same = Number(cell.dataset.tile) === number;
      cell.classList.toggle("lit", number >= 0 && same);
      cell.classList.toggle("dim", number >= 0 && !same);
    }
    says.textContent = text;
  };
  let held = -1;
  const point = (cell) => { held = Number(cell.dataset.tile); light(held, cell.getAttribute("aria-label")); };
  figure.addEventListener("click", (event) => {
    const cell = event.target.closest("[data-tile]");
    if (cell && Number(cell.dataset.tile) !== held) point(cell);
    else if (cell) { held = -1; light(-1, ""); }
  });
  for (const sheets of figure.querySelectorAll(".sheets")) {
    const cells = [...sheets.querySelectorAll("[data-tile]")];
    if (cells.length) cells[0].tabIndex = 0;
    sheets.addEventListener("keydown", (event) => {
      const now = cells.indexOf(document.activeElement);
      if (now < 0) return;
      const wide = Math.max(1, getComputedStyle(cells[now].parentElement).gridTemplateColumns.split(" ").length - (axes.length > 1 || split.length > 1 ? 1 : 0));
      const to = { ArrowRight: now + 1, ArrowLeft: now - 1, ArrowDown: now + wide, ArrowUp: now - wide, Home: 0, End: cells.length - 1 }[event.key];
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); cells[now].click(); }
      if (to === undefined || !cells[to]) return;
      event.preventDefault();
      cells[now].tabIndex = -1;
      cells[to].tabIndex = 0;
      cells[to].focus();
    });
  }
  return figure;
}

/** A field that says what one device holds, for meshes too large to be drawn whole. */
function asker(layout, says) {
  const answer = (event) => {
    const text = event.target.value.trim();
    if (!/^\d+$/.test(text)) { says.textContent = ""; return; }
    const device = Number(text);
    const position = layout.mesh.ids ? layout.mesh.ids.indexOf(device) : device;
    if (position < 0 || position >= layout.devices) { says.textContent = `There is no device ${device}; the mesh has ${plural(layout.devices, "device")}.`; return; }
    const at = layout.place(position), tile = layout.tileAt(at);
    const where = layout.mesh.axes.map(([name], a) => `${name} ${at[a]}`).join(", ");
    says.textContent = `Device ${device} (${where}) holds tile ${layout.tileName(tile)}: ${layout.slice(tile)}`;
  };
  return el("label", { class: "ask" }, "What does device", el("input", { inputmode: "numeric", "aria-label": "device number", on: { input: answer } }), "hold?");
}
