// Ranks of the site's search: Sphinx's own, with pages of single names behind guides.
var Scorer = {
  score: ([page, , , , rank]) => rank - (page.startsWith("reference/") ? 100 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
