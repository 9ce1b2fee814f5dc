// The curves as a file: all records that are shown, or the picture.
import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { COLUMNS } from "./store.js";
import { isBranch } from "./words.js";

export const fileName = (name, ending) => `${name.replace(/[^\w.-]+/g, "_").slice(0, 80) || "run"}.${ending}`;

export function download(name, text, type) {
  const link = document.createElement("a"), url = URL.createObjectURL(new Blob([text], { type }));
  Object.assign(link, { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
const at = Object.fromEntries(COLUMNS.map((name, place) => [name, place])), WIDTH = COLUMNS.length;
const digits = (value) => (Number.isNaN(value) ? "nan" : Number.isFinite(value) ? String(Number(value.toPrecision(7))) : value > 0 ? "inf" : "-inf");

// A line for each point; one that stands for several steps has their mean, lowest and highest value.
export function csvOf(runs, hidden = new Set()) {
  const lines = [["run", "record", "step", "epoch", "samples", "seconds", "value", "lowest", "highest", "of"].join(",")];
  for (const { name: run, curves } of runs) {
    for (const [name, { rows, stride }] of Object.entries(curves).sort(([one], [other]) => (one < other ? -1 : 1))) {
      if (isBranch(name) || hidden.has(name)) continue;
      for (let row = 0; row < rows.length; row += WIDTH) {
        const cell = (column) => rows[row + at[column]];
        lines.push([quoted(run), quoted(name), cell("step") + cell("wraps") * 2 ** 24, ...["epoch", "samples", "seconds", "mean", "low", "high"].map((each) => digits(cell(each))), stride].join(","));
      }
    }
  }
  return `${lines.join("\n")}\n`;
}

const DARK = "#333333";

// What plotly is to draw: on white, with a legend where lines have names.
export function pictureOf(data, layout) {
  const named = (trace) => trace.hoverinfo !== "skip" && (trace.xaxis ?? "x") === "x" && trace.yaxis !== "y99" && !["not finite", "beyond the scale"].includes(trace.name);
  return {
    data: data.map((trace) => ({ ...trace, showlegend: named(trace) })),
    layout: {
      ...layout, paper_bgcolor: "white", plot_bgcolor: "white", showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, font: { ...layout.font, color: DARK, family: "Helvetica, Arial, sans-serif" }, margin: { ...layout.margin, t: 36 },
    },
  };
}

// An SVG is a text: it needs no picture of another address, which the policy of a page may forbid.
export async function svgOf(plotly, box) {
  const { width, height } = box.getBoundingClientRect(), found = await plotly.toImage(pictureOf(box.data, box.layout), { format: "svg", width: Math.round(width), height: Math.round(height) + 28 });
  return decodeURIComponent(found.slice(found.indexOf(",") + 1));
}

// `runs` gives those that are shown, `draw` the picture.
export function Save({ name, runs, hidden, draw }) {
  const [wrong, setWrong] = useState("");
  const picture = async () => {
    try {
      download(fileName(name, "svg"), await draw(), "image/svg+xml");
      setWrong("");
    } catch (error) {
      setWrong(`No picture: ${error.message}`);
    }
  };
  return html`<button type="button" class="chip" title="Save the records that are shown as a file, comma-separated" onClick=${() => download(fileName(name, "csv"), csvOf(runs(), hidden), "text/csv")}>CSV</button>
    <button type="button" class="chip" title="Save the curves as a picture, SVG on white" onClick=${picture}>Picture</button><span class="wrong" role="status">${wrong}</span>`;
}
