// Charts with axes and units, drawn as SVG from a plan's numbers.

const KINDS = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "collective_permute"];
const KIND_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#9a9a9a"];

/** Round numbers from 0 to at least `most`, a few of them: bytes in units of 1024, others in tens. */
function ticks(most, binary, wanted = 4) {
  if (most <= 0) return [0, 1];
  const unit = binary ? 1024 ** Math.max(0, Math.floor(Math.log(most) / Math.log(1024))) : 10 ** Math.floor(Math.log10(most / wanted));
  const steps = binary ? [1 / 10, 1 / 5, 1 / 4, 1 / 2, 1, 2, 2.5, 5, 10, 20, 25, 50, 100, 200, 250, 500] : [1, 2, 5, 10];
  const step = unit * (steps.find((s) => most / (s * unit) <= wanted && !(binary && unit === 1 && s % 1)) || (binary ? 1024 : 10));
  const made = [];
  for (let n = 0; ; n++) { made.push(n * step); if (n * step >= most * 0.9999) return made; }
}

/** Pixels that a chart has across: all of the page, or one of two columns, so that its text keeps its size. */
function across(all) {
  const page = Math.min(window.innerWidth, 1532) - 32 - 16;
  return Math.max(360, all || page < 946 ? page : Math.floor((page - 26) / 2));
}

const BYTES = { text: bytesText, binary: true, title: "bytes received by each device in one call" };
const SECONDS = { text: secondsText, binary: false, title: "seconds of one call, if nothing overlaps" };

/** Bytes received per call, by mesh axes and kind: rows of `[axes, [bytes per kind]]`. */
function byAxes(plan) {
  const found = new Map();
  for (const row of plan.data.collectives) {
    const axes = row[3].join(" × ") || "any devices";
    if (!found.has(axes)) found.set(axes, new Array(KINDS.length + 1).fill(0));
    const kind = KINDS.indexOf(row[2]);
    found.get(axes)[kind < 0 ? KINDS.length : kind] += row[6] * (row[7] === null ? 1 : row[7]);
  }
  return found;
}

function byKind(plan) {
  const found = new Map();
  for (const row of plan.data.collectives) {
    const [count, bytes] = found.get(row[2]) || [0, 0];
    found.set(row[2], [count + 1, bytes + row[6] * (row[7] === null ? 1 : row[7])]);
  }
  return found;
}

/** Horizontal bars. Rows are `{label, side, parts: [[bytes, colour, what], ...]}`; sides are the plans that are compared. */
function bars(title, rows, unit = BYTES) {
  const wide = across(false), size = 22, between = 8, top = 6;
  const longest = Math.max(...rows.map((row) => row.label.length));
  const left = Math.min(wide * 0.42, 300, 18 + longest * 7), right = 80;
  const scale = ticks(Math.max(...rows.map((row) => row.parts.reduce((n, [bytes]) => n + bytes, 0))), unit.binary);
  const most = scale[scale.length - 1];
  const x = (bytes) => left + ((wide - left - right) * bytes) / most;
  const high = top + rows.length * (size + between);
  const drawing = svg("svg", { viewBox: `0 0 ${wide} ${high + 44}`, width: wide, height: high + 44, role: "img", "aria-label": title });
  for (const at of scale) {
    drawing.append(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: top, y2: high }), svg("text", { class: "soft", x: x(at), y: high + 16, "text-anchor": "middle" }, unit.text(at)));
  }
  drawing.append(svg("text", { class: "soft", x: (left + wide - right) / 2, y: high + 36, "text-anchor": "middle" }, unit.title));
  rows.forEach((row, n) => {
    const y = top + n * (size + between) + between / 2;
    drawing.append(svg("text", { x: left - 8, y: y + size / 2 + 4, "text-anchor": "end" }, svg("title", {}, row.label), tail(row.label, 39)));
    let from = 0;
    for (const [bytes, colour, what] of row.parts) {
      if (!bytes) continue;
      const bar = svg("rect", { x: x(from), y, width: Math.max(1, x(from + bytes) - x(from)), height: size, fill: colour, stroke: "var(--back)", "stroke-width": 1 });
      bar.append(svg("title", {}, `${what}: ${unit.text(bytes)}`));
      drawing.append(bar);
      from += bytes;
    }
    drawing.append(svg("text", { class: "value", x: x(from) + 6, y: y + size / 2 + 4 }, unit.text(from)));
  });
  drawing.append(svg("line", { class: "axis", x1: left, x2: left, y1: top, y2: high }));
  return drawing;
}

