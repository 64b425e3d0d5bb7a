package policies

import (
	"fmt"
	"slices"
	"testing"
)

// Words of the refusals that several rows have in common.
const (
	isRecord         = "status.incidents is a record"
	isWorkRecord     = "status.completed is a record"
	isOrder          = "the order of status.waiters"
	queuesItself     = "a pod queues only itself"
	removesItself    = "a pod removes only itself"
	takesForItself   = "a pod takes a lock for itself or hands it to a waiter"
	othersLonger     = "others have waited longer for this lock"
	handToFirst      = "handing it to the first of status.waiters, and remove no other entry"
	grantOfAnother   = "this grant is another pod's"
	tokenWithGrant   = "status.token and status.transitions change with a new grant only"
	waitsForItself   = "holds the lock and cannot wait for it too"
	notBound         = "this ServiceAccount token is not bound to a pod"
	nobodyAsked      = "no release request matches this incident"
	onlyOperator     = "only the operator ends a grant of another pod"
	recordIncident   = "record the incident in the same write"
	sessionOfAnother = "a pod uses sessions of its own only"
	tokenTooHigh     = "status.token rises too far"
	beingDeleted     = "the lock is being deleted"
	entriesOfPod     = "has two queue entries for this lock"
)

// The refusal of each mode when a pod ends another pod's grant.
var foreignEnd = map[mode]string{strict: onlyOperator, peer: recordIncident}

// A change in addition to an ordinary write, and the verdict.
type beside struct {
	what    string
	change  func(*status)
	refused string
}

func besides(by who, of lock, ordinary func(*status), changes ...beside) []row {
	var rows []row
	for _, each := range changes {
		rows = append(rows, row{each.what, by, of, func(s *status) { ordinary(s); each.change(s) }, each.refused})
	}
	return rows
}

// Changes of the record of incidents that no ordinary write to a grant or a queue may include.
var recordChanges = []beside{
	{"record cleared", func(s *status) { s.Incidents = nil }, isRecord},
	{"record reworded", func(s *status) { s.Incidents[0].Reason += "!" }, isRecord},
	{"record forged in front", func(s *status) { s.Incidents = slices.Insert(s.Incidents, 0, ended("Expired", second, "op")) }, isRecord},
	{"end by force recorded", func(s *status) { s.record("ForceReleased", holder, holder.name) }, isRecord},
}

// For the ordinary writes of pods, only the match conditions are evaluated, and one comparison with the
// token floor.
func TestEverydayWritesAreDecidedByMatchConditions(t *testing.T) {
	for _, each := range []row{
		{"takes", holder.token(), lockOf("l", freed()), func(s *status) { s.grant(holder) }, allowed},
		{"queues first", first.token(), lockOf("l", held(holder)), func(s *status) { s.Waiters = append(s.Waiters, first.waits()) }, allowed},
		{"queues behind", second.token(), queued(first.waits()), func(s *status) { s.Waiters = append(s.Waiters, second.waits()) }, allowed},
		{"hands over", holder.token(), queued(first.waits(), second.waits()), func(s *status) { s.grant(first) }, allowed},
		{"hands over to the last", holder.token(), queued(first.waits()), func(s *status) { s.grant(first) }, allowed},
		{"frees", holder.token(), lockOf("l", held(holder)), (*status).free, allowed},
		{"frees what an older agent took", holder.token(), withoutList(), (*status).free, allowed},
		{"takes as older agents do", holder.token(), lockOf("l", freed()), func(s *status) { s.grant(holder); s.Waiters = nil }, allowed},
		{"hands over as older agents do", holder.token(), queued(first.waits()), func(s *status) { s.grant(first); s.Waiters = nil }, allowed},
		{"frees and leaves the empty list", holder.token(), lockOf("l", held(holder)), func(s *status) { s.free(); s.Waiters = []waiter{} }, allowed},
		{"takes what has completed work", first.token(), freedWithCompleted(), func(s *status) { s.grant(first) }, allowed},
		{"frees what has completed work", holder.token(), withCompleted("a"), (*status).free, allowed},
		{"queues for what has completed work", first.token(), withCompleted("a"), func(s *status) { s.Waiters = append(s.Waiters, first.waits()) }, allowed},
		{"takes what has an empty list", holder.token(), freeWithList(), func(s *status) { s.grant(holder) }, allowed},
	} {
		run(t, bothModes, each)
		for _, of := range bothModes {
			for _, policy := range clusters[of]().policies {
				attributes, _ := each.write().attributes()
				if policy.Name != "leasehold-lock-token-floor" && policy.isAbout(attributes) && policy.validates(t, each.write()) {
					t.Errorf("%s, %s: %s evaluates its validations", of, each.what, policy.Name)
				}
			}
		}
	}
}

