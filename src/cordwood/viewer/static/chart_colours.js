"use strict";
// Colours of charts, read from the style sheet so that they follow the theme.
(function (cordwood) {
  const DRAWING_MS = 12; // of charts in one task
  let palette = null;
  let drawingMs = 0; // of this task so far

  /** Return the colours of the theme: `text`, `muted`, `panel`, `line`, `accent`, `chart` (8). */
  cordwood.palette = function () {
    if (palette) return palette;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => parse(style.getPropertyValue(`--${name}`).trim());
    palette = {
      chart: [1, 2, 3, 4, 5, 6, 7, 8].map((i) => colour(`chart-${i}`)),
      low: colour("scale-low"),
      middle: colour("scale-middle"),
      high: colour("scale-high"),
      negative: colour("scale-negative"),
    };
    for (const name of ["text", "muted", "panel", "line", "accent", "damaged", "background"]) {
      palette[name] = colour(name);
    }
    return palette;
  };

  /** Forget the colours and draw every chart again: the theme has changed. */
  cordwood.themeChanged = function () {
    palette = null;
    document.dispatchEvent(new Event("cordwood-theme"));
  };

  /**
   * Call `draw(width)` when the width of an element changes, and `drawTheme()` when the theme does,
   * until the element is removed from the page or the view is left.
   */
  cordwood.onWidth = function (element, draw, drawTheme = null) {
    const ending = new AbortController();
    const { signal } = ending;
    let last = 0;
    const observer = new ResizeObserver(async () => {
      if (!element.isConnected) return last && ending.abort(); // removed; or not yet on the page
      const width = Math.floor(element.clientWidth);
      if (!width || width === last) return;
      last = width;
      if (drawingMs > DRAWING_MS) await cordwood.nextTask();
      if (width !== last || signal.aborted) return;
      const begin = performance.now();
      if (!drawingMs) cordwood.nextTask().then(() => (drawingMs = 0));
      draw(width);
      drawingMs += performance.now() - begin;
    });
    observer.observe(element);
    signal.addEventListener("abort", () => observer.disconnect());
    cordwood.viewSignal?.addEventListener("abort", () => ending.abort(), { signal });
    if (drawTheme) document.addEventListener("cordwood-theme", drawTheme, { signal });
  };

  /** Return `[red, green, blue]` of `#rrggbb`. */
  function parse(text) {
    const number = Number.parseInt(text.slice(1), 16);
    return [number >> 16, (number >> 8) & 255, number & 255];
  }

  /** Return the colour between two colours: 0 is the first, 1 the second. */
  cordwood.mix = function (first, second, share) {
    return first.map((value, i) => Math.round(value + (second[i] - value) * share));
  };

  /** Return the CSS text of a colour. */
  cordwood.css = function (colour, alpha = 1) {
    return alpha === 1 ? `rgb(${colour.join(" ")})` : `rgb(${colour.join(" ")} / ${alpha})`;
  };

  /** Return the colour of a share from 0 to 1 on the sequential scale, or -1 to 1 on the other. */
  cordwood.scaleColour = function (share, diverging) {
    const { low, middle, high, negative } = cordwood.palette();
    if (diverging) {
      const end = share < 0 ? negative : high;
      return cordwood.mix(middle, end, Math.min(1, Math.abs(share)));
    }
    return cordwood.mix(low, high, Math.max(0, Math.min(1, share)));
  };

  /** Return black or white, whichever is readable on a colour. */
  cordwood.inkOn = function ([red, green, blue]) {
    const linear = [red, green, blue].map((value) => (value / 255) ** 2.2);
    const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    return light > 0.18 ? "#000000" : "#ffffff";
  };

  /** Give a canvas a size in CSS pixels; return its context, scaled to the screen. */
  cordwood.sizedContext = function (canvas, width, height) {
    const ratio = Math.min(3, globalThis.devicePixelRatio || 1);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  };
})(globalThis.cordwood);
