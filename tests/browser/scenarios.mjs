// The dashboard in a real Chromium, on a real cluster: what a browser does with it, and what a hostile page beside it can do.
// Started by `run`. Arguments: the program `muster`, the folder of the clients, the folder for pictures.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { createServer } from "node:http";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [muster, fetched, pictures] = process.argv.slice(2);
const require = createRequire(join(fetched, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const PAGES = [
  ["overview", "/", "#members-rows a"],
  ["health", "/health", "#facts dl"],
  ["instructions", "/health?alert=MusterQuorumMarginNone", "#runbook h2"],
  ["nodes", "/nodes", "#nodes-rows a"],
  ["node", "/nodes?node=n1", "dl.facts"],
  ["actors", "/actors?node=leader", "ul.tree a"],
  ["actor", "/actors?node=leader&path=node%2Fmanager%2Fleader%2Frole-manager", "pre"],
  ["leases", "/leases", "#leases-rows a"],
  ["lease", "/leases?namespace=default&name=nightly-report", "dl.facts"],
  ["gates", "/gates", "#gates-rows a"],
  ["gate", "/gates?name=schema", "dl.facts"],
  ["events", "/events", "#events-rows a"],
  ["certificates", "/certificates", "#certificates-rows a"],
  ["managers", "/managers", "#declared .command"],
];
const LONG = 60_000; // a deadline that only a broken build reaches

// Waits for a release that no node has.
const SCHEMA = `name = "schema"
release = "9.0.0"
scope = "db"
floor = "2.0.0"
every = "30s"
[[objects]]
kind = "table"
name = "users"
wave = 0
[objects.body]
columns = ["id"]
`;

// ---- a cluster and a dashboard

const folder = mkdtempSync(join(tmpdir(), "mb-"));
const dir = join(folder, "d");
// The cluster's commands must not find another one.
const env = { ...process.env };
for (const name of Object.keys(env)) if (name.startsWith("MUSTER_")) delete env[name];
let socket;
const children = new Set();

function cli(...args) {
  const done = spawnSync(muster, ["--socket", socket, ...args], { cwd: folder, env, encoding: "utf8", timeout: LONG });
  assert.equal(done.status, 0, `muster ${args.join(" ")}: ${done.stderr}`);
  return done.stdout;
}

function start(...args) {
  const child = spawn(muster, args, { cwd: folder, env, stdio: ["ignore", "pipe", "pipe"] });
  children.add(child);
  child.on("exit", () => children.delete(child));
  child.said = "";
  child.stderr.on("data", (data) => (child.said += data));
  return child;
}

async function dashboard(...flags) {
  const child = start("--socket", socket, "-o", "json", "dashboard", "--no-open", ...flags);
  child.link = await new Promise((found, failed) => {
    let text = "";
    child.stdout.on("data", (data) => {
      text += data;
      if (text.includes("\n")) found(JSON.parse(text.split("\n")[0]).url);
    });
    child.on("exit", (code) => failed(new Error(`the dashboard ended with ${code}: ${child.said}`)));
  });
  return child;
}

async function until(what, holds) {
  const end = Date.now() + LONG;
  for (;;) {
    if (await holds()) return;
    assert.ok(Date.now() < end, `not within ${LONG / 1000} s: ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

function stop(child) {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve();
  const gone = new Promise((done) => child.on("exit", done));
  child.kill("SIGTERM");
  return gone;
}

function processOf(node) {
  return Number(readFileSync(join(dir, node, "lock"), "utf8").trim().split(/\s/)[0]);
}

function leading() {
  return JSON.parse(cli("node", "ls", "-o", "json")).items.find((node) => node.manager?.leader)?.name;
}

// ---- a browser

async function page(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 720 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(LONG);
  page.complaints = [];
  page.on("console", (message) => message.type() === "error" && page.complaints.push(message.text()));
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  return page;
}

async function logIn(browser, board, options) {
  const tab = await page(browser, options);
  await tab.goto(board.link);
  await tab.waitForSelector("#members-rows a");
  return tab;
}

// Moves the focus by the Tab key alone.
async function tabTo(tab, what, holds) {
  for (let pressed = 0; pressed < 200; pressed += 1) {
    await tab.keyboard.press("Tab");
    if (await tab.evaluate(holds, what)) return;
  }
  assert.fail(`Tab never reaches ${what}`);
}

const isNamed = (name) => document.activeElement.textContent.trim() === name;
const isId = (id) => document.activeElement.id === id;

/** Shows only this node of the list, by keys alone. */
async function filterNodes(tab, name) {
  await tab.keyboard.press("g");
  await tab.keyboard.press("n");
  await tab.waitForSelector("#nodes-rows a");
  await tab.keyboard.press("/");
  await tab.keyboard.type(name);
  await until("the filter shows one node", async () => (await tab.locator("#nodes-rows tr").count()) === 1);
}

const scenarios = {
  async "a link logs in once and leaves the address"(browser) {
    const began = Date.now();
    const board = await dashboard();
    const tab = await logIn(browser, board);
    console.log(`    from Enter to a painted overview: ${Date.now() - began} ms`);
    assert.ok(!tab.url().includes("#"), tab.url());
    const secret = board.link.split("#")[1];
    assert.ok(!(await tab.content()).includes(secret));
    const [cookie] = await tab.context().cookies();
    assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.domain], [true, "Strict", "127.0.0.1"]);
    assert.ok(!(await tab.content()).includes(cookie.value), "no secret is in the page");
    assert.ok(!board.said.includes(cookie.value) && !board.said.includes(secret), board.said);
    const arguments_ = readFileSync(`/proc/${board.pid}/cmdline`, "utf8");
    assert.ok(!arguments_.includes(secret), "others can read arguments");
    for (const node of ["n1", "n2", "n3", "n4", "n5"]) {
      const log = readFileSync(join(dir, node, "musterd.log"), "utf8");
      assert.ok(!log.includes(secret) && !log.includes(cookie.value), `the log of ${node} has neither secret`);
    }

    // Whoever uses it a second time ends it for both.
    const second = await page(browser);
    await second.goto(board.link);
    await second.waitForSelector("text=used before");
    await tab.waitForSelector("text=Your session has ended");
    await until("the terminal says so", () => board.said.includes("a link was used twice"));
    await stop(board);
  },

  async "every page is painted, accessible, and legible in both themes"(browser) {
    const board = await dashboard();
    const tab = await logIn(browser, board);
    for (const colorScheme of ["light", "dark"]) {
      await tab.emulateMedia({ colorScheme });
      for (const [name, address, shown] of PAGES) {
        await tab.goto(new URL(address, board.link).href);
        await tab.waitForSelector(`#main[data-page="${address}"]`);
        await tab.waitForSelector(shown);
        await tab.screenshot({ path: join(pictures, `${name}-${colorScheme}.png`) });
        // The policy forbids a script of the page's own; a tool's is evaluated beside it.
        await tab.evaluate(axe);
        const found = await tab.evaluate(() => globalThis.axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] }));
        const violations = found.violations.map((v) => `${v.id}: ${v.nodes.map((n) => `${n.html} ${n.failureSummary}`).join("; ")}`);
        assert.deepEqual(violations, [], `${name}, ${colorScheme}`);
        const size = await tab.evaluate(() => document.documentElement.outerHTML.length);
        assert.ok(size < 2_000_000, `${name}: ${size} bytes`);
      }
      await tab.setViewportSize({ width: 320, height: 640 });
      for (const [name, address, shown] of PAGES) {
        await tab.goto(new URL(address, board.link).href);
        await tab.waitForSelector(shown);
        const wide = await tab.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(wide <= 320, `${name}: ${wide} px wide`);
        await tab.screenshot({ path: join(pictures, `${name}-narrow-${colorScheme}.png`) });
      }
      await tab.setViewportSize({ width: 1280, height: 720 });
    }
    assert.deepEqual(tab.complaints, [], "the browser's log");
    await stop(board);
  },

  async "a promotion is made by keys alone"(browser) {
    const board = await dashboard("--actions");
    const tab = await logIn(browser, board);
    let step = 0;
    const picture = () => tab.screenshot({ path: join(pictures, `keys-${(step += 1)}.png`) });
    await filterNodes(tab, "n4");
    await tabTo(tab, "n4", isNamed);
    await picture();
    await tab.keyboard.press("Enter");
    await tab.waitForSelector("h1:text('Node n4')");
    for (const [action, settled] of [["promote", true], ["demote", false]]) {
      await tabTo(tab, action, isNamed);
      await tab.keyboard.press("Enter");
      await tab.waitForSelector("#act[open], dialog[open] #act-do");
      await picture();
      if (!(await tab.evaluate(isId, "act-do"))) await tabTo(tab, "act-do", isId);
      await tab.keyboard.press("Enter");
      await tab.waitForSelector("text=accepted");
      await tab.keyboard.press("Escape");
      await until(`the page shows it: ${action}`, async () => (await tab.textContent("#node")).includes("Raft id") === settled);
      await picture();
      // Until the certificate has followed, it is not offered.
      await until("it has settled", async () => (await tab.textContent("#main")).includes("what is wanted is so"));
    }
    assert.deepEqual(tab.complaints, []);
    await stop(board);
  },

  async "a pending promotion shows its reason and its age"(browser) {
    const board = await dashboard();
    const tab = await logIn(browser, board);
    const frozen = processOf("n4");
    process.kill(frozen, "SIGSTOP");
    try {
      cli("node", "promote", "n4");
      await tab.goto(new URL("/nodes?node=n4", board.link).href);
      await tab.waitForSelector("dl.facts");
      await until("the reason is shown", async () => /waiting_for_\w+/.test(await tab.textContent("#main")));
      await until("and how long it has been so", async () => (await tab.locator("#conditions-rows .age").first().textContent()) !== "");
      await tab.goto(new URL("/", board.link).href);
      await until("the overview has it, too", async () => /n4.*waiting_for_\w+/s.test((await tab.textContent("#main")) ?? ""));
    } finally {
      process.kill(frozen, "SIGCONT");
    }
    cli("node", "promote", "n4", "--wait");
    cli("node", "demote", "n4", "--wait");
    assert.deepEqual(tab.complaints, []);
    await stop(board);
  },

  async "a promotion is followed by keys alone"(browser) {
    const board = await dashboard();
    const tab = await logIn(browser, board);
    await filterNodes(tab, "n4");
    assert.equal(await tab.evaluate(() => document.activeElement.value), "n4", "what is typed stays");
    await tab.evaluate(() => document.activeElement.blur());
    await tab.keyboard.press("j");
    await tab.keyboard.press("Enter");
    await tab.waitForSelector("h1:text('Node n4')");
    cli("node", "promote", "n4", "--wait");
    await until("the page shows the voter", async () => (await tab.textContent("#node")).includes("Raft id"));
    cli("node", "demote", "n4", "--wait");
    await until("and the worker", async () => !(await tab.textContent("#node")).includes("Raft id"));
    await tab.keyboard.press("?");
    await tab.waitForSelector("dialog[open]");
    await tab.keyboard.press("Escape");
    await tab.keyboard.press("g");
    await tab.keyboard.press("e");
    await tab.waitForSelector("#events-rows a");
    assert.ok((await tab.textContent("#events")).includes("manager"));
    await tab.goBack();
    await tab.waitForSelector("h1:text('Node n4')");
    assert.deepEqual(tab.complaints, []);
    await stop(board);
  },

  async "actions are confirmed, are one request, and say why they are refused"(browser) {
    const board = await dashboard("--actions");
    const tab = await logIn(browser, board);
    const events = () => JSON.parse(cli("events", "-o", "json", "--kind", "role", "--node", "n4")).items.length;
    const before = events();
    const open = async (node) => {
      await tab.goto(new URL(`/nodes?node=${node}`, board.link).href);
      await tab.waitForSelector("#actions button");
    };
    await open("n4");
    await tab.click("text=promote");
    assert.ok((await tab.textContent("#act-text")).includes("n4 becomes a manager"));
    await tab.evaluate(() => {
      const button = document.getElementById("act-do");
      button.click();
      button.disabled = false; // a person who is faster than the answer
      button.click();
    });
    await tab.waitForSelector("text=accepted");
    await tab.click("#act-close");
    await until("it votes", async () => (await tab.textContent("#node")).includes("Raft id"));
    cli("node", "promote", "n4", "--wait");
    assert.equal(events() - before, 2, "one was wanted, one granted");

    // Another one leads, so that the socket of this test stays an operator's.
    if (leading() === "n1") {
      await tab.goto(new URL("/", board.link).href);
      await tab.click("text=transfer leadership");
      await tab.click("#act-do");
      await tab.waitForSelector("text=accepted");
      await tab.click("#act-close");
      await until("another one leads", () => ![undefined, "n1"].includes(leading()));
    }
    // The leader: its name must be typed.
    const leader = leading();
    await open(leader);
    await tab.click("text=demote");
    assert.ok(await tab.isDisabled("#act-do"));
    await tab.fill("#act-input", leader);
    await tab.click("#act-do");
    await tab.waitForSelector("text=accepted");
    await tab.click("#act-close");
    await until("it is a worker", async () => (await tab.textContent("#node dd:nth-of-type(6)")) === "worker");
    cli("node", "promote", leader, "--wait");
    cli("node", "demote", "n4", "--wait");

    // Refused, with the reason: a manager is not removed before it is demoted.
    await open(leader);
    await tab.click("text=remove >> nth=0");
    await tab.fill("#act-input", leader);
    await tab.click("#act-do");
    await tab.waitForSelector("#act-outcome:has-text('demote')");
    await tab.click("#act-close");

    // With a manager frozen no other one may leave; and the last one may not.
    const [first, second] = ["n1", "n2", "n3"].filter((name) => name !== leading());
    const [stays, frozen] = first === "n1" ? [first, second] : [second, first];
    const refused = async (node, text) => {
      await open(node);
      await tab.click("text=demote >> nth=0");
      if (await tab.isVisible("#act-input")) await tab.fill("#act-input", node);
      await tab.click("#act-do");
      await until(`${node} is not demoted: ${text}`, async () => (await tab.textContent("#act-outcome")).includes(text));
      const shown = await tab.textContent("#act-outcome");
      await tab.click("#act-close");
      return shown;
    };
    process.kill(processOf(frozen), "SIGSTOP");
    try {
      await until("its silence is noticed", () => cli("status").includes(`missing: ${frozen}`));
      assert.ok((await refused(stays, frozen)).length > 40, "it says what to do");
    } finally {
      process.kill(processOf(frozen), "SIGCONT");
    }
    await until("it is back", () => cli("status").includes("held: 3 of 3"));
    cli("node", "demote", "n2", "n3", "--wait");
    await refused("n1", "last manager");
    cli("node", "promote", "n2", "n3", "--wait");
    assert.deepEqual(tab.complaints.filter((line) => !line.includes("409")), []);
    await stop(board);
  },

  async "a crash is on the screen, and what is in use stays"(browser) {
    const board = await dashboard();
    const tab = await logIn(browser, board);
    const path = "node/manager/leader/role-manager";
    await tab.goto(new URL(`/actors?node=leader&path=${encodeURIComponent(path)}`, board.link).href);
    await tab.waitForSelector("pre");
    const exits = async () => tab.locator("#exits-rows td").count();
    cli("actors", "crash", path, "--node", "leader");
    const began = Date.now();
    await until("the exit is shown", async () => (await exits()) > 1 && (await tab.textContent("#exits")).includes("panic"));
    console.log(`    from the crash's answer to the screen: ${Date.now() - began} ms`);
    await tab.goto(new URL("/actors?node=leader", board.link).href);
    await tab.waitForSelector("ul.tree [data-fold]");
    // A branch that a person folds stays folded through patches, and focus stays where it is.
    const below = await tab.locator("[data-fold][aria-expanded=true]").first().getAttribute("data-fold");
    await tab.locator(`[data-fold="${below}"]`).press("Space");
    const patches = async () => Number(await tab.getAttribute("#main", "data-patches"));
    const before = await patches();
    await until("more patches came", async () => (await patches()) > before + 2);
    assert.equal(await tab.getAttribute(`[data-fold="${below}"]`, "aria-expanded"), "false");
    assert.ok(await tab.locator(`#${below}`).isHidden());
    assert.equal(await tab.evaluate(() => document.activeElement.dataset.fold), below);
    await stop(board);
  },

  async "without a quorum it logs in, says who is missing, and recovers"(browser) {
    const board = await dashboard();
    const tab = await logIn(browser, board);
    const managers = ["n2", "n3"].map(processOf);
    for (const pid of managers) process.kill(pid, "SIGSTOP");
    try {
      const began = Date.now();
      await until("it says so", async () => /no quorum|quorum lost/.test(await tab.textContent("#currency")));
      await until("both are named", async () => /n2.*n3/.test(await tab.textContent("#currency")));
      console.log(`    from the freeze to both names: ${Date.now() - began} ms`);
      await tab.screenshot({ path: join(pictures, "no-quorum-light.png") });
      const other = await dashboard();
      const fresh = await page(browser);
      await fresh.goto(other.link);
      await until("a new login says it, too", async () => /no quorum|quorum lost/.test((await fresh.textContent("#main")) ?? ""));
      // What to look at first is there, too, with the instructions.
      await fresh.keyboard.press("g");
      await fresh.keyboard.press("h");
      await fresh.waitForSelector("h1:text('Health')");
      await until("it names both", async () => /no quorum.*n2.*n3/s.test((await fresh.textContent("#findings")) ?? ""));
      assert.ok((await fresh.textContent("#summary")).includes("to act on now"));
      await fresh.screenshot({ path: join(pictures, "health-no-quorum-light.png") });
      await fresh.click("#findings-rows a:text('MusterNoLeader')");
      await fresh.waitForSelector("#runbook h2:text('MusterNoLeader')");
      await stop(other);
    } finally {
      for (const pid of managers) process.kill(pid, "SIGCONT");
    }
    const began = Date.now();
    await until("it is well again, without a reload", async () => (await tab.textContent("#currency")).includes("3 of 3 managers answer"));
    console.log(`    from the thaw to a quorum on the screen: ${Date.now() - began} ms`);
    assert.deepEqual(tab.complaints, []);
    // The dashboard itself goes away: the page says so, and stays.
    await stop(board);
    await tab.waitForSelector("#cut:not([hidden])");
    assert.ok((await tab.textContent("#members")).includes("n1"));
  },

  async "a hostile page in the same browser gets nothing"(browser) {
    const board = await dashboard();
    const victim = await logIn(browser, board);
    const { port } = new URL(board.link);
    const attacker = createServer((_, answer) => answer.setHeader("Content-Type", "text/html").end("<!doctype html><title>x</title>"));
    await new Promise((done) => attacker.listen(0, "127.0.0.1", done));
    // Another port of the same host: the browser sends it the dashboard's cookie, and counts it as the same site.
    const tab = await victim.context().newPage();
    await tab.goto(`http://127.0.0.1:${attacker.address().port}/`);
    const tried = await tab.evaluate(async (base) => {
      const outcome = async (path, options) => {
        try {
          const answer = await fetch(base + path, options);
          return `${answer.type} ${answer.status} ${await answer.text()}`;
        } catch {
          return "refused";
        }
      };
      const frame = document.createElement("iframe");
      frame.src = base;
      document.body.append(frame);
      const script = document.createElement("script");
      script.src = `${base}/stream`;
      const loaded = await new Promise((done) => {
        script.onload = () => done("loaded");
        script.onerror = () => done("refused");
        document.body.append(script);
      });
      const reads = [
        await outcome("/stream", { credentials: "include" }),
        await outcome("/stream", { credentials: "include", headers: { "Muster-Tab": "x" } }),
        await outcome("/login", { method: "POST", credentials: "include", body: "{}" }),
        await outcome("/logout", { method: "POST", credentials: "include" }),
      ];
      const blind = await outcome("/stream", { credentials: "include", mode: "no-cors" });
      let framed;
      try {
        framed = frame.contentDocument?.body?.textContent ?? "";
      } catch {
        framed = "";
      }
      return { reads, blind, loaded, framed };
    }, `http://127.0.0.1:${port}`);
    assert.deepEqual(tried.reads, ["refused", "refused", "refused", "refused"]);
    assert.ok(["refused", "opaque 0 "].includes(tried.blind), tried.blind);
    assert.equal(tried.loaded, "refused");
    assert.equal(tried.framed, "");
    // What a name that resolves to 127.0.0.1 would send.
    const rebound = await tab.request.get(`http://127.0.0.1:${port}/`, { headers: { Host: "evil.example" } });
    assert.equal(rebound.status(), 421);
    // Another local user has neither secret of the session: a shell without data, and 401.
    const stranger = await (await browser.newContext()).request.get(`http://127.0.0.1:${port}/stream`);
    assert.equal(stranger.status(), 401);
    // The browser hid the answers; the server did not rely on that: it refuses what such a page sends, cookie and all.
    const sent = { Origin: new URL(tab.url()).origin, "Sec-Fetch-Site": "same-site" };
    for (const [path, method] of [["/stream", "GET"], ["/login", "POST"], ["/logout", "POST"], ["/actions", "POST"]]) {
      const answer = await tab.request.fetch(`http://127.0.0.1:${port}${path}`, { method, headers: sent });
      assert.equal(answer.status(), 403, path);
    }
    // The operator is still logged in.
    await victim.bringToFront();
    await victim.reload();
    await victim.waitForSelector("#members-rows a");
    attacker.close();
    await stop(board);
  },

  async "a program that takes the port of a dashboard shows nothing"(browser) {
    const board = await dashboard();
    const tab = await logIn(browser, board);
    const { port } = new URL(board.link);
    await stop(board);
    const page = JSON.stringify({ title: "x", page: "<section id='currency'><p data-say>3 of 3 managers answer: fake</p></section>" });
    const impostor = createServer((request, answer) => {
      answer.writeHead(200, { "Content-Type": "text/event-stream" });
      answer.write(`data: ${JSON.stringify({ proof: request.headers["muster-tab"] })}\n\ndata: ${page}\n\n`);
    });
    await new Promise((done) => impostor.listen(Number(port), "127.0.0.1", done));
    await tab.waitForSelector("text=Another program answers");
    assert.ok(!(await tab.content()).includes("fake"));
    impostor.closeAllConnections();
    impostor.close();
  },

  async "hostile names and texts run nothing"(browser) {
    const hostile = `<img src=x onerror="document.title='owned'">`;
    cli("node", "update", "n5", "--label-add", `note=${hostile}`);
    cli("lease", "create", "job", "--holder", `${hostile}</script>`);
    // A command's output, as `schema` that nothing runs has none.
    const { release } = JSON.parse(cli("node", "ls", "-o", "json")).items[0];
    writeFileSync(join(folder, "said"), `${hostile}</script>\n`);
    const hostileRun = `name = "hostile"\nrelease = "${release}"\nscope = "h"\nfloor = "${release}"\n[command]\nargv = ["sh", "-c", 'cat "$0"; exit 78', "${join(folder, "said")}"]\n`;
    writeFileSync(join(folder, "hostile.toml"), hostileRun);
    cli("reconciler", "apply", "-f", "hostile.toml");
    const board = await dashboard();
    const tab = await logIn(browser, board);
    for (const [address, shown] of [["/nodes?node=n5", "dl.facts"], ["/leases", "#leases-rows a"], ["/events", "#events-rows a"], ["/leases?namespace=default&name=job", "dl.facts"], ["/gates?name=hostile", "dl.facts"]]) {
      await tab.goto(new URL(address, board.link).href);
      await tab.waitForSelector(shown);
      await until("the text is shown as text", async () => (await tab.textContent("#main")).includes("onerror"));
      assert.equal(await tab.locator("main img").count(), 0, address);
      assert.ok(!(await tab.title()).includes("owned"), address);
    }
    assert.deepEqual(tab.complaints, [], "no policy was violated");
    await stop(board);
  },
};

