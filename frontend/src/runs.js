// This run and others side by side: which are shown, what they are called, their results, and what differs.
import { html } from "htm/preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { inkOf, lineOf } from "./behind.js";
import { Figure, LAYOUT, PLAIN } from "./figure.js";
import { literal } from "./marks.js";
import { useAsked } from "./tunables.js";
import { clock, count, plain, short } from "./words.js";

const OWN = "var(--ink0)";

export const runsTitle = ({ drawn }) => `Runs ${count(1 + (drawn?.count ?? 0))}`;

const settingText = (value) => (value === undefined ? "–" : plain(value));

// Title, sort key, text and small print of each column.
export function columnsOf({ records, settings, rows }) {
  const made = [
    { title: "state", key: (row) => row.state, text: (row) => row.state },
    { title: "steps", key: (row) => row.steps, text: (row) => count(row.steps) },
    { title: "time", key: (row) => row.seconds, text: (row) => clock(row.seconds) },
    ...records.map((name) => ({
      title: name, key: (row) => row.values[name]?.best ?? row.values[name]?.last, text: (row) => short(row.values[name]?.last),
      small: (row) => (row.values[name]?.best === undefined ? "" : `best ${short(row.values[name].best)} at ${count(row.values[name].at)}`),
    })),
    ...settings.map((name) => ({ title: name, key: (row) => row.settings[name], text: (row) => settingText(row.settings[name]) })),
  ];
  if (Object.values(rows).some((row) => row.by_hand)) made.push({
    title: "by hand", key: (row) => row.by_hand?.count, text: (row) => row.by_hand?.first ?? "–", small: (row) => (row.by_hand?.count > 1 ? `and ${count(row.by_hand.count - 1)} more` : ""), wide: true,
  });
  return made;
}

const rank = (value) => (typeof value === "number" ? 0 : value === undefined || value === null ? 2 : 1);
function compare(one, other, down) {
  if (rank(one) !== rank(other)) return rank(one) - rank(other);  // without a number: last
  const by = rank(one) === 0 ? one - other : String(one ?? "").localeCompare(String(other ?? ""), undefined, { numeric: true });
  return down ? -by : by;
}

// This run, then those with its loss, the newest first; without one that is looked at (`alone`), as they were given; or by a column.
export function sortedRows(rows, column, down, alone = true) {
  const all = Object.entries(rows).map(([number, row]) => ({ number: Number(number), ...row }));
  const usual = (one, other) => (alone ? (other.number === 0) - (one.number === 0) || other.like - one.like || other.number - one.number : one.number - other.number);
  return all.sort((one, other) => (column ? compare(column.key(one), column.key(other), down) : 0) || usual(one, other));
}

// A row fits if it has each word in its name, its state or its settings.
export function fits(row, text) {
  const all = [row.name, row.state, ...Object.entries(row.settings).map(([name, value]) => `${name} ${plain(value)}`)].join("\n").toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => all.includes(word));
}

// Title and rows of each group, in the order of their setting.
export function groupsOf(rows, setting) {
  if (!setting) return [{ title: "", rows }];
  const groups = new Map();
  for (const row of rows) {
    const value = row.settings[setting], key = JSON.stringify(value ?? null);
    if (!groups.has(key)) groups.set(key, { value, title: `${setting} ${settingText(value)}`, rows: [] });
    groups.get(key).rows.push(row);
  }
  return [...groups.values()].sort((one, other) => compare(one.value, other.value, false));
}

// One point a run: a setting against the best value of a record (the last one, where none is best). The own run has a ring (`alone`).
export function scatterTraces(rows, setting, record, alone = true) {
  const points = rows.map((row) => ({ row, x: row.settings[setting], y: row.values[record]?.best ?? row.values[record]?.last })).filter(({ x, y }) => x !== undefined && typeof y === "number");
  const isOwn = ({ number }) => alone && !number, numbers = points.every(({ x }) => typeof x === "number"), sorted = [...points].sort((one, other) => compare(one.x, other.x, false));
  return [{
    type: "scatter", mode: "markers", x: sorted.map(({ x }) => (numbers ? x : settingText(x))), y: sorted.map(({ y }) => y), text: sorted.map(({ row }) => literal(row.name)), hovertemplate: `%{text}<br>${"%{x}, %{y:.5g}"}<extra></extra>`,
    marker: { size: sorted.map(({ row }) => (isOwn(row) ? 12 : 9)), color: sorted.map(({ row }) => (isOwn(row) ? "#3f83e8" : inkOf(row.number))), symbol: sorted.map(({ row }) => (isOwn(row) ? "circle-open-dot" : "circle")), line: { width: sorted.map(({ row }) => (isOwn(row) ? 2 : 0)) }, opacity: sorted.map(({ row }) => (isOwn(row) || row.shown ? 1 : 0.55)) },
  }];
}

// Each value is a tick where they are few, and not too near to each other.
function ticksOf(values, log) {
  const found = [...new Set(values)], at = found.map((each) => (log ? Math.log(each) : each)), width = (at.at(-1) - at[0]) / 12;
  return found.length < 9 && at.every((each, place) => !place || each - at[place - 1] >= width) ? { tickvals: found, ticktext: found.map(plain) } : {};
}

