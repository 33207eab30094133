"use strict";

/** What a server says of a lock, without taking it. */

/** Returns holders as users see them; what is not known is absent. */
function holdersOf(holders) {
  return (Array.isArray(holders) ? holders : []).map(({ mode, fence, held_ms: held, left_ms: left, meta = {} }) => {
    const holder = { mode, fence: /^\d+$/.test(fence) ? BigInt(fence) : undefined, held, left, meta };
    return Object.fromEntries(Object.entries(holder).filter(([, value]) => value !== undefined));
  });
}

async function inspect(servers, name) {
  // A proxy would clean a path with dots.
  const segment = encodeURIComponent(name).replaceAll(".", "%2E");
  const { holders } = await servers.ask(`/v1/locks/${segment}`);
  return holdersOf(holders);
}

module.exports = { holdersOf, inspect };
