// A text box and its button: Enter or the button hands the text over, leaving the box does not.
export default {
  render({ el }) {
    el.style.display = "none";
    return whenIn(el, ".tnb-entry", (line) => {
      let wanted = false;
      const hand = () => {  // the box's own widget listens for this event
        wanted = true;
        line.querySelector("input").dispatchEvent(new Event("change", { bubbles: true }));
        wanted = false;
      };
      const key = (event) => { if (event.key === "Enter" && !event.isComposing) hand(); };
      const click = (event) => { if (event.target.closest("button")) hand(); };
      const change = (event) => { if (!wanted) event.stopImmediatePropagation(); };
      line.addEventListener("keydown", key, true);
      line.addEventListener("click", click, true);
      line.addEventListener("change", change, true);
      return () => {
        line.removeEventListener("keydown", key, true);
        line.removeEventListener("click", click, true);
        line.removeEventListener("change", change, true);
      };
    });
  },
};
