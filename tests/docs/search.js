// The search of the built site: node search.js SITE QUERY ... prints the results of each query.
const fs = require("fs"), vm = require("vm");
const [site, ...queries] = process.argv.slice(2);
const document = {
  addEventListener() {},
  documentElement: {dataset: {}},
  getElementById: () => null,
  readyState: "loading",
};
const context = vm.createContext(
  {document, console, SPHINX_HIGHLIGHT_ENABLED: false, localStorage: {}, URLSearchParams});
context.window = context;
const files = ["doctools.js", "language_data.js", "searchtools.js"].map(
  (name) => "_static/" + name);
const code = [...files, "searchindex.js"].map((name) => fs.readFileSync(site + "/" + name, "utf8"));
vm.runInContext(code.join(";\n") + ";globalThis.search = Search", context);
const search = (query) => {
  context.location = {search: "?" + new URLSearchParams({q: query})};
  return context.search._performSearch(...context.search._parseQuery(query));
};
console.log(JSON.stringify(queries.map(search)));
