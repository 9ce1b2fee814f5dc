// How messages travel. A link has listen(hear), ask(message), plotly() and close(); what is shown does not depend on its kind. `page` is the
// name under which it asks; `alone`: the panel has the page for itself.
import { keepPicture } from "./notebook.js";

export const VERSION = 1;  // of the messages
const PATIENCE = 10_000;  // milliseconds
const QUIET = 3000;  // milliseconds without any message

const floats = (bytes) => new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
const newName = () => crypto.randomUUID?.() ?? String(Math.random()).slice(2);
const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

const NONE = "Open the whole link that the server printed, or paste the token, the part after “token=”.";
const WRONG = "This server does not know the token: open the link that it printed at its start, or paste its token.";

// The token stands in the link after "#", which is sent to no server; a reload takes it from this tab.
export class Token {
  constructor() {
    this.value = "";
    this.take();
  }

  take() {
    const found = new URLSearchParams(location.hash.slice(1)).get("token");
    history.replaceState(null, "", location.pathname);  // the address can be shown to others
    if (found) this.keep(found);
    else try { this.value ||= sessionStorage.getItem("token") ?? ""; } catch { /* storage is off: a reload needs the link again */ }
  }

  keep(value) {
    this.value = value;
    try { sessionStorage.setItem("token", value); } catch { /* as above */ }
  }
}

// One frame of an event stream: a message, and its buffers.
export function unpacked(text) {
  const { buffers = [], ...message } = JSON.parse(text);
  return [message, buffers.map((each) => floats(Uint8Array.from(atob(each), (letter) => letter.charCodeAt(0))))];
}

// On a page: an event stream that is read with fetch, for its header, and requests.
export function pageLink(token = new Token()) {
  const page = newName();
  let hear = () => {}, closed = false, reading = null, unlocked = () => {};
  const ask = (path, more = {}) => fetch(path, { ...more, headers: { ...more.headers, Authorization: `Bearer ${token.value}` } });

  async function read() {
    reading = new AbortController();
    const response = await ask(`events?page=${page}&v=${VERSION}`, { signal: reading.signal });
    if (response.status === 403) return token.value ? WRONG : NONE;
    if (!response.ok) return (await response.json().catch(() => ({}))).reason ?? `The server answers ${response.status}.`;
    let rest = "";
    const source = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await source.read();
      if (done) return "The server has ended.";
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) if (frame.startsWith("data: ")) hear(...unpacked(frame.slice(6)));
    }
  }

  async function repeat() {
    while (!closed) {
      let why;
      try { why = await read(); } catch (error) { why = "The server cannot be reached: it has ended, or the way to it is cut."; }
      if (closed) return;
      const locked = [WRONG, NONE].includes(why);
      hear({ cut: why, locked });
      await (locked ? new Promise((done) => { unlocked = done; }) : pause(1));
    }
  }

  function again() {
    reading?.abort();
    unlocked();
  }

  const linked = () => {  // another link in the same tab
    if (!location.hash) return;
    token.take();
    again();
  };
  addEventListener("hashchange", linked);

  return {
    page,
    alone: true,
    listen(each) {
      hear = each;
      repeat();
    },
    async ask(message) {
      const response = await ask("ask", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...message, page }) });
      if (!response.ok) throw new Error((await response.json().catch(() => ({}))).reason ?? `status ${response.status}`);
    },
    unlock(value) {
      token.keep(value);
      again();
    },
    close() {
      closed = true;
      removeEventListener("hashchange", linked);
      reading?.abort();
    },
    plotly: () => globalThis.trainer_nb_plotly ??= new Promise((done, failed) => {
      const node = document.createElement("script"), head = document.head;
      node.src = "plotly-basic.js";
      node.onload = () => { delete head.appendChild; done(globalThis.Plotly); };
      node.onerror = () => failed(new Error("plotly could not be loaded"));
      head.append(node);
      // plotly adds a style sheet for its maps, which the policy of the page forbids
      head.appendChild = (child) => (child.tagName === "STYLE" ? child : Node.prototype.appendChild.call(head, child));
    }),
  };
}

// Once a page of a notebook, for all panels in it: the packed bytes of a kernel become a module. One of those that wait asks; the next one
// does where that is closed, or has no answer. Whoever hears the bytes gives them to all.
function shared() {
  const waiting = new Set();
  let give, asks = null, timer = 0;
  const packed = new Promise((done) => { give = done; });
  const next = () => {
    clearTimeout(timer);
    [asks = null] = waiting;
    if (!asks) return;
    waiting.delete(asks);  // once is enough: a busy kernel answers later
    asks();
    timer = setTimeout(next, PATIENCE);
  };
  const plotly = packed.then(async (bytes) => {
    clearTimeout(timer);
    waiting.clear();
    const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" })), other = globalThis.Plotly;
    await import(/* @vite-ignore */ url);
    URL.revokeObjectURL(url);
    const ours = globalThis.Plotly;
    if (other) globalThis.Plotly = other;  // of the page itself
    return ours;
  });
  return {
    give,
    wanted(ask) {
      waiting.add(ask);
      if (!asks) next();
      return plotly;
    },
    forget(ask) {
      waiting.delete(ask);
      if (asks === ask) next();
    },
  };
}

// anywidget gives a module two seconds to load. In a page that is busier it takes no message of the model any more, although it draws it: then
// what its class does before is asked.
async function hearAnyway(model) {
  const own = await model.widget_manager?.get_model?.(model.get("own_id")), refuses = own?._handle_comm_msg;
  let kind = own;
  while (kind?._handle_comm_msg && kind._handle_comm_msg === refuses) kind = Object.getPrototypeOf(kind);
  if (kind?._handle_comm_msg) own.comm?.on_msg(kind._handle_comm_msg.bind(own));
}

// In a notebook: messages of one anywidget, which may be shown several times and in several pages.
export function widgetLink(model) {
  const page = newName();
  let hear = () => {}, timer = 0;
  const take = ({ library, kept, page: asker, ...message }, buffers) => {
    clearTimeout(timer);
    if (library) globalThis.trainer_nb_library?.give(buffers[0]);
    else if (kept) keepPicture(model, kept);
    else if (asker === undefined || asker === page) hear(message, buffers.map(floats));  // not an answer to another one
  };
  const ask = async (message) => model.send({ ...message, page });
  const askForPlotly = () => ask({ ask: "library" }).catch(() => {});
  const hello = () => ask({ ask: "hello", v: VERSION }).catch(() => {});
  const turned = () => {  // the kernel has ended; else it answers
    hear({ cut: "The kernel that drew this panel has ended." });
    hello();
  };
  model.on("msg:custom", take);
  model.on("comm_live_update", turned);
  return {
    page,
    listen(each) {
      hear = each;
      hello();
      timer = setTimeout(() => hearAnyway(model).then(hello, () => {}), QUIET);
    },
    ask,
    close() {
      clearTimeout(timer);
      model.off("msg:custom", take);
      model.off("comm_live_update", turned);
      globalThis.trainer_nb_library?.forget(askForPlotly);
    },
    plotly: () => (globalThis.trainer_nb_library ??= shared()).wanted(askForPlotly),
  };
}
