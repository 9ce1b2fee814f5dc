// A map of numbers, rows down and columns across, on a canvas: hover names a cell, click or arrow keys choose one.
const STOPS = [[0, 63, 131, 232, 0.12], [0.4, 63, 131, 232, 1], [0.75, 125, 80, 230, 1], [1, 221, 112, 35, 1]];
const BAD = "#e0413a";

function ink(share) {
  const at = Math.max(1, STOPS.findIndex(([place]) => share <= place));
  const [low, high] = [STOPS[at - 1], STOPS[at]];
  const part = (share - low[0]) / (high[0] - low[0]);
  const [r, g, b, a] = [1, 2, 3, 4].map((k) => low[k] + part * (high[k] - low[k]));
  return `rgba(${r | 0},${g | 0},${b | 0},${a.toFixed(3)})`;
}

const words = (value) =>
  Number.isNaN(value) ? "NaN" : !isFinite(value) ? "inf" : value < 0 ? "not measured" : value === 0 ? "0" : value.toPrecision(3);

// What is drawn, read once from the model.
function read(model) {
  const bytes = model.get("cells"), columns = model.get("columns"), rows = model.get("rows");
  const cells = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  const [low, high] = model.get("range"), log = model.get("log");
  const scale = log ? Math.log : (value) => value;
  const span = scale(high) - scale(low) || 1;
  const share = (value) => (value <= low ? 0 : Math.min(1, (scale(value) - scale(low)) / span));
  // A column reaches to the next one; the last is as wide as the one before.
  const last = columns.at(-1) ?? 0, first = columns[0] ?? 0;
  const end = columns.length > 1 ? 2 * last - columns.at(-2) : last + 1;
  const place = (number) => ((number < columns.length ? columns[number] : end) - first) / (end - first);
  return { cells, columns, rows, share, place };
}

export default {
  render({ model, el }) {
    el.classList.add("heat-map");
    el.innerHTML = '<div class="names"></div><div class="field" tabindex="0" role="application"><canvas></canvas><i class="chosen"></i></div>' +
      '<div class="ticks"></div><div class="tip" hidden></div>';
    const [names, field, ticks, tip] = el.children, canvas = field.firstChild, mark = field.lastChild;
    let shown = null;
    const label = (row, column) => `${shown.rows[row]}, step ${shown.columns[column].toLocaleString("en")}: ` +
      words(shown.cells[row * shown.columns.length + column]);

    const draw = () => {
      shown = read(model);
      const { cells, columns, rows, share, place } = shown, ratio = globalThis.devicePixelRatio || 1;
      const height = Math.max(1, model.get("height")), width = field.clientWidth;
      field.style.height = `${height}px`;
      if (!width) return;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      const page = canvas.getContext("2d"), edge = (part, size) => Math.round(part * size);
      for (let column = 0; column < columns.length; column++) {
        const left = edge(place(column), canvas.width), right = edge(place(column + 1), canvas.width);
        for (let row = 0; row < rows.length; row++) {
          const value = cells[row * columns.length + column];
          if (value < 0) continue;
          const top = edge(row / rows.length, canvas.height), bottom = edge((row + 1) / rows.length, canvas.height);
          page.fillStyle = isFinite(value) ? ink(share(value)) : BAD;
          page.fillRect(left, top, right - left, bottom - top);
        }
      }
      names.replaceChildren(...labels(rows, height));
      ticks.replaceChildren(...steps(columns, width));
      choose();
    };
    const labels = (rows, height) => {  // as many names as have room, each beside its own row
      const every = Math.ceil((14 * rows.length) / height);
      return rows.flatMap((name, row) => {
        if (row % every) return [];
        const line = Object.assign(document.createElement("div"), { title: name });
        line.append(Object.assign(document.createElement("bdi"), { textContent: name }));
        line.style.top = `${((row + 0.5) / rows.length) * height}px`;
        return [line];
      });
    };
    const steps = (columns, width) => {  // round ones
      const first = columns[0] ?? 0, span = (shown.columns.length > 1 ? 2 * columns.at(-1) - columns.at(-2) : first + 1) - first;
      const rough = span / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(rough));
      const step = Math.max(1, [1, 2, 5, 10].find((each) => each * power >= rough) * power);
      const found = [];
      for (let at = Math.ceil(first / step) * step; at < first + span; at += step) {
        const part = (at - first) / span, line = Object.assign(document.createElement("span"), { textContent: at.toLocaleString("en") });
        if (part > 0.97) break;
        line.style.left = `${100 * part}%`;
        found.push(line);
      }
      return found;
    };
    const choose = () => {
      const [row, column] = model.get("chosen");
      const there = row >= 0 && row < shown.rows.length && column >= 0 && column < shown.columns.length;
      mark.hidden = !there;
      field.setAttribute("aria-label", model.get("summary") + (there ? ` Chosen: ${label(row, column)}.` : ""));
      if (!there) return;
      const { place, rows } = shown, height = model.get("height");
      Object.assign(mark.style, {
        left: `${100 * place(column)}%`, width: `${100 * (place(column + 1) - place(column))}%`,
        top: `${(row / rows.length) * height}px`, height: `${height / rows.length}px` });
    };
    const send = (row, column) => {
      const clip = (value, count) => Math.max(0, Math.min(count - 1, value));
      if (!shown?.rows.length || !shown.columns.length) return;
      [row, column] = [clip(row, shown.rows.length), clip(column, shown.columns.length)];
      model.send({ layer: shown.rows[row], step: shown.columns[column] });
    };
    const cell = (event) => {
      const box = field.getBoundingClientRect(), part = (event.clientX - box.left) / box.width;
      let column = 0;
      while (column + 1 < shown.columns.length && shown.place(column + 1) <= part) column++;
      return [Math.floor(((event.clientY - box.top) / box.height) * shown.rows.length), column];
    };
    const click = (event) => { if (shown?.rows.length) send(...cell(event)); };
    const key = (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const [row, column] = model.get("chosen");
      send(...(row < 0 ? [0, shown.columns.length - 1] : [row + move[0], column + move[1]]));
    };
    const hover = (event) => {
      if (!shown?.rows.length || !shown.columns.length) return;
      const [row, column] = cell(event), box = el.getBoundingClientRect();
      if (!(row >= 0 && row < shown.rows.length)) return;
      tip.textContent = label(row, column);
      tip.hidden = false;
      tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 12, box.width - tip.offsetWidth))}px`;
      tip.style.top = `${event.clientY - box.top + 16}px`;
    };
    const leave = () => { tip.hidden = true; };
    let asked = 0;
    const ask = () => { asked ||= requestAnimationFrame(() => { asked = 0; draw(); }); };
    const again = () => { if (shown && !asked) choose(); };
    const observer = new ResizeObserver(ask);
    field.addEventListener("click", click);
    field.addEventListener("keydown", key);
    field.addEventListener("mousemove", hover);
    field.addEventListener("mouseleave", leave);
    model.on("change:cells change:columns change:rows change:range change:height change:log", ask);
    model.on("change:chosen change:summary", again);
    observer.observe(el);
    ask();
    return () => {
      observer.disconnect();
      cancelAnimationFrame(asked);
      model.off("change:cells change:columns change:rows change:range change:height change:log", ask);
      model.off("change:chosen change:summary", again);
    };
  },
};
