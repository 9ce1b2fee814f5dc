// Points far from the rest can be left out of the scale; a triangle at the edge marks each of them.

const TAILS = 0.02, MARGIN = 0.25, AIR = 0.06, PLACES = 120;  // share of points that may be outliers; of their spread; of the height; of triangles in a row

const lines = (drawn, axis) => drawn.filter(({ yaxis, mode }) => yaxis === axis && mode.includes("lines"));
const level = (value, log) => (log ? (value > 0 ? Math.log10(value) : NaN) : value);

// As far as the middle of the points reaches, and a quarter more, but never beyond the points.
function extent(sorted) {
  const last = sorted.length - 1, from = sorted[Math.round(TAILS * last)], to = sorted[Math.round((1 - TAILS) * last)], margin = MARGIN * (to - from);
  return [Math.max(sorted[0], from - margin), Math.min(sorted[last], to + margin)];
}

// The range of an axis without outliers, of powers of ten in powers; null where plotly's own is as good: without points, or of one value.
export function rangeWithout(drawn, axis, log) {
  const ends = lines(drawn, axis).map(({ y }) => Float64Array.from(y, (each) => level(each, log)).filter(Number.isFinite).sort()).filter(({ length }) => length).map(extent);
  const low = Math.min(...ends.map(([least]) => least)), high = Math.max(...ends.map(([, most]) => most)), air = AIR * (high - low);
  return high > low ? [low - air, high + air] : null;
}

// Triangles where points are beyond the range; few, however many points there are.
export function beyond(drawn, axis, [low, high], log) {
  const found = new Map(), own = lines(drawn, axis), first = Math.min(...own.map(({ x }) => x[0])), wide = Math.max(...own.map(({ x }) => x.at(-1))) - first || 1;
  for (const { x, y, line } of own) {
    for (let at = 0; at < y.length; at++) {
      const value = level(y[at], log), up = value > high;
      if (Number.isFinite(value) && (up || value < low)) found.set(`${up} ${Math.floor((PLACES * (x[at] - first)) / wide)}`, { x: x[at], up, value: y[at], color: line?.color });
    }
  }
  const marks = [...found.values()], edge = (value) => (log ? 10 ** value : value);
  return marks.length === 0 ? [] : [{
    type: "scatter", mode: "markers", name: "beyond the scale", xaxis: axis.replace("y", "x"), yaxis: axis, cliponaxis: false, showlegend: false, x: marks.map((each) => each.x), y: marks.map(({ up }) => edge(up ? high : low)),
    marker: { size: 7, symbol: marks.map(({ up }) => `triangle-${up ? "up" : "down"}`), color: marks.map(({ color }) => color ?? "#8b8f98") }, customdata: marks.map(({ value }) => value), hovertemplate: "%{customdata:.5g}, beyond the scale<extra></extra>",
  }];
}

// Gives the axes of a layout their ranges without outliers, but not those that a person has zoomed; returns the triangles.
export function leaveOut(drawn, layout, zoomed) {
  return Object.keys(layout).filter((name) => /^yaxis\d*$/.test(name) && !layout[name].fixedrange).flatMap((name) => {
    const axis = name.replace("yaxis", "y"), log = layout[name].type === "log", range = zoomed[name] ?? rangeWithout(drawn, axis, log);
    if (!range) return [];
    Object.assign(layout[name], { range, autorange: false, uirevision: String(Math.random()) });  // what plotly keeps of a zoom, or of a double click, would win
    return beyond(drawn, axis, range, log);
  });
}
