// A picture that the kernel writes; where it is clicked, in the picture's own pixels.
export default {
  render({ model, el }) {
    const box = el.appendChild(document.createElement("div"));
    box.className = "lr-curve";
    const draw = () => { box.innerHTML = model.get("picture"); };
    const click = (event) => {
      const picture = box.querySelector("svg");
      if (!picture) return;
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(picture.getScreenCTM().inverse());
      model.send({ x: place.x });
    };
    model.on("change:picture", draw);
    box.addEventListener("click", click);
    draw();
    return () => {
      model.off("change:picture", draw);
      box.removeEventListener("click", click);
    };
  },
};
