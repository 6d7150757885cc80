// Logs in, keeps one stream open, and puts what it sends into the page. It knows nothing of the cluster.
"use strict";

const $ = (id) => document.getElementById(id);
const main = $("main");
const [TAB, PROOF] = ["muster-tab", "muster-proof"];

// ---- the two secrets of a session: the cookie is the browser's, this one the tab's

const others = new BroadcastChannel("muster");
let tab = sessionStorage.getItem(TAB);
// What only the server that was logged in to knows: another process may take its port when it has ended. It is sent to no one.
let proof = sessionStorage.getItem(PROOF);

others.onmessage = ({ data }) => {
  if (data.ask && tab) others.postMessage({ tab, proof });
  if (data.tab && !tab) {
    keep(data);
    open();
  }
  if (data.ended) ended("You are logged out.");
};

function keep(session) {
  ({ tab, proof } = session);
  sessionStorage.setItem(TAB, tab);
  sessionStorage.setItem(PROOF, proof);
  $("logout").hidden = false;
}

function ended(why) {
  tab = proof = null;
  sessionStorage.removeItem(TAB);
  sessionStorage.removeItem(PROOF);
  close();
  $("logout").hidden = true;
  $("cut").hidden = true;
  document.documentElement.classList.remove("old");
  const note = document.createElement("p");
  note.textContent = `${why} The terminal that runs the dashboard prints a new link when you press Enter there.`;
  main.replaceChildren(note);
  $("announced").textContent = why;
}

async function logIn(link) {
  const answer = await fetch("/login", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ link }),
  });
  if (answer.ok) {
    keep(await answer.json());
    open();
  } else {
    ended(await answer.text());
  }
}

// ---- the stream

let stream = null; // its AbortController
let heard = Date.now();

function close() {
  stream?.abort();
  stream = null;
}

async function open() {
  close();
  mark();
  const mine = (stream = new AbortController());
  while (stream === mine) {
    try {
      const place = location.pathname === "/" ? "" : location.pathname;
      const answer = await fetch(`/stream${place}${location.search}`, { headers: { "Muster-Tab": tab }, signal: mine.signal });
      if (answer.status === 401) return ended("Your session has ended.");
      if (answer.ok) await read(answer.body);
    } catch {
      // The server is gone, or this page has moved on.
    }
    if (stream === mine) await new Promise((done) => setTimeout(done, 1000));
  }
}

async function read(body) {
  let proved = false;
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    if (proved) heard = Date.now();
    const messages = (rest + value).split("\n\n");
    rest = messages.pop();
    for (const message of messages) {
      if (!message.startsWith("data: ")) continue;
      const data = JSON.parse(message.slice(6));
      if (proved) apply(data);
      else if (proof === null || data.proof !== proof) {
        return ended("Another program answers in place of the dashboard: what it sends is not shown. The dashboard has ended.");
      } else proved = true;
    }
  }
}

// ---- patches: elements by id, rows in order. Between two whole pages, which come when a page is opened, filtered or seen again,
// nothing is taken away that has the focus or is selected.

let waiting = []; // patches of elements in which text is selected

function element(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  return holder.content.firstElementChild;
}

function selects(old) {
  const selection = getSelection();
  return !selection.isCollapsed && selection.containsNode(old, true);
}

const FOCUSABLE = "a, button, input, [tabindex]";

// Where the focus is: the nearest element with an id, and which of those below it that can have the focus.
function focused() {
  const active = document.activeElement;
  const around = main.contains(active) ? active.closest("[id]") : null;
  if (!around || around === main) return () => {};
  const [id, place] = [around.id, [...around.querySelectorAll(FOCUSABLE)].indexOf(active)];
  const { value, selectionStart, selectionEnd } = active;
  return () => {
    if (document.contains(active)) return;
    const same = place < 0 ? $(id) : $(id)?.querySelectorAll(FOCUSABLE)[place];
    if (!same) return;
    same.focus({ preventScroll: true });
    if (!same.matches("input")) return;
    same.value = value;
    same.setSelectionRange(selectionStart, selectionEnd);
  };
}

function put(old, html) {
  if (selects(old)) return waiting.push([old.id, html]);
  // It is being typed into; what it asks for comes with the next page.
  if (old.contains(document.activeElement) && document.activeElement.matches("input")) return;
  const restore = focused();
  // A row is parsed only inside a table.
  const fresh = html.startsWith("<tr") ? element(`<table><tbody>${html}</tbody></table>`).querySelector("tr") : element(html);
  old.replaceWith(fresh);
  restore();
}