func freedWithCompleted() lock {
	of := withCompleted("a")
	of.Status.free()
	return of
}

// A lock of the holder under which work has succeeded.
func withCompleted(keys ...string) lock {
	of := lockOf("l", held(holder))
	for _, key := range keys {
		of.Status.complete(key, of.Status.Token-1000)
	}
	return of
}

func (s *status) complete(key string, token int64) {
	s.Completed = append(s.Completed, completion{Key: key, CompletedAt: someTime, Token: token, OwnerID: "worker"})
}

func TestOnlyTheHolderRecordsCompletedWork(t *testing.T) {
	full := make([]string, 32)
	for n := range full {
		full[n] = fmt.Sprintf("k%d", n)
	}
	adds := func(s *status) { s.complete("new", s.Token+3) }
	makesRoom := func(s *status) { s.Completed = slices.Clone(s.Completed[1:]); adds(s) }
	run(t, bothModes,
		row{"first", holder.token(), withCompleted(), adds, allowed},
		row{"next", holder.token(), withCompleted("a"), adds, allowed},
		row{"thirty-third", holder.token(), withCompleted(full...), makesRoom, allowed},
		row{"of another", first.token(), withCompleted(), adds, isWorkRecord},
		row{"of a free lock", holder.token(), lockOf("l", freed()), adds, isWorkRecord},
		row{"with the grant", holder.token(), lockOf("l", freed()), func(s *status) { s.grant(holder); adds(s) }, isWorkRecord},
		row{"with the release", holder.token(), withCompleted(), func(s *status) { adds(s); s.free() }, isWorkRecord},
		row{"cleared", holder.token(), withCompleted("a"), func(s *status) { s.Completed = nil }, isWorkRecord},
		row{"cleared with the release", holder.token(), withCompleted("a"), func(s *status) { s.Completed = nil; s.free() }, isWorkRecord},
		row{"changed", holder.token(), withCompleted("a"), func(s *status) { s.Completed[0].Key = "b" }, isWorkRecord},
		row{"in front", holder.token(), withCompleted("a"), func(s *status) { adds(s); slices.Reverse(s.Completed) }, isWorkRecord},
		row{"two", holder.token(), withCompleted("a"), func(s *status) { adds(s); s.complete("c", s.Token) }, isWorkRecord},
		row{"known key", holder.token(), withCompleted("a"), func(s *status) { s.complete("a", s.Token) }, isWorkRecord},
		row{"old token", holder.token(), withCompleted(), func(s *status) { s.complete("a", s.Token-1) }, isWorkRecord},
		row{"later token", holder.token(), withCompleted(), func(s *status) { s.complete("a", s.Token+1000) }, isWorkRecord},
		row{"room for nothing", holder.token(), withCompleted("a"), makesRoom, isWorkRecord},
		row{"by the operator", operator, withCompleted(), adds, "the operator leaves status.completed"},
		row{"empty key", holder.token(), withCompleted(), func(s *status) { s.complete("", s.Token) }, "status.completed[0].key"},
		row{"invisible key", holder.token(), withCompleted(), func(s *status) { s.complete(" ", s.Token) }, "status.completed[0].key"})
}

// A held lock as older agents wrote it, without an empty list of waiters.
func withoutList() lock {
	of := lockOf("l", held(holder))
	of.Status.Waiters = nil
	return of
}

// A free lock as older agents leave one that a newer agent took.
func freeWithList() lock {
	of := lockOf("l", freed())
	of.Status.Waiters = []waiter{}
	return of
}

// A missing list only makes the next join a compare-and-swap, and older agents leave without a list.
func TestAnyPodMayDropAnEmptyList(t *testing.T) {
	run(t, bothModes, row{"drops", stranger.token(), lockOf("l", held(holder)), func(s *status) { s.Waiters = nil }, allowed},
		row{"drops an entry", stranger.token(), queued(first.waits()), func(s *status) { s.Waiters = nil }, removesItself})
}

func TestFirstWaiterStartsTheListOfAnOlderAgentsLock(t *testing.T) {
	run(t, bothModes, row{"queues", first.token(), withoutList(), func(s *status) { s.Waiters = []waiter{first.waits()} }, allowed})
}

