package main

import (
	"fmt"
	"slices"
	"sort"

	"github.com/anishathalye/porcupine"
)

// step is an operation's input to the model.
type step struct {
	number int
	kind   kind
	token  uint64
	value  string
	// The process, and the times of begin and end. They are informational.
	process  string
	from, to uint64
}

type kind int

const (
	// A grant was returned: the lock was free, and no grant had a larger token.
	acquired kind = iota
	// The grant is over: released, expired, lost or overridden. Every grant has one end.
	ended
	// A write was accepted: no newer token had been accepted.
	accepted
	// A write was refused: a newer token had been accepted.
	refused
	// The outcome of a write is unknown: it was accepted, refused, or never arrived.
	perhapsWritten
	// A read.
	seen
)

func (step *step) String() string {
	did := []string{"acquire", "end of", "write accepted,", "write refused,", "write, outcome unknown,", "read"}[step.kind]
	until := "never answered"
	if step.to != forever {
		until = fmt.Sprintf("to %d", step.to)
	}
	words := fmt.Sprintf("%s token %d by %s, from %d %s", did, step.token, step.process, step.from, until)
	if step.value != "" {
		words += fmt.Sprintf(" (%s)", step.value)
	}
	return words
}

// object is a lock or a register. Linearizability is local: a history is linearizable if the history of
// each object is.
type object struct {
	name       string
	isLock     bool
	operations []porcupine.Operation
}

// collector converts a history's events to operations.
type collector struct {
	events  []event
	claims  claims
	objects map[string]*object
	clients map[string]int
	made    int
}

// objectsOf sorts the operations by lock and register.
func objectsOf(events []event) []object {
	begun := invocations(events)
	collector := &collector{events, claimsOf(events), map[string]*object{}, map[string]int{}, 0}
	leases := leasesOf(events, begun)
	for _, lease := range leases.told {
		// client-go's elections have no tokens, so this check makes no claims about them.
		if lease.token > 0 && !leases.mayBeLate(lease, events) {
			collector.grant(lease, leases.mayEnd(lease, events, collector.claims))
		}
	}
	collector.writes(begun)
	names := make([]string, 0, len(collector.objects))
	for name := range collector.objects {
		names = append(names, name)
	}
	sort.Strings(names)
	objects := make([]object, 0, len(names))
	for _, name := range names {
		object := collector.objects[name]
		slices.SortStableFunc(object.operations, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		objects = append(objects, *object)
	}
	return objects
}

// invocations maps the position of each outcome to the position at which its operation began.
func invocations(events []event) map[int]int {
	type operation struct {
		process string
		number  uint64
	}
	open, begun := map[operation]int{}, map[int]int{}
	for index, event := range events {
		operation := operation{event.Process, event.Operation}
		switch event.Phase {
		case "invoke":
			open[operation] = index
		case "ok", "fail", "unknown":
			if invoked, known := open[operation]; known {
				begun[index] = invoked
				delete(open, operation)
			}
		}
	}
	return begun
}

// at returns an event's time on the checker's axis, which is the order of the events.
func at(index int) int64 {
	return int64(2*index + 2)
}

// grant adds the two operations of a lease to its lock. The acquire happens at some time during the request.
// The end happens at some time after it may end, and, for a released lease, before the confirmation.
//
// An acquire without an answer is left out. If it happened, its grant and its end have some position in the
// order, and no answer depends on that position.
func (c *collector) grant(lease *lease, mayEnd uint64) {
	answered := c.events[lease.answered].At
	c.add(true, lease.resource, lease.process, at(lease.invoked), at(lease.answered), &step{
		kind: acquired, token: lease.token, process: lease.process, from: c.events[lease.invoked].At, to: answered,
	})
	first, _ := slices.BinarySearchFunc(c.events, mayEnd, func(event event, time uint64) int {
		if event.At < time {
			return -1
		}
		return 1
	})
	// A time between two events: before the first event at which the grant may have been over.
	from, to, over := at(first)-1, int64(never), forever
	if lease.released != never {
		to, over = max(at(lease.released), from+1), c.events[lease.released].At
	}
	c.add(true, lease.resource, "the end of "+lease.process+"'s", from, to, &step{
		kind: ended, token: lease.token, process: lease.process, from: mayEnd, to: over,
	})
}

// writes adds the writes and reads to their registers. A write without an answer is pending until the end of
// the history. A read without an answer is left out.
func (c *collector) writes(begun map[int]int) {
	answered := map[int]int{}
	for outcome, invoked := range begun {
		answered[invoked] = outcome
	}
	for index, event := range c.events {
		if event.Phase != "invoke" || (event.Op != "write" && event.Op != "read") {
			continue
		}
		step := &step{kind: perhapsWritten, token: event.Token, value: event.Value, process: event.Process, from: event.At, to: forever}
		to := int64(never)
		if outcome, known := answered[index]; known && c.events[outcome].Phase != "unknown" {
			answer := c.events[outcome]
			to, step.to = at(outcome), answer.At
			step.kind = map[string]kind{"writeok": accepted, "writefail": refused, "readok": seen}[event.Op+answer.Phase]
			if event.Op == "read" {
				step.token, step.value = answer.Token, answer.Value
			}
		}
		isKnownRead := step.kind == seen
		if event.Op == "write" || isKnownRead {
			c.add(false, event.Register, event.Process, at(index), to, step)
		}
	}
}

func (c *collector) add(isLock bool, name, process string, call, back int64, step *step) {
	name = map[bool]string{true: "lock ", false: "register "}[isLock] + name
	if c.objects[name] == nil {
		c.objects[name] = &object{name: name, isLock: isLock}
	}
	if _, known := c.clients[process]; !known {
		c.clients[process] = len(c.clients)
	}
	c.made++
	step.number = c.made
	c.objects[name].operations = append(c.objects[name].operations, porcupine.Operation{
		ClientId: c.clients[process], Input: step, Call: call, Return: back,
	})
}
