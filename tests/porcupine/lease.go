package main

import (
	"slices"
	"strings"
)

// lease is a lease from its grant to its end, as far as its app knows. Positions are indexes of events,
// times are those of the history's clock.
type lease struct {
	id       string
	process  string
	resource string
	token    uint64
	// The positions of the request that first returned the lease, and of its answer.
	invoked, answered int
	// Until when its app may believe that it has the lease, according to all answers.
	until uint64
	// When its app stopped believing before that: it began to release, was notified of the loss, or stopped.
	stopped uint64
	// The position of the confirmation of its release, or `never`.
	released int
}

// override is a period in which a person or a fault ended grants. An override without a resource or a
// sidecar applies to all of them. An override without grants applies to all grants that existed then.
type override struct {
	resource, sidecar string
	grants            *[]string
	from, until       uint64
}

// believed returns the time at which its app stopped believing.
func (lease *lease) believed() uint64 {
	return min(lease.until, lease.stopped)
}

// grant returns the id of the lease's grant: `<grantId>.<n>` is the n-th lease of a grant.
func (lease *lease) grant() string {
	if dot := strings.LastIndexByte(lease.id, '.'); dot >= 0 {
		return lease.id[:dot]
	}
	return lease.id
}

// leases collects the leases that were returned to an app, in the order of their answers.
type leases struct {
	byID      map[string]*lease
	told      []*lease
	overrides []override
	// The position of the request for each grant, which is the request for its first lease.
	begun map[string]int
	// The sidecar that serves each process.
	servedBy map[string]string
}

const forever = ^uint64(0)

// lease finds or creates a lease. An event that ends a lease may precede the answer that returns it.
func (leases *leases) lease(id string) *lease {
	if known := leases.byID[id]; known != nil {
		return known
	}
	made := &lease{id: id, stopped: forever, released: never}
	leases.byID[id] = made
	return made
}

func leasesOf(events []event, begun map[int]int) *leases {
	leases := &leases{byID: map[string]*lease{}, begun: map[string]int{}, servedBy: map[string]string{}}
	for index, event := range events {
		invoked, isOutcome := begun[index]
		switch event.Op {
		case "acquire":
			if event.Phase == "ok" && isOutcome {
				leases.tell(event, invoked, index)
			}
		case "renew":
			lease := leases.lease(event.Lease)
			if (event.Phase == "ok" || event.Phase == "info") && event.BelievesUntil != nil {
				lease.until = max(lease.until, *event.BelievesUntil)
			} else if event.Phase == "fail" {
				lease.stopped = min(lease.stopped, event.At)
			}
		case "release":
			lease := leases.lease(event.Lease)
			lease.stopped = min(lease.stopped, event.At)
			if event.Phase == "ok" {
				lease.released = min(lease.released, index)
			}
		case "lost", "believes-end":
			lease := leases.lease(event.Lease)
			lease.stopped = min(lease.stopped, event.At)
		case "served-by":
			leases.servedBy[event.Process] = event.Sidecar
		case "override":
			leases.override(events, event, invoked, isOutcome)
		}
	}
	return leases
}

func (leases *leases) tell(event event, invoked, answered int) {
	lease := leases.lease(event.Lease)
	if event.BelievesUntil != nil {
		lease.until = max(lease.until, *event.BelievesUntil)
	}
	if lease.resource == "" {
		lease.process, lease.resource, lease.token = event.Process, event.Resource, event.Token
		lease.invoked, lease.answered = invoked, answered
		leases.told = append(leases.told, lease)
		if first, known := leases.begun[lease.grant()]; !known || invoked < first {
			leases.begun[lease.grant()] = invoked
		}
	}
}

// An override that has begun continues until its outcome is known.
func (leases *leases) override(events []event, event event, invoked int, isOutcome bool) {
	switch {
	case event.Phase == "info":
		leases.overrides = append(leases.overrides, override{event.Resource, event.Sidecar, event.Grants, event.At, event.At})
	case event.Phase == "invoke":
		leases.overrides = append(leases.overrides, override{event.Resource, event.Sidecar, event.Grants, event.At, forever})
	case isOutcome && event.Phase != "unknown":
		index := slices.IndexFunc(leases.overrides, func(it override) bool {
			return it.from == events[invoked].At && it.until == forever && it.resource == event.Resource && it.sidecar == event.Sidecar
		})
		if index < 0 {
			return
		}
		if event.Phase == "fail" {
			// The override had no effect.
			leases.overrides = slices.Delete(leases.overrides, index, index+1)
			return
		}
		leases.overrides[index].until = event.At
		if event.Grants != nil {
			leases.overrides[index].grants = event.Grants
		}
	}
}

// mayEnd returns the first time at which the lease's grant can be over.
func (leases *leases) mayEnd(lease *lease, events []event, claims claims) uint64 {
	begun := events[lease.invoked].At
	if !claims.exclusion {
		return begun
	}
	// Because of their clocks, the beliefs of two apps may overlap by this bound.
	end := lease.believed()
	end -= min(end, claims.clockBound)
	for _, override := range leases.overrides {
		if leases.concerns(override, lease, events) {
			end = min(end, override.from)
		}
	}
	return max(end, begun)
}

// concerns reports whether the override names the lease's grant, or may have ended it because the grant
// existed then.
func (leases *leases) concerns(override override, lease *lease, events []event) bool {
	same := (override.resource == "" || override.resource == lease.resource) &&
		(override.sidecar == "" || override.sidecar == leases.servedBy[lease.process])
	isOfIt := events[leases.begun[lease.grant()]].At <= override.until
	if override.grants != nil {
		isOfIt = slices.Contains(*override.grants, lease.grant())
	}
	return same && isOfIt && override.from <= max(lease.believed(), events[lease.invoked].At)
}

// mayBeLate reports whether the lease is a further lease of a grant that an override ended. Its agent may
// not have observed that yet. The lease has the token of that grant, and the fence refuses it.
func (leases *leases) mayBeLate(lease *lease, events []event) bool {
	if leases.begun[lease.grant()] >= lease.invoked {
		return false
	}
	for _, override := range leases.overrides {
		if leases.concerns(override, lease, events) {
			return true
		}
	}
	return false
}
