// A text in code letters under its heading, with a button that copies it.
export default {
  render({ model, el }) {
    const head = el.appendChild(document.createElement("div"));
    head.className = "heading";
    head.append("As a script");
    const space = head.appendChild(document.createElement("span"));
    space.className = "fill";
    const button = head.appendChild(document.createElement("button"));
    button.className = "jupyter-button copy";
    const code = el.appendChild(document.createElement("pre"));
    code.className = "code";
    const foot = el.appendChild(document.createElement("div"));
    foot.className = "quiet small";
    foot.textContent = "Replays to the same weights, bit for bit. Pauses and notes are left out.";
    let timer = 0;
    const say = (word) => {
      button.textContent = word;
      clearTimeout(timer);
      if (word !== "Copy as script") timer = setTimeout(() => say("Copy as script"), 2000);
    };
    const copy = async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        say("Copied");
      } catch (_) {  // a page without https: the person copies
        getSelection().selectAllChildren(code);
        say("Selected: press Ctrl C");
      }
    };
    const show = () => { code.textContent = model.get("text"); };
    button.addEventListener("click", copy);
    model.on("change:text", show);
    say("Copy as script");
    show();
    return () => { model.off("change:text", show); clearTimeout(timer); };
  },
};
