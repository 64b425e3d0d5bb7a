package policies

import (
	"slices"
	"testing"
)

// A holder writes the only waiter's id into a grant for itself. The waiter is dropped, and its agent reads
// its own id in the grant.
func TestPodTakesNoForeignQueueEntry(t *testing.T) {
	for _, of := range []lock{queued(first.waits()), queued(first.waits(), second.waits()), queued(first.waits(), holder.waitsAgain())} {
		of.Status.Incidents = nil
		steal := func(s *status) {
			s.grant(holder)
			s.Lease.ID = first.leaseID()
			s.Waiters = nil
		}
		run(t, bothModes,
			row{"for itself", holder.token(), of, steal, takesForItself},
			row{"under another id", holder.token(), of, func(s *status) { steal(s); s.Lease.ID = "another" }, handToFirst},
			// The waiter's session, owner and id, and the holder's own uid: the grant looks like the
			// waiter's, and the old holder may end it.
			row{"poisoned", holder.token(), of, func(s *status) {
				steal(s)
				s.Holder = first.holds()
				s.Holder.Pod, s.Holder.PodUID = holder.name, holder.uid
			}, takesForItself},
			row{"poisoned, with the others left", holder.token(), of, func(s *status) {
				s.grant(first)
				s.Holder.Pod, s.Holder.PodUID = holder.name, holder.uid
			}, takesForItself},
			row{"with the waiter's session", holder.token(), of, func(s *status) { steal(s); s.Holder.Session = first.session() }, takesForItself},
		)
	}
	// As a recorded take-over from its own former session.
	of := queued(first.waits())
	of.Status.Incidents = nil
	run(t, bothModes, row{"recorded", holder.token(), of, func(s *status) {
		s.record("Expired", holder, holder.name)
		s.grant(holder)
		s.Lease.ID, s.Waiters = first.leaseID(), nil
	}, takesForItself})
	run(t, []mode{peer}, row{"of another's grant", stranger.token(), of, func(s *status) {
		s.record("Expired", holder, stranger.name)
		s.grant(stranger)
		s.Lease.ID, s.Waiters = first.leaseID(), nil
	}, takesForItself})
}

// Sessions are named after their pod, and a pod cannot use another pod's session.
func TestPodUsesSessionsOfItsOwn(t *testing.T) {
	freeLock, heldLock, election := lockOf("l", freed()), queued(first.waits()), election(first.prefers())
	for _, session := range []string{
		first.session(), third.name, third.name + "-", third.name + "-0", third.session() + "0",
		third.name + "-0123456789AB", third.name + "-0123456789a", third.name + "x-0123456789ab",
		third.name + "-a-0123456789ab", "x" + third.session(), "0123456789ab",
	} {
		run(t, bothModes,
			row{"takes with " + session, third.token(), freeLock, func(s *status) { s.grant(third); s.Holder.Session = session }, sessionOfAnother},
			row{"queues with " + session, third.token(), heldLock, func(s *status) {
				s.Waiters = append(s.Waiters, third.waits())
				s.last().Session = session
			}, sessionOfAnother},
			row{"prefers with " + session, third.token(), election, func(s *status) {
				s.insert(1, third.prefers())
				s.Waiters[1].Session = session
			}, sessionOfAnother})
	}
	// Names of pods may have 253 bytes. An agent uses the first 230, without trailing characters that are
	// invalid before a dash.
	for _, each := range []struct {
		name, session string
		refused       string
	}{
		{long("p", 230), long("p", 230), allowed},
		{long("p", 253), long("p", 230), allowed},
		{long("p", 253), long("p", 231), sessionOfAnother},
		{long("p", 253), long("p", 229), sessionOfAnother},
		{long("p", 228) + "-.p", long("p", 228), allowed},
		{long("p", 229) + ".p", long("p", 229), allowed},
		{"web-0.a", "web-0.a", allowed},
		{"web-0.a", "web-0xa", sessionOfAnother},
	} {
		by := pod{each.name, "uid"}
		run(t, bothModes,
			row{"takes", by.token(), freeLock, func(s *status) { s.grant(by); s.Holder.Session = each.session + "-0123456789ab" }, each.refused},
			row{"queues", by.token(), heldLock, func(s *status) {
				s.Waiters = append(s.Waiters, by.waits())
				s.last().Session = each.session + "-0123456789ab"
			}, each.refused})
	}
}

