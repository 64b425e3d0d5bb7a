// Builds the package's code: node build.mjs SOURCES DIRECTORY
//
// The worker is embedded in it as text, since bundlers of apps do not find a worker's file.
//
// `index.mjs` only names what `index.cjs` has: a process that uses `import` and `require` has one
// worker, and one class LockLost. Bundlers take `bundled.mjs` for both, since a bundle that is a
// module cannot have `require`.

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
// Each entry point has a file for `require`, one for `import`, and the declarations of both.
function declare(entry) {
  for (const declarations of [`${entry}.d.cts`, `${entry}.d.mts`]) {
    writeFileSync(join(directory, declarations), `export * from "./types/${entry}.js";\n`);
  }
}

const index = {
  ...common,
  entryPoints: [join(sources, "index.ts")],
  define: {
    VERSION: JSON.stringify(version),
    WORKER_SOURCE: JSON.stringify(worker.outputFiles[0].text),
  },
};
await build({ ...index, outfile: join(directory, "index.cjs") });

const { metafile } = await build({
  ...index,
  outfile: join(directory, "bundled.mjs"),
  format: "esm",
  metafile: true,
});
const exported = Object.values(metafile.outputs)[0].exports.sort().join(", ");
writeFileSync(join(directory, "index.mjs"), `export { ${exported} } from "./index.cjs";\n`);
declare("index");

// It has no state, so that two copies in one process do no harm.
for (const format of ["cjs", "esm"]) {
  const outfile = join(directory, `express.${format === "cjs" ? "cjs" : "mjs"}`);
  await build({ ...common, entryPoints: [join(sources, "express.ts")], format, outfile });
}
declare("express");
