"use strict";

/** What a server says of a lock, without taking it. */

const { Unavailable, quote } = require("./errors.js");

/** Returns holders as users see them; what is not known is absent. */
function holdersOf(holders) {
  return (Array.isArray(holders) ? holders : []).map((one) => {
    const { mode, fence, held_ms: held, left_ms: left, meta } = one ?? {};
    const holder = { mode, fence: /^\d+$/.test(fence) ? BigInt(fence) : undefined, held, left, meta: meta ?? {} };
    const known = Object.fromEntries(Object.entries(holder).filter(([, value]) => value !== undefined));
    const toJSON = () => (known.fence === undefined ? { ...known } : { ...known, fence: String(known.fence) }); // there is no BigInt in JSON
    return Object.defineProperty(known, "toJSON", { value: toJSON });
  });
}

async function inspect(servers, name) {
  // A proxy would clean a path with dots.
  const segment = encodeURIComponent(name).replaceAll(".", "%2E");
  const answer = await servers.ask(`/v1/locks/${segment}`);
  if (answer.name !== name) throw new Unavailable(`the server was asked for ${quote(name)}, and told of another lock: what is between changes paths`);
  return holdersOf(answer.holders);
}

module.exports = { holdersOf, inspect };