func TestPodTakesFreeLockForItself(t *testing.T) {
	of := lockOf("l", freed())
	take := func(s *status) { s.grant(holder) }
	run(t, bothModes, row{"own", holder.token(), of, take, allowed},
		row{"never held", holder.token(), lockOf("l", nil), take, allowed},
		row{"token of no pod", unbound, of, take, notBound},
		row{"token of another pod", stranger.token(), of, take, takesForItself})
	run(t, bothModes, besides(holder.token(), of, take, append(recordChanges[:3:3],
		beside{"for another", func(s *status) { s.Holder = second.holds() }, "must name pod holder"},
		beside{"another's name", func(s *status) { s.Holder.Pod = second.name }, "must name pod holder"},
		beside{"another's uid", func(s *status) { s.Holder.PodUID = second.uid }, "must name pod holder"},
		beside{"with a waiter", func(s *status) { s.Waiters = []waiter{second.waits()} }, othersLonger},
	)...)...)
}

func TestPodFreesItsOwnLock(t *testing.T) {
	of := lockOf("l", held(holder))
	of.Status.Incidents = freed().Incidents
	free := func(s *status) { s.free() }
	for _, in := range bothModes {
		run(t, []mode{in}, row{"another's", stranger.token(), of, free, foreignEnd[in]},
			row{"with a waiter", holder.token(), lockOf("l", held(holder, first)), free, handToFirst})
	}
	run(t, bothModes, row{"own", holder.token(), of, free, allowed},
		row{"token of no pod", unbound, of, free, notBound},
		row{"renamed instead", holder.token(), of, func(s *status) { s.Holder.Pod += "x" }, grantOfAnother})
	run(t, bothModes, besides(holder.token(), of, free, append(recordChanges[:3:3],
		beside{"unasked", func(s *status) { s.record("ReleasedOnRequest", holder, "admin") }, nobodyAsked},
		beside{"token", func(s *status) { s.Token += 1000 }, tokenWithGrant},
		beside{"transitions", func(s *status) { s.Transitions++ }, tokenWithGrant},
		beside{"transitions gone", func(s *status) { s.Transitions = 0 }, tokenWithGrant},
	)...)...)
}

// An agent outside of a pod has no pod uid, and neither has a token that is not bound to a pod.
func TestEmptyUIDMatchesNoPod(t *testing.T) {
	nobody := func(s *status) { s.grant(holder); s.Holder.PodUID = "" }
	taken := held(holder)
	taken.Holder.PodUID = ""
	run(t, bothModes,
		row{"taken by no pod", unbound, lockOf("l", nil), nobody, notBound},
		row{"taken by a person", admin, lockOf("l", nil), nobody, allowed},
		row{"freed by no pod", unbound, lockOf("l", taken), (*status).free, notBound},
		row{"freed by a pod", holder.token(), lockOf("l", taken), (*status).free, "this grant belongs to pod holder"})
}

func queued(waiting ...waiter) lock {
	of := held(holder)
	of.Waiters = waiting
	of.Incidents = freed().Incidents
	return lockOf("l", of)
}

