package main

import (
	"fmt"
	"slices"
	"sort"

	"github.com/anishathalye/porcupine"
)

// step is what an operation asks of the model.
type step struct {
	number int
	kind   kind
	token  uint64
	value  string
	// Of whom, and from when to when, for people.
	process  string
	from, to uint64
}

type kind int

const (
	// A grant was told: the lock was free, and no larger token had been given.
	acquired kind = iota
	// The grant is over: released, expired, lost, overridden. Every grant has one end.
	ended
	// A write was accepted: no newer token had been.
	accepted
	// A write was refused: a newer token had been accepted.
	refused
	// Nobody knows what became of a write: it was accepted, refused, or never done.
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

// object is a lock or a register. Linearizability is local: a history is linearizable if that of
// each object is.
type object struct {
	name       string
	isLock     bool
	operations []porcupine.Operation
}

// collector makes operations of a history's events.
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
		// client-go's elections have no tokens: nothing is claimed of them.
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

// invocations says for each outcome where its operation began.
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

// at is an event's place on the checker's time axis, which is the order of the events.
func at(index int) int64 {
	return int64(2*index + 2)
}

// grant adds what a lease is to its lock: taken somewhere in the request, over somewhere from when
// it may end on, or from its request to its confirmation where it was released.
//
// An acquire of which nobody knows is left out. If it happened, its grant and its end stand
// somewhere, and nothing that anybody was told depends on where.
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
	// Between two events: before the first that happened when it may have been over.
	from, to, over := at(first)-1, int64(never), forever
	if lease.released != never {
		to, over = max(at(lease.released), from+1), c.events[lease.released].At
	}
	c.add(true, lease.resource, "the end of "+lease.process+"'s", from, to, &step{
		kind: ended, token: lease.token, process: lease.process, from: mayEnd, to: over,
	})
}

// writes adds the writes and reads to their registers. A write without an answer is pending to the
// end; a read without one says nothing.
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
