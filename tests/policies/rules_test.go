package policies

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/cel/environment"
)

// The rules of the CRDs also apply to administrators, to whom no policy applies.
func TestRulesOfLocks(t *testing.T) {
	const (
		neverDown = "status.token can never be removed or decreased"
		together  = "status.holder and status.lease must be set together"
		oneHolder = "the holder of a grant is immutable"
	)
	of := queued(first.waits(), second.waits())
	alone := lockOf("l", held(holder))
	rows := besides(admin, of, func(*status) {},
		beside{"unchanged", func(*status) {}, allowed},
		beside{"token down", func(s *status) { s.Token-- }, neverDown},
		beside{"token up", func(s *status) { s.Token += 1000 }, allowed},
		beside{"a new grant too near", func(s *status) { s.grant(first); s.Token = someToken + 999 }, "at least 1000 above"},
		beside{"a new grant", func(s *status) { s.grant(first); s.Token = someToken + 1000 }, allowed},
		beside{"another session", func(s *status) { s.Holder.Session = holder.otherSession() }, oneHolder},
		beside{"another uid", func(s *status) { s.Holder.PodUID = first.uid }, oneHolder},
		beside{"no holder", func(s *status) { s.Holder = nil }, together},
		beside{"no lease", func(s *status) { s.Lease = nil }, together},
		beside{"free with waiters", func(s *status) { s.Holder, s.Lease = nil, nil }, "a free lock has no waiters"},
		beside{"waits for itself", func(s *status) { s.Waiters[1].LeaseID = s.Lease.ID }, waitsForItself},
		beside{"a session twice", func(s *status) { s.Waiters[1].Session = s.Waiters[0].Session }, "a session has at most one entry"},
		beside{"a session thrice", func(s *status) {
			s.Waiters = append(s.Waiters, third.waits())
			for i := range s.Waiters {
				s.Waiters[i].Session = first.session()
			}
		}, "a session has at most one entry"},
		beside{"33 waiters", func(s *status) { s.Waiters = fullQueue(33) }, "must have at most 32 items"},
		beside{"32 waiters", func(s *status) { s.Waiters = fullQueue(32) }, allowed},
		beside{"a long key", func(s *status) { s.Holder.Metadata = map[string]string{long("k", 64): "v"} }, "more than 63 characters"},
		beside{"largest token", func(s *status) { s.Token = 9_007_199_254_739_992 }, allowed},
		beside{"beyond it", func(s *status) { s.Token = 9_007_199_254_739_993 }, "should be less than or equal to"},
	)
	rows = append(rows, row{"freed", admin, alone, (*status).free, allowed},
		row{"next after a release", admin, lockOf("l", freed()), func(s *status) { s.grant(first); s.Token = someToken + 999 }, "at least 1000 above"})
	run(t, []mode{strict}, rows...)

	gone := row{"", admin, of, func(*status) {}, ""}.write()
	delete(gone.object, "status")
	verdict(t, clusters[strict]().refusals(t, gone), neverDown)
}

