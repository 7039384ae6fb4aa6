/**
 * A table of any length: only the rows that can be seen are elements. It is sorted by its headers, and rows that are equal
 * by the first column. It is used by keyboard: arrows, Page Up and Page Down, Home and End move, Enter opens.
 */

import { h, setText } from "./dom.js";
import { brief, count } from "./format.js";

const ROW = 40;
const SPARE = 4;

/** @param {any} one @param {any} other  of the same type */
const compared = (one, other) => (one < other ? -1 : one > other ? 1 : 0);

/**
 * @template T
 * @typedef {object} Column
 * @property {string} key
 * @property {string} title
 * @property {string} [hint]
 * @property {boolean} [isNumber]
 * @property {boolean} [isMinor]  not shown on narrow screens
 * @property {(row: T) => string | number | bigint} [value]  by which to sort; without it, the column cannot be sorted
 * @property {() => Element} [make]  the content of a cell
 * @property {(cell: any, row: T) => void} update
 */

/** @template T */
export class Grid {
  /** @type {Column<T>[]} */
  #columns;
  /** @type {T[]} */
  #rows = [];
  /** @type {{element: HTMLElement, cells: Element[], at: number}[]} */
  #pool = [];
  #sorted;
  #down = true;
  #active = 0;
  #frame = 0;
  #key;
  #onOpen;

