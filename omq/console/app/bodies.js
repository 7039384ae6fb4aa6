/** Bodies of messages as text, JSON or octets. */

const decoder = new TextDecoder("utf-8");
const PREVIEW = 400;
/** Of a longer body only the beginning is shown. */
export const SHOWN = 256 * 1024;

/** @typedef {"text" | "json" | "hex"} Form */

/**
 * One line for a table.
 *
 * @param {Uint8Array} body
 * @param {Form} form
 */
export function preview(body, form) {
  if (form === "hex") return hexOf(body.subarray(0, PREVIEW / 4), " ") + (body.length > PREVIEW / 4 ? " …" : "");
  const text = decoder.decode(body.subarray(0, PREVIEW));
  const line = visible(form === "json" ? compact(text, body.length > PREVIEW) : text).replace(/\s+/g, " ");
  return body.length > PREVIEW ? `${line} …` : line;
}

/**
 * @param {string} text
 * @param {boolean} isCut
 */
function compact(text, isCut) {
  if (isCut) return text;
  try {
    return rewritten(text, "");
  } catch {
    return text;
  }
}

const JSON_TOKEN = /"[^"\\]*(?:\\[^][^"\\]*)*"|[[\]{}:,]|[^\s"[\]{}:,]+/g;

/**
 * Write JSON with other white space. Numbers and the order of keys stay as they are: parsed, a number would lose digits.
 * Throws SyntaxError for a text that is none.
 *
 * @param {string} text
 * @param {"" | "\n"} lineEnd  with a line feed, each member has a line of its own
 */
function rewritten(text, lineEnd) {
  JSON.parse(text);
  const tokens = text.match(JSON_TOKEN) ?? [];
  let depth = 0;
  const next = () => lineEnd && lineEnd + "  ".repeat(depth);
  return tokens
    .map((token, at) => {
      switch (token) {
        case "{":
        case "[":
          depth++;
          return "]}".includes(tokens[at + 1]) ? token : token + next();
        case "}":
        case "]":
          depth--;
          return "[{".includes(tokens[at - 1]) ? token : next() + token;
        case ",":
          return token + next();
        case ":":
          return lineEnd ? ": " : token;
        default:
          return token.startsWith('"') ? JSON.stringify(JSON.parse(token)) : token; // with its escapes resolved
      }
    })
    .join("");
}

/**
 * The body in full, up to a limit.
 *
 * @param {Uint8Array} body
 * @param {Form} form
 * @returns {string}
 */
export function whole(body, form) {
  const shown = body.subarray(0, SHOWN);
  if (form === "hex") return dump(shown.subarray(0, SHOWN / 8));
  const text = decoder.decode(shown);
  if (form !== "json") return visible(text);
  try {
    return visible(rewritten(text, "\n"));
  } catch {
    return visible(text);
  }
}

/**
 * Whether a body contains this text.
 *
 * @param {Uint8Array} body
 * @param {string} text
 */
export function contains(body, text) {
  return decoder.decode(body.subarray(0, SHOWN)).toLowerCase().includes(text);
}

/**
 * Characters that change the direction of text could make a message look like another: they are shown as `�`.
 *
 * @param {string} text
 */
function visible(text) {
  // eslint-disable-next-line no-control-regex
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

/**
 * @param {Uint8Array} octets
 * @param {string} [between]
 */
export function hexOf(octets, between = "") {
  return Array.from(octets, (octet) => octet.toString(16).padStart(2, "0")).join(between);
}

/** @param {Uint8Array} octets */
function dump(octets) {
  const lines = [];
  for (let at = 0; at < octets.length; at += 16) {
    const part = octets.subarray(at, at + 16);
    const text = Array.from(part, (octet) => (octet >= 32 && octet < 127 ? String.fromCharCode(octet) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hexOf(part, " ").padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}
