// A plan as the page sees it: columns of numbers, tables, and what is worked out from them when it is asked for.

class Plan {
  constructor(data) {
    this.data = data;
    this.tables = data.tables;
    this.strings = data.tables.strings;
    const v = data.values;
    this.inputs = v.inputs;
    this.count = v.types.length;
    this.firstOutput = this.count - v.outputs;
    this.texts = new Map();
  }

  get mesh() { return this.tables.meshes[0]; }

  kind(i) { return i < this.inputs ? "input" : i < this.firstOutput ? "intermediate" : i < this.count ? "output" : "inner value"; }

  /** Parts of the path of an input or output. */
  parts(i) {
    return this.data.values.paths[i < this.inputs ? i : i - this.firstOutput + this.inputs].map((s) => this.strings[s]);
  }

  name(i) {
    if (i >= this.count) return this.data.unlisted[i - this.count];
    if (i < this.inputs || i >= this.firstOutput) return this.parts(i).join("");
    const names = this.data.values.names;
    return names ? names[i - this.inputs] : `%${i - this.inputs}`;
  }

  find(name) {
    if (!this.byName) {
      this.byName = new Map();
      for (let i = 0; i < this.count; i++) if (!this.byName.has(this.name(i))) this.byName.set(this.name(i), i);
    }
    return this.byName.has(name) ? this.byName.get(name) : -1;
  }

  type(i) { return this.tables.types[this.data.values.types[i]]; }
  primitive(i) { return this.strings[this.data.values.primitives[i]]; }
  depth(i) { return this.data.values.depths[i]; }
  place(i) { return this.data.values.places[i]; }

  /** `file:line` of a place; only the file's own name if `brief`. */
  location(place, brief = true) {
    const [file, line] = this.tables.places[place];
    const text = this.strings[file];
    return line ? `${brief ? baseName(text) : text}:${line}` : text;
  }

  module(place) { return this.strings[this.tables.places[place][2]]; }

  /** The type of an input or output as it was annotated; null where nothing was said of it. */
  given(i) {
    if (this.kind(i) !== "input" && this.kind(i) !== "output") return null;
    const number = this.data.values.given[i < this.inputs ? i : i - this.firstOutput + this.inputs];
    return number < 0 ? null : this.tables.types[number];
  }

  replicated(i) {
    const { sharding, shape } = this.type(i);
    return shape.length > 0 && (sharding < 0 || this.tables.shardings[sharding].dims.every((axes) => axes.length === 0));
  }

  /** Rows of collectives or findings about a value; `at` is the column that has its number. */
  about(list, at, i) {
    const key = `by-${list}`;
    if (!this[key]) {
      this[key] = new Map();
      this.data[list].forEach((row, n) => {
        if (row[at] < 0) return;
        if (!this[key].has(row[at])) this[key].set(row[at], []);
        this[key].get(row[at]).push(n);
      });
    }
    return (this[key].get(i) || []).map((n) => this.data[list][n]);
  }

  collectivesOf(i) { return this.about("collectives", 0, i); }
  absencesOf(i) { return this.about("absences", 0, i); }
  findingsOf(i) { return this.about("findings", 3, i); }

  axisName(axis, mesh) {
    return typeof axis === "number" ? mesh.axes[axis][0] : `${mesh.axes[axis[0]][0]}:(${axis[1]})${axis[2]}`;
  }

  /** For each value how many axes the values before it have. */
  get axesBefore() {
    if (!this.axes) {
      const perType = this.tables.types.map((type) => (type.sharding < 0 ? 0 : this.dims(type).reduce((n, axes) => n + axes.length, 0)));
      this.axes = new Int32Array(this.count + 1);
      for (let i = 0; i < this.count; i++) this.axes[i + 1] = this.axes[i] + perType[this.data.values.types[i]];
    }
    return this.axes;
  }

  dims(type) { return type.sharding < 0 ? [] : this.tables.shardings[type.sharding].dims.slice(0, type.shape.length); }

  /** How axis `n` of a value, counted over its dimensions, came there: links, each before those that it needs. */
  chain(i, n) {
    const links = this.data.links;
    const order = [], seen = new Set(), stack = [links.first[this.axesBefore[i] + n]];
    while (stack.length) {
      const at = stack.pop();
      if (seen.has(at)) continue;
      seen.add(at);
      const needs = [links.needs[at]].flat().filter((need) => need >= 0);
      stack.push(...[...needs].reverse());
      const [cause, through, rule, factor, annotation] = links.way_rows[links.ways[at]].slice(0, 5).map((s) => this.strings[s]);
      const [user, op] = links.way_rows[links.ways[at]].slice(5);
      const [dim, axes] = links.spot_rows[links.spots[at]];
      order.push({ value: links.holders[at], dim, axis: axes[axes.length - 1], cause, through, rule, factor, annotation, user, op, place: links.places[at], step: links.steps[at], needs: needs.length });
    }
    return order;
  }

  /** Bytes of a value in the memory of a device, none in the host's. */
  bytes(i) {
    const type = this.type(i);
    return type.host ? 0 : type.bytes;
  }

  /** The same of all values from one number up to another. */
  total(from, to) {
    let sum = 0;
    for (let i = from; i < to; i++) sum += this.bytes(i);
    return sum;
  }

  /** Bytes received per call: `[sum, exact]`; a loop of unknown length counts once. */
  get communication() {
    let sum = 0, exact = true;
    for (const row of this.data.collectives) {
      sum += row[6] * (row[7] === null ? 1 : row[7]);
      if (row[7] === null) exact = false;
    }
    return [sum, exact];
  }
}

/** What the page lists: values of one plan, or pairs of two. -1 stands for a value that the other plan does not have. */
class Items {
  constructor(a, b, partners) {
    this.a = a;
    this.b = b;
    this.left = [];
    this.right = null;
    for (let i = 0; i < a.count; i++) this.left.push(i);
    if (!b) return;
    this.right = partners.slice();
    const met = new Uint8Array(b.count);
    for (const j of partners) if (j >= 0) met[j] = 1;
    for (let j = 0; j < b.count; j++) if (!met[j]) { this.left.push(-1); this.right.push(j); }
  }

  get count() { return this.left.length; }

  /** The plan to ask about an item and the number of the value there. */
  main(item) { return this.left[item] >= 0 ? [this.a, this.left[item]] : [this.b, this.right[item]]; }

  /** Number of the item of a value of plan a, or of plan b. */
  of(plan, i) {
    if (plan === this.a) return i;
    if (!this.back) {
      this.back = new Int32Array(this.b.count).fill(-1);
      this.right.forEach((j, item) => { if (j >= 0) this.back[j] = item; });
    }
    return this.back[i];
  }

  changed(item) {
    if (!this.b) return false;
    const i = this.left[item], j = this.right[item];
    return i < 0 || j < 0 || this.a.type(i).text !== this.b.type(j).text;
  }
}