func TestTokenRisesWithinABound(t *testing.T) {
	const slack = 3_000_000_000_000_000
	const largest = 9_007_199_254_740_992 - 1000
	const nanoseconds = 1_760_342_223_637_167_018
	versions := []struct {
		version, bound int64
	}{
		{someVersion, someVersion*1000 + slack},
		{1<<43 - 1, largest},
		{1 << 43, 1<<43 + slack},
		{1 << 53, largest},
		{1<<53 + 1, (1<<53+1)/1000 + slack},
		{nanoseconds, nanoseconds/1000 + slack},
	}
	for _, each := range versions {
		at := func(of lock) lock { return atVersion(of, each.version) }
		free, own, waited := at(lockOf("l", freed())), at(lockOf("l", held(holder))), at(queued(first.waits()))
		waited.Status.Incidents = nil
		for _, token := range []struct {
			value   int64
			refused string
		}{{each.bound, allowed}, {each.bound + 1, tokenTooHigh}, {largest, tokenTooHigh}, {someToken + 1000, allowed}} {
			if token.value > largest {
				continue
			}
			if token.value <= each.bound {
				token.refused = allowed
			}
			raise := func(s *status) { s.Token = token.value }
			handOver := func(s *status) { s.grant(first); raise(s) }
			run(t, bothModes,
				row{"taken", stranger.token(), free, func(s *status) { s.grant(stranger); raise(s) }, token.refused},
				row{"raised", holder.token(), own, raise, token.refused},
				row{"handed over", holder.token(), waited, handOver, token.refused},
				row{"handed over by the operator", operator, waited, func(s *status) {
					s.record("Expired", holder, "leasehold-operator")
					handOver(s)
				}, token.refused},
			)
			run(t, []mode{peer}, row{"taken over", stranger.token(), own, func(s *status) {
				s.record("Expired", holder, stranger.name)
				s.grant(stranger)
				raise(s)
			}, token.refused})
		}
	}
	// An older version or a person has set this lock's token beyond the bound. The lock stays usable.
	beyond := lockOf("l", &status{Token: largest - 5000})
	run(t, bothModes,
		row{"next", stranger.token(), beyond, func(s *status) { s.grant(stranger); s.Token = largest - 4000 }, allowed},
		row{"further", stranger.token(), beyond, func(s *status) { s.grant(stranger); s.Token = largest - 3999 }, tokenTooHigh})
	// A store that begins to number revisions in nanoseconds, with an object from before that.
	run(t, bothModes, row{"renumbered", stranger.token(), lockOf("l", freed()),
		func(s *status) { s.grant(stranger); s.Token = nanoseconds / 1000 }, allowed})
}

func TestPodHasAFewQueueEntries(t *testing.T) {
	again := first.waitsAgain()
	third := first.waits()
	third.LeaseID, third.Session = "i-first", first.name+"-00000000000a"
	join := func(entry waiter) func(*status) {
		return func(s *status) { s.Waiters = append(s.Waiters, entry) }
	}
	run(t, bothModes,
		// The entry of the pod's former session stays for some time.
		row{"second", first.token(), queued(first.waits(), second.waits()), join(again), allowed},
		row{"third", first.token(), queued(first.waits(), second.waits(), again), join(third), entriesOfPod},
		row{"another pod's", second.token(), queued(first.waits(), again), join(second.waits()), allowed},
		row{"instead of one", first.token(), queued(first.waits(), again), func(s *status) {
			s.drop(0)
			s.Waiters = append(s.Waiters, third)
		}, allowed})
}

