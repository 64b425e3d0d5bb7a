// Code generated from docs/openapi.json by make generate. DO NOT EDIT.

// Package api has what travels between an app and its sidecar. A field that an answer lacks has the zero
// value.
package api

// Outcome is what an answer means for the app.
type Outcome int

// The outcomes.
const (
	// Held: another caller has the lock.
	Held Outcome = iota
	// Lost: the lease is over.
	Lost
	// Passing: the same request may succeed soon.
	Passing
	// Lasting: locks are unavailable, and not only for moments.
	Lasting
	// Refused: the request, or the installation, must be corrected.
	Refused
)

// OutcomeOf is the outcome of a problem's code. The status decides for a code that this version does not
// know.
func OutcomeOf(code string, status int) Outcome {
	switch code {
	case
		"lock_held":
		return Held
	case
		"lease_lost",
		"lease_unknown":
		return Lost
	case
		"request_timeout",
		"resuming",
		"session_lost",
		"store_unavailable",
		"too_many_leases",
		"too_many_streams",
		"too_many_waiting":
		return Passing
	case
		"not_installed",
		"shutting_down",
		"store_went_back":
		return Lasting
	case
		"body_too_large",
		"election_invalid",
		"election_unknown",
		"forbidden",
		"host_not_allowed",
		"internal",
		"invalid_request",
		"method_not_allowed",
		"name_collision",
		"not_found",
		"object_refused",
		"object_unreadable",
		"origin_refused",
		"quota_exceeded",
		"request_id_reused",
		"resource_invalid",
		"stale_token",
		"token_current",
		"token_exhausted",
		"ttl_out_of_range",
		"unknown_token":
		return Refused
	}
	if status == 408 || status == 429 || status >= 500 {
		return Passing
	}
	return Refused
}

// AcquireRequest: A request for a lock.
type AcquireRequest struct {
	// For how many seconds the pod keeps the lock after this lease: acquiring it again in that time is
	// local, without a write. Another pod that requests it gets it immediately. 0: not kept.
	KeepSeconds *int64 `json:"keepSeconds,omitempty"`
	// Informational key-value pairs: at most 16 entries of printable text, with keys of at most 63 and
	// values of at most 256 bytes.
	Metadata map[string]string `json:"metadata,omitempty"`
	// The caller's name, informational: printable text of at most 256 bytes; default: the pod's name.
	OwnerID string `json:"ownerId,omitempty"`
	// An idempotency key, 1 to 128 printable ASCII characters; it counts together with `resource` and
	// `ownerId`. A repeated request returns the same lease, or 410 `lease_lost` if that has ended (for
	// 10 minutes after its end): a late repetition acquires nothing.
	RequestID string `json:"requestId,omitempty"`
	// What to lock: printable text of at most 512 bytes.
	Resource string `json:"resource"`
	// After how many seconds without a renewal the agent releases the lock.
	TTLSeconds int64 `json:"ttlSeconds"`
	// How long to wait in the queue while the lock is held; 0: one attempt. Set the client's own
	// timeout a few seconds higher. A caller that disconnects is removed from the queue; with a
	// requestId its queue entry is kept for 10 seconds.
	WaitSeconds *int64 `json:"waitSeconds,omitempty"`
}

// CandidacyRequest: The lead of an election for as long as a connection.
type CandidacyRequest struct {
	// How many seconds after its start the term ends in any case.
	MaxHoldSeconds *int64 `json:"maxHoldSeconds,omitempty"`
	// As in acquire.
	Metadata map[string]string `json:"metadata,omitempty"`
	// The candidate's name, informational: printable text of at most 256 bytes; default: the pod's
	// name.
	OwnerID string `json:"ownerId,omitempty"`
	// Whether this candidate is queued before all candidates that are not preferred: it gets the lead
	// at the next term. A current leader is not interrupted. Of several candidates in one pod, the
	// first one decides. A full queue stays full.
	Preferred bool `json:"preferred,omitempty"`
}

// CompleteRequest: Work that has succeeded.
type CompleteRequest struct {
	// The name of the work: 1 to 128 printable ASCII characters.
	Key string `json:"key"`
}

// HoldRequest: A lock for as long as a connection.
type HoldRequest struct {
	// As in acquire.
	KeepSeconds *int64 `json:"keepSeconds,omitempty"`
	// How many seconds after the grant the lease ends in any case.
	MaxHoldSeconds *int64 `json:"maxHoldSeconds,omitempty"`
	// As in acquire.
	Metadata map[string]string `json:"metadata,omitempty"`
	// The caller's name, informational: printable text of at most 256 bytes; default: the pod's name.
	OwnerID string `json:"ownerId,omitempty"`
	// What to lock: printable text of at most 512 bytes.
	Resource string `json:"resource"`
	// How long to wait in the queue while the lock is held; 0: one attempt; default: without a limit.
	WaitSeconds *int64 `json:"waitSeconds,omitempty"`
}