function legend(entries) {
  return el("div", { class: "legend" }, entries.map(([colour, text]) => {
    const patch = el("i", {});
    patch.style.background = colour;
    return el("span", {}, patch, text);
  }));
}

function axesChart(plans) {
  const tables = plans.map(byAxes);
  const axes = [...new Set(tables.flatMap((table) => [...table.keys()]))];
  const weight = (name) => Math.max(...tables.map((table) => (table.get(name) || [0]).reduce((n, bytes) => n + bytes, 0)));
  axes.sort((x, y) => weight(y) - weight(x));
  if (!axes.length) return null;
  const names = [...KINDS, "other"];
  const rows = axes.slice(0, 16).flatMap((name) => tables.map((table, side) => ({
    label: plans.length > 1 ? `${side ? "B" : "A"}  ${name}` : name,
    parts: (table.get(name) || []).map((bytes, kind) => [bytes, KIND_COLOURS[kind], names[kind]]),
  })));
  const used = names.flatMap((name, kind) => (tables.some((table) => [...table.values()].some((parts) => parts[kind])) ? [[KIND_COLOURS[kind], name]] : []));
  return el("figure", {}, el("figcaption", {}, "Communication per mesh axis"), el("p", {}, "Every collective counts as often as it runs in one call."), legend(used), bars("Communication per mesh axis", rows));
}

function kindsChart(plans) {
  const tables = plans.map(byKind);
  const kinds = [...KINDS, "other"].filter((kind) => tables.some((table) => table.has(kind)));
  if (!kinds.length) return null;
  const rows = kinds.flatMap((kind) => tables.map((table, side) => {
    const [count, bytes] = table.get(kind) || [0, 0];
    return { label: `${plans.length > 1 ? `${side ? "B" : "A"}  ` : ""}${kind} (${count})`, parts: [[bytes, KIND_COLOURS[KINDS.indexOf(kind)] || KIND_COLOURS[5], kind]] };
  }));
  return el("figure", {}, el("figcaption", {}, "Communication per kind"), el("p", {}, "In parentheses how many there are in the program."), bars("Communication per kind", rows));
}

/** Seconds of the costliest modules, lines or ops, computing and sending. */
function timeChart(plans, what, title) {
  const shown = plans.map((plan) => (plan.data.time ? plan.data.time[what] : []));
  const names = [...new Set(shown.flatMap((rows) => rows.map(([name]) => name)))];
  const told = new Map(shown.flat().map(([name, compute, send]) => [name, compute + send]));
  names.sort((x, y) => told.get(y) - told.get(x));
  if (!names.length || (names.length === 1 && !names[0])) return null;
  const rows = names.slice(0, 12).flatMap((name) => shown.map((list, side) => {
    const [, compute, send] = list.find(([n]) => n === name) || [name, 0, 0];
    const label = what === "lines" ? baseName(name) || "(no source line)" : name || "(none)";
    return { label: `${plans.length > 1 ? `${side ? "B" : "A"}  ` : ""}${label}`, parts: [[compute, KIND_COLOURS[1], "computing"], [send, KIND_COLOURS[0], "communication"]] };
  }));
  return el("figure", {}, el("figcaption", {}, title), legend([[KIND_COLOURS[1], "computing"], [KIND_COLOURS[0], "communication"]]), bars(title, rows, SECONDS));
}