func TestHolderHandsLockToFirstWaiter(t *testing.T) {
	of := queued(first.waits(), second.waits(), third.waits())
	handOver := func(s *status) { s.grant(first) }
	run(t, bothModes, row{"ordinary", holder.token(), of, handOver, allowed},
		row{"token of no pod", unbound, of, handOver, notBound})
	for _, in := range bothModes {
		for _, by := range []pod{first, second, stranger} {
			run(t, []mode{in}, row{"by " + by.name, by.token(), of, handOver, foreignEnd[in]})
		}
	}
	both := "of status.waiters"
	run(t, bothModes, besides(holder.token(), of, func(*status) {},
		beside{"to the second", func(s *status) { s.grant(second) }, othersLonger},
		beside{"to the second without the first", func(s *status) { s.grant(second); s.drop(0) }, handToFirst},
		beside{"to itself again", func(s *status) { s.grant(holder); s.Lease.ID += "x" }, othersLonger},
		beside{"to itself with another entry for the head's", func(s *status) {
			s.grant(holder)
			s.Lease.ID += "x"
			s.Waiters[0] = holder.waitsAgain()
		}, both},
		beside{"to a stranger", func(s *status) { s.grant(stranger) }, takesForItself},
	)...)
	run(t, bothModes, besides(holder.token(), of, handOver, append(recordChanges,
		beside{"unasked", func(s *status) { s.record("ReleasedOnRequest", holder, "admin") }, nobodyAsked},
		beside{"receiver stays", func(s *status) { s.insert(0, first.waits()) }, waitsForItself},
		beside{"own entry in front", func(s *status) { s.insert(0, holder.waitsAgain()) }, queuesItself},
		beside{"uid of a stranger", func(s *status) { s.Holder.PodUID = stranger.uid }, takesForItself},
		beside{"uid of the holder", func(s *status) { s.Holder.PodUID = holder.uid }, takesForItself},
		beside{"name of a stranger", func(s *status) { s.Holder.Pod = stranger.name }, takesForItself},
		beside{"another session", func(s *status) { s.Holder.Session += "x" }, takesForItself},
		beside{"another owner", func(s *status) { s.Holder.OwnerID += "x" }, takesForItself},
		beside{"another TTL", func(s *status) { s.Holder.SessionTTLSeconds = 3 }, takesForItself},
		beside{"another id", func(s *status) { s.Lease.ID += "x" }, both},
		beside{"queue reversed", func(s *status) { slices.Reverse(s.Waiters) }, isOrder},
		beside{"next dropped", func(s *status) { s.drop(0) }, handToFirst},
		beside{"last dropped", func(s *status) { s.drop(1) }, handToFirst},
		beside{"all dropped", func(s *status) { s.Waiters = nil }, handToFirst},
		beside{"next changed", func(s *status) { s.Waiters[0].OwnerID += "x" }, both},
		beside{"a stranger added", func(s *status) { s.Waiters = append(s.Waiters, stranger.waits()) }, queuesItself},
		beside{"token down", func(s *status) { s.Token = someToken - 1000 }, "status.token can never"},
		beside{"token too near", func(s *status) { s.Token = someToken + 999 }, "at least 1000 above"},
	)...)...)
}

func TestPodQueuesItselfAtTheEnd(t *testing.T) {
	of := queued(first.waits(), second.waits())
	join := func(s *status) { s.Waiters = append(s.Waiters, third.waits()) }
	run(t, bothModes, row{"ordinary", third.token(), of, join, allowed},
		row{"first of all", third.token(), queued(), join, allowed},
		row{"token of no pod", unbound, of, join, notBound},
		row{"in another's place", third.token(), of, func(s *status) { s.Waiters[0] = third.waits() }, queuesItself})
	for _, by := range []pod{holder, first, stranger} {
		run(t, bothModes, row{"by " + by.name, by.token(), of, join, queuesItself})
	}
	run(t, bothModes, besides(third.token(), of, join, append(recordChanges,
		beside{"another's entry", func(s *status) { *s.last() = stranger.waits() }, queuesItself},
		beside{"another's uid", func(s *status) { s.last().PodUID = stranger.uid }, queuesItself},
		beside{"another's name", func(s *status) { s.last().Pod = stranger.name }, queuesItself},
		beside{"at the front", func(s *status) { s.drop(2); s.insert(0, third.waits()) }, queuesItself},
		beside{"twice", func(s *status) { s.Waiters = append(s.Waiters, third.waitsAgain()) }, queuesItself},
		beside{"one session twice", func(s *status) {
			s.Waiters = append(s.Waiters, third.waits())
			s.last().LeaseID = "another"
		}, "a session has at most one entry"},
		beside{"id of the grant", func(s *status) { s.last().LeaseID = s.Lease.ID }, waitsForItself},
		beside{"id of the first", func(s *status) { s.last().LeaseID = first.leaseID() }, queuesItself},
		beside{"id of the second", func(s *status) { s.last().LeaseID = second.leaseID() }, queuesItself},
		beside{"others swapped", func(s *status) { s.Waiters[0], s.Waiters[1] = s.Waiters[1], s.Waiters[0] }, isOrder},
		beside{"first dropped", func(s *status) { s.drop(0) }, removesItself},
		beside{"second dropped", func(s *status) { s.drop(1) }, removesItself},
		beside{"second changed", func(s *status) { s.Waiters[1].OwnerID += "x" }, queuesItself},
		beside{"grant kept", func(s *status) { s.Lease.Kept = true }, grantOfAnother},
		beside{"owner changed", func(s *status) { s.Holder.OwnerID += "x" }, grantOfAnother},
		beside{"TTL changed", func(s *status) { s.Holder.SessionTTLSeconds = 3 }, grantOfAnother},
		beside{"token raised", func(s *status) { s.Token += 1000 }, tokenWithGrant},
		beside{"transitions raised", func(s *status) { s.Transitions++ }, tokenWithGrant},
		beside{"transitions gone", func(s *status) { s.Transitions = 0 }, tokenWithGrant},
	)...)...)
}

