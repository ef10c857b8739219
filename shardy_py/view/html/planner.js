// The search of a planner: what the plan costs, what no plan goes below, and what else was considered.

const OF_A_STEP = { text: secondsText, binary: false, title: "seconds of one call" };

function searchView(plan, go) {
  const search = plan.data.search;
  if (!search) return [el("p", { class: "empty" }, "Annotations alone say how values are sharded here; nothing was searched.")];
  const fact = (what, ...text) => [el("dt", {}, what), el("dd", {}, text)];
  const facts = el("dl", { class: "facts" },
    fact("step", el("b", {}, secondsText(search.seconds)), ` on ${search.hardware}`),
    fact("lower bound", search.text),
    fact(`peak on ${search.hardware}`, search.peak),
    search.space.map(([what, text]) => fact(what, text)));
  if (!search.alternatives.length) return [facts];
  const bound = search.bound === null ? [] : [["lower bound", search.bound, KIND_COLOURS[0]]];
  const names = [...bound, ["this plan", search.seconds, KIND_COLOURS[2]], ...search.alternatives.map(([name, seconds]) => [name, seconds, KIND_COLOURS[5]])];
  const rows = names.map(([label, seconds, colour]) => ({ label, parts: [[seconds, colour, label]] }));
  const times = (seconds) => (search.seconds > 0 ? `${(seconds / search.seconds).toFixed(2)} ×` : "");
  const otherwise = (others, more) => (others.length ? [
    others.map(([i, path, spec]) => el("div", {}, el("button", { class: "link", on: { click: () => go(plan, i) } }, path), " ", el("code", {}, spec))),
    more ? el("div", { class: "soft" }, `and ${plural(more, "more input")}`) : null,
  ] : el("span", { class: "soft" }, "none; values inside differ"));
  const listed = table(["alternative", "inputs sharded differently", "step", "relative to this plan"], search.alternatives, ([name, seconds, others, more]) => el("tr", {},
    el("td", {}, name), el("td", {}, otherwise(others, more)), el("td", { class: "right" }, secondsText(seconds)), el("td", { class: "right" }, times(seconds))));
  return [facts, el("figure", {}, el("figcaption", {}, "The bound, the plan, and alternatives"), bars("The bound, the plan, and alternatives", rows, OF_A_STEP)), ...listed];
}
