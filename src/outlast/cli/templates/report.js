/* The page is complete without this. It adds: details of a bar under the pointer, by touch and by
   keyboard; zoom (drag, or + and −); the order of rows; sorting. Bars are placed by the style sheet
   from --from and --to, so that zoom sets two numbers. Text comes from the page's own cells by
   textContent alone: nothing that a user named is ever read as markup. */
(() => {
  "use strict";
  const body = document.body;
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const number = (element, name) => Number(element.style.getPropertyValue(name));
  const make = (name, text, look) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (look) element.className = look;
    return element;
  };
  const whole = { from: number(body, "--from"), to: number(body, "--to") };
  const shown = { ...whole };
  const chart = one(".chart"), plot = one(".plot"), over = one(".over"), tip = one(".tip");
  const svg = one(".rate svg");

  // --- details ---------------------------------------------------------------------------------

  const headings = all("thead th").map((th) => [th.textContent, th.title]);
  let current = null; // the bar whose details are shown

  function fill(bar) {
    const cells = [...document.getElementById(bar.hash.slice(1)).cells];
    const parts = (cell) => {
      const small = one("small", cell);
      const said = small ? small.textContent : "";
      const text = cell.textContent.slice(0, cell.textContent.length - said.length);
      return [text, said.replaceAll("\n", ", ")];
    };
    const [partition, first] = parts(cells[0]);
    const lines = make("dl");
    cells.slice(1).forEach((cell, index) => {
      const [text, said] = parts(cell);
      if (!text) return;
      const term = make("dt");
      if (/^(detecting|unavailable|reconnecting|resuming)$/.test(cell.className)) {
        term.append(make("i", undefined, cell.className));
      }
      term.append(headings[index + 1][0]);
      lines.append(term, make("dd", said ? `${text}, ${said}` : text));
    });
    tip.replaceChildren(make("strong", `${partition}: ${first}`), lines);
  }

  function show(bar, x, y) {
    if (current !== bar) fill(bar);
    current = bar;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const below = y + 18 + height < innerHeight;
    tip.style.left = `${Math.max(8, Math.min(x + 12, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(8, below ? y + 18 : y - 12 - height)}px`;
  }

  function hide() {
    tip.hidden = true;
    current = null;
  }

  plot.addEventListener("pointermove", (event) => {
    const bar = event.target.closest(".bar");
    if (bar && !picking) show(bar, event.clientX, event.clientY);
    else hide();
    point(event);
  });
  plot.addEventListener("pointerleave", () => {
    hide();
    cross.hidden = true;
  });
  plot.addEventListener("focusin", (event) => {
    const bar = event.target.closest(".bar");
    if (!bar || !bar.matches(":focus-visible")) return;
    const box = bar.getBoundingClientRect();
    show(bar, Math.max(box.left, 0), box.bottom - 12);
  });
  plot.addEventListener("focusout", hide);
  addEventListener("scroll", hide, { passive: true });

  // --- by keyboard: the chart is one stop, arrows go from bar to bar -----------------------------

  const visible = (bar) => bar.offsetParent !== null;
  const bars = () => all(".bar", plot).filter(visible);

  function stop(bar) {
    all('.bar[tabindex="0"]', plot).forEach((other) => { other.tabIndex = -1; });
    if (bar) bar.tabIndex = 0;
  }

  function beside(bar, step) {
    const every = bars();
    return every[every.indexOf(bar) + step];
  }

  function across(bar, step) {
    const rows = all(".row", plot).filter((row) => one(".bar", row) && visible(one(".bar", row)));
    const row = rows[rows.indexOf(bar.closest(".row")) + step];
    if (!row) return undefined;
    const at = number(bar, "--b");
    const far = (other) => Math.abs(number(other, "--b") - at);
    return all(".bar", row).reduce((best, other) => (far(other) < far(best) ? other : best));
  }

  const moves = {
    ArrowRight: (bar) => beside(bar, 1),
    ArrowLeft: (bar) => beside(bar, -1),
    ArrowDown: (bar) => across(bar, 1),
    ArrowUp: (bar) => across(bar, -1),
    Home: () => bars()[0],
    End: () => bars().at(-1),
  };

  plot.addEventListener("keydown", (event) => {
    const bar = event.target.closest(".bar");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (bar && moves[event.key]) {
      const next = moves[event.key](bar);
      if (next) {
        stop(next);
        next.focus();
      }
    } else if (event.key === "+" || event.key === "=") around(bar, 0.5);
    else if (event.key === "-") around(bar, 2);
    else return;
    event.preventDefault();
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (!tip.hidden) hide();
    else zoom(whole.from, whole.to);
  });
  all(".bar", plot).forEach((bar) => {
    bar.tabIndex = -1;
    bar.draggable = false;
  });
  stop(one(".bar", plot));

  // --- the axis, and zoom ------------------------------------------------------------------------

  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
  const two = (value) => String(value).padStart(2, "0");

  function step(width) {
    const least = (width / 8) * (1 - 1e-6);
    if (least > 1) return steps.find((s) => s >= least) ?? steps.at(-1);
    const power = 10 ** Math.floor(Math.log10(least));
    return power * [1, 2, 5, 10].find((factor) => power * factor >= least);
  }

  function label(at, size) {
    if (size < 1) return `${at.toFixed(Math.max(0, Math.ceil(-Math.log10(size) - 1e-9)))} s`;
    if (size < 60 && at < 120) return `${at.toFixed(0)} s`;
    const s = Math.round(at), min = Math.floor(s / 60);
    return at < 3600 ? `${min}:${two(s % 60)}` : `${Math.floor(min / 60)}:${two(min % 60)}:${two(s % 60)}`;
  }

  function ticks() {
    const size = step(shown.to - shown.from);
    all(".tick", over).forEach((tick) => tick.remove());
    const made = [];
    for (let n = Math.ceil(shown.from / size); n * size <= shown.to; n += 1) {
      const tick = make("div", undefined, "tick");
      tick.style.setProperty("--b", n * size);
      tick.append(make("span", label(n * size, size)));
      made.push(tick);
    }
    over.prepend(...made);
  }

  const button = (name) => one(`button[data-do="${name}"]`);

  function zoom(from, to) {
    const least = 0.01;
    const width = Math.min(Math.max(to - from, least), whole.to - whole.from);
    shown.from = Math.min(Math.max(from, whole.from), whole.to - width);
    shown.to = shown.from + width;
    body.style.setProperty("--from", shown.from);
    body.style.setProperty("--to", shown.to);
    if (svg) {
      const box = svg.viewBox.baseVal;
      svg.setAttribute("viewBox", `${shown.from} 0 ${width} ${box.height}`);
    }
    button("whole").hidden = shown.from <= whole.from && shown.to >= whole.to;
    hide();
    ticks();
  }

  function around(bar, factor) {
    const width = (shown.to - shown.from) * factor;
    const middle = bar ? number(bar, "--b") + number(bar, "--l") / 2 : (shown.from + shown.to) / 2;
    zoom(middle - width / 2, middle + width / 2);
  }

  const cross = make("div", undefined, "cross");
  cross.append(make("span"));
  cross.hidden = true;
  over.append(cross);
  const curve = svg
    ? one(".line", svg).getAttribute("d").split(" ").map((pair) => pair.slice(1).split(",").map(Number))
    : [];

  function moment(event) {
    const box = over.getBoundingClientRect();
    return shown.from + ((event.clientX - box.left) / box.width) * (shown.to - shown.from);
  }

  function point(event) {
    const at = moment(event);
    cross.hidden = at < shown.from || event.pointerType === "touch";
    cross.style.setProperty("--b", at);
    let text = label(at, (shown.to - shown.from) / 500);
    if (curve.length) {
      const far = ([x]) => Math.abs(x - at);
      const [, down] = curve.reduce((best, pair) => (far(pair) < far(best) ? pair : best));
      const rate = Math.round(svg.viewBox.baseVal.height - down);
      text += ` · ${rate.toLocaleString("en")}/s`;
    }
    cross.firstChild.textContent = text;
    cross.classList.toggle("left", at > (shown.from + shown.to) / 2);
  }

  let picking = null; // where a drag began
  let dragged = false;
  const pick = make("div", undefined, "pick");
  pick.hidden = true;
  over.append(pick);

  plot.addEventListener("pointerdown", (event) => {
    dragged = false;
    if (event.button || event.pointerType === "touch" || moment(event) < shown.from) return;
    picking = { x: event.clientX, at: moment(event) };
  });
  addEventListener("pointermove", (event) => {
    if (!picking || Math.abs(event.clientX - picking.x) < 5) return;
    dragged = true;
    const at = moment(event);
    pick.hidden = false;
    pick.style.setProperty("--b", Math.min(at, picking.at));
    pick.style.setProperty("--l", Math.abs(at - picking.at));
    event.preventDefault();
  });
  addEventListener("pointerup", (event) => {
    if (picking && dragged) zoom(Math.min(picking.at, moment(event)), Math.max(picking.at, moment(event)));
    picking = null;
    pick.hidden = true;
  });
  plot.addEventListener("dragstart", (event) => event.preventDefault());
  plot.addEventListener("selectstart", (event) => picking && event.preventDefault());
  plot.addEventListener("click", (event) => dragged && event.preventDefault());
  plot.addEventListener("dblclick", () => zoom(whole.from, whole.to));

  // --- buttons: zoom, and the order of rows -------------------------------------------------------

  const groups = all(".rows").map((rows) => [rows, all(".row", rows)]);

  function order(longest) {
    button("order").setAttribute("aria-pressed", String(longest));
    for (const [rows, named] of groups) {
      const length = (row) => Number(row.dataset.longest);
      rows.append(...(longest ? [...named].sort((a, b) => length(b) - length(a)) : named));
    }
  }

  button("order").addEventListener("click", () => {
    order(button("order").getAttribute("aria-pressed") !== "true");
  });
  button("whole").addEventListener("click", () => zoom(whole.from, whole.to));
  button("longest").addEventListener("click", () => {
    const longest = all(".bar", plot).reduce((a, b) => (number(b, "--l") > number(a, "--l") ? b : a));
    const begin = number(longest, "--b"), length = number(longest, "--l");
    zoom(begin - length * 0.25, begin + length * 1.25);
  });
  one(".buttons").hidden = false;

  // --- the table ----------------------------------------------------------------------------------

  const tbody = one("tbody");
  const heads = all("thead th");

  function sort(index) {
    const head = heads[index];
    const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : index > 1;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.cells[index].dataset.v;
    const numeric = [...tbody.rows].every((row) => value(row) !== "" && !Number.isNaN(Number(value(row).replace("inf", "Infinity"))));
    const compare = numeric
      ? (a, b) => Number(value(a).replace("inf", "Infinity")) - Number(value(b).replace("inf", "Infinity"))
      : (a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0);
    const rows = [...tbody.rows].sort((a, b) => (down ? compare(b, a) : compare(a, b)));
    tbody.append(...rows);
  }

  heads.forEach((head, index) => {
    const press = make("button", head.textContent);
    press.type = "button";
    press.addEventListener("click", () => sort(index));
    head.replaceChildren(press);
  });

  document.documentElement.dataset.ready = "true";
})();
