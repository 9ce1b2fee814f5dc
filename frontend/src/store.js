// What is known of a run: the view, kept up to date by merge patches, and the curves as bins, its own and by number those of other runs.

export const COLUMNS = ["step", "wraps", "low", "high", "mean", "finite", "epoch", "samples", "seconds"];
const WIDTH = COLUMNS.length, WRAP = 2 ** 24, LINGER = 1000;  // milliseconds
const [WRAPS, LOW, HIGH, MEAN, FINITE] = [1, 2, 3, 4, 5];

// RFC 7396. What has not changed keeps its identity.
export function merge(old, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const made = old && typeof old === "object" && !Array.isArray(old) ? { ...old } : {};
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete made[name];
    else made[name] = merge(made[name], value);
  }
  return made;
}

const least = (one, other) => (Number.isNaN(one) ? other : Number.isNaN(other) ? one : Math.min(one, other));
const most = (one, other) => -least(-one, -other);

// Join each two rows.
export function halved(rows) {
  const pairs = Math.floor(rows.length / WIDTH / 2), made = new Float32Array(pairs * WIDTH);
  for (let pair = 0; pair < pairs; pair++) {
    const one = rows.subarray(2 * pair * WIDTH, (2 * pair + 1) * WIDTH), other = rows.subarray((2 * pair + 1) * WIDTH, (2 * pair + 2) * WIDTH);
    const row = made.subarray(pair * WIDTH, (pair + 1) * WIDTH), count = one[FINITE] + other[FINITE];
    const sum = (each) => (each[FINITE] ? each[MEAN] * each[FINITE] : 0);
    row.set(other);
    row[LOW] = least(one[LOW], other[LOW]);
    row[HIGH] = most(one[HIGH], other[HIGH]);
    row[MEAN] = (sum(one) + sum(other)) / count;
    row[FINITE] = count;
  }
  return made;
}

// A curve with the rows that have come, from row `from` on; what is held has the stride of before.
export function extended(curve, { stride, from }, rows) {
  let held = curve?.rows ?? new Float32Array(0);
  if (curve && curve.stride < stride) {
    held = held.subarray(0, from * (stride / curve.stride) * WIDTH);
    for (let own = curve.stride; own < stride; own *= 2) held = halved(held);
  }
  const made = new Float32Array(from * WIDTH + rows.length);
  made.set(held.subarray(0, from * WIDTH));
  made.set(rows, from * WIDTH);
  return { stride, rows: made };
}

// One column of a curve; "step" is whole, however large.
export function column({ rows }, name) {
  const at = COLUMNS.indexOf(name), made = new Float64Array(rows.length / WIDTH);
  for (let row = 0; row < made.length; row++) made[row] = rows[row * WIDTH + at] + (at ? 0 : rows[row * WIDTH + WRAPS] * WRAP);
  return made;
}

export class Store {
  constructor(link) {
    Object.assign(this, { link, view: null, curves: {}, others: {}, cut: "", locked: false, stale: false, watching: new Set(), answers: new Map(), number: 0, opened: new Map(), saying: null, unsaid: false, said: null, ownHidden: false, generation: 0 });
    this.prefix = link.page && !link.alone ? `${link.page}-` : "";  // of ids, where a page has several panels
    link.listen((message, buffers = []) => this.hear(message, buffers));
  }

  hear({ v, view, patch, curves, again, void: gone, re, cut, locked = false, ...answer }, buffers) {
    if (re !== undefined) {
      this.answers.get(re)?.({ ...answer, ...(curves && { curves }), buffers });
      this.answers.delete(re);
      return;
    }
    if (cut !== undefined) Object.assign(this, { cut, locked });
    if (v !== undefined && !view) this.stale = true;  // a page that has outlived an upgrade
    if (view) {
      Object.assign(this, { view, curves: {}, others: {}, cut: "", locked: false, stale: false });
      this.generation += 1;
      this.said = null;  // the kernel asks everyone again; what a reload opens comes with the first drawing
      setTimeout(() => this.say(), this.opened.size ? 0 : LINGER);
    }
    if (!view && !this.view && !cut) return;  // everything comes with the answer to hello
    if (patch) this.view = merge(this.view, patch);
    if (again) Object.assign(this, { curves: {}, generation: this.generation + 1 });
    if (gone) this.others = Object.fromEntries(Object.entries(this.others).filter(([number]) => !gone.includes(Number(number))));
    curves?.forEach((head, at) => this.take(head, buffers[at]));
    for (const each of this.watching) each();
  }

  // New rows of a curve; one of another run has its number, at the end of its name, too.
  take(head, rows) {
    const { run } = head, name = run === undefined ? head.name : head.name.slice(0, head.name.lastIndexOf("#")), held = run === undefined ? this.curves : this.others[run];
    const made = { ...held, [name]: extended(held?.[name], head, rows) };
    if (run === undefined) this.curves = made;
    else this.others = { ...this.others, [run]: made };
  }

  watch(each) {
    this.watching.add(each);
    return () => this.watching.delete(each);
  }

  // Where the run of the feed is one of several, it can be hidden as they can; on this page alone, the kernel always sends it.
  hideOwn(hidden) {
    this.ownHidden = hidden;
    for (const each of this.watching) each();
  }

  // A section of a tab is sent until the function that this returns is called, and for a moment more: a cell that is run again closes its widgets, and JupyterLab
  // ends the kernel's thread of their messages with those in it, which prints a warning.
  open(name) {
    this.opened.set(name, (this.opened.get(name) ?? 0) + 1);
    this.say();
    let over = false;
    return () => {
      if (over) return;
      over = true;
      if (this.opened.get(name) > 1) this.opened.set(name, this.opened.get(name) - 1);
      else this.opened.delete(name);
      setTimeout(() => this.say(), LINGER);
    };
  }

  // Which sections are open: what opens and closes at once in one message, and one after the other, as two could overtake each other.
  say() {
    this.unsaid = true;
    this.saying ??= (async () => {
      await null;
      while (this.unsaid && this.view) {
        this.unsaid = false;
        const tabs = [...this.opened.keys()], words = tabs.join();
        if (words === this.said) continue;
        this.said = words;
        try { await this.link.ask({ ask: "open", tabs }); } catch { this.said = null; /* said again with the next whole view */ }
      }
      this.saying = null;
    })();
  }

  // A message that has an answer.
  request(message) {
    const id = String(++this.number);
    return new Promise((done) => {
      this.answers.set(id, done);
      Promise.resolve(this.link.ask({ ...message, id })).catch((error) => {
        this.answers.delete(id);
        done({ status: "no answer", reason: `the run cannot be reached (${error.message})` });
      });
    });
  }

  // A command with all its values, so that a click means what the page showed.
  command(name, values = {}, reason = undefined) {
    return this.request({ ask: "command", name, values, reason, basis: this.view?.place?.step });
  }

  // What one tab shows: `found`, `buffers`.
  look(what, values = {}) {
    return this.request({ ask: "look", what, values });
  }
}