function apply(patch) {
  if (patch.title) document.title = patch.title;
  if (patch.page !== undefined) {
    const restore = focused();
    main.innerHTML = patch.page;
    if (moved) {
      $("heading")?.querySelector("h1")?.focus({ preventScroll: true });
      scrollTo(0, 0);
    } else restore();
    moved = false;
    waiting = [];
    main.dataset.page = location.pathname + location.search;
  }
  const fresh = new Map(patch.set ?? []);
  for (const [id, rows] of patch.rows ?? []) {
    const body = $(id);
    if (!body) continue;
    const wanted = rows.map((row) => $(row) ?? element(`<table><tbody>${fresh.get(row) ?? ""}</tbody></table>`)?.querySelector("tr"));
    const kept = new Set(wanted);
    for (const row of [...body.children]) if (!kept.has(row)) row.remove();
    let at = body.firstElementChild;
    for (const row of wanted) {
      if (row === at) at = at.nextElementSibling;
      else if (row) body.insertBefore(row, at);
    }
  }
  for (const [id, html] of fresh) {
    const old = $(id);
    if (old && old.outerHTML !== html) put(old, html);
  }
  main.dataset.patches = String(Number(main.dataset.patches ?? 0) + 1);
  fold();
  ages();
  say();
}

document.addEventListener("selectionchange", () => {
  if (!getSelection().isCollapsed || waiting.length === 0) return;
  const late = waiting;
  waiting = [];
  for (const [id, html] of late) {
    const old = $(id);
    if (old) put(old, html);
  }
});

// Branches that a person has folded or unfolded, by the id of what is below them.
const folds = new Map();

function fold() {
  for (const button of main.querySelectorAll("[data-fold]")) {
    const open = folds.get(button.dataset.fold);
    if (open === undefined) continue;
    button.setAttribute("aria-expanded", String(open));
    $(button.dataset.fold).hidden = !open;
  }
}

document.addEventListener("click", ({ target }) => {
  if (!target.dataset.fold) return;
  folds.set(target.dataset.fold, target.getAttribute("aria-expanded") !== "true");
  fold();
});

// The first line is read aloud when its words change, not its times.
function say() {
  const currency = main.querySelector("[data-say]");
  if (!currency) return;
  const words = currency.cloneNode(true);
  for (const silent of words.querySelectorAll("time, [aria-hidden]")) silent.remove();
  const text = words.textContent.trim();
  if ($("announced").textContent !== text) $("announced").textContent = text;
}

// ---- ages

function age(ms) {
  const seconds = Math.round(Math.abs(ms) / 1000);
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const [unit, size] = units.find(([, size]) => seconds >= size * (size > 1 ? 2 : 1)) ?? ["s", 1];
  const count = `${Math.floor(seconds / size)} ${unit}`;
  return ms >= 0 ? `${count} ago` : `in ${count}`;
}

function ages() {
  const now = Date.now();
  for (const time of main.querySelectorAll("time")) {
    const text = age(now - Date.parse(time.dateTime));
    const place = time.querySelector(".age");
    if (place && place.textContent !== text) place.textContent = text;
  }
}

setInterval(() => {
  if (document.hidden) return;
  ages();
  const silent = tab !== null && stream !== null && Date.now() - heard > 6000;
  $("cut").hidden = !silent;
  document.documentElement.classList.toggle("old", silent);
  if (silent) $("cut-age").textContent = `${Math.round((Date.now() - heard) / 1000)} s`;
}, 1000);

// A hidden page asks for nothing.
document.addEventListener("visibilitychange", () => {
  if (!tab) return;
  if (document.hidden) close();
  else {
    heard = Date.now();
    open();
  }
});

// ---- moving between pages

let moved = false;

function mark() {
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.getAttribute("href") === location.pathname) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function go(address, replace = false) {
  moved = !replace;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  if (tab) open();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='/']");
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});

addEventListener("popstate", () => {
  moved = true;
  if (tab) open();
});

let typing = 0;
document.addEventListener("input", ({ target }) => {
  if (!target.matches("[data-filter]")) return;
  clearTimeout(typing);
  typing = setTimeout(() => {
    const query = new URLSearchParams(location.search);
    if (target.value) query.set(target.name, target.value);
    else query.delete(target.name);
    const text = query.toString();
    go(location.pathname + (text ? `?${text}` : ""), true);
  }, 250);
});

