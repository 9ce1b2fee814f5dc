// Numbers in columns: a click on a head sorts by it, once more turns the order; a button copies the table.
const clock = (seconds) => {
  const whole = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
};
const small = (value) => (Math.abs(value) < 1e-3 && value !== 0) || Math.abs(value) >= 1e5;
const TEXT = {
  count: (value) => value.toLocaleString("en-US"),
  epoch: (value) => String(Number(value.toFixed(2))),
  clock,
  value: (value) => (small(value) ? value.toExponential(2) : Math.abs(value) < 0.01 && value !== 0 ? value.toPrecision(3) : value.toFixed(Math.abs(value) < 100 ? 4 : 1)),
};
const text = (value, kind) => (typeof value === "number" ? TEXT[kind](value) : value ?? "\u2013");

export default {
  render({ model, el }) {
    const bar = el.appendChild(document.createElement("div")), scroller = el.appendChild(document.createElement("div"));
    const said = bar.appendChild(document.createElement("span"));
    bar.className = "bar";
    scroller.className = "scroller";
    said.className = "quiet";
    said.setAttribute("aria-live", "polite");
    let by = 0, down = true, timer = 0;  // the newest evaluation first

    const sorted = () => {
      const rows = model.get("rows").map((row, at) => [row, at]);
      const key = ([row]) => (typeof row[by] === "number" ? row[by] : null);
      return rows.sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (a === null || b === null) return (a === null) - (b === null);  // without a value: last
        return (down ? b - a : a - b) || one[1] - other[1];
      });
    };

    const show = () => {
      const columns = model.get("columns"), focused = scroller.contains(document.activeElement) ? document.activeElement.dataset.column : null;
      for (const each of bar.querySelectorAll("button")) each.hidden = !columns.length;
      scroller.replaceChildren();
      if (!columns.length) return scroller.append(Object.assign(document.createElement("div"), { className: "hollow", textContent: model.get("empty") }));
      const table = scroller.appendChild(document.createElement("table"));
      table.className = "plain";
      const head = table.createTHead().insertRow();
      columns.forEach(({ title }, at) => {
        const cell = head.appendChild(document.createElement("th")), button = cell.appendChild(document.createElement("button"));
        cell.scope = "col";
        if (at === by) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        button.textContent = title;
        button.dataset.column = at;
        button.title = `Sort by ${title}`;
        button.addEventListener("click", () => { [by, down] = [at, at === by ? !down : true]; show(); });
        if (String(at) === focused) setTimeout(() => button.focus({ preventScroll: true }));
      });
      const body = table.createTBody();
      for (const [row, number] of sorted()) {
        const line = body.insertRow();
        row.forEach((value, at) => {
          const cell = line.insertCell();
          cell.textContent = text(value, columns[at].kind);
          if (columns[at].best === number) Object.assign(cell, { className: "best", title: `Best ${columns[at].title}` });
        });
      }
    };

    const lines = () => [model.get("columns").map(({ title }) => title),
      ...sorted().map(([row]) => row.map((value, at) => text(value, model.get("columns")[at].kind)))];
    const KINDS = {
      "Copy as text": () => lines().map((line) => line.join("\t")).join("\n"),
      "Copy as Markdown": () => {
        const [heads, ...rest] = lines().map((line) => `| ${line.map((each) => each.replace(/([\\|])/g, "\\$1")).join(" | ")} |`);
        return [heads, `|${" ---: |".repeat(model.get("columns").length)}`, ...rest].join("\n");
      },
    };
    for (const [name, make] of Object.entries(KINDS)) {
      const button = document.createElement("button");
      Object.assign(button, { className: "jupyter-button more", textContent: name });
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(make());
          said.textContent = "Copied";
        } catch (_) {  // no https, or not allowed: the table is selected, and the person copies it
          getSelection().selectAllChildren(scroller);
          said.textContent = "Press Ctrl+C";
        }
        clearTimeout(timer);
        timer = setTimeout(() => { said.textContent = ""; }, 3000);
      });
      bar.insertBefore(button, said);
    }
    const names = ["change:rows", "change:columns"];
    let asked = 0;
    const ask = () => { asked ||= requestAnimationFrame(() => { asked = 0; show(); }); };
    for (const name of names) model.on(name, ask);
    show();
    return () => {
      for (const name of names) model.off(name, ask);
      clearTimeout(timer);
      cancelAnimationFrame(asked);
    };
  },
};