// A lock whose object is being deleted cannot be acquired: its finalizer would end the grant without a record.
func TestLockThatIsBeingDeletedIsNotTaken(t *testing.T) {
	free := deleting(lockOf("l", freed()))
	take := func(s *status) { s.grant(stranger) }
	run(t, bothModes,
		row{"never held", stranger.token(), deleting(lockOf("l", nil)), take, beingDeleted},
		row{"free", stranger.token(), free, take, beingDeleted},
		// The holder releases the lock as usual, whether the object or its whole namespace is being deleted.
		row{"freed", holder.token(), deleting(lockOf("l", held(holder))), (*status).free, allowed},
		row{"freed with its queue", holder.token(), deleting(queued(first.waits(), second.waits())), (*status).free, allowed},
		row{"handed over", holder.token(), deleting(queued(first.waits())), func(s *status) { s.grant(first) }, allowed})
}

func TestHeldLockOutlivesItsFinalizers(t *testing.T) {
	words := "would end its grant"
	update := func(by who, old lock, finalizers ...string) write {
		after := clone(old)
		after.object = after.with("finalizers", finalizers)
		if len(finalizers) == 0 {
			delete(after.Metadata, "finalizers")
		}
		return writes(by, "UPDATE", lockKind, after, old)
	}
	held, free := deleting(lockOf("l", held(holder))), deleting(lockOf("l", freed()))
	two := clone(held)
	two.object = two.with("finalizers", []string{"x/y", "x/z"})
	collector := who{name: "system:serviceaccount:kube-system:generic-garbage-collector", verbs: admin.verbs}
	for _, of := range bothModes {
		c := clusters[of]()
		for _, by := range []who{editor, admin, collector} {
			verdict(t, c.refusals(t, update(by, held)), words)
			verdict(t, c.refusals(t, update(by, two)), words)
			verdict(t, c.refusals(t, update(by, two, "x/y")), allowed)
			verdict(t, c.refusals(t, update(by, free)), allowed)
			verdict(t, c.refusals(t, terminating(update(by, held))), allowed)
		}
		for _, finalizers := range [][]string{nil, {"x/y"}} {
			verdict(t, c.refusals(t, update(operator, two, finalizers...)), "the operator changes only spec.releaseRequest")
		}
		// If the object is not being deleted, finalizers can be added and removed.
		plain := lockOf("l", held.Status)
		plain.object = plain.with("finalizers", []string{"x/y"})
		verdict(t, c.refusals(t, update(editor, plain)), allowed)
		verdict(t, c.refusals(t, update(editor, lockOf("l", held.Status), "x/y")), allowed)
	}
}

func deleting(of lock) lock {
	of.object = of.with("deletionTimestamp", someTime).with("finalizers", []string{"x/y"})
	return of
}

func TestStrictModeLeavesTakeOversToTheOperator(t *testing.T) {
	of := queued(first.waits(), second.waits())
	of.Status.Incidents = nil
	for _, by := range []pod{first, second, stranger} {
		run(t, []mode{strict},
			row{"recorded", by.token(), of, func(s *status) { s.record("Expired", holder, by.name); s.grant(first) }, onlyOperator},
			row{"for itself", by.token(), of, func(s *status) { s.record("Expired", holder, by.name); s.grant(by); s.Waiters = nil }, onlyOperator},
			row{"freed", by.token(), of, (*status).free, onlyOperator})
	}
	alone := lockOf("l", held(holder))
	run(t, []mode{strict},
		row{"taken", stranger.token(), alone, func(s *status) { s.grant(stranger) }, onlyOperator},
		row{"recorded under its name", stranger.token(), alone, func(s *status) {
			s.record("Expired", holder, stranger.name)
			s.grant(stranger)
		}, onlyOperator})
}

