// Where data moves, and findings: as lines in the panel, and as lists of their own.

const PAGE = 100;

function runs(trips) {
  return trips === null ? " each trip" : trips === 1 ? "" : ` × ${grouped(trips)}`;
}

function collectiveLine(plan, row) {
  const [, , kind, axes, group, operand, bytes, trips, primitive, place] = row;
  const where = plan.location(place);
  return [
    el("b", {}, `${kind}(${axes.join(", ")})`), ` of ${operand}, ${plural(group, "device")}: ${bytesText(bytes)}${runs(trips)}`,
    el("div", { class: "soft" }, plan.strings[primitive], where ? [" at ", el("code", {}, where)] : ""),
  ];
}

function findingLine(plan, row, go) {
  const [severity, kind, message, i, path, place, bytes, fix] = row;
  const where = plan.location(place);
  const value = go && i >= 0 ? el("button", { class: "link", on: { click: () => go(plan, i) } }, path) : path ? el("code", {}, path) : null;
  return [
    el("div", {}, el("span", { class: `mark ${severity}` }, severity), " ", el("b", {}, kind), bytes ? ` ${bytesText(bytes)}` : "", value ? [" ", value] : "", where ? [" ", el("code", { class: "soft", title: plan.location(place, false) }, where)] : ""),
    el("div", {}, message),
    fix ? el("div", {}, el("span", { class: "soft" }, "fix: "), el("code", {}, fix)) : null,
  ];
}

/** A list of which a page is shown at a time. */
function paged(entries, draw, into) {
  let shown = 0;
  const more = el("p", {}, el("button", { on: { click: () => add() } }, ""));
  const add = () => {
    into.append(...entries.slice(shown, shown + PAGE).map(draw));
    shown = Math.min(entries.length, shown + PAGE);
    more.classList.toggle("hidden", shown >= entries.length);
    more.firstChild.textContent = `show more: ${grouped(shown)} of ${grouped(entries.length)} are shown`;
  };
  add();
  return more;
}

/** Rows that differ in nothing but the value as one, those that move the most bytes first. */
function alike(rows) {
  const byText = new Map();
  for (const row of rows) {
    const key = JSON.stringify(row.slice(2));
    if (!byText.has(key)) byText.set(key, []);
    byText.get(key).push(row);
  }
  const weight = (same) => same.length * same[0][6] * (same[0][7] === null ? 1 : same[0][7]);
  return [...byText.values()].map((same) => ({ rows: same, bytes: weight(same) })).sort((x, y) => y.bytes - x.bytes);
}

/** The values of rows that are alike: the first, and how many more. */
function namesOf(plan, rows, go) {
  const [i, name] = rows[0];
  const first = i >= 0 ? el("button", { class: "link", on: { click: () => go(plan, i) } }, name) : el("code", {}, name);
  return [first, rows.length > 1 ? el("span", { class: "soft" }, ` and ${grouped(rows.length - 1)} more`) : null];
}

function table(heads, entries, draw) {
  const body = el("tbody", {});
  const more = paged(entries, draw, body);
  const head = el("tr", {}, heads.map((text, n) => el("th", { scope: "col", class: n >= heads.length - 2 ? "right" : null }, text)));
  return [el("table", {}, el("thead", {}, head), body), more];
}

function asked(plan, reason, place) {
  const where = plan.location(place);
  return el("div", { class: "soft" }, plan.strings[reason], where ? [plan.strings[reason] ? " at " : "", el("code", { title: plan.location(place, false) }, where)] : "");
}

function movesView(plan, go) {
  const sent = table(["value", "operand, and the op that needs it", "collective", "bytes each", "in all"], alike(plan.data.collectives), ({ rows, bytes }) => {
    const [, , kind, axes, group, operand, once, trips, primitive, place] = rows[0];
    return el("tr", {},
      el("td", {}, namesOf(plan, rows, go)),
      el("td", {}, el("code", {}, operand), asked(plan, primitive, place)),
      el("td", {}, el("div", { class: "whole" }, `${kind}(${axes.join(",")})`), el("div", { class: "soft" }, plural(group, "device"))),
      el("td", { class: "right" }, `${bytesText(once)}${runs(trips)}`),
      el("td", { class: "right" }, bytesText(bytes)));
  });
  return [
    plan.data.remark && el("p", {}, plan.data.remark),
    el("h3", {}, "Collectives"), ...(plan.data.collectives.length ? sent : [el("p", { class: "empty" }, "No data moves between devices.")]),
    el("p", { class: "soft" }, "Bytes received by each device."),
  ];
}

const GRAVITY = { error: 0, warning: 1, info: 2 };

function findingsView(plan, go) {
  if (!plan.data.findings.length) return [el("p", { class: "empty" }, "Nothing was found that deserves a look.")];
  const groups = byFinding(plan.data.findings).sort((x, y) => GRAVITY[x[0][0]] - GRAVITY[y[0][0]]);
  const list = el("ul", { class: "plain" });
  return [list, paged(groups, (rows) => el("li", {}, findingLine(plan, rows[0], go), others(plan, rows.slice(1), go)), list)];
}

/** The rows of each finding: one for each value that it is about, as those of layers. */
function byFinding(rows) {
  const byNumber = new Map();
  for (const row of rows) {
    if (!byNumber.has(row[8])) byNumber.set(row[8], []);
    byNumber.get(row[8]).push(row);
  }
  return [...byNumber.values()];
}

/** The values of the other findings of a group, behind a triangle. */
function others(plan, rows, go) {
  if (!rows.length) return null;
  const list = el("ul", { class: "plain" });
  const name = ([, , , i, path]) => (i >= 0 ? el("button", { class: "link", on: { click: () => go(plan, i) } }, path) : el("code", {}, path));
  return el("details", {}, el("summary", {}, `and ${grouped(rows.length)} more like it`), list, paged(rows, (row) => el("li", {}, name(row)), list));
}
