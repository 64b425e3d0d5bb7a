// Builds the package's code: node build.mjs SOURCES DIRECTORY
//
// The worker is embedded in it as text, since bundlers of apps do not find a worker's file. The
// module for `import` only names what the one for `require` has: a process that uses both has one
// worker, and one class LockLost.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

const [sources, directory] = process.argv.slice(2);
const { version } = JSON.parse(readFileSync(new URL("package.json", import.meta.url), "utf8"));
const common = { bundle: true, platform: "node", target: "node20", format: "cjs" };

const worker = await build({
  ...common,
  entryPoints: [join(sources, "worker.ts")],
  minify: true,
  keepNames: true,
  write: false,
});
const index = {
  ...common,
  entryPoints: [join(sources, "index.ts")],
  define: {
    VERSION: JSON.stringify(version),
    WORKER_SOURCE: JSON.stringify(worker.outputFiles[0].text),
  },
};
await build({ ...index, outfile: join(directory, "index.cjs") });

const asModule = await build({
  ...index,
  outfile: "index.mjs",
  format: "esm",
  metafile: true,
  write: false,
});
const exported = asModule.metafile.outputs["index.mjs"].exports.sort().join(", ");
writeFileSync(join(directory, "index.mjs"), `export { ${exported} } from "./index.cjs";\n`);
for (const declarations of ["index.d.cts", "index.d.mts"]) {
  writeFileSync(join(directory, declarations), 'export * from "./types/index.js";\n');
}
