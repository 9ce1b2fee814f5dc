// The page of one run: shows what `state` says twice a second, draws what `figure` has, and posts commands. Every text of the run is
// put in as text, never as HTML.
import chart from "./chart.js";

const at = (id) => document.getElementById(id);
const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const made = (tag, words = "", names = "") => {
  const node = document.createElement(tag);
  node.textContent = words;
  node.className = names;
  return node;
};
const count = (number) => number === null ? "–" : number.toLocaleString("en");

let state = null;  // the last one
let seen = null;  // its version
let answer = null;  // of the last command: what to say, until when, and whether it was refused
let silent = "";  // why nothing comes from the server

// token: from the link's "#token=...", which is not sent to a server, or from this tab before a reload; sessionStorage belongs to one port, unlike a cookie

let token = "";

function keepToken(found) {
  token = found;
  try { sessionStorage.setItem("token", found); } catch (_) { /* storage is turned off: a reload needs the link again */ }
}

function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  history.replaceState(null, "", location.pathname);  // the address can be shown to others
  if (found) return keepToken(found);
  try { token = sessionStorage.getItem("token") ?? ""; } catch (_) { /* as above */ }
}

function ask(address, { headers = {}, ...more } = {}) {
  return fetch(address, { ...more, headers: { ...headers, Authorization: `Bearer ${token}` } });
}

// commands

async function send(command, values = {}, reason = "") {
  const said = [command, ...Object.entries(values).map((each) => each.join(" "))].join(" ");
  say(`${said}: asked for; it takes effect at the next step.`, 60);
  let found;
  try {
    const response = await ask("command", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ command, values, reason }) });
    found = await response.json();
  } catch (error) {
    found = { status: "no answer", reason: `the server cannot be reached (${error.message})` };
  }
  const where = found.status === "applied" && Number.isInteger(found.step) ? ` at step ${count(found.step)}` : "";
  say(`${said}: ${found.status}${where}${found.reason ? `: ${found.reason}` : ""}`, found.status === "applied" ? 4 : 30, found.status !== "applied");
  look(true);
  return found;
}

function say(words, seconds, wrong = false) {
  answer = { words, wrong, until: performance.now() + 1000 * seconds };
  drawMessage();
}

// parts

function drawHead() {
  const { position: place = {}, colour, word } = state;
  at("page").className = `tnb is-${colour}`;
  set(at("word"), word);
  set(at("name"), state.name ?? state.folder);
  set(at("about"), state.description ?? "");
  document.title = `${word} · ${state.name ?? state.folder}`;
  const epoch = Number.isFinite(place.epoch) ? Math.min(place.epoch + 1, place.epochs ?? Infinity) : null;
  set(at("epoch"), count(epoch));
  set(at("epochs"), place.epochs ? ` / ${count(place.epochs)}` : "");
  set(at("step"), count(place.step ?? null));
  set(at("steps"), place.max_steps ? ` / ${count(place.max_steps)}` : "");
  const known = Number.isFinite(place.fraction);
  set(at("percent"), known ? `${Math.round(100 * place.fraction)} %` : "");
  at("progress").value = known ? place.fraction : 0;
  const cells = at("numbers");
  keep(cells, state.numbers ?? [], (each) => each.label, () => {
    const cell = made("div");
    const value = made("div", "", "value");
    value.append(made("span"), made("small"));
    cell.append(made("div", "", "label"), value);
    return cell;
  }, (cell, each) => {
    const [label, value] = cell.children;
    cell.title = `${each.label} ${each.value} ${each.unit}`;
    set(label, each.label);
    set(value.firstChild, each.value || "–");
    set(value.lastChild, each.unit);
    value.classList.toggle("none", !each.value);
  });
}

// Children of `box`, one for each item: those that are there stay, so that a focus and what is being typed stay.
function keep(box, items, key, make, update) {
  const old = new Map([...box.children].map((node) => [node.dataset.key, node]));
  items.forEach((item, number) => {
    const name = String(key(item));
    let node = old.get(name);
    if (!node) {
      node = make(item);
      node.dataset.key = name;
    }
    old.delete(name);
    if (box.children[number] !== node) box.insertBefore(node, box.children[number] ?? null);
    update(node, item);
  });
  for (const node of old.values()) node.remove();
}

