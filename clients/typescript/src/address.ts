/** The address of a sidecar. */

import type { Address } from "./messages.js";

const UNIX = "unix://";

/** Parses `http://HOST:PORT` or `unix:///PATH`; throws a TypeError with what to correct. */
export function parseAddress(url: string): Address {
  const socketPath = url.slice(UNIX.length);
  if (url.startsWith(UNIX) && socketPath.startsWith("/")) {
    return { host: "localhost", port: 80, socketPath, url };
  }
  const parts = URL.canParse(url) ? new URL(url) : undefined;
  const isBare = parts?.pathname === "/" && !parts.search && !parts.hash && !parts.username;
  if (parts?.protocol === "http:" && isBare) {
    return { host: parts.hostname, port: Number(parts.port || 80), url: parts.origin };
  }
  throw new TypeError(
    `${JSON.stringify(url)} is not the address of a sidecar; ` +
      "use http://127.0.0.1:7373, or unix:///PATH for a Unix socket",
  );
}