document.addEventListener("click", async ({ target }) => {
  if (!target.dataset.copy) return;
  // Browsers offer a clipboard only under names of this host.
  const copied = await navigator.clipboard?.writeText(target.dataset.copy).then(() => true, () => false);
  target.textContent = copied ? "copied" : "not copied";
});

// ---- actions: one dialog, and one request however often it is sent

const act = $("act");
let asked = null;

document.addEventListener("click", ({ target }) => {
  if (!target.dataset.action) return;
  // A request id: 48 bits of time, 80 random ones.
  const random = [...crypto.getRandomValues(new Uint8Array(10))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  asked = { dialog: Date.now().toString(16).padStart(12, "0") + random, action: JSON.parse(target.dataset.action) };
  const typed = target.dataset.typed;
  $("act-title").textContent = $("act-do").textContent = target.textContent;
  $("act-text").textContent = target.dataset.explained;
  $("act-outcome").textContent = $("act-input").value = "";
  $("act-name").textContent = typed ?? "";
  $("act-typed").hidden = typed === undefined;
  $("act-do").disabled = typed !== undefined;
  act.showModal();
});

$("act-input").oninput = ({ target }) => ($("act-do").disabled = target.value !== $("act-name").textContent);
$("act-close").onclick = () => act.close();
$("act-do").onclick = async () => {
  $("act-do").disabled = true;
  $("act-outcome").textContent = "…";
  let outcome = { message: "No answer from this dashboard.", retry: true };
  try {
    const got = await fetch("/actions", {
      method: "POST",
      headers: { "Content-Type": "application/json", "Muster-Tab": tab },
      body: JSON.stringify(asked),
    });
    const typed = got.headers.get("Content-Type")?.startsWith("application/json");
    outcome = typed ? await got.json() : { message: (await got.text()) || "Your session has ended.", retry: false };
  } catch {
    // The request, or its answer, was lost. Sent again it is the same request.
  }
  $("act-outcome").textContent = outcome.message;
  $("act-do").disabled = !outcome.retry;
  if (outcome.retry) $("act-do").textContent = "try again";
};

// ---- keys, theme, logging out

const dialog = $("keys");
$("help").onclick = () => dialog.showModal();
$("keys-close").onclick = () => dialog.close();
$("keys-on").checked = localStorage.getItem("muster-keys") !== "off";
$("keys-on").onchange = ({ target }) => localStorage.setItem("muster-keys", target.checked ? "on" : "off");

let after = "";
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey || dialog.open || act.open) return;
  if (localStorage.getItem("muster-keys") === "off") return;
  const key = event.key;
  if (after === "g") {
    after = "";
    const link = document.querySelector(`header nav a[data-key="${CSS.escape(key)}"]`);
    if (link) go(link.getAttribute("href"));
    return;
  }
  if (key === "g") {
    after = "g";
    setTimeout(() => (after = ""), 1500);
  } else if (key === "?") dialog.showModal();
  else if (key === "/") {
    const input = main.querySelector("[data-filter]");
    if (!input) return;
    event.preventDefault();
    input.focus();
  } else if (key === "j" || key === "k") {
    const rows = [...main.querySelectorAll("tbody tr")].map((row) => row.querySelector("a")).filter(Boolean);
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, at + (key === "j" ? 1 : -1)))]?.focus();
  }
});

const THEMES = ["system", "light", "dark"];
function theme(name) {
  localStorage.setItem("muster-theme", name);
  $("theme").textContent = `theme: ${name}`;
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
}
theme(THEMES.includes(localStorage.getItem("muster-theme")) ? localStorage.getItem("muster-theme") : "system");
$("theme").onclick = () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("muster-theme")) + 1) % THEMES.length]);

$("logout").onclick = async () => {
  await fetch("/logout", { method: "POST", headers: { "Muster-Tab": tab } });
  others.postMessage({ ended: true });
  ended("You are logged out.");
};

// ---- the start: the link's secret leaves the address before anything else

const fragment = location.hash.slice(1);
if (fragment.length === 43) {
  history.replaceState(null, "", location.pathname + location.search);
  logIn(fragment);
} else if (tab) {
  keep({ tab, proof });
  open();
} else {
  others.postMessage({ ask: true });
  setTimeout(() => tab || ended("You are not logged in."), 500);
}
mark();
