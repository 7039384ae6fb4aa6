/**
 * Names (of topics, keys, clients) as strings.
 *
 * A name on the wire has any octets. As a string it is UTF-8 decoded; each octet that is not UTF-8 becomes a lone
 * surrogate, U+DC80 to U+DCFF, as with Python's `surrogateescape`. So every name is a string, and gives the same
 * octets again.
 */

const MOST_TOPIC_OCTETS = 255;

const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const LONE_SURROGATE = /[\uD800-\uDFFF]/u;

/**
 * Return the octets of a name or a body. Throws TypeError for what has none, such as undefined or an object.
 *
 * @param {string | Uint8Array} name
 * @returns {Uint8Array}
 */
export function encodeName(name) {
  if (name instanceof Uint8Array) return name;
  if (typeof name !== "string") throw new TypeError(`names and bodies are strings or Uint8Arrays, not ${typeof name}`);
  if (!LONE_SURROGATE.test(name)) return encoder.encode(name);
  /** @type {number[]} */
  const octets = [];
  for (const character of name) {
    const code = /** @type {number} */ (character.codePointAt(0));
    if (code >= 0xdc80 && code <= 0xdcff) octets.push(code - 0xdc00);
    else if (code >= 0xd800 && code <= 0xdfff) throw new TypeError("a string has a surrogate that stands for no octet");
    else octets.push(...encoder.encode(character));
  }
  return Uint8Array.from(octets);
}

/**
 * Throws RangeError for a name that no topic can have, and TypeError for what is no name.
 *
 * @param {string | Uint8Array} name
 */
export function checkTopic(name) {
  // A character has three octets at most, or four as two units of the string.
  if (typeof name === "string" && name.length && 3 * name.length <= MOST_TOPIC_OCTETS) return;
  const { length } = encodeName(name);
  if (!length) throw new RangeError("the topic's name is empty");
  if (length > MOST_TOPIC_OCTETS) {
    throw new RangeError(`the topic's name has ${length} octets, more than ${MOST_TOPIC_OCTETS}`);
  }
}

/**
 * @param {Uint8Array} octets
 * @returns {string} the name that `encodeName` turns into these octets
 */
export function decodeName(octets) {
  try {
    return strict.decode(octets);
  } catch {
    return decodeEscaped(octets);
  }
}

/** @param {Uint8Array} octets */
function decodeEscaped(octets) {
  let text = "";
  for (let at = 0; at < octets.length; ) {
    const begin = at;
    for (let size; (size = lengthOfCharacter(octets, at)); ) at += size;
    if (at > begin) text += strict.decode(octets.subarray(begin, at));
    for (; at < octets.length && !lengthOfCharacter(octets, at); at++) text += String.fromCharCode(0xdc00 + octets[at]);
  }
  return text;
}

/**
 * Return the octets of the UTF-8 character at `at`; 0 if there is none. A binary body has many octets that begin none,
 * and an exception of a decoder for each would take long.
 *
 * @param {Uint8Array} octets
 * @param {number} at
 */
function lengthOfCharacter(octets, at) {
  const first = octets[at];
  if (first < 0x80) return 1;
  const size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (!size || at + size > octets.length) return 0;
  // The second octet excludes longer forms than needed, surrogates, and what is beyond U+10FFFF.
  const least = first === 0xe0 ? 0xa0 : first === 0xf0 ? 0x90 : 0x80;
  const most = first === 0xed ? 0x9f : first === 0xf4 ? 0x8f : 0xbf;
  if (octets[at + 1] < least || octets[at + 1] > most) return 0;
  for (let next = at + 2; next < at + size; next++) if (octets[next] < 0x80 || octets[next] > 0xbf) return 0;
  return size;
}

/**
 * A name for people: control characters and octets that are not UTF-8 are written as `\xff`.
 *
 * Characters that change the direction or show nothing are escaped, too, because they could disguise a name; and white
 * space at its beginning and end, so that no name looks like another or is empty.
 *
 * @param {string} name
 */
export function printable(name) {
  const end = name.trimEnd().length;
  const begin = Math.min(end, name.length - name.trimStart().length);
  return escaped(name.slice(0, begin), EVERY) + escaped(name.slice(begin, end), HIDDEN) + escaped(name.slice(end), EVERY);
}

const HIDDEN =
  // eslint-disable-next-line no-control-regex
  /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufeff\uffa0]|[\uD800-\uDFFF]/gu;
const EVERY = /[^]/gu;

/**
 * @param {string} name
 * @param {RegExp} characters
 */
function escaped(name, characters) {
  return name.replace(characters, (character) => {
    const code = character.charCodeAt(0);
    if (code >= 0xdc80 && code <= 0xdcff) return `\\x${(code - 0xdc00).toString(16)}`;
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}
