// Resources: JSON values with a name, from the server or, in an export, from the page itself.
const { nextTask, printable } = cordwood;
const CACHED_RESOURCES = 24;
const LONG_LINE = 500_000; // characters that take more than a few milliseconds to parse
const cache = new Map(); // in the order of their last use

/** An error that a resource answered with, or the failure to reach it. */
cordwood.ResourceError = class ResourceError extends Error {
  constructor(type, message) {
    super(message);
    this.name = "ResourceError";
    this.type = type;
  }
};

/** True if this page is an export: it has no server. */
cordwood.inExport = document.documentElement.hasAttribute("data-exported");

/** Return the name of a resource: its parts percent-encoded and joined by slashes. */
cordwood.resourceName = function (...parts) {
  return parts.map(encodePart).join("/");
};

/** Return a text percent-encoded as `urllib.parse.quote(text, safe="")` does. */
function encodePart(text) {
  return encodeURIComponent(String(text).toWellFormed()).replace(
    /[!'()*]/g,
    (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`,
  );
}

let scripts = null;

/** Return the element of the page that holds a resource, or null. */
function embedded(name) {
  if (!scripts) {
    const elements = document.querySelectorAll("script[data-resource]");
    scripts = new Map([...elements].map((script) => [script.dataset.resource, script]));
  }
  return scripts.get(name) ?? null;
}

/** Return true if a resource can be had: always with a server, in an export if it is inside. */
cordwood.hasResource = function (name) {
  return !cordwood.inExport || cache.has(name) || embedded(name) !== null;
};

/** Return the name of the first of some readings of a resource that can be had; null if there is none. */
cordwood.heldResource = function (reads, ...parts) {
  return reads.map((read) => cordwood.resourceName(...parts, read)).find(cordwood.hasResource) ?? null;
};

/**
 * Return the value of a resource.
 * `onProgress({done_bytes, total_bytes, doing})` is called while the server computes it;
 * aborting `signal` ends the computation.
 */
cordwood.fetchResource = async function (name, { onProgress = null, signal = null } = {}) {
  signal?.throwIfAborted();
  let value = cache.get(name);
  if (value === undefined) {
    const script = embedded(name);
    if (script) value = JSON.parse(script.textContent);
    else if (cordwood.inExport) throw cordwood.leftOut();
    else value = await request(name, onProgress, signal);
  }
  // Files may change and a run may go on: these are asked for anew each time.
  if (name === "run" || name.startsWith("verify/")) return value;
  cache.delete(name);
  cache.set(name, value);
  if (cache.size > CACHED_RESOURCES) cache.delete(cache.keys().next().value);
  return value;
};

/** Return the error of a resource that the export does not hold. */
cordwood.leftOut = function () {
  const command = cordwood.start?.command ?? "cordwood view PATH";
  return new cordwood.ResourceError(
    "LeftOut",
    `This file does not hold these values: they were left out to keep it small. ` +
      `To see them, run: ${command}`,
  );
};

/** Return the value of a resource that the server computes: lines of progress, then the result. */
async function request(name, onProgress, signal) {
  let response;
  try {
    response = await fetch(`resource/${name}`, { signal, cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new cordwood.ResourceError(
      "NoServer",
      "The server does not answer: it may have ended. Start `cordwood view` again.",
    );
  }
  if (!response.ok || !response.body) {
    const text = printable(await response.text(), 500);
    throw new cordwood.ResourceError("Refused", `The server answered ${response.status}. ${text}`);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = []; // the parts of a line that is not complete
  for (;;) {
    const { done, value } = await readFrom(reader, signal);
    const lines = done ? ["", ""] : value.split("\n");
    for (const text of lines.slice(0, -1)) {
      const line = [...pending, text].join("");
      pending = [];
      if (!line) continue;
      const isLong = line.length > LONG_LINE;
      if (isLong) await nextTask();
      const message = JSON.parse(line);
      if (isLong) await nextTask(); // what follows is a task of its own
      if ("result" in message) return message.result;
      if (message.error) {
        throw new cordwood.ResourceError(message.error.type, message.error.message);
      }
      if (message.progress) onProgress?.(message.progress);
    }
    if (done) break;
    pending.push(lines.at(-1));
  }
  throw new cordwood.ResourceError("NoServer", "The answer of the server ends too early.");
}

/** Read the next part of an answer; a connection that breaks is an error that says so. */
async function readFrom(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new cordwood.ResourceError(
      "NoServer",
      "The connection to the server broke: it may have ended. Start `cordwood view` again.",
    );
  }
}