  /**
   * @param {object} options
   * @param {string} options.label
   * @param {string} options.name  a class that gives the widths of the columns
   * @param {Column<T>[]} options.columns
   * @param {(row: T) => unknown} options.key
   * @param {(row: T) => void} [options.onOpen]
   * @param {string} options.sort  the column by which it is sorted first
   * @param {boolean} [options.down]
   * @param {string} [options.empty]
   */
  constructor({ label, name, columns, key, onOpen, sort, down = true, empty = "Nothing here." }) {
    this.#columns = columns;
    this.#key = key;
    this.#onOpen = onOpen;
    this.#sorted = sort;
    this.#down = down;
    this.headers = columns.map((column, at) =>
      h(
        "div",
        { role: "columnheader", class: this.#classOf(column), "aria-colindex": at + 1, title: column.hint },
        column.value
          ? h("button", { type: "button", class: "sort", onclick: () => this.sortBy(column.key) }, column.title)
          : column.title,
      ),
    );
    this.body = h("div", { class: "rows", role: "presentation" });
    this.note = h("div", { role: "row", hidden: true }, h("p", { class: "empty", role: "gridcell" }, empty));
    this.scroller = h(
      "div",
      // A scrollable element would get the focus itself; the focus, and with it the active row, are the grid's.
      { class: "scroller", tabindex: -1, role: "rowgroup", onfocus: () => this.element.focus({ preventScroll: true }) },
      this.body,
      this.note,
    );
    this.element = h(
      "div",
      {
        class: `grid ${name}`, role: "grid", tabindex: 0, "aria-label": label, "aria-colcount": columns.length, "aria-readonly": "true",
        onkeydown: (/** @type {KeyboardEvent} */ event) => event.target === this.element && this.#pressed(event),
      },
      h("div", { role: "rowgroup" }, h("div", { class: "row head", role: "row", "aria-rowindex": 1 }, ...this.headers)),
      this.scroller,
    );
    this.scroller.addEventListener("scroll", () => this.#drawSoon(), { passive: true });
    this.observer = new ResizeObserver(() => this.#drawSoon());
    this.observer.observe(this.scroller);
    this.#showSort();
  }

  /** @param {Column<T>} column */
  #classOf(column) {
    return ["cell", `col-${column.key}`, column.isNumber ? "number" : "", column.isMinor ? "minor" : ""].filter(Boolean).join(" ");
  }

  /** Release it. */
  close() {
    this.observer.disconnect();
    cancelAnimationFrame(this.#frame);
  }

  get length() {
    return this.#rows.length;
  }

  /**
   * Show these rows.
   *
   * @param {Iterable<T>} rows
   */
  show(rows) {
    const active = this.#rows[this.#active];
    this.#rows = [...rows];
    this.#sort();
    if (active !== undefined) {
      // The active row stays active where it has moved to.
      const key = this.#key(active);
      const at = this.#rows.findIndex((row) => this.#key(row) === key);
      this.#active = at < 0 ? Math.min(this.#active, Math.max(0, this.#rows.length - 1)) : at;
    }
    this.element.setAttribute("aria-rowcount", String(this.#rows.length + 1));
    this.body.style.height = `${this.#rows.length * ROW}px`;
    this.note.hidden = this.#rows.length > 0;
    this.#draw();
  }

  /** @param {string} key */
  sortBy(key) {
    const column = this.#columns.find((each) => each.key === key);
    this.#down = this.#sorted === key ? !this.#down : Boolean(column?.isNumber);
    this.#sorted = key;
    this.#showSort();
    this.#sort();
    this.#draw();
  }

  #showSort() {
    this.#columns.forEach((column, at) => {
      const order = column.key !== this.#sorted ? "none" : this.#down ? "descending" : "ascending";
      if (column.value) this.headers[at].setAttribute("aria-sort", order);
    });
  }

  #sort() {
    const value = this.#columns.find((each) => each.key === this.#sorted)?.value;
    if (!value) return;
    const sign = this.#down ? -1 : 1;
    const name = this.#columns[0].value ?? value;
    const keyed = this.#rows.map((row) => ({ row, by: value(row), name: name(row) }));
    keyed.sort((one, other) => sign * compared(one.by, other.by) || compared(one.name, other.name));
    this.#rows = keyed.map(({ row }) => row);
  }

  #drawSoon() {
    if (!this.#frame) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#frame = 0;
    const height = this.scroller.clientHeight || 600;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - SPARE);
    const last = Math.min(this.#rows.length, Math.ceil((this.scroller.scrollTop + height) / ROW) + SPARE);
    const wanted = Math.max(0, last - first);
    while (this.#pool.length < wanted) this.#pool.push(this.#makeRow());
    while (this.#pool.length > wanted) this.#pool.pop()?.element.remove();
    this.#pool.forEach((each, index) => {
      const at = first + index;
      const row = this.#rows[at];
      if (each.at !== at) {
        each.at = at;
        each.element.style.transform = `translateY(${at * ROW}px)`;
        each.element.setAttribute("aria-rowindex", String(at + 2));
        each.element.classList.toggle("odd", at % 2 === 1);
      }
      each.element.classList.toggle("active", at === this.#active);
      this.#columns.forEach((column, number) => column.update(each.cells[number], row));
    });
    this.#tellActive();
  }

  #tellActive() {
    const found = this.#pool.find((each) => each.at === this.#active);
    if (found) this.element.setAttribute("aria-activedescendant", found.element.id);
    else this.element.removeAttribute("aria-activedescendant");
  }

  #makeRow() {
    /** @type {Element[]} */
    const cells = [];
    const element = h("div", { class: "row", role: "row", id: `row-${++made}`, onclick: (/** @type {any} */ event) => event.target.closest("a") ?? this.#open(entry.at) }); // links open themselves
    for (const [index, column] of this.#columns.entries()) {
      const cell = h("div", { role: "gridcell", class: this.#classOf(column), "aria-colindex": index + 1 });
      const content = column.make?.();
      if (content) cell.append(content);
      cells.push(content ?? cell);
      element.append(cell);
    }
    if (this.#onOpen) element.classList.add("opens");
    this.body.append(element);
    const entry = { element, cells, at: -1 };
    return entry;
  }

  /** @param {number} at */
  #open(at) {
    const row = this.#rows[at];
    this.#active = at;
    this.#drawSoon();
    if (row !== undefined) this.#onOpen?.(row);
  }

  /** @param {KeyboardEvent} event */
  #pressed(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / ROW) - 1);
    /** @type {Record<string, number>} */
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key === "Enter") {
      this.#open(this.#active);
    } else if (event.key in moves) {
      const last = this.#rows.length - 1;
      this.#active = Math.max(0, Math.min(last, this.#active + moves[event.key]));
      const top = this.#active * ROW;
      const { scrollTop, clientHeight } = this.scroller;
      if (top < scrollTop) this.scroller.scrollTop = top;
      else if (top + ROW > scrollTop + clientHeight) this.scroller.scrollTop = top + ROW - clientHeight;
      this.#draw();
    } else {
      return;
    }
    event.preventDefault();
  }
}

let made = 0;

/**
 * Show a number in a cell: briefly, with the whole number as its title.
 *
 * @param {Element} cell
 * @param {number} number
 */
export function setNumber(cell, number) {
  const text = brief(number);
  setText(cell, text);
  setTitle(cell, text === count(number) ? "" : count(number));
}

/**
 * Show what a cell may be too narrow for, also as its title.
 *
 * @param {Element} cell
 * @param {string} text
 */
export function setLong(cell, text) {
  setText(cell, text);
  setTitle(cell, text);
}

/**
 * @param {Element} cell
 * @param {string} title
 */
function setTitle(cell, title) {
  if ((cell.getAttribute("title") ?? "") !== title) cell.setAttribute("title", title);
}
