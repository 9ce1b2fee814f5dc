// A list that saves the picture beside it, or all records as a table.
const KINDS = { "": "Save", svg: "picture, SVG", png: "picture, PNG", csv: "records, CSV" };

function download(name, url) {
  const link = document.createElement("a");
  Object.assign(link, { href: url, download: name.replace(/[^\w.-]+/g, "_") });
  link.click();
  if (url.startsWith("blob:")) setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

function solid(el) {  // the first colour behind an element: the picture's own ground is transparent
  for (let each = el; each; each = each.parentElement) {
    const colour = getComputedStyle(each).backgroundColor;
    if (colour && !/^rgba\(.*, 0\)$/.test(colour) && colour !== "transparent") return colour;
  }
  return "white";
}

async function picture(el, format) {
  const box = el.closest(".tnb-plots")?.querySelector(".js-plotly-plot"), Plotly = await globalThis.trainer_nb_plotly;
  if (!box || !Plotly) throw new Error("the curves are not drawn yet");
  const look = { ...box.layout, paper_bgcolor: solid(box) }, { width, height } = box.getBoundingClientRect();
  return Plotly.toImage({ data: box.data, layout: look }, { format, width, height, scale: format === "png" ? 2 : 1 });
}

export default {
  render({ model, el }) {
    const list = el.appendChild(document.createElement("select"));
    list.setAttribute("aria-label", "Save the picture or the records");
    list.title = "Save the picture or the records";
    for (const [value, text] of Object.entries(KINDS)) list.append(new Option(text, value));
    let waiting = 0;
    const say = (text) => {
      list.options[0].textContent = text;
      if (text !== KINDS[""]) setTimeout(() => say(KINDS[""]), 4000);
    };
    const chosen = async () => {
      const kind = list.value, name = model.get("name");
      list.value = "";
      if (kind === "csv") return model.send({ csv: (waiting = Math.floor(Math.random() * 2 ** 48)) });
      try {
        download(`${name}.${kind}`, await picture(el, kind));
      } catch (error) {
        say(`failed: ${error.message}`);
      }
    };
    const arrived = ({ csv, text, thinned }) => {
      if (csv !== waiting) return;  // another page has asked
      waiting = 0;
      download(`${model.get("name")}${thinned ? "-thinned" : ""}.csv`, URL.createObjectURL(new Blob([text], { type: "text/csv" })));
    };
    list.addEventListener("change", chosen);
    model.on("msg:custom", arrived);
    return () => model.off("msg:custom", arrived);
  },
};
