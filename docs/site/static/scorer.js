// The order of search results. As Sphinx's own, but of equal results the how-to pages come first, and
// pages about the inside of cordwood come last.
const INSIDE = /^(docs\/design\/|benchmarks\/|CHANGELOG|CONTRIBUTING|examples\/)/;

var Scorer = {
  score: ([docname, title, anchor, description, score]) =>
    score + (INSIDE.test(docname) ? -20 : docname.startsWith("docs/how-to/") ? 1 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
