// The order of search results. As Sphinx's own, but of equal results those with more words of the query in
// their headings come first, then how-to pages; pages about the inside of cordwood come last.
const INSIDE = /^(docs\/design\/|benchmarks\/|CHANGELOG|CONTRIBUTING|examples\/)/;

// The number of words of the query in the headings of a page.
function wordsInHeadings(docname) {
  const query = new URLSearchParams(window.location.search).get("q") || "";
  const file = Search._index.docnames.indexOf(docname);
  const has = (word) => [Search._index.titleterms[word] ?? []].flat().includes(file);
  return [...Search._parseQuery(query)[1]].filter(has).length;
}

var Scorer = {
  score: ([docname, title, anchor, description, score]) =>
    score + 2 * wordsInHeadings(docname)
    + (INSIDE.test(docname) ? -20 : docname.startsWith("docs/how-to/") ? 1 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