func TestPeerModeRecordsTakeOversUnderTheTakersName(t *testing.T) {
	of := queued(first.waits(), second.waits())
	of.Status.Incidents = nil
	toFirst := func(kind, actor string) func(*status) {
		return func(s *status) { s.record(kind, holder, actor); s.grant(first) }
	}
	run(t, []mode{peer},
		row{"unrecorded", second.token(), of, func(s *status) { s.grant(first) }, recordIncident},
		row{"another's name", second.token(), of, toFirst("Expired", first.name), recordIncident},
		row{"by force", second.token(), of, toFirst("ForceReleased", second.name), recordIncident},
		row{"on request", second.token(), of, toFirst("ReleasedOnRequest", second.name), recordIncident},
		row{"recorded", second.token(), of, toFirst("Expired", second.name), allowed},
		row{"of an ended pod", stranger.token(), of, toFirst("PodEnded", stranger.name), allowed},
		row{"past the first", second.token(), of, func(s *status) { s.record("Expired", holder, second.name); s.grant(second) }, othersLonger},
		row{"without the expired first", second.token(), of, func(s *status) {
			s.record("Expired", holder, second.name)
			s.grant(second)
			s.Waiters = nil
		}, allowed},
		row{"for itself, all others expired", stranger.token(), of, func(s *status) {
			s.record("Expired", holder, stranger.name)
			s.grant(stranger)
			s.Waiters = nil
		}, allowed},
		row{"for itself, empty queue", stranger.token(), lockOf("l", held(holder)), func(s *status) {
			s.record("Expired", holder, stranger.name)
			s.grant(stranger)
		}, allowed},
		row{"freed", stranger.token(), lockOf("l", held(holder)), func(s *status) { s.record("Expired", holder, stranger.name); s.free() }, allowed},
	)
	run(t, bothModes, row{"freed with a waiter", holder.token(), queued(first.waits()), (*status).free, handToFirst})
}

// Tests how a pod may change the operator's conditions with each kind of write.
func TestConditionsAreTheOperators(t *testing.T) {
	const words = "status.conditions is the operator's"
	made := func(kind string) condition {
		return condition{Type: kind, Status: "True", Reason: "Test", Message: "test", LastTransitionTime: someTime}
	}
	asked := lockOf("l", held(holder))
	asked.Spec.ReleaseRequest = asks(holder.leaseID(), "Ask")
	for _, each := range []struct {
		what   string
		in     []mode
		by     pod
		of     lock
		change func(*status)
		// Whether the write begins or ends a grant.
		isTurn bool
	}{
		{"takes a free lock", bothModes, stranger, lockOf("l", freed()), func(s *status) { s.grant(stranger) }, true},
		{"frees its lock", bothModes, holder, lockOf("l", held(holder)), (*status).free, true},
		{"hands it over", bothModes, holder, queued(first.waits(), second.waits()), func(s *status) { s.grant(first) }, true},
		{"frees it as asked", bothModes, holder, asked, func(s *status) { s.record("ReleasedOnRequest", holder, "admin"); s.free() }, true},
		{"takes over", []mode{peer}, stranger, lockOf("l", held(holder)), func(s *status) {
			s.record("Expired", holder, stranger.name)
			s.grant(stranger)
		}, true},
		{"queues first", bothModes, stranger, lockOf("l", held(holder)), func(s *status) { s.Waiters = []waiter{stranger.waits()} }, false},
		{"queues", bothModes, stranger, queued(first.waits()), func(s *status) { s.Waiters = append(s.Waiters, stranger.waits()) }, false},
		{"leaves", bothModes, first, queued(first.waits(), second.waits()), func(s *status) { s.drop(0) }, false},
		{"raises", bothModes, holder, lockOf("l", held(holder)), func(s *status) { s.Token += 1000 }, false},
	} {
		atTurn := words
		if each.isTurn {
			atTurn = allowed
		}
		none := each.of
		two := clone(each.of)
		two.Status.Conditions = []condition{made("LongHeld"), made("Other")}
		run(t, each.in, row{each.what + ", adds the first", each.by.token(), none, func(s *status) {
			each.change(s)
			s.Conditions = []condition{made("LongHeld")}
		}, words})
		run(t, each.in, besides(each.by.token(), two, each.change,
			beside{each.what + ", leaves them", func(*status) {}, allowed},
			beside{each.what + ", drops all", func(s *status) { s.Conditions = nil }, atTurn},
			beside{each.what + ", drops one", func(s *status) { s.Conditions = s.Conditions[1:] }, atTurn},
			beside{each.what + ", adds", func(s *status) { s.Conditions = append(s.Conditions, made("Another")) }, words},
			beside{each.what + ", replaces", func(s *status) { s.Conditions[0] = made("Another") }, words},
			beside{each.what + ", drops all but a new one", func(s *status) { s.Conditions = []condition{made("Another")} }, words},
			beside{each.what + ", rewords", func(s *status) { s.Conditions[0].Message += "!" }, words},
			beside{each.what + ", denies", func(s *status) { s.Conditions[1].Status = "False" }, words},
		)...)
	}
}

