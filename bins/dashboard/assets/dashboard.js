// Logs in, keeps one stream open, and puts what it sends into the page. It knows nothing of the cluster.
"use strict";

const $ = (id) => document.getElementById(id);
const main = $("main");
const TAB = "muster-tab";

// ---- the two halves of a session: the cookie is the browser's, this is the tab's

const others = new BroadcastChannel("muster");
let tab = sessionStorage.getItem(TAB);

others.onmessage = ({ data }) => {
  if (data.ask && tab) others.postMessage({ tab });
  if (data.tab && !tab) {
    keep(data.tab);
    open();
  }
  if (data.ended) ended("You are logged out.");
};

function keep(secret) {
  tab = secret;
  sessionStorage.setItem(TAB, secret);
  $("logout").hidden = false;
}

function ended(why) {
  tab = null;
  sessionStorage.removeItem(TAB);
  close();
  $("logout").hidden = true;
  $("cut").hidden = true;
  document.documentElement.classList.remove("old");
  const told = document.createElement("p");
  told.textContent = `${why} The terminal that runs the dashboard prints a new link when you press Enter there.`;
  main.replaceChildren(told);
  $("said").textContent = why;
}

async function logIn(link) {
  const answer = await fetch("/login", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ link }),
  });
  if (answer.ok) {
    keep((await answer.json()).tab);
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
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard = Date.now();
    const messages = (rest + value).split("\n\n");
    rest = messages.pop();
    for (const message of messages) if (message.startsWith("data: ")) apply(JSON.parse(message.slice(6)));
  }
}

// ---- patches: elements by id, rows in order. What is in use is not taken away.

let waiting = []; // patches of elements in which somebody selects text

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
  const [id, place, value] = [around.id, [...around.querySelectorAll(FOCUSABLE)].indexOf(active), active.value];
  return () => {
    if (document.contains(active)) return;
    const same = place < 0 ? $(id) : $(id)?.querySelectorAll(FOCUSABLE)[place];
    if (!same) return;
    if (value !== undefined && same.matches("input")) same.value = value;
    same.focus({ preventScroll: true });
  };
}

function put(old, html) {
  if (selects(old)) return waiting.push([old.id, html]);
  // It is being typed into; what it asks for comes with the next page.
  if (old.contains(document.activeElement) && document.activeElement.matches("input")) return;
  const restore = focused();
  // A row alone is no element: a table must be around it.
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

// The verdict is read aloud when its words change, not its times.
function say() {
  const told = main.querySelector("[data-say]");
  if (!told) return;
  const words = told.cloneNode(true);
  for (const time of words.querySelectorAll("time")) time.remove();
  const text = words.textContent.trim();
  if ($("said").textContent !== text) $("said").textContent = text;
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

// A page that nobody sees asks for nothing.
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
  // Under another name than this host's there is no clipboard.
  const copied = await navigator.clipboard?.writeText(target.dataset.copy).then(() => true, () => false);
  target.textContent = copied ? "copied" : "not copied";
});

// ---- actions: one dialog, and one request however often it is sent

const act = $("act");
let asked = null;

document.addEventListener("click", ({ target }) => {
  if (!target.dataset.action) return;
  asked = { dialog: [...crypto.getRandomValues(new Uint32Array(4))].join("-"), action: JSON.parse(target.dataset.action) };
  const typed = target.dataset.typed;
  $("act-title").textContent = $("act-do").textContent = target.textContent;
  $("act-text").textContent = target.dataset.explained;
  $("act-said").textContent = $("act-input").value = "";
  $("act-name").textContent = typed ?? "";
  $("act-typed").hidden = typed === undefined;
  $("act-do").disabled = typed !== undefined;
  act.showModal();
});

$("act-input").oninput = ({ target }) => ($("act-do").disabled = target.value !== $("act-name").textContent);
$("act-close").onclick = () => act.close();
$("act-do").onclick = async () => {
  $("act-do").disabled = true;
  $("act-said").textContent = "…";
  let answer = { said: "No answer from this dashboard.", again: true };
  try {
    const got = await fetch("/actions", {
      method: "POST",
      headers: { "Content-Type": "application/json", "Muster-Tab": tab },
      body: JSON.stringify(asked),
    });
    answer = got.status === 401 ? { said: "Your session has ended.", again: false } : await got.json();
  } catch {
    // The request, or its answer, was lost. Sent again it is the same request.
  }
  $("act-said").textContent = answer.said;
  $("act-do").disabled = !answer.again;
  if (answer.again) $("act-do").textContent = "try again";
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
    const rows = [...main.querySelectorAll("tbody th a")];
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
  keep(tab);
  open();
} else {
  others.postMessage({ ask: true });
  setTimeout(() => tab || ended("You are not logged in."), 500);
}
mark();
