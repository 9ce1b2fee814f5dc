// A chart of traces that a pure function has made, and a bar in a row of a table.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";

export const PLAIN = { showline: false, zeroline: false, ticks: "", automargin: true, exponentformat: "e", gridcolor: "rgba(128,128,128,.2)" };
export const LAYOUT = { autosize: true, margin: { l: 48, r: 10, t: 8, b: 32 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, font: { size: 11, color: "#808080" }, hovermode: "x" };

// `onClick` gets the x of the nearest point.
export function Figure({ store, traces, layout, label, onClick }) {
  const box = useRef(), click = useRef(onClick), [plotly, setPlotly] = useState(null), [wrong, setWrong] = useState("");
  click.current = onClick;
  useEffect(() => {
    let gone = false;
    store.link.plotly().then((found) => gone || setPlotly(found), (error) => setWrong(error.message));
    return () => { gone = true; };
  }, [store]);
  useEffect(() => {
    if (!plotly) return;
    const first = !box.current.data;  // plotly takes the height out of a layout that it was given
    plotly.react(box.current, traces, { ...layout }, { displayModeBar: false, responsive: false });
    if (first) box.current.on("plotly_click", ({ points }) => click.current?.(points[0].x));
  }, [plotly, traces, layout]);
  useEffect(() => {
    if (!plotly) return;
    const size = new ResizeObserver(() => box.current?.data && plotly.Plots.resize(box.current));
    size.observe(box.current);
    return () => size.disconnect();
  }, [plotly]);
  return html`<div class="figure" style=${{ height: `${layout.height}px` }} ref=${box} role="img" aria-label=${label}></div>${wrong && html`<p class="quiet">${wrong}</p>`}`;
}

export const Bar = ({ share }) => html`<span class="track" aria-hidden="true"><i style=${{ width: `${Math.round(100 * Math.min(1, Math.max(0, share)))}%` }}></i></span>`;
