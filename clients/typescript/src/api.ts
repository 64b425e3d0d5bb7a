/**
 * What travels between an app and its sidecar.
 *
 * Generated from docs/openapi.json by `make generate`: do not edit it.
 */

/**
 * What an answer means for the app. `held`: another caller has the lock. `lost`: the lease is over.
 * `passing`: the same request may succeed soon. `lasting`: locks are unavailable, and not only for
 * moments. `refused`: the request, or the installation, must be corrected.
 */
export type Outcome = "held" | "lost" | "passing" | "lasting" | "refused";

/** Returns the outcome of a problem. The status decides for a code that this version does not know. */
export function outcomeOf(code: string, status: number): Outcome {
  const passes = status === 408 || status === 429 || status >= 500;
  return OUTCOMES.get(code) ?? (passes ? "passing" : "refused");
}

const OUTCOMES = new Map<string, Outcome>([
  ["body_too_large", "refused"],
  ["election_invalid", "refused"],
  ["election_unknown", "refused"],
  ["forbidden", "refused"],
  ["host_not_allowed", "refused"],
  ["internal", "refused"],
  ["invalid_request", "refused"],
  ["lease_lost", "lost"],
  ["lease_unknown", "lost"],
  ["lock_held", "held"],
  ["method_not_allowed", "refused"],
  ["name_collision", "refused"],
  ["not_found", "refused"],
  ["not_installed", "lasting"],
  ["object_refused", "refused"],
  ["object_unreadable", "refused"],
  ["origin_refused", "refused"],
  ["quota_exceeded", "refused"],
  ["request_id_reused", "refused"],
  ["request_timeout", "passing"],
  ["resource_invalid", "refused"],
  ["resuming", "passing"],
  ["session_lost", "passing"],
  ["shutting_down", "lasting"],
  ["stale_token", "refused"],
  ["store_unavailable", "passing"],
  ["store_went_back", "lasting"],
  ["token_current", "refused"],
  ["token_exhausted", "refused"],
  ["too_many_leases", "passing"],
  ["too_many_streams", "passing"],
  ["too_many_waiting", "passing"],
  ["ttl_out_of_range", "refused"],
  ["unknown_token", "refused"],
]);

/** A request for a lock. */
export interface AcquireRequest {
  /**
   * For how many seconds the pod keeps the lock after this lease: acquiring it again in that time
   * is local, without a write. Another pod that requests it gets it immediately. 0: not kept.
   */
  readonly keepSeconds?: number;
  /**
   * Informational key-value pairs: at most 16 entries of printable text, with keys of at most 63
   * and values of at most 256 bytes.
   */
  readonly metadata?: Readonly<Record<string, string>>;
  /**
   * The caller's name, informational: printable text of at most 256 bytes; default: the pod's name.
   */
  readonly ownerId?: string;
  /**
   * An idempotency key, 1 to 128 printable ASCII characters; it counts together with `resource` and
   * `ownerId`. A repeated request returns the same lease, or 410 `lease_lost` if that has ended
   * (for 10 minutes after its end): a late repetition acquires nothing.
   */
  readonly requestId?: string;
  /** What to lock: printable text of at most 512 bytes. */
  readonly resource: string;
  /** After how many seconds without a renewal the agent releases the lock. */
  readonly ttlSeconds: number;
  /**
   * How long to wait in the queue while the lock is held; 0: one attempt. Set the client's own
   * timeout a few seconds higher. A caller that disconnects is removed from the queue; with a
   * requestId its queue entry is kept for 10 seconds.
   */
  readonly waitSeconds?: number;
}

/** The lead of an election for as long as a connection. */
export interface CandidacyRequest {
  /** How many seconds after its start the term ends in any case. */
  readonly maxHoldSeconds?: number;
  /** As in acquire. */
  readonly metadata?: Readonly<Record<string, string>>;
  /**
   * The candidate's name, informational: printable text of at most 256 bytes; default: the pod's
   * name.
   */
  readonly ownerId?: string;
  /**
   * Whether this candidate is queued before all candidates that are not preferred: it gets the lead
   * at the next term. A current leader is not interrupted. Of several candidates in one pod, the
   * first one decides. A full queue stays full.
   */
  readonly preferred?: boolean;
}

/** Work that has succeeded. */
export interface CompleteRequest {
  /** The name of the work: 1 to 128 printable ASCII characters. */
  readonly key: string;
}

