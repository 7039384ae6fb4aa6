/**
 * Sexps: those that the server sends are read, those of commands are written.
 *
 * The server prints sexps in machine form, in printable ASCII. Commands are written with every atom in quotes, because
 * a quoted atom may have all octets.
 */

import { ProtocolError } from "./errors.js";
import { decodeName, encodeName } from "./names.js";

/** @typedef {string | any[]} Sexp  an atom, as a name, or a list of sexps */

const ascii = new TextDecoder("utf-8");
// One token: a parenthesis, a quoted atom, or a bare atom. What matches nothing ends the search.
const TOKEN = /[ \t\n]*(?:([()])|"((?:[^"\\]|\\[^])*)"|([^ \t\n"();\\]+))/y;
const MAX_DEPTH = 100;

/**
 * Read the sexp of a frame.
 *
 * @param {Uint8Array} octets
 * @returns {Sexp}
 */
export function parse(octets) {
  const text = ascii.decode(octets);
  /** @type {Sexp[]} */
  let list = [];
  /** @type {Sexp[][]} */
  const outer = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.length) {
    const token = TOKEN.exec(text);
    if (token === null) throw new ProtocolError("the server sent a sexp that cannot be read");
    if (token[1] === "(") {
      if (outer.length === MAX_DEPTH) throw new ProtocolError("the server sent a sexp that nests too deep");
      outer.push(list);
      list = [];
    } else if (token[1] === ")") {
      const enclosing = outer.pop();
      if (enclosing === undefined) throw new ProtocolError("the server sent a sexp with too many parentheses");
      enclosing.push(list);
      list = enclosing;
    } else {
      list.push(token[3] ?? unescape(token[2]));
    }
  }
  if (outer.length || list.length !== 1) throw new ProtocolError("the server sent a sexp that is not complete");
  return list[0];
}

/**
 * Read an atom as the server prints it in a sentence.
 *
 * @param {string} text
 */
export function readAtom(text) {
  return text.startsWith('"') ? unescape(text.slice(1, -1)) : text;
}

/** @type {Record<string, string>} */
const ESCAPES = { n: "\n", t: "\t", r: "\r", b: "\b", "\\": "\\", '"': '"', "'": "'" };

/** @param {string} text  the content of a quoted atom */
function unescape(text) {
  if (!text.includes("\\")) return text;
  const octets = text.replace(/\\(?:([0-9]{3})|x([0-9a-fA-F]{2})|([^]))/g, (whole, decimal, hex, other) =>
    decimal !== undefined
      ? String.fromCharCode(Number(decimal))
      : hex !== undefined
        ? String.fromCharCode(parseInt(hex, 16))
        : (ESCAPES[other] ?? whole),
  );
  return decodeName(Uint8Array.from(octets, (octet) => octet.charCodeAt(0)));
}

/**
 * The fields of a record: `((id 7)(topic prices))`.
 *
 * @param {Sexp} sexp
 * @returns {Record<string, Sexp>}
 */
export function record(sexp) {
  /** @type {Record<string, Sexp>} */
  const fields = Object.create(null);
  for (const field of list(sexp)) {
    if (!Array.isArray(field) || field.length !== 2 || typeof field[0] !== "string") {
      throw new ProtocolError("the server sent a record that cannot be read");
    }
    fields[field[0]] = field[1];
  }
  return fields;
}

/**
 * @param {Sexp | undefined} sexp
 * @returns {Sexp[]}
 */
export function list(sexp) {
  if (!Array.isArray(sexp)) throw new ProtocolError("the server sent an atom instead of a list");
  return sexp;
}

/**
 * @param {Sexp | undefined} sexp
 * @returns {string}
 */
export function atom(sexp) {
  if (typeof sexp !== "string") throw new ProtocolError("the server sent a list instead of an atom");
  return sexp;
}

/**
 * A count, a size or a time: a number, exact up to 2^53.
 *
 * @param {Sexp | undefined} sexp
 */
export function number(sexp) {
  const value = Number(atom(sexp));
  if (Number.isNaN(value)) throw new ProtocolError("the server sent a number that cannot be read");
  return value;
}

/**
 * A message id: a bigint, because ids have 63 bits.
 *
 * @param {Sexp | undefined} sexp
 */
export function messageId(sexp) {
  const text = atom(sexp);
  if (!/^-?[0-9]+$/.test(text)) throw new ProtocolError("the server sent a message id that cannot be read");
  return BigInt(text);
}

// -- writing --------------------------------------------------------------------------------------------------------

/**
 * @typedef {string | Uint8Array | number | bigint | any[]} Written
 *   an atom or a list; integers are printed as the server reads them
 */

const [LINE_FEED, CARRIAGE_RETURN, QUOTE, BACKSLASH] = [10, 13, 34, 92];

/**
 * The line of a command, with its line feed. `constructor` alone is a command without arguments.
 *
 * @param {string} constructor
 * @param {Written[]} parts
 * @returns {Uint8Array}
 */
export function line(constructor, parts) {
  const output = new Output();
  if (parts.length) output.list([new Bare(constructor), ...parts]);
  else output.ascii(constructor);
  output.octet(LINE_FEED);
  return output.taken();
}

/** A word of the protocol, which is written as it is. */
export class Bare {
  /** @param {string} word */
  constructor(word) {
    this.word = word;
  }
}

class Output {
  constructor() {
    this.octets = new Uint8Array(256);
    this.length = 0;
  }

  taken() {
    return this.octets.subarray(0, this.length);
  }

  /** @param {number} size */
  need(size) {
    if (this.length + size <= this.octets.length) return;
    const larger = new Uint8Array(Math.max(this.octets.length * 2, this.length + size));
    larger.set(this.taken());
    this.octets = larger;
  }

  /** @param {number} octet */
  octet(octet) {
    this.need(1);
    this.octets[this.length++] = octet;
  }

  /** @param {string} text */
  ascii(text) {
    this.need(text.length);
    for (let at = 0; at < text.length; at++) this.octets[this.length++] = text.charCodeAt(at);
  }

  /** @param {(Written | Bare)[]} parts */
  list(parts) {
    this.ascii("(");
    parts.forEach((part, at) => {
      if (at) this.ascii(" ");
      this.value(part);
    });
    this.ascii(")");
  }

  /** @param {Written | Bare} value */
  value(value) {
    if (Array.isArray(value)) this.list(value);
    else if (value instanceof Bare) this.ascii(value.word);
    else if (typeof value === "number" && !Number.isSafeInteger(value)) throw new RangeError(`${value} is no integer`);
    else if (typeof value === "number" || typeof value === "bigint") this.ascii(String(value));
    else this.quoted(encodeName(value));
  }

  /** @param {Uint8Array} octets */
  quoted(octets) {
    this.need(2 * octets.length + 2);
    const target = this.octets;
    let end = this.length;
    target[end++] = QUOTE;
    for (const octet of octets) {
      if (octet === QUOTE || octet === BACKSLASH) {
        target[end++] = BACKSLASH;
        target[end++] = octet;
      } else if (octet === LINE_FEED || octet === CARRIAGE_RETURN) {
        target[end++] = BACKSLASH;
        target[end++] = octet === LINE_FEED ? 110 : 114;
      } else {
        target[end++] = octet;
      }
    }
    target[end++] = QUOTE;
    this.length = end;
  }
}
