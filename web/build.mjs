// Builds web/dist, which the program embeds, and records the sources that it was built from.
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(root, "dist");

// The licence of uPlot requires its text beside every copy.
const licence = readFileSync(join(root, "node_modules/uplot/LICENSE"), "utf8").trim();
mkdirSync(out, { recursive: true });
await build({
  absWorkingDir: root,
  entryPoints: [
    { in: "src/main.ts", out: "console" },
    { in: "src/console.css", out: "console" },
  ],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  banner: { js: `/*! uPlot\n${licence}\n*/` },
  outdir: out,
});
for (const name of ["index.html", "icon.svg"]) {
  copyFileSync(join(root, "src", name), join(out, name));
}

const files = ["build.mjs", "package.json", "package-lock.json", "tsconfig.json"];
for (const entry of readdirSync(join(root, "src"), { recursive: true, withFileTypes: true })) {
  if (entry.isFile()) files.push(join(entry.parentPath ?? entry.path, entry.name).slice(root.length + 1));
}
const sums = files.sort().map((name) => `${createHash("sha256").update(readFileSync(join(root, name))).digest("hex")}  ${name}\n`);
writeFileSync(join(out, "sources.sha256"), sums.join(""));