function drawButtons() {
  keep(at("buttons"), state.buttons ?? [], (each) => each.main ? "main" : `${each.name} ${each.label}`, () => {
    const button = made("button");
    button.type = "button";
    button.addEventListener("click", () => press(button));
    return button;
  }, (button, each) => {
    button.name = each.name;
    button.values = each.values;
    button.classList.toggle("main", each.main);
    button.classList.toggle("stop", each.style === "stop");
    if (!button.dataset.sure) set(button, each.label);
    const blocked = state.may_steer ? each.why_not : "This link may only look";
    button.disabled = blocked !== "";
    button.title = blocked || each.does;
  });
}

const pressed = { button: null, at: 0 };

function press(button) {
  const name = button.name, now = performance.now();
  if (button === pressed.button && now - pressed.at < 250) return;  // the second half of a double click
  Object.assign(pressed, { button, at: now });
  if (name === "rewind") return choose(at("chooser").hidden);
  if (button.classList.contains("stop") && !button.dataset.sure) {  // a thumb slips easily
    button.dataset.sure = "asked";
    set(button, "Really stop?");
    setTimeout(() => { delete button.dataset.sure; drawButtons(); }, 4000);
    return;
  }
  delete button.dataset.sure;
  send(name, button.values);
}

function choose(open, step = Infinity) {
  const points = state.rewind_points ?? [], list = at("points");
  at("chooser").hidden = !open;
  if (!open) return;
  const now = step < Infinity ? step + 1 : state.position.step;
  list.replaceChildren(...points.toReversed().map((point) => new Option(`step ${count(point)}`, point)));
  list.value = String(points.filter((point) => point < now).at(-1) ?? points[0] ?? "");
  at("rewind-here").disabled = !points.length;
  list.focus();
}

function drawMessage() {
  if (answer && performance.now() > answer.until) answer = null;
  const line = at("message");
  const base = state ? state.message : "";
  set(line, silent || answer?.words || (state && !state.may_steer ? `${base} This link may only look.` : base));
  line.classList.toggle("wrong", Boolean(silent || answer?.wrong));
  at("go-on").hidden = !state?.go_on;
  set(at("go-on").firstElementChild, state?.go_on ?? "");
}

function drawWaiting() {
  const found = state.waiting ?? [];
  at("waiting").hidden = !found.length;
  keep(at("waiting"), found, (each) => each.id, ({ id }) => {
    const row = made("div", "", "bar");
    row.append(made("span"));
    for (const [name, label] of [["approve", "Approve"], ["decline", "Decline"]]) {
      const button = row.appendChild(made("button", label));
      button.addEventListener("click", () => send(name, { id }));
    }
    return row;
  }, (row, each) => {
    set(row.firstElementChild, `Waits for approval: ${each.text}`);
    for (const button of row.querySelectorAll("button")) button.disabled = !state.may_steer;
  });
}

// tunables: a box, a list or a switch; the hint says what is in force, what waits, or why a value was refused

function control(row) {
  const node = made(row.choices ? "select" : "input");
  if (row.choices) node.append(...row.choices.map((each) => new Option(each.text)));
  else if (row.kind === "bool") node.type = "checkbox";
  else Object.assign(node, { autocomplete: "off", spellcheck: false, enterKeyHint: "done", maxLength: 200 });
  node.id = `tunable-${row.name}`;
  return node;
}

function tunableRow(row) {
  const node = made("div", "", "row"), label = made("label", row.label), box = control(row), hint = made("div", "", "hint");
  label.htmlFor = box.id;
  hint.id = `hint-${row.name}`;
  label.title = row.doc;
  box.setAttribute("aria-describedby", hint.id);
  node.append(label, box, hint);
  if (row.group) label.prepend(made("span", row.group, "quiet of"), " ");
  box.addEventListener("change", async () => {
    let value = row.kind === "bool" ? box.checked : box.value;
    if (row.choices) value = row.choices[box.selectedIndex].value;
    if (value === "" && row.kind !== "str") return drawTunables();  // an empty box changes nothing
    const found = await send("tune", { [row.name]: value });
    node.dataset.refused = found.status === "applied" ? "" : found.reason || found.status;
    if (found.status === "applied") box.classList.remove("draft");
    drawTunables();
  });
  box.addEventListener("input", () => box.classList.add("draft"));
  box.addEventListener("blur", () => { if (!node.dataset.refused) { box.classList.remove("draft"); drawTunables(); } });
  return node;
}