const spread = (values) => values.length > 1 && values.every((each) => typeof each === "number" && each > 0) && Math.max(...values) / Math.min(...values) >= 30;

export function scatterLayout([{ x, y }], setting, record) {
  const type = (values) => (spread(values) ? "log" : undefined), texts = x.some((each) => typeof each === "string"), ticks = texts ? {} : ticksOf(x, spread(x));
  return {
    ...LAYOUT, height: 220, hovermode: "closest", margin: { l: 56, r: 12, t: 8, b: 40 },
    xaxis: { ...PLAIN, ...ticks, type: texts ? "category" : type(x), title: { text: setting, font: { size: 11 } } }, yaxis: { ...PLAIN, type: type(y), title: { text: record, font: { size: 11 } }, nticks: 5 },
  };
}

// The setting and the record that tell most: of numbers the first one; the first one of which a best value is known.
export function usualChoice({ rows, settings, records }) {
  const all = Object.values(rows), numeric = (name) => all.filter((row) => typeof row.settings[name] === "number").length > 2;
  return { setting: settings.find(numeric) ?? settings[0], record: records.find((name) => all.some((row) => row.values[name]?.best !== undefined)) ?? records[0] };
}

function Scatter({ store, runs, alone }) {
  const usual = useMemo(() => usualChoice(runs), [runs]), [chosen, setChosen] = useState({}), pick = (name, list) => (list.includes(chosen[name]) ? chosen[name] : usual[name]);
  const setting = pick("setting", runs.settings), record = pick("record", runs.records), drawn = useRef({});
  const rows = sortedRows(runs.rows, undefined, false, alone), traces = scatterTraces(rows, setting, record, alone), key = JSON.stringify([setting, record, traces]);
  if (drawn.current.key !== key) drawn.current = { key, traces, layout: scatterLayout(traces, setting, record) };  // the same objects: nothing is drawn again
  const points = drawn.current.traces[0].y.length;
  const select = (name, list, value) => html`<select aria-label=${name} value=${value} onChange=${(event) => setChosen({ ...chosen, [name]: event.target.value })}>${list.map((each) => html`<option key=${each}>${each}</option>`)}</select>`;
  return html`<div class="scatter"><div class="bar">${select("record", runs.records, record)}<span class="quiet">best value by</span>${select("setting", runs.settings, setting)}</div>
    <${Figure} store=${store} traces=${drawn.current.traces} layout=${drawn.current.layout} label=${`Best ${record} by ${setting}, ${points} runs`} /></div>`;
}

// The name of a run; a double click, or F2, makes it a field.
function Name({ row, rename, off }) {
  const [edits, setEdits] = useState(false), field = useRef(), button = useRef(), open = useRef(false);
  useLayoutEffect(() => {
    if (!edits) return;
    field.current.value = row.name;
    field.current.focus();
    field.current.select();
  }, [edits]);
  if (!row.number || off) return html`<span class="run-name" title=${row.name}>${row.name}</span>`;
  const begin = () => setEdits(open.current = true);
  const end = (save) => {
    if (!open.current) return;  // a field that goes loses the focus, too
    setEdits(open.current = false);
    const text = field.current.value.trim();
    if (save && text && text !== row.name) rename(row, text);
    setTimeout(() => button.current?.focus());
  };
  const key = (event) => {
    if (event.key === "Enter") end(true);
    if (event.key === "Escape") end(false);
    if (["Enter", "Escape"].includes(event.key)) event.stopPropagation();
  };
  return edits ? html`<input class="run-name" aria-label=${`Name of ${row.name}`} maxlength="60" ref=${field} onKeyDown=${key} onBlur=${() => end(true)} />`
    : html`<button type="button" class="run-name" ref=${button} title=${`${row.name}, run ${row.number} (double-click or F2: another name)`} onDblClick=${begin} onKeyDown=${(event) => { if (event.key === "F2") { event.preventDefault(); begin(); } }}>${row.name}</button>`;
}

function Row({ row, columns, off, ask, alone }) {
  const own = alone && !row.number, [asked, show] = useAsked((on) => ask({ do: on ? "show" : "hide", number: row.number }));
  return html`<tr class=${own ? "own" : row.shown ? "on" : ""} data-number=${row.number}><th scope="row"><div class="run">
      ${own ? html`<span class="switch"></span>` : html`<input type="checkbox" role="switch" aria-label=${`Show the curves of ${row.name}`} checked=${asked ?? row.shown} disabled=${off} onChange=${(event) => show(event.target.checked)} />`}
      <s style=${own ? { borderColor: OWN } : lineOf(row.number)}></s><${Name} row=${row} off=${off} rename=${(each, name) => ask({ do: "rename", number: each.number, name })} />
      ${own ? html`<span class="tag">this run</span>` : row.added && !off && html`<button type="button" class="away" title=${`Remove ${row.name} from this list`} aria-label=${`Remove ${row.name}`} onClick=${() => ask({ do: "remove", number: row.number })}>×</button>`}</div></th>
    ${columns.map(({ title, text, small, wide }) => html`<td key=${title} class=${wide ? "wide" : undefined} title=${wide ? text(row) : undefined}>${text(row)}${small?.(row) && html`<small>${small(row)}</small>`}</td>`)}</tr>`;
}

