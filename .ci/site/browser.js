// Open every page of the built site in Chromium, at three widths, light and dark, and report what axe-core finds.
//
//   node .ci/site/browser.js site [--shots FOLDER] [PAGE…]
//
// It fails if axe-core finds something serious, if a page is wider than the window, if a page asks for a resource from
// elsewhere, or if a script fails. `--shots` also writes a screenshot of the first screen of each page.
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const WIDTHS = [360, 768, 1280];
const THEMES = ["light", "dark"];
// What can differ between two widths or themes of a page; all rules run at one width only.
const VISUAL = ["color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size"];
const SERIOUS = new Set(["serious", "critical"]);
const FOUND = ["/usr/bin/chromium", "/usr/bin/google-chrome", "/usr/bin/chromium-browser"];

const words = process.argv.slice(2);
const at = words.indexOf("--shots");
const shots = at < 0 ? null : words.splice(at, 2)[1];
const [folder, ...chosen] = words;
const pages = chosen.length ? chosen : fs.readdirSync(folder, { recursive: true }).map(String)
  .filter((name) => name.endsWith(".html") && !/^_(static|downloads)/.test(name)).sort();

const executablePath = process.env.CHROMIUM ?? FOUND.find((name) => fs.existsSync(name));
const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const browser = await chromium.launch({
  executablePath,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"],
});
const context = await browser.newContext({ reducedMotion: "reduce" });
const problems = { count: 0, push(line) { this.count += 1; console.log(line); } };

for (const name of pages) {
  const page = await context.newPage();
  page.on("request", (request) => {
    if (!/^(file|data|blob):/.test(request.url())) problems.push(`${name}: asks for ${request.url()}`);
  });
  page.on("pageerror", (error) => problems.push(`${name}: ${error.message}`));
  await page.goto(pathToFileURL(path.resolve(folder, name)).href, { timeout: 120000 });
  await page.addScriptTag({ path: axe });
  for (const theme of THEMES) {
    await page.emulateMedia({ colorScheme: theme });
    await page.evaluate((value) => { document.body.dataset.theme = value; }, theme);
    for (const width of WIDTHS) {
      const where = `${name}, ${width} px, ${theme}`;
      await page.setViewportSize({ width, height: 800 });
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      if (wide > 1) problems.push(`${where}: ${wide} px wider than the window`);
      const rules = theme === "light" && width === WIDTHS[0] ? null : VISUAL;
      const found = await page.evaluate(async (values) => {
        const options = { resultTypes: ["violations"], ...(values && { runOnly: { type: "rule", values } }) };
        const { violations } = await window.axe.run(document, options);
        return violations.map(({ id, impact, help, nodes }) =>
          ({ id, impact, help, count: nodes.length, example: nodes[0].html.slice(0, 160) }));
      }, rules);
      for (const { id, impact, help, count, example } of found)
        if (SERIOUS.has(impact)) problems.push(`${where}: ${id} (${impact}), ${count} times: ${help}: ${example}`);
      if (shots) {
        const file = path.join(shots, `${name.replaceAll("/", "-").replace(/\.html$/, "")}-${width}-${theme}.png`);
        fs.mkdirSync(shots, { recursive: true });
        await page.screenshot({ path: file });
      }
    }
  }
  await page.close();
  console.log(`${name}: done`);
}
await browser.close();
console.log(`${pages.length} pages, ${WIDTHS.length} widths, ${THEMES.join(" and ")}: ${problems.count} problems`);
process.exitCode = problems.count ? 1 : 0;
