import { page } from "./panel.js";

page(document.getElementById("panel"));
