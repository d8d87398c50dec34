// What the scripts share, tasks, and text forms of names and numbers.

/** Views by name: `async (root, route) => cleanup or undefined`. */
cordwood.views = {};

/** Charts by name: `(options) => element`. */
cordwood.charts = {};

/** Let the browser handle input and paint, then go on. */
cordwood.nextTask = function () {
  return new Promise((resolve) => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => {
      channel.port1.close();
      resolve();
    };
    channel.port2.postMessage(null);
  });
};

/**
 * Run a generator in tasks of a few milliseconds each, and return its value.
 * The generator yields wherever it may be interrupted.
 */
cordwood.inTasks = async function (generator, signal) {
  const taskMs = 12;
  let deadline = performance.now() + taskMs;
  for (;;) {
    const step = generator.next();
    if (step.done) return step.value;
    if (performance.now() > deadline) {
      await cordwood.nextTask();
      signal?.throwIfAborted();
      deadline = performance.now() + taskMs;
    }
  }
};

// Control, format (bidirectional overrides), surrogate, private and unassigned characters, and
// every space but the plain one: they are invisible or make a name look like another one.
const UNSAFE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
const EVERY_UNSAFE = new RegExp(UNSAFE.source, "gu");
const DEFAULT_LIMIT = 200;

/** Return a text with unsafe characters as `\u{..}` escapes, cut after `limit` characters. */
cordwood.printable = function (text, limit = DEFAULT_LIMIT) {
  text = String(text);
  let rest = 0;
  if (text.length > limit) {
    const splitsPair = /[\ud800-\udbff]/.test(text[limit - 1]);
    const stop = splitsPair ? limit - 1 : limit;
    rest = text.length - stop;
    text = text.slice(0, stop);
  }
  if (UNSAFE.test(text)) {
    text = text.replace(EVERY_UNSAFE, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
  }
  return rest ? `${text}… (${cordwood.formatCount(rest)} more characters)` : text;
};

/** Return a number; `"NaN"`, `"Infinity"` and `"-Infinity"` are numbers that JSON lacks. */
cordwood.toNumber = function (value) {
  return value === null || value === undefined ? NaN : Number(value);
};

/** Return a number with four significant digits: `0.01234`, `1.5e-7`, `inf`. */
cordwood.formatNumber = function (value) {
  const number = cordwood.toNumber(value);
  if (Number.isNaN(number)) return value === null || value === undefined ? "" : "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "inf" : "-inf";
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (Number.isInteger(number) && size < 1e6) return cordwood.formatCount(number);
  if (size >= 1e6 || size < 1e-3) {
    return number
      .toExponential(3)
      .replace(/\.?0+e/, "e")
      .replace("e+", "e");
  }
  return String(Number(number.toPrecision(4)));
};

/** Return a whole number with separators: `12,345`. */
cordwood.formatCount = function (count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, ",");
};

/** Return a count and its noun: `1 leaf`, `2 leaves`. */
cordwood.counted = function (count, singular, plural = `${singular}s`) {
  return `${cordwood.formatCount(count)} ${count === 1 ? singular : plural}`;
};

/** Return a size in readable units: `4.2 MiB`. */
cordwood.formatBytes = function (bytes) {
  let size = cordwood.toNumber(bytes);
  if (!Number.isFinite(size)) return "";
  if (size < 1024) return `${size.toFixed(0)} B`;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    size /= 1024;
    if (size < 1024 || unit === "TiB") return `${size.toFixed(1)} ${unit}`;
  }
};

/** Return a share of one as a percentage: `12 %`, `< 0.1 %`. */
cordwood.formatShare = function (share) {
  const percent = 100 * cordwood.toNumber(share);
  if (Number.isNaN(percent)) return "";
  if (percent === 0 || percent === 100) return `${percent} %`;
  if (percent < 0.1) return "< 0.1 %";
  if (percent > 99.9) return "> 99.9 %";
  return `${percent.toFixed(percent < 10 ? 1 : 0)} %`;
};

/** Return a shape as text: `768 × 3072`, `scalar`. */
cordwood.formatShape = function (shape) {
  return shape.length ? shape.join(" × ") : "scalar";
};

/** Return a text whose order is natural: `layers/2` before `layers/10`. */
cordwood.naturalKey = function (text) {
  return text.slice(0, 1000).replace(/\d+/g, (digits) => digits.padStart(12, "0"));
};