/** Live bytes over the program: steps of `[op, bytes]`, one line per plan. */
function memoryChart(plans, go) {
  const shown = plans.map((plan, side) => ({ plan, side, memory: plan.data.memory })).filter(({ memory }) => memory && memory.at.length);
  if (!shown.length) return null;
  const wide = across(true), high = 280, left = 70, right = 24, top = 26, bottom = 48;
  const last = Math.max(1, ...shown.map(({ memory }) => memory.end));
  const scale = ticks(Math.max(...shown.flatMap(({ memory }) => memory.bytes), ...shown.map(({ memory }) => memory.peak)), true, 5);
  const most = scale[scale.length - 1];
  const x = (op) => left + ((wide - left - right) * op) / last;
  const y = (bytes) => top + (high - top - bottom) * (1 - bytes / most);
  const title = "Live memory over the program";
  const drawing = svg("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img", "aria-label": title });
  for (const at of scale) drawing.append(svg("line", { class: "grid", x1: left, x2: wide - right, y1: y(at), y2: y(at) }), svg("text", { class: "soft", x: left - 8, y: y(at) + 4, "text-anchor": "end" }, bytesText(at)));
  for (const at of ticks(last, false, 6)) if (at <= last) drawing.append(svg("line", { class: "axis", x1: x(at), x2: x(at), y1: high - bottom, y2: high - bottom + 4 }), svg("text", { class: "soft", x: x(at), y: high - bottom + 18, "text-anchor": "middle" }, grouped(at)));
  drawing.append(svg("line", { class: "axis", x1: left, x2: wide - right, y1: high - bottom, y2: high - bottom }), svg("text", { class: "soft", x: (left + wide - right) / 2, y: high - 8, "text-anchor": "middle" }, "step of the program"));
  for (const { side, memory } of shown) {
    const colour = side ? "var(--b)" : "var(--a)";
    let path = "";
    memory.at.forEach((op, n) => { path += n ? `H${x(op).toFixed(1)}V${y(memory.bytes[n]).toFixed(1)}` : `M${x(op).toFixed(1)} ${y(memory.bytes[n]).toFixed(1)}`; });
    path += `H${x(memory.end).toFixed(1)}`;
    if (shown.length === 1) drawing.append(svg("path", { d: `${path}V${y(0)}H${x(memory.at[0]).toFixed(1)}Z`, fill: colour, opacity: 0.18 }));
    drawing.append(svg("path", { d: path, fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": side ? "6 3" : null }));
    const px = x(memory.peak_at), py = y(memory.peak);
    drawing.append(svg("circle", { cx: px, cy: py, r: 4.5, fill: colour, stroke: "var(--back)", "stroke-width": 1.5 }));
    if (plans.length > 1) continue;
    const anchor = px > wide * 0.7 ? "end" : px < wide * 0.3 ? "start" : "middle";
    drawing.append(svg("text", { class: "value", x: px, y: py - 9, "text-anchor": anchor, "font-weight": 600 }, `peak ${bytesText(memory.peak)}`));
  }
  const peaks = shown.map(({ side, memory }) => [side ? "var(--b)" : "var(--a)", `${side ? "B, dashed" : "A"}: peak ${bytesText(memory.peak)} at step ${grouped(memory.peak_at)}${memory.where ? `, ${memory.where}` : ""}`]);
  const lists = shown.map(({ plan, side, memory }) => el("div", {},
    plans.length > 1 ? el("h3", {}, el("span", { class: `side ${side ? "b" : "a"}` }, side ? "B" : "A"), " at the peak") : el("h3", {}, `At the peak${memory.where ? `, ${memory.where}` : ""}`),
    el("table", {}, el("tbody", {}, memory.top.map(([i, name, bytes, what]) => el("tr", {}, el("td", { class: "what" }, i >= 0 ? el("button", { class: "link", on: { click: () => go(plan, i) } }, name) : el("code", {}, name)), el("td", { class: "soft" }, what), el("td", { class: "right" }, bytesText(bytes))))))));
  return el("figure", { class: "wide" }, el("figcaption", {}, title), el("p", {}, "Bytes per device, at every step of the compiled program; a loop's body once."), plans.length > 1 ? legend(peaks) : null, drawing, el("div", { class: "charts" }, lists));
}

function chartsView(plans, go) {
  const made = [memoryChart(plans, go), axesChart(plans), kindsChart(plans), timeChart(plans, "modules", "Time per module"), timeChart(plans, "lines", "Time per source line"), timeChart(plans, "ops", "Time per primitive")].filter(Boolean);
  return made.length ? [el("div", { class: "charts" }, made)] : [el("p", { class: "empty" }, "No data moves between devices, so there is nothing to draw.")];
}
