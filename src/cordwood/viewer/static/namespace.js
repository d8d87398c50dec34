"use strict";
// The one name that the scripts share, and what the others add to.
(function () {
  const cordwood = (globalThis.cordwood ??= {});

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
})();
