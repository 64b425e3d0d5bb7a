/**
 * Refuses stale writers in an Express service. docs/fencing-http.md has an example.
 *
 * ```js
 * app.use(requireToken());
 * // … the routes, which pass req.fencingToken to the fence of their database
 * app.use(answerStale);
 * ```
 *
 * It compares no tokens: the write comes after a comparison here, so the comparison would not be a
 * fence.
 *
 * @packageDocumentation
 */

declare global {
  namespace Express {
    interface Request {
      /** The fencing token of the request; undefined if its method is unfenced. */
      fencingToken?: number;
    }
  }
}

/** What the filter reads of a request. */
export interface IncomingRequest {
  readonly method?: string | undefined;
  readonly headers: { readonly [name: string]: string | readonly string[] | undefined };
  fencingToken?: number;
}

/** What the filter needs of a response. */
export interface OutgoingResponse {
  statusCode: number;
  readonly headersSent: boolean;
  removeHeader(name: string): unknown;
  setHeader(name: string, value: string): unknown;
  end(body: string): unknown;
}

/** Calls the next handler. */
export type Next = (error?: unknown) => void;

/** Options of {@link requireToken}. */
export interface TokenOptions {
  /** The methods that need no token. Default: GET, HEAD and OPTIONS. */
  readonly unfenced?: Iterable<string>;
}

/**
 * Returns middleware that sets `req.fencingToken`. It answers a request without a fencing token
 * with 428, and one whose token is not valid with 400.
 */
export function requireToken({
  unfenced = ["GET", "HEAD", "OPTIONS"],
}: TokenOptions = {}): (req: IncomingRequest, res: OutgoingResponse, next: Next) => void {
  const methods = new Set(unfenced);
  return (req, res, next) => {
    if (methods.has(req.method ?? "")) {
      next();
      return;
    }
    // Node joins the values of a repeated header by ", ".
    const value = req.headers["x-fencing-token"];
    if (value === undefined) {
      const detail =
        "send the fencing token of your lease in the header X-Fencing-Token with each write";
      answer(res, 428, "token_required", "Fencing token is required", detail);
      return;
    }
    const token = /^[1-9][0-9]{0,15}$/.test(`${value}`) ? Number(value) : 0;
    if (token === 0 || token > Number.MAX_SAFE_INTEGER) {
      const detail =
        "send the header X-Fencing-Token once, with a whole number from 1 to " +
        `${Number.MAX_SAFE_INTEGER} in decimal digits`;
      answer(res, 400, "token_invalid", "Fencing token is not valid", detail);
      return;
    }
    req.fencingToken = token;
    next();
  };
}

/**
 * Answers the refusal of a fence with 412. It passes on other errors, and those of a response that
 * has started. It belongs after the routes.
 */
export function answerStale(
  error: unknown,
  _req: IncomingRequest,
  res: OutgoingResponse,
  next: Next,
): void {
  const text = refusal(error);
  if (text === undefined || res.headersSent) {
    next(error);
    return;
  }
  // The handler may have set them for its own response.
  for (const name of ["content-length", "content-encoding", "etag", "last-modified"]) {
    res.removeHeader(name);
  }
  const detail =
    "a newer lease exists: stop working, and do not repeat the request. " +
    `The store's answer: ${text}`;
  answer(res, 412, "stale_token", "Fencing token is stale", detail);
}

/**
 * Returns the text with which a fence of Leasehold refused a stale token, and undefined for any
 * other error. It knows the fences of PostgreSQL, MariaDB, SQLite and Redis with any driver, also
 * as the cause of another error.
 */
export function refusal(error: unknown): string | undefined {
  const chain: Failure[] = [];
  for (let link = error; isFailure(link) && !chain.includes(link); link = link.cause) {
    chain.push(link);
  }
  // An error of PostgreSQL has its SQLSTATE as `code`. Its text may have values of the request, so
  // it does not count.
  const postgresql = chain.find((link) => link.code === "LH001" || link.severity !== undefined);
  if (postgresql !== undefined) {
    return postgresql.code === "LH001" ? firstLine(postgresql) : undefined;
  }
  // The texts of SQLite and Redis, and the constraint's name in MariaDB. The last cause is the
  // driver's error.
  const stale = /stale fencing token|`stale_fencing_token`/;
  return chain
    .reverse()
    .map(firstLine)
    .find((text) => stale.test(text));
}

// Some drivers append the statement with its values.
function firstLine({ message }: Failure): string {
  return message.split("\n", 1)[0] ?? "";
}

interface Failure {
  readonly message: string;
  readonly cause?: unknown;
  readonly code?: unknown;
  readonly severity?: unknown;
}

// Not by `instanceof`: an error may come from another realm.
function isFailure(error: unknown): error is Failure {
  return typeof (error as { message?: unknown } | null | undefined)?.message === "string";
}

/** Answers with a problem document (RFC 9457). */
function answer(
  res: OutgoingResponse,
  status: number,
  code: string,
  title: string,
  detail: string,
): void {
  res.statusCode = status;
  res.setHeader("Content-Type", "application/problem+json");
  res.end(JSON.stringify({ type: `urn:leasehold:problem:${code}`, title, status, code, detail }));
}