func TestPodLeavesTheQueue(t *testing.T) {
	of := queued(first.waits(), second.waits())
	run(t, bothModes, row{"first", first.token(), of, func(s *status) { s.drop(0) }, allowed},
		row{"second", second.token(), of, func(s *status) { s.drop(1) }, allowed},
		row{"another", second.token(), of, func(s *status) { s.drop(0) }, removesItself},
		row{"by the holder", holder.token(), of, func(s *status) { s.drop(0) }, removesItself},
		row{"everyone", second.token(), of, func(s *status) { s.Waiters = nil }, removesItself},
		row{"reversed", second.token(), of, func(s *status) { slices.Reverse(s.Waiters) }, isOrder})
}

func TestOnlyTheHolderChangesItsGrant(t *testing.T) {
	of := queued(first.waits())
	keep := func(s *status) { s.Lease.Kept = true }
	rename := func(s *status) { s.Holder.OwnerID = "another app" }
	raise := func(s *status) { s.Token += 1000 }
	run(t, bothModes,
		row{"kept", holder.token(), of, keep, allowed},
		row{"another owner", holder.token(), of, rename, allowed},
		row{"raised", holder.token(), of, raise, allowed},
		row{"kept by a waiter", first.token(), of, keep, grantOfAnother},
		row{"owner by a waiter", first.token(), of, rename, grantOfAnother},
		row{"raised by a waiter", first.token(), of, raise, tokenWithGrant},
		row{"free one raised", first.token(), lockOf("l", freed()), raise, tokenWithGrant},
		row{"transitions", holder.token(), of, func(s *status) { s.Transitions++ }, tokenWithGrant},
		row{"session", holder.token(), of, func(s *status) { s.Holder.Session = holder.otherSession() }, "the holder of a grant is immutable"},
		row{"pod", holder.token(), of, func(s *status) { s.Holder.PodUID = first.uid }, "the holder of a grant is immutable"},
	)
}

func election(waiting ...waiter) lock {
	of := queued(waiting...)
	of.Spec.Resource = "election:e"
	return of
}

func TestPreferredCandidateQueuesBehindThePreferredOnes(t *testing.T) {
	of := election(first.prefers(), second.waits())
	enter := func(s *status) { s.insert(1, third.prefers()) }
	run(t, bothModes, row{"ordinary", third.token(), of, enter, allowed},
		row{"by another", stranger.token(), of, enter, queuesItself},
		row{"handed to the first", holder.token(), of, func(s *status) { s.grant(first) }, allowed},
		row{"before the preferred", third.token(), of, func(s *status) { s.insert(0, third.prefers()) }, queuesItself},
		row{"behind all", third.token(), of, func(s *status) { s.insert(2, third.prefers()) }, queuesItself},
		row{"not preferred", third.token(), of, func(s *status) { s.insert(1, third.waits()) }, queuesItself},
		row{"another", third.token(), of, func(s *status) { s.insert(1, stranger.prefers()) }, queuesItself},
		row{"preferred later", second.token(), of, func(s *status) { s.Waiters[1].Preferred = true }, queuesItself})
	run(t, bothModes, besides(third.token(), of, enter,
		beside{"another preferred too", func(s *status) { s.Waiters[2].Preferred = true }, queuesItself},
		beside{"another no longer preferred", func(s *status) { s.Waiters[0].Preferred = false }, queuesItself},
		beside{"twice", func(s *status) { s.Waiters = append(s.Waiters, third.waitsAgain()) }, queuesItself},
		beside{"swapped", func(s *status) { s.Waiters[0], s.Waiters[2] = s.Waiters[2], s.Waiters[0] }, isOrder},
		beside{"dropped", func(s *status) { s.drop(2) }, removesItself},
		beside{"raised", func(s *status) { s.Token += 1000 }, tokenWithGrant},
	)...)
	for _, place := range []int{0, 2} {
		run(t, bothModes, row{"not an election", third.token(), queued(first.waits(), second.waits()),
			func(s *status) { s.insert(place, third.prefers()) }, queuesItself})
	}
}

