// Writes the module, its style sheet and plotly's packed script into the package, or a folder that is named. The first line of the module is a hash of its sources.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { gzipSync } from "node:zlib";

const here = new URL(".", import.meta.url), folder = resolve(process.argv[2] ?? new URL("../trainer_nb/panel/module", here).pathname);
const hash = createHash("sha256");
for (const name of [...readdirSync(new URL("src/", here)).sort().map((each) => `src/${each}`), "package.json", "package-lock.json", "build.js"]) {
  hash.update(`${name}\n`);
  hash.update(readFileSync(new URL(name, here)));
}
const first = `sources: sha256 ${hash.digest("hex")}`;
const built = (name, more) => build({ entryPoints: [new URL(`src/${name}`, here).pathname], bundle: true, minify: true, target: "es2022", legalComments: "none", write: false, ...more });
const { outputFiles: [script] } = await built("panel.js", { format: "esm" });
writeFileSync(resolve(folder, "panel.js"), `// ${first}\n${script.text}`);
const { outputFiles: [look] } = await built("panel.css", { target: "chrome119" });
writeFileSync(resolve(folder, "panel.css"), `/* ${first} */\n${look.text}`);
const plotly = readFileSync(new URL("node_modules/plotly.js-basic-dist-min/plotly-basic.min.js", here));
writeFileSync(resolve(folder, "plotly-basic.js.gz"), gzipSync(plotly, { level: 9 }));