/** A lock for as long as a connection. */
export interface HoldRequest {
  /** As in acquire. */
  readonly keepSeconds?: number;
  /** How many seconds after the grant the lease ends in any case. */
  readonly maxHoldSeconds?: number;
  /** As in acquire. */
  readonly metadata?: Readonly<Record<string, string>>;
  /**
   * The caller's name, informational: printable text of at most 256 bytes; default: the pod's name.
   */
  readonly ownerId?: string;
  /** What to lock: printable text of at most 512 bytes. */
  readonly resource: string;
  /**
   * How long to wait in the queue while the lock is held; 0: one attempt; default: without a limit.
   */
  readonly waitSeconds?: number;
}

/** An acquired lock. */
export interface Acquired {
  /** `validForMs` as a wall-clock time, informational. */
  readonly expiresAt?: string;
  /**
   * Larger than every earlier token of this resource. Send it with every write to the guarded
   * resource, which must reject smaller tokens.
   */
  readonly fencingToken?: number;
  /** Identifies the lease in renew and release. */
  readonly leaseId?: string;
  /** The owner's name. */
  readonly ownerId?: string;
  /** A person requested the release of this lease; the app decides. Absent without a request. */
  readonly releaseRequested?: ReleaseRequested;
  /** After how many milliseconds to renew, counted from when the app sent this request. */
  readonly renewAfterMs?: number;
  /** The locked resource. */
  readonly resource?: string;
  /** For how many milliseconds the app may act, counted from when it sent this request. */
  readonly validForMs?: number;
  /** Always true. */
  readonly acquired?: boolean;
  /** The keys under which guarded work has succeeded, oldest first; see completeWork. */
  readonly completed?: readonly string[];
  /** Whether this repeats the response to an earlier request with the same `requestId`. */
  readonly replayed?: boolean;
}

/** The lease is still valid. */
export interface HeartbeatEvent {
  /** The same as a wall-clock time, informational. */
  readonly expiresAt?: string;
  /** Its fencing token. */
  readonly fencingToken?: number;
  /** The lease. */
  readonly leaseId?: string;
  /**
   * For how many milliseconds the app may act, counted from when it sent the request that opened
   * this stream. It grows from event to event, so an event that is read late is still correct.
   */
  readonly validForMs?: number;
}

/** The holder of a lock. */
export interface Holder {
  /** The first token of its grant. */
  readonly fencingToken?: number;
  /** When the lock was granted, by the clock of the holder's pod. */
  readonly heldSince?: string;
  /** The metadata that the app gave. */
  readonly metadata?: Readonly<Record<string, string>>;
  /** The name that the app gave. */
  readonly ownerId?: string;
  /** The holder's pod. */
  readonly pod?: string;
}

/** A lease. */
export interface Lease {
  /** `validForMs` as a wall-clock time, informational. */
  readonly expiresAt?: string;
  /**
   * Larger than every earlier token of this resource. Send it with every write to the guarded
   * resource, which must reject smaller tokens.
   */
  readonly fencingToken?: number;
  /** Identifies the lease in renew and release. */
  readonly leaseId?: string;
  /** The owner's name. */
  readonly ownerId?: string;
  /** A person requested the release of this lease; the app decides. Absent without a request. */
  readonly releaseRequested?: ReleaseRequested;
  /** After how many milliseconds to renew, counted from when the app sent this request. */
  readonly renewAfterMs?: number;
  /** The locked resource. */
  readonly resource?: string;
  /** For how many milliseconds the app may act, counted from when it sent this request. */
  readonly validForMs?: number;
}

/** The lease has ended. The last event. */
export interface LostEvent {
  /** The same as text. */
  readonly detail?: string;
  /** The lease. */
  readonly leaseId?: string;
  /** The reason, as in 410 `lease_lost`; `max_hold` if `maxHoldSeconds` have passed. */
  readonly reason?: string;
}

/** A request to release the lease. */
export interface ReleaseRequested {
  /** The person who requested it. */
  readonly actor?: string;
  /** The reason that the person gave. */
  readonly message?: string;
  /** Always `person_asked`, for now. */
  readonly reason?: string;
}

/** The app should finish and release the lock. */
export interface ReleaseRequestedEvent {
  /** The same as a wall-clock time, informational. */
  readonly expiresAt?: string;
  /** Its fencing token. */
  readonly fencingToken?: number;
  /** The lease. */
  readonly leaseId?: string;
  /**
   * For how many milliseconds the app may act, counted from when it sent the request that opened
   * this stream. It grows from event to event, so an event that is read late is still correct.
   */
  readonly validForMs?: number;
  /** The person, for `person_asked`. */
  readonly actor?: string;
  /** The reason that the person gave. */
  readonly message?: string;
  /**
   * `agent_stopping`: the agent is stopping, and `validForMs` does not grow any more. `max_hold`:
   * `maxHoldSeconds` have nearly passed. `person_asked`: a person requested it, and the app
   * decides. New reasons may be added.
   */
  readonly reason?: string;
}
