// A row for each evaluation, to sort and to copy.
import { html } from "htm/preact";
import { useMemo, useState } from "preact/hooks";
import { Copy } from "./copy.js";
import { clock, count, duration, even, isAveraged } from "./words.js";

const FEW = 20;  // rows that are drawn at first

// How many evaluations there were.
export const evaluations = ({ numbers = {} }) => Math.max(0, ...Object.values(numbers).map((each) => each.count ?? 0));

const numberText = (format) => (value) => (typeof value === "number" ? format(value) : value ?? "–");  // "nan", "inf"
const FORMATS = { step: numberText(count), epoch: numberText((value) => String(Number(value.toFixed(2)))), time: numberText(clock), "+ time": numberText((value) => (value < 60 ? duration(value) : clock(value))) };

// Title, numbers, format and best row of each column; a title says which weights were averaged.
export function columnsOf({ rows, order, best = {} }, run = {}) {
  const steps = Object.keys(rows).map(Number).sort((one, other) => one - other);
  const valuesOf = (name) => (name === "step" ? steps : steps.map((step) => rows[step][name] ?? null));
  const titleOf = (name) => (isAveraged(run, name) ? `${name} (average)` : name);
  const found = order.filter((name) => name !== "seconds").map((name) => ({ title: titleOf(name), values: valuesOf(name), text: FORMATS[name] ?? even, best: steps.indexOf(best[name]) }));
  const seconds = order.includes("seconds") ? valuesOf("seconds") : [], since = seconds.map((each, at) => each - (at ? seconds[at - 1] : 0));
  for (const [title, values] of [["time", seconds], ["+ time", since]]) if (seconds.length) found.push({ title, values, text: FORMATS[title] });
  return found;
}

// The rows by one column, as their numbers; those without a value come last.
export function sorted({ values }, down) {
  const key = (at) => (typeof values[at] === "number" ? values[at] : null);
  return values.map((_, at) => at).sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a === null || b === null) return (a === null) - (b === null) || one - other;
    return (down ? b - a : a - b) || one - other;
  });
}

export function markdown(columns, rows) {
  const line = (cells) => `| ${cells.map((each) => each.replace(/([\\|])/g, "\\$1")).join(" | ")} |`;
  return [line(columns.map(({ title }) => title)), `|${" ---: |".repeat(columns.length)}`, ...rows.map((row) => line(columns.map(({ values, text }) => text(values[row]))))].join("\n");
}

export function Table({ view: { table, numbers, run } }) {
  const [{ by, down }, setOrder] = useState({ by: "step", down: false }), [all, setAll] = useState(false);
  const columns = useMemo(() => (table ? columnsOf(table, run) : []), [table, run]);
  const drawn = useMemo(() => {
    if (!columns.length) return null;
    const chosen = columns.find(({ title }) => title === by) ?? columns[0], rows = sorted(chosen, down), time = chosen === columns[0] && !down;
    const shown = all ? rows : time ? rows.slice(-FEW) : rows.slice(0, FEW);
    const sort = (title) => setOrder({ by: title, down: title === by ? !down : title !== "step" });
    return html`<div class="bar"><${Copy} label="Copy as Markdown" text=${() => markdown(columns, rows)} /><span class="space"></span>
        ${rows.length > FEW && html`<button type="button" onClick=${() => setAll(!all)}>${all ? `Show ${FEW}` : `Show all ${count(rows.length)}`}</button>`}</div>
      <div class="scroller"><table class="numeric"><thead><tr>${columns.map((column) => html`<th key=${column.title} scope="col" aria-sort=${column === chosen ? (down ? "descending" : "ascending") : undefined}>
          <button type="button" title=${`Sort by “${column.title}”`} onClick=${() => sort(column.title)}>${column.title}</button></th>`)}</tr></thead>
        <tbody>${shown.map((row) => html`<tr key=${row}>${columns.map(({ title, values, text, best }, at) => (at ? html`<td class=${best === row ? "best" : undefined} title=${best === row ? `Best ${title}` : undefined}>${text(values[row])}</td>`
          : html`<th scope="row">${text(values[row])}</th>`))}</tr>`)}</tbody></table></div>`;
  }, [columns, by, down, all]);
  return drawn ?? html`<p class="quiet">${evaluations({ numbers }) ? "Reading the evaluations …" : run.loaders?.length ? "The first row comes with the first evaluation." : "This run has no valid_dl: nothing is evaluated."}</p>`;
}