function Add({ store, say }) {
  const field = useRef();
  const add = async (event) => {
    event.preventDefault();
    const path = field.current.value.trim();
    if (!path) return;
    const { status, reason } = await store.request({ ask: "add", path });
    say(status === "applied" ? "" : `${path} was not added: ${reason}`);
    if (status === "applied" && field.current) field.current.value = "";
  };
  return html`<form class="bar add" onSubmit=${add}><input aria-label="Folder of a run" placeholder="Folder of a run, or a pattern of several: runs/*" maxlength="1000" autocomplete="off" spellcheck=${false} ref=${field} /><button>Add</button></form>`;
}

// `alone`: one run is looked at, the own one; else it is the first of several.
export function Runs({ store, view, alone = true }) {
  const { may_steer: steers } = view, off = !steers || Boolean(store.cut), [{ by, down }, setOrder] = useState({ by: "", down: false }), [text, setText] = useState(""), [group, setGroup] = useState(""), [wrong, setWrong] = useState("");
  const runs = useMemo(() => (alone || !view.runs?.rows[0] ? view.runs : { ...view.runs, rows: { ...view.runs.rows, 0: { ...view.runs.rows[0], shown: !store.ownHidden } } }), [view.runs, alone, store.ownHidden]);
  const ask = async (what) => {
    if (!alone && ["show", "hide"].includes(what.do) && !what.number) store.hideOwn(what.do === "hide");
    if (what.number === 0) return;
    const { status, reason } = await store.request({ ask: "run", ...what });
    setWrong(status === "applied" ? "" : `Not done: ${reason}`);
  };
  const columns = useMemo(() => (runs ? columnsOf(runs) : []), [runs]);
  if (!runs) return html`<p class="quiet">Reading the runs …</p>`;
  const chosen = columns.find(({ title }) => title === by), rows = sortedRows(runs.rows, chosen, down, alone).filter((row) => fits(row, text)), setting = runs.settings.includes(group) ? group : "";
  const others = Object.keys(runs.rows).length - 1, switched = rows.filter(({ number }) => number || !alone), sort = (title) => setOrder(title === by && down ? { by: "", down: false } : { by: title, down: title === by });
  const turn = (what) => (text.trim() ? Promise.all(switched.filter(({ shown }) => shown !== (what === "show")).map(({ number }) => ask({ do: what, number }))) : ask({ do: what }));
  return html`${others > 1 && runs.settings.length > 0 && runs.records.length > 0 && html`<${Scatter} ...${{ store, runs, alone }} />`}
    <div class="bar"><input type="search" aria-label="Filter runs" placeholder="Filter runs" value=${text} onInput=${(event) => setText(event.target.value)} />
      ${runs.settings.length > 0 && html`<label>group by <select aria-label="group by" value=${setting} onChange=${(event) => setGroup(event.target.value)}><option value="">–</option>${runs.settings.map((name) => html`<option key=${name}>${name}</option>`)}</select></label>`}
      <span class="space"></span>
      <button type="button" disabled=${off || !switched.some(({ shown }) => !shown)} onClick=${() => turn("show")}>Show all</button><button type="button" disabled=${off || !switched.some(({ shown }) => shown)} onClick=${() => turn("hide")}>Hide all</button></div>
    <div class="scroller"><table class="numeric runs"><thead><tr><th scope="col">run</th>${columns.map(({ title }) => html`<th key=${title} scope="col" aria-sort=${title === by ? (down ? "descending" : "ascending") : undefined}><button type="button" title=${`Sort by “${title}”`} onClick=${() => sort(title)}>${title}</button></th>`)}</tr></thead>
      <tbody>${groupsOf(rows, setting).map(({ title, rows: some }) => html`${title && html`<tr key=${title} class="group"><th scope="rowgroup">${title}<span class="quiet"> · ${some.length === 1 ? "1 run" : `${count(some.length)} runs`}</span></th><td colspan=${columns.length}></td></tr>`}
        ${some.map((row) => html`<${Row} key=${row.number} ...${{ row, columns, off, ask, alone }} />`)}`)}</tbody></table></div>
    <p class="wrong" role="status">${wrong}</p>
    ${rows.length === 0 && html`<p class="quiet">No run fits ${text}.</p>`}${others === 0 && html`<p class="quiet">${runs.can_add ? "A run that ends in this kernel comes here by itself." : "There are no other runs beside this one."}</p>`}
    ${runs.dropped > 0 && html`<p class="quiet">${count(runs.dropped)} older ${runs.dropped === 1 ? "run was" : "runs were"} dropped: a kernel keeps at most 50 runs and 200 MB of their curves.</p>`}
    ${runs.can_add && !off && html`<${Add} store=${store} say=${setWrong} />`}`;
}