// When a ninth record is added, the oldest one is removed.
func TestRecordKeepsTheLastEight(t *testing.T) {
	of := queued(first.waits())
	of.Spec.ReleaseRequest = asks(holder.leaseID(), "Ask")
	of.Status.Incidents = nil
	for token := range int64(8) {
		entry := ended("Expired", stranger, "op")
		entry.Token = token
		of.Status.Incidents = append(of.Status.Incidents, entry)
	}
	for dropped, refused := range map[int]string{7: isRecord, 1: isRecord, 0: allowed} {
		for by, kind := range map[string]string{"pod": "ReleasedOnRequest", "operator": "Expired"} {
			writer := map[string]who{"pod": holder.token(), "operator": operator}[by]
			run(t, bothModes, row{by, writer, of, func(s *status) {
				s.record(kind, holder, "admin")
				s.grant(first)
				s.Incidents = slices.Delete(s.Incidents, dropped, dropped+1)
			}, refused})
		}
	}
}

// A sidecar that was started before the floor was raised computes smaller tokens than sidecars that started
// later. For all writers, a new grant must have a token that was computed with the floor. This also holds
// when the store's revision is so high that a token without the floor is above the floor.
func TestNoGrantHasATokenOfALowerFloor(t *testing.T) {
	const below = "with the tokenFloor of this installation, 50000000, an agent creates none below that"
	take := func(s *status) { s.grant(third) }
	from := func(change func(*status), token int64) func(*status) {
		return func(s *status) { change(s); s.Token = token }
	}
	for _, each := range []struct{ version, made int64 }{
		{someVersion, someVersion * 1000},
		{someFloor, someFloor * 1000},
		{8_796_093_022_207, 8_796_093_022_207_000},
		{1_760_000_000_000_000, 1_760_000_000_000_000},
		{1_760_000_000_000_000_000, 1_760_000_000_000_000},
	} {
		free, waited := atVersion(lockOf("l", freed()), each.version), atVersion(queued(first.waits()), each.version)
		pass := func(s *status) { s.grant(first) }
		for _, by := range []who{third.token(), admin} {
			run(t, []mode{raised},
				row{"takes without the floor", by, free, from(take, each.made), below},
				row{"takes just below", by, free, from(take, each.made+someFloor-1), below},
				row{"takes", by, free, from(take, each.made+someFloor), allowed})
		}
		run(t, []mode{raised},
			row{"says which pod to recreate", third.token(), free, from(take, each.made), "recreate pod third"},
			row{"hands over", holder.token(), waited, from(pass, each.made), below},
			row{"hands over", holder.token(), waited, from(pass, each.made+someFloor), allowed},
			row{"operator hands over", operator, waited, func(s *status) {
				s.record("PodGone", holder, "leasehold-operator-1")
				from(pass, each.made)(s)
			}, below})
	}
	// A grant from before the floor was raised.
	alone := lockOf("l", held(holder))
	run(t, []mode{raised},
		row{"releases", holder.token(), alone, (*status).free, allowed},
		row{"keeps", holder.token(), alone, func(s *status) { s.Lease.Kept = true }, allowed},
		row{"begins the next lease of its grant", holder.token(), alone, func(s *status) { s.Token += 1 }, allowed},
		row{"queues", first.token(), alone, func(s *status) { s.Waiters = append(s.Waiters, first.waits()) }, allowed})
	run(t, bothModes, row{"without a floor", third.token(), lockOf("l", freed()), take, allowed})
}