function drawTunables() {
  keep(at("tunables"), state.tunables ?? [], (row) => `${row.name} ${row.kind} ${row.choices?.length}`, tunableRow, (node, row) => {
    const [, box, hint] = node.children;
    const refused = node.dataset.refused || row.refused;
    box.disabled = !state.may_steer || !(state.buttons ?? []).some((each) => each.why_not === "");
    if (row.kind === "bool") { if (document.activeElement !== box) box.checked = row.value === true; }
    else if (!box.classList.contains("draft")) {
      const text = row.choices ? row.text : row.value === null || row.moves ? "" : row.text;
      if (box.value !== text) box.value = text;
      box.placeholder = row.moves ? `${row.text} (schedule)` : row.text;
    }
    node.classList.toggle("pending", row.pending !== "");
    node.classList.toggle("refused", Boolean(refused));
    set(hint, refused ? `${refused}` : row.pending ? `${row.text} → ${row.pending} at the next step` : row.kind === "bool" ? row.doc : row.takes);
    hint.title = hint.textContent;
  });
}

function drawJournal() {
  keep(at("journal"), state.journal ?? [], (each) => each.number, () => {
    const line = made("li");
    line.append(made("span", "", "number"), made("span", "", "quiet"), made("span", "", "text"));
    return line;
  }, (line, each) => {
    set(line.children[0], String(each.number));
    set(line.children[1], `step ${count(each.step)} `);
    set(line.children[2], each.text + (each.undone ? " (undone by a rewind)" : ""));
    line.classList.toggle("undone", each.undone);
  });
  if (!state.journal?.length) at("journal").replaceChildren(made("li", "No manual changes yet.", "quiet"));
  for (const each of at("note-form").elements) each.disabled = !state.may_steer;
}

// looking

async function look(now = false) {
  try {
    const response = await ask("state", seen && !now ? { headers: { "If-None-Match": seen } } : {});
    silent = "";
    at("key").hidden = response.status !== 403;
    if (response.status === 403 && !state) set(at("word"), "Locked");
    if (response.status === 403) silent = token ? "This server does not know the token: open the link that it printed at its start, or paste its token." :
      "Open the whole link that `trainer-nb serve` or `trainer.serve()` printed, or paste the token, the part after “token=”.";
    else if (response.status !== 304) {
      state = await response.json();
      seen = response.headers.get("ETag");
      drawHead(), drawButtons(), drawWaiting(), drawTunables(), drawJournal();
    }
  } catch (error) {
    silent = `The server cannot be reached: it was ended, or the way to it is cut. What stands here is old.`;
    document.title = "No connection";
  }
  at("page").classList.toggle("is-cut", silent !== "");
  drawMessage();
}

// curves: the same script as in the panel draws them

const figure = { value: null, version: null, listeners: new Set() };
const first = new Promise((done) => figure.listeners.add(done));
const model = {
  get: () => ({ data: figure.value.data.filter((trace) => !isHidden(trace)), layout: fitted(figure.value.layout, at("chart").clientWidth) }),
  on: (_, listener) => figure.listeners.add(listener),
  off: (_, listener) => figure.listeners.delete(listener),
  send: ({ x }) => { if (x !== undefined && at("axis").value === "step" && state?.may_steer && state.rewind_points?.length) choose(true, x); },
};

function script(address) {
  return new Promise((done, failed) => {
    const node = document.createElement("script"), head = document.head;
    node.src = address;
    node.onload = () => { delete head.appendChild; done(globalThis.Plotly); };
    node.onerror = () => failed(new Error("plotly.js could not be loaded"));
    head.append(node);
    // while it is read, the script would add a style sheet for its maps, which this page forbids and has no use for
    head.appendChild = (child) => child.tagName === "STYLE" ? child : Node.prototype.appendChild.call(head, child);
  });
}

