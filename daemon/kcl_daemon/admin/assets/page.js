"use strict";
// Asks for the live part again and again, and changes what is different: focus, selection and what was opened stay.
(() => {
  const live = document.getElementById("live");
  const connection = document.getElementById("connection");
  const button = document.getElementById("pause");
  const patienceMs = 10000;
  let paused = false;
  let asking = false;
  let timer = 0;

  const keyOf = (node) =>
    node.nodeType === Node.ELEMENT_NODE ? (node.getAttribute("data-key") ?? node.getAttribute("id")) : null;

  const becomeElement = (was, now) => {
    for (const { name, value } of now.attributes) {
      if (was.getAttribute(name) !== value) was.setAttribute(name, value);
    }
    for (const { name } of [...was.attributes]) {
      const isReaders = name === "open" && was.nodeName === "DETAILS";
      if (!now.hasAttribute(name) && !isReaders) was.removeAttribute(name);
    }
    becomeChildren(was, now);
  };

  const become = (was, now) => {
    if (was.nodeType === Node.ELEMENT_NODE) becomeElement(was, now);
    else if (was.data !== now.data) was.data = now.data;
  };

  const isSame = (was, now) => was && was.nodeName === now.nodeName && keyOf(was) === keyOf(now);

  const becomeChildren = (was, now) => {
    const wanted = [...now.childNodes];
    const keys = new Set(wanted.map(keyOf));
    const keyed = new Map([...was.childNodes].map((node) => [keyOf(node), node]));
    let at = was.firstChild;
    for (const next of wanted) {
      // What is gone goes first: nothing that stays has to be moved, which would take the focus from it.
      while (at && keyOf(at) !== null && !keys.has(keyOf(at))) {
        const gone = at;
        at = at.nextSibling;
        gone.remove();
      }
      const key = keyOf(next);
      const found = key === null ? at : keyed.get(key);
      if (!isSame(found, next)) {
        was.insertBefore(next, at);
        continue;
      }
      if (found === at) at = at.nextSibling;
      else was.insertBefore(found, at);
      become(found, next);
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  };

  const tell = (words) => {
    if (connection.textContent !== words) connection.textContent = words;
  };

  const ask = async () => {
    const answer = await fetch("/live", { cache: "no-store", signal: AbortSignal.timeout(patienceMs) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const told = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
    if (!paused) becomeElement(live, told);
  };

  const refresh = async () => {
    if (asking || paused || document.hidden) return;
    asking = true;
    clearTimeout(timer);
    try {
      await ask();
      tell("");
    } catch {
      if (connection.textContent === "") {
        tell(`No answer from the daemon since ${new Date().toLocaleTimeString()}. What is shown is old.`);
      }
    } finally {
      asking = false;
      later();
    }
  };

  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, 1000 * Number(live.dataset.every));
  };

  requestAnimationFrame(() =>
    setTimeout(() => {
      document.documentElement.classList.remove("first");
      if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
    }),
  );

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    refresh();
  });
  document.addEventListener("visibilitychange", refresh);
  // The page itself did not wait for the tables; what they tell comes with the first answer.
  timer = setTimeout(refresh, 200);
})();
