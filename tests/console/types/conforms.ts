// The declarations say what the modules have. What does not agree is an error of the compiler.

import * as declared from "omq-client";
import * as declaredInNode from "omq-client/node";
import * as declaredOfSessions from "omq-client/session";

import * as real from "REAL/omq.js";
import * as realInNode from "REAL/node.js";
import * as realOfSessions from "REAL/lib/session.js";

type Same<One, Other> = [One] extends [Other] ? ([Other] extends [One] ? true : false) : false;
/** The parameters of every function: without this, a method is accepted that takes less than it is declared to take. */
type Parameters_<T> = { [Name in keyof T]: T[Name] extends (...given: infer Given) => unknown ? Given : never };

const exported: [
  Same<keyof typeof declared, keyof typeof real>,
  Same<keyof typeof declaredInNode, keyof typeof realInNode>,
  Same<keyof typeof declaredOfSessions, keyof typeof realOfSessions>,
] = [true, true, true];

type Functions = Exclude<keyof typeof declared, "Client" | "Subscription" | "keepConnected" | "Refused" | `${string}Error` | "BrokenBlock">;
const functions: Pick<typeof declared, Functions> = real;
const connectTcp: typeof declaredInNode.connectTcp = realInNode.connectTcp;
const parameters: [
  Same<Parameters_<Pick<typeof declared, Functions>>, Parameters_<Pick<typeof real, Functions>>>,
  Same<Parameters<typeof declaredInNode.connectTcp>, Parameters<typeof realInNode.connectTcp>>,
  Same<Parameters<typeof declared.Client.open>, Parameters<typeof real.Client.open>>,
] = [true, true, true];

const kept = (open: (signal: AbortSignal) => Promise<real.Client>, hooks: declared.Hooks): Promise<void> =>
  real.keepConnected(open, hooks);
const client = (made: real.Client): declared.Client => made;
const clients: Same<Parameters_<declared.Client>, Parameters_<real.Client>> = true;
const subscription = (made: real.Subscription): declared.Subscription => made;
const session = (made: realOfSessions.Session): declaredOfSessions.Session => made;
const sessions: Same<keyof declaredOfSessions.Session, keyof realOfSessions.Session> = true;
const refused = (made: real.Refused): declared.Refused => made;

export { client, clients, connectTcp, exported, functions, kept, parameters, refused, session, sessions, subscription };
