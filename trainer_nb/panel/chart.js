// One figure, drawn whole whenever it changes. The kernel holds all of it at any moment, so a page that comes late, or a second
// time, shows the same as the others.
const CONFIG = { displayModeBar: false, displaylogo: false };

// plotly.js is in a model of its own: unpacked once in a page, by the first chart, for all.
async function unpack(model) {
  const script = await model.widget_manager.get_model(model.get("script").slice("IPY_MODEL_".length));
  const unpacked = new Blob([script.get("code")]).stream().pipeThrough(new DecompressionStream("gzip"));
  const url = URL.createObjectURL(new Blob([await new Response(unpacked).text()], { type: "text/javascript" }));
  try {
    await import(url);
  } finally {
    URL.revokeObjectURL(url);
  }
  return globalThis.Plotly;
}

function plotly(model) {
  const page = globalThis;
  page.trainer_nb_plotly ??= unpack(model).catch((error) => {
    page.trainer_nb_plotly = undefined;  // another chart may have more luck
    throw error;
  });
  return page.trainer_nb_plotly;
}

// Numbers come as bytes that may begin anywhere: copied to where floats may stand.
function floats(view) {
  return new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

function unpacked(trace) {
  return { ...trace, x: floats(trace.x), y: floats(trace.y) };
}

export default {
  // `loaded`: a promise of plotly.js, where a page has it from elsewhere; `model` is then anything with get, on, off and send.
  render({ model, el, loaded = plotly(model) }) {
    const box = el.appendChild(document.createElement("div"));
    let Plotly = null, gone = false, asked = 0, timer = 0, click = 0;
    const draw = () => {
      asked = 0;
      if (!Plotly) return;
      const { data, layout } = model.get("figure");
      Plotly.react(box, data.map(unpacked), structuredClone(layout), CONFIG);
      if (!listening) listening = listen();
    };
    // A click chooses a place on the x-axis; the second one of a double click, which ends a zoom, does not.
    let listening = false;
    const listen = () => {
      box.on("plotly_click", ({ points, event }) => {
        clearTimeout(click);
        if (event.detail < 2) click = setTimeout(() => model.send({ x: Number(points[0].x) }), 350);
      });
      box.on("plotly_doubleclick", () => clearTimeout(click));
      return true;
    };
    const ask = () => { asked ||= requestAnimationFrame(draw); };  // a page in the background draws when it is looked at
    const observer = new ResizeObserver(() => {
      clearTimeout(timer);
      timer = setTimeout(() => { if (Plotly && box.data && box.offsetWidth) Plotly.Plots.resize(box); }, 60);
    });
    model.on("change:figure", ask);
    observer.observe(el);
    loaded.then(
      (found) => { Plotly = found; if (!gone) ask(); },
      (error) => { box.textContent = `The curves cannot be drawn (${error.message}): reload the page.`; });
    return () => {
      gone = true;
      model.off("change:figure", ask);
      observer.disconnect();
      clearTimeout(timer);
      clearTimeout(click);
      cancelAnimationFrame(asked);
      Plotly?.purge(box);
    };
  },
};