// A sidecar that restarted without its state has a new session, and no longer renews its old one.
func TestPodTakesOverFromItsOwnFormerSession(t *testing.T) {
	takeOver := func(s *status) {
		s.record("Expired", holder, holder.name)
		s.grant(holder)
		s.Lease.ID, s.Holder.Session = "another", holder.otherSession()
	}
	of := lockOf("l", held(holder))
	run(t, bothModes, row{"own", holder.token(), of, takeOver, allowed},
		row{"in another's name", holder.token(), of, func(s *status) { takeOver(s); s.Incidents[0].Actor = "person" }, isRecord})
	// The new session is queued, and is the first waiter.
	waiting := queued(holder.waitsAgain(), second.waits())
	waiting.Status.Incidents = nil
	handOn := func(s *status) {
		s.record("Expired", holder, holder.name)
		entry := s.Waiters[0]
		s.Waiters = s.Waiters[1:]
		s.Lease = &lease{ID: entry.LeaseID, AcquiredAt: someTime}
		s.Holder.Session = entry.Session
		s.Token += 1000
		s.Transitions++
	}
	run(t, []mode{peer}, row{"to its own entry, recorded", holder.token(), waiting, handOn, allowed})
}

func TestRecordOfIncidentsIsNotForged(t *testing.T) {
	of := queued()
	of.Spec.ReleaseRequest = asks(holder.leaseID(), "Ask")
	add := func(s *status) { s.record("ReleasedOnRequest", holder, "admin") }
	run(t, bothModes,
		row{"cleared", holder.token(), of, func(s *status) { s.Incidents = nil }, isRecord},
		row{"without an end", holder.token(), of, add, isRecord})
	release := func(s *status) { add(s); s.free() }
	run(t, bothModes, besides(holder.token(), of, release,
		beside{"honest", func(*status) {}, allowed},
		beside{"of a version that names no grant", func(s *status) { s.Incidents[1].LeaseID = "" }, allowed},
		beside{"cleared", func(s *status) { s.Incidents = nil }, isRecord},
		beside{"another grant", func(s *status) { s.Incidents[1].LeaseID = "g-other" }, isRecord},
		beside{"a lease", func(s *status) { s.Incidents[1].LeaseID += ".0" }, isRecord},
		beside{"another token", func(s *status) { s.Incidents[1].Token++ }, isRecord},
		beside{"another pod", func(s *status) { s.Incidents[1].Pod = second.name }, isRecord},
		beside{"another kind", func(s *status) { s.Incidents[1].Kind = "ForceReleased" }, isRecord},
		beside{"reversed", func(s *status) { slices.Reverse(s.Incidents) }, isRecord},
	)...)
}

// A pod records a release on request only with the actor and the reason of the request.
func TestReleaseOnRequestIsRecordedAsAsked(t *testing.T) {
	own := holder.leaseID()
	for _, waiting := range [][]waiter{nil, {first.waits()}} {
		end := func(s *status) { s.free() }
		if waiting != nil {
			end = func(s *status) { s.grant(first) }
		}
		for _, each := range []struct {
			what    string
			asked   *request
			change  func(*incident)
			refused string
		}{
			{"no request", nil, nil, nobodyAsked},
			{"forced", asks(own, "Force"), nil, nobodyAsked},
			{"another grant", asks("g-b", "Ask"), nil, nobodyAsked},
			{"a grant that begins alike", asks("g-", "Ask"), nil, nobodyAsked},
			{"a longer id", asks(own+"1", "Ask"), nil, nobodyAsked},
			{"a lease of a longer id", asks(own+"1.3", "Ask"), nil, nobodyAsked},
			{"a lease of an id with a dot", asks(own+".3.0", "Ask"), nil, nobodyAsked},
			{"another actor", asks(own, "Ask"), func(i *incident) { i.Actor += "x" }, nobodyAsked},
			{"itself as the actor", asks(own, "Ask"), func(i *incident) { i.Actor = holder.name }, nobodyAsked},
			{"another reason", asks(own, "Ask"), func(i *incident) { i.Reason += "x" }, nobodyAsked},
			{"no reason", asks(own, "Ask"), func(i *incident) { i.Reason = "" }, nobodyAsked},
			{"as asked", asks(own, "Ask"), nil, allowed},
			{"as an app's log names it", asks(own+".0", "Ask"), nil, allowed},
			{"as a later one names it", asks(own+".12", "Ask"), nil, allowed},
		} {
			of := queued(waiting...)
			of.Spec.ReleaseRequest = each.asked
			run(t, bothModes, row{each.what, holder.token(), of, func(s *status) {
				s.record("ReleasedOnRequest", holder, "admin")
				if each.change != nil {
					each.change(&s.Incidents[1])
				}
				end(s)
			}, each.refused}, row{each.what + ", without a record", holder.token(), of, end, allowed})
		}
	}
}
