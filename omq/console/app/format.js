/** Numbers, sizes, times and errors for people. */

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumFractionDigits: 1, notation: "compact" });
const precise = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** @param {number | bigint} number */
export const count = (number) => whole.format(number);

/**
 * Return a number for a column of a table, which has room for seven characters: a number that is cut off looks like a
 * smaller one.
 *
 * @param {number} number
 */
export const brief = (number) => (number < 1_000_000 ? whole : short).format(number);

/** @param {number} perSecond */
export function rate(perSecond) {
  if (!perSecond) return "0";
  if (perSecond < 0.1) return "<0.1";
  return perSecond < 10 ? precise.format(perSecond) : perSecond < 10_000 ? whole.format(perSecond) : short.format(perSecond);
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** @param {number} octets */
export function size(octets) {
  let unit = 0;
  while (octets >= 1024 && unit < UNITS.length - 1) {
    octets /= 1024;
    unit++;
  }
  return `${unit && octets < 100 ? precise.format(octets) : whole.format(octets)} ${UNITS[unit]}`;
}

/** @param {number} milliseconds */
export function duration(milliseconds) {
  const seconds = milliseconds / 1000;
  if (seconds < 1) return `${precise.format(milliseconds)} ms`;
  if (seconds < 60) return `${seconds < 10 ? precise.format(seconds) : whole.format(seconds)} s`;
  if (seconds < 3600) return both(seconds, 60, "min", "s");
  if (seconds < 86400) return both(seconds / 60, 60, "h", "min");
  return both(seconds / 3600, 24, "d", "h");
}

/**
 * Return a time in two units, or in the larger one if nothing of the smaller one is left.
 *
 * @param {number} time  in the smaller unit
 * @param {number} ratio  of the units
 * @param {string} larger
 * @param {string} smaller
 */
function both(time, ratio, larger, smaller) {
  const rest = Math.floor(time % ratio);
  return `${Math.floor(time / ratio)} ${larger}${rest ? ` ${rest} ${smaller}` : ""}`;
}

/** @param {number} microseconds */
export function latency(microseconds) {
  return microseconds < 1000 ? `${whole.format(microseconds)} µs` : duration(microseconds / 1000);
}

/** @param {number} milliseconds  since the epoch */
export function timeOfDay(milliseconds) {
  return new Date(milliseconds).toLocaleTimeString("en-GB");
}

/** @param {number} microseconds  since the epoch */
export function clock(microseconds) {
  const date = new Date(microseconds / 1000);
  return `${timeOfDay(date.getTime())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** @param {number} microseconds  since the epoch */
export function moment(microseconds) {
  const date = new Date(microseconds / 1000);
  const local = new Date(date.getTime() - date.getTimezoneOffset() * 60_000); // the offset of then, not of today
  return local.toISOString().slice(0, 23).replace("T", " ");
}

/**
 * Return what an Error says, without the command that it answers: a reader of the page has sent none.
 *
 * @param {Error} error
 */
export function reason({ message }) {
  const said = message.replace(/^[A-Z][a-z_]*(?: (?:"(?:[^"\\]|\\[^])*"|\S+))?: /, "");
  return said.charAt(0).toUpperCase() + said.slice(1);
}

/**
 * @param {number} number
 * @param {string} noun
 */
export const many = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
