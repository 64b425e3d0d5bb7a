package main

import (
	"slices"
	"strings"
)

// lease is a lease from its grant to its end, as far as its app knows. Places are indexes of
// events, times are those of the history's clock.
type lease struct {
	id       string
	process  string
	resource string
	token    uint64
	// Where the request began that it was told by first, and where that was answered.
	invoked, answered int
	// Until when its app may believe, by all that it was told.
	until uint64
	// When its app stopped to believe by itself: it began to release, was told of the loss, stopped.
	stopped uint64
	// Where its release was confirmed, or never.
	released int
}

// override is a time in which somebody ended grants: of all resources, or sidecars, if it names none, and
// all that existed then if it does not say which.
type override struct {
	resource, sidecar string
	grants            *[]string
	from, until       uint64
}

// believed is when its app believed no more.
func (lease *lease) believed() uint64 {
	return min(lease.until, lease.stopped)
}

// grant is what it is a lease of: `<grantId>.<n>` is the n-th of one.
func (lease *lease) grant() string {
	if dot := strings.LastIndexByte(lease.id, '.'); dot >= 0 {
		return lease.id[:dot]
	}
	return lease.id
}

// leases collects the leases that somebody was told of, in the order in which they were.
type leases struct {
	byID      map[string]*lease
	told      []*lease
	overrides []override
	// Where each grant was asked for: where the first lease of it was.
	begun map[string]int
	// Which sidecar serves a process.
	servedBy map[string]string
}

const forever = ^uint64(0)

// lease finds a lease, which may end before anybody was told of it.
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

// An override that has begun goes on until its outcome is known.
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
			// Nothing came of it.
			leases.overrides = slices.Delete(leases.overrides, index, index+1)
			return
		}
		leases.overrides[index].until = event.At
		if event.Grants != nil {
			leases.overrides[index].grants = event.Grants
		}
	}
}

// mayEnd is the first time at which its grant can be over.
func (leases *leases) mayEnd(lease *lease, events []event, claims claims) uint64 {
	begun := events[lease.invoked].At
	if !claims.exclusion {
		return begun
	}
	// By so much two apps' beliefs may overlap because of their clocks.
	end := lease.believed()
	end -= min(end, claims.clockBound)
	for _, override := range leases.overrides {
		if leases.concerns(override, lease, events) {
			end = min(end, override.from)
		}
	}
	return max(end, begun)
}

// concerns says whether a lease's grant is one that somebody ended, or may have existed when somebody did.
func (leases *leases) concerns(override override, lease *lease, events []event) bool {
	same := (override.resource == "" || override.resource == lease.resource) &&
		(override.sidecar == "" || override.sidecar == leases.servedBy[lease.process])
	isOfIt := events[leases.begun[lease.grant()]].At <= override.until
	if override.grants != nil {
		isOfIt = slices.Contains(*override.grants, lease.grant())
	}
	return same && isOfIt && override.from <= max(lease.believed(), events[lease.invoked].At)
}

// mayBeLate says whether it is a further lease of a grant that somebody ended: its agent may not have
// known yet, and its token is that grant's. The fence refuses it.
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