// ---- all of them

let failed = 0;
let browser;
try {
  mkdirSync(pictures, { recursive: true });
  const up = spawnSync(muster, ["dev", "up", "--detach", "--dir", dir], { cwd: folder, env, encoding: "utf8", timeout: 2 * LONG });
  assert.equal(up.status, 0, up.stderr);
  socket = join(dir, "n1", "muster.sock");
  assert.ok(existsSync(socket));
  cli("lease", "create", "nightly-report", "--holder", "batch-7", "--duration", "1h");
  writeFileSync(join(folder, "schema.toml"), SCHEMA);
  cli("reconciler", "apply", "-f", "schema.toml");
  const flags = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"];
  if (process.getuid() === 0) flags.push("--no-sandbox");
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: flags });
  const chosen = process.env.SCENARIO;
  for (const [name, scenario] of Object.entries(scenarios)) {
    if (chosen && !name.includes(chosen)) continue;
    console.log(`test ${name} …`);
    try {
      await scenario(browser);
      console.log(`test ${name} … ok`);
    } catch (error) {
      failed += 1;
      const open = browser.contexts().flatMap((context) => context.pages());
      for (const [index, page] of open.entries()) {
        const path = join(pictures, `failed-${failed}-${index}.png`);
        await page.screenshot({ path }).catch(() => {});
        console.log(`    ${page.url().split("#")[0]} was as in ${path}; ${JSON.stringify(page.complaints ?? [])}`);
      }
      console.log(`test ${name} … FAILED\n${error.stack}`);
    }
    for (const child of children) await stop(child);
    for (const context of browser.contexts()) await context.close();
  }
} finally {
  await browser?.close();
  for (const child of children) await stop(child);
  spawnSync(muster, ["dev", "down", "--dir", dir], { cwd: folder, env, timeout: LONG });
  rmSync(folder, { recursive: true, force: true });
}
process.exitCode = failed > 0 ? 1 : 0;