// In a narrow box the small plots have room for few ticks.
function fitted(layout, width) {
  if (width > 560) return layout;
  const axes = Object.entries(layout).filter(([name]) => name.startsWith("xaxis"));
  return { ...layout, ...Object.fromEntries(axes.map(([name, axis]) => [name, { ...axis, nticks: name === "xaxis" ? 5 : 3, tickformat: "~s", tickangle: 0 }])) };
}

// An object of JSON, in which x and y of a trace are numbers of floats; then the floats.
function unpacked(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const found = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let start = 4 + length;
  const floats = (many) => {
    const view = new DataView(buffer, start, 4 * many);
    start += 4 * many;
    return view;
  };
  return { ...found, data: found.data.map((trace) => ({ ...trace, x: floats(trace.x), y: floats(trace.y) })) };
}

// The names of the losses as switches of this page; what is drawn beside them has no name of its own.
const hidden = new Set();

function isHidden(trace) {  // with the faint line of each step, which has the same colour
  const own = (name) => trace.name === name || (trace.name === "raw" && figure.value.inks[name] === trace.line.color);
  return trace.yaxis === "y" && [...hidden].some(own);
}

function drawLegend() {
  const named = figure.value.data.filter((trace) => trace.yaxis === "y" && !["raw", "rewound", "not finite"].includes(trace.name));
  figure.value.inks = Object.fromEntries(named.map((trace) => [trace.name, trace.line.color]));
  keep(at("legend"), named.slice(0, 6), (trace) => trace.name, (trace) => {
    const entry = made("button"), line = entry.appendChild(made("s"));
    entry.type = "button";
    line.style.borderColor = trace.line.color;
    entry.append(trace.name);
    entry.addEventListener("click", () => {
      if (!hidden.delete(trace.name)) hidden.add(trace.name);
      drawLegend();
      for (const listener of figure.listeners) listener();
    });
    return entry;
  }, (entry, trace) => {
    entry.setAttribute("aria-pressed", String(!hidden.has(trace.name)));
    entry.title = `${hidden.has(trace.name) ? "Show" : "Hide"} ${trace.name}`;
  });
}

async function lookAtCurves() {
  const wanted = new URLSearchParams({ axis: at("axis").value, window: at("window").value, log: Number(at("log").checked) });
  try {
    const headers = figure.version ? { "If-None-Match": figure.version } : {};
    const response = await ask(`figure?${wanted}`, { headers });
    if (response.status === 200) {
      figure.version = response.headers.get("ETag");
      figure.value = unpacked(await response.arrayBuffer());
      at("chart").style.height = `${figure.value.layout.height}px`;
      drawLegend();
      for (const listener of figure.listeners) listener();
      at("curves").hidden = figure.value.data.some((trace) => trace.x.byteLength);
    } else if (response.status !== 304 && response.status !== 403) {
      set(at("curves"), (await response.json()).reason);
      at("curves").hidden = false;
    }
  } catch (_) { /* the state says it */ }
}

// One request at a time; a page in the background asks seldom.
async function repeat(work, every) {
  for (;;) {
    await work();
    await new Promise((done) => {
      const timer = setTimeout(done, document.hidden ? 10_000 : every);
      document.addEventListener("visibilitychange", () => { clearTimeout(timer); done(); }, { once: true });
    });
  }
}

at("rewind-here").addEventListener("click", () => { choose(false); send("rewind", { step: Number(at("points").value) }); });
at("rewind-cancel").addEventListener("click", () => choose(false));
at("chooser").addEventListener("keydown", (event) => { if (event.key === "Escape") choose(false); });
for (const name of ["axis", "window", "log"]) at(name).addEventListener("change", lookAtCurves);
at("note-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = at("note").value.trim();
  if (text && (await send("note", { text })).status === "applied") at("note").value = "";
});
at("key").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(at("token").value.trim().replace(/^.*token=/, ""));
  at("token").value = "";
  look(true), lookAtCurves();
});
addEventListener("hashchange", () => { if (location.hash) takeToken(), look(true), lookAtCurves(); });  // a new link in the same tab
takeToken();
repeat(look, 500);
chart.render({ model, el: at("chart"), loaded: Promise.all([script("plotly.js"), first]).then(([found]) => found) });
repeat(lookAtCurves, 1000);