// The resources that an agent can read. src/protocol/ids.rs describes them; this test checks the ends of the
// ranges.
func TestResourceIsWhatAgentsCanRead(t *testing.T) {
	const unprintable = "must be printable text"
	create := func(resource string) []string {
		made := lockOf("l", nil)
		made.object, made.Spec.Resource = named("l-0123456789abcdef0123"), resource
		return clusters[strict]().refusals(t, writes(admin, admission.Create, lockKind, made, nil))
	}
	for _, fine := range []string{"a", "tenant_123:billing-close:2026-04", "a b / ü 日本", " a", "a ", long("x", 512), "\u00a0a", "a\u00ad", "👩‍🚀"[:4]} {
		verdict(t, create(fine), allowed)
	}
	verdict(t, create(""), "should be at least 1 chars long")
	verdict(t, create(long("x", 513)), "may not be more than 512")
	verdict(t, create(long("é", 300)), "more than 512 bytes")
	// Characters that are not allowed anywhere.
	for _, bad := range ranges("\x00\x1f", "\x7f\u009f", "\u200b\u200f", "\u2028\u202e", "\u2066\u2069", "\ufeff\ufeff") {
		for _, resource := range []string{"a" + bad, bad + "a", "a" + bad + "b", bad} {
			verdict(t, create(resource), unprintable)
		}
	}
	// Characters that are allowed only together with others.
	for _, unseen := range ranges("  ", "\u00a0\u00a0", "\u00ad\u00ad", "\u034f\u034f", "\u061c\u061c", "\u115f\u1160", "\u1680\u1680",
		"\u17b4\u17b5", "\u180b\u180f", "\u2000\u200a", "\u202f\u202f", "\u205f\u2065", "\u206a\u206f", "\u2800\u2800", "\u3000\u3000", "\u3164\u3164", "\ufe00\ufe0f",
		"\uffa0\uffa0", "\ufff0\ufff8", "\U0001bca0\U0001bca3", "\U0001d173\U0001d17a", "\U000e0000\U000e0fff") {
		verdict(t, create(unseen), unprintable)
		verdict(t, create(unseen+" "+unseen), unprintable)
		verdict(t, create("a"+unseen), allowed)
		verdict(t, create(unseen+"a"), allowed)
	}
	// Characters next to those ranges.
	for _, fine := range ranges("!~", "\u00a1\u00ac", "\u2010\u2027", "\u2070\u2071", "\ufefe\ufefe", "\U0001bca4\U0001bca4") {
		verdict(t, create(fine), allowed)
	}
	// A lock from before the rule can still be updated, but its resource is immutable.
	before := lockOf("l", freed())
	before.Spec.Resource = "a\u202eb"
	taken := row{"", admin, before, func(s *status) { s.grant(holder) }, ""}
	verdict(t, clusters[strict]().refusals(t, taken.write()), allowed)
	after := clone(before)
	after.Spec.Resource = "ab"
	verdict(t, clusters[strict]().refusals(t, writes(admin, admission.Update, lockKind, after, before)), "spec.resource is immutable")
}

// Returns the first and last characters of ranges.
func ranges(ends ...string) []string {
	var found []string
	for _, each := range ends {
		for _, end := range each {
			found = append(found, string(end))
		}
	}
	return found
}

func TestRulesOfSessions(t *testing.T) {
	before := sessionOf(holder, map[string]any{"renewals": 2})
	ended := sessionOf(holder, map[string]any{"renewals": 2, "revoked": revocation("Expired", "b")})
	update := func(status map[string]any, of session) []string {
		return clusters[strict]().refusals(t, sessionWrite(admin, sessionOf(holder, status), of))
	}
	verdict(t, update(map[string]any{"renewals": 3}, before), allowed)
	verdict(t, update(map[string]any{"renewals": 1}, before), "status.renewals can never be")
	verdict(t, update(nil, before), "status.renewals can never be")
	verdict(t, update(ended.Status, before), allowed)
	verdict(t, update(ended.Status, ended), allowed)
	final := "status.revoked is final"
	verdict(t, update(before.Status, ended), final)
	verdict(t, update(nil, ended), final)
	verdict(t, update(map[string]any{"renewals": 2, "revoked": revocation("Ended", "b")}, ended), final)
	verdict(t, update(map[string]any{"renewals": 3, "revoked": revocation("Expired", "b")}, ended), "can never be renewed")
	other := clone(before)
	other.Spec["ttlSeconds"] = 30
	verdict(t, clusters[strict]().refusals(t, writes(admin, admission.Update, sessionKind, other, before)), "the spec of a session is immutable")
}

// The API server refuses a CRD whose rules could cost too much. An older API server also refuses expressions
// that it does not know.
func TestDefinitionsAreAcceptedByTheOldestKubernetes(t *testing.T) {
	for name, each := range definitions() {
		internal := &apiextensions.CustomResourceDefinition{}
		crd := each.crd.DeepCopy()
		apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
		check(apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil))
		internal.Status.StoredVersions = []string{internal.Spec.Versions[0].Name}
		if errs := crdvalidation.ValidateCustomResourceDefinition(context.Background(), internal); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
	}
	for _, file := range policyFiles() {
		for _, policy := range readPolicies(file) {
			compile(policy, environment.MustBaseEnvSet(version.MajorMinor(1, 33)), environment.NewExpressions)
		}
	}
}

func fullQueue(size int) []waiter {
	var entries []waiter
	for n := range size {
		entries = append(entries, longest(n))
	}
	return entries
}

// Returns one of many entries, each with the maximum length that the CRD allows.
func longest(n int) waiter {
	digits := func(size int) string {
		text := strings.Repeat("0", size)
		return text[:size-2] + string(rune('0'+n/10)) + string(rune('0'+n%10))
	}
	return waiter{LeaseID: digits(64), OwnerID: strings.Repeat("é", 100) + digits(56), Pod: digits(253), PodUID: digits(64),
		Session: digits(253), SessionTTLSeconds: 3600, QueuedAt: someTime}
}