// Acquired: An acquired lock.
type Acquired struct {
	// `validForMs` as a wall-clock time, informational.
	ExpiresAt string `json:"expiresAt"`
	// Larger than every earlier token of this resource. Send it with every write to the guarded
	// resource, which must reject smaller tokens.
	FencingToken int64 `json:"fencingToken"`
	// Identifies the lease in renew and release.
	LeaseID string `json:"leaseId"`
	// The owner's name.
	OwnerID string `json:"ownerId"`
	// A person requested the release of this lease; the app decides. Absent without a request.
	ReleaseRequested *ReleaseRequested `json:"releaseRequested,omitempty"`
	// After how many milliseconds to renew, counted from when the app sent this request.
	RenewAfterMs int64 `json:"renewAfterMs"`
	// The locked resource.
	Resource string `json:"resource"`
	// For how many milliseconds the app may act, counted from when it sent this request.
	ValidForMs int64 `json:"validForMs"`
	// Always true.
	Acquired bool `json:"acquired"`
	// The keys under which guarded work has succeeded, oldest first; see completeWork.
	Completed []string `json:"completed"`
	// Whether this repeats the response to an earlier request with the same `requestId`.
	Replayed bool `json:"replayed"`
}

// HeartbeatEvent: The lease is still valid.
type HeartbeatEvent struct {
	// The same as a wall-clock time, informational.
	ExpiresAt string `json:"expiresAt"`
	// Its fencing token.
	FencingToken int64 `json:"fencingToken"`
	// The lease.
	LeaseID string `json:"leaseId"`
	// For how many milliseconds the app may act, counted from when it sent the request that opened
	// this stream. It grows from event to event, so an event that is read late is still correct.
	ValidForMs int64 `json:"validForMs"`
}

// Holder: The holder of a lock.
type Holder struct {
	// The first token of its grant.
	FencingToken *int64 `json:"fencingToken,omitempty"`
	// When the lock was granted, by the clock of the holder's pod.
	HeldSince string `json:"heldSince"`
	// The metadata that the app gave.
	Metadata map[string]string `json:"metadata"`
	// The name that the app gave.
	OwnerID string `json:"ownerId"`
	// The holder's pod.
	Pod string `json:"pod"`
}

// Lease: A lease.
type Lease struct {
	// `validForMs` as a wall-clock time, informational.
	ExpiresAt string `json:"expiresAt"`
	// Larger than every earlier token of this resource. Send it with every write to the guarded
	// resource, which must reject smaller tokens.
	FencingToken int64 `json:"fencingToken"`
	// Identifies the lease in renew and release.
	LeaseID string `json:"leaseId"`
	// The owner's name.
	OwnerID string `json:"ownerId"`
	// A person requested the release of this lease; the app decides. Absent without a request.
	ReleaseRequested *ReleaseRequested `json:"releaseRequested,omitempty"`
	// After how many milliseconds to renew, counted from when the app sent this request.
	RenewAfterMs int64 `json:"renewAfterMs"`
	// The locked resource.
	Resource string `json:"resource"`
	// For how many milliseconds the app may act, counted from when it sent this request.
	ValidForMs int64 `json:"validForMs"`
}

// LostEvent: The lease has ended. The last event.
type LostEvent struct {
	// The same as text.
	Detail string `json:"detail"`
	// The lease.
	LeaseID string `json:"leaseId"`
	// The reason, as in 410 `lease_lost`; `max_hold` if `maxHoldSeconds` have passed.
	Reason string `json:"reason"`
}

// ReleaseRequested: A request to release the lease.
type ReleaseRequested struct {
	// The person who requested it.
	Actor string `json:"actor"`
	// The reason that the person gave.
	Message string `json:"message"`
	// Always `person_asked`, for now.
	Reason string `json:"reason"`
}

// ReleaseRequestedEvent: The app should finish and release the lock.
type ReleaseRequestedEvent struct {
	// The same as a wall-clock time, informational.
	ExpiresAt string `json:"expiresAt"`
	// Its fencing token.
	FencingToken int64 `json:"fencingToken"`
	// The lease.
	LeaseID string `json:"leaseId"`
	// For how many milliseconds the app may act, counted from when it sent the request that opened
	// this stream. It grows from event to event, so an event that is read late is still correct.
	ValidForMs int64 `json:"validForMs"`
	// The person, for `person_asked`.
	Actor string `json:"actor,omitempty"`
	// The reason that the person gave.
	Message string `json:"message,omitempty"`
	// `agent_stopping`: the agent is stopping, and `validForMs` does not grow any more. `max_hold`:
	// `maxHoldSeconds` have nearly passed. `person_asked`: a person requested it, and the app decides.
	// New reasons may be added.
	Reason string `json:"reason"`
}
