package policies

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
)

const (
	namespaceName = "team"
	// A time in the format that agents write, and the token of a row's initial grant.
	someTime  = "2026-01-01T00:00:00.000000Z"
	someToken = 5_000_000
	// The resourceVersion of a row's initial object. The tokens of correct agents are a thousand times as large.
	someVersion = 7_000
)

// A pod whose token is used for writes.
type pod struct{ name, uid string }

var (
	holder   = pod{"holder", "uid-of-holder"}
	first    = pod{"first", "uid-of-first"}
	second   = pod{"second", "uid-of-second"}
	third    = pod{"third", "uid-of-third"}
	stranger = pod{"stranger", "uid-of-stranger"}
)

// The pod's own token, with the rights of the role leasehold-sidecar.
func (p pod) token() who {
	return who{
		name:   "system:serviceaccount:" + namespaceName + ":app",
		groups: []string{"system:serviceaccounts", "system:authenticated"},
		extra: map[string][]string{
			"authentication.kubernetes.io/pod-name": {p.name},
			"authentication.kubernetes.io/pod-uid":  {p.uid},
		},
		verbs: []string{"get", "list", "watch", "create"},
	}
}

// Returns the name of the pod's session, as its agent creates it. Other sessions of the pod have other digits.
func (p pod) session() string { return p.name + "-0123456789ab" }

func (p pod) otherSession() string { return p.name + "-ba9876543210" }

var (
	unbound = func() who {
		token := holder.token()
		token.extra = nil
		return token
	}()
	operatorName = "system:serviceaccount:leasehold-system:leasehold-operator"
	operator     = who{
		name:  operatorName,
		extra: pod{"leasehold-operator-1", "uid-of-operator"}.token().extra,
		verbs: []string{"get", "update", "delete", "force-release"},
	}
	editor   = who{name: "editor", verbs: []string{"get", "create", "update", "patch", "delete"}}
	releaser = who{name: "releaser", verbs: []string{"get", "update", "patch", "force-release"}}
	admin    = who{name: "admin", groups: []string{"system:masters"}, verbs: []string{"get", "create", "update", "patch", "delete", "force-release"}}
)

var (
	lockKind    = schema.GroupVersionKind{Group: "leasehold.dev", Version: "v1alpha1", Kind: "DistributedLock"}
	sessionKind = schema.GroupVersionKind{Group: "leasehold.dev", Version: "v1alpha1", Kind: "LockSession"}
)

type object struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        map[string]any `json:"metadata"`
}

type lock struct {
	object `json:",inline"`
	Spec   lockSpec `json:"spec"`
	Status *status  `json:"status,omitempty"`
}

type lockSpec struct {
	Resource        string   `json:"resource"`
	RetainSeconds   *int     `json:"retainSeconds,omitempty"`
	LongHeldSeconds *int     `json:"longHeldSeconds,omitempty"`
	ReleaseRequest  *request `json:"releaseRequest,omitempty"`
}

type request struct {
	LeaseID string `json:"leaseId,omitempty"`
	Mode    string `json:"mode,omitempty"`
	Reason  string `json:"reason"`
	Actor   string `json:"actor,omitempty"`
}

type status struct {
	Holder *holderRecord `json:"holder,omitempty"`
	Lease  *lease        `json:"lease,omitempty"`
	Token  int64         `json:"token"`
	// Empty while the lock is held without waiters; absent while it is free.
	Waiters     []waiter     `json:"waiters,omitzero"`
	Incidents   []incident   `json:"incidents,omitempty"`
	Completed   []completion `json:"completed,omitempty"`
	Conditions  []condition  `json:"conditions,omitempty"`
	Transitions int64        `json:"transitions"`
}

type holderRecord struct {
	OwnerID           string            `json:"ownerId"`
	Pod               string            `json:"pod"`
	PodUID            string            `json:"podUid"`
	Session           string            `json:"session"`
	SessionTTLSeconds int               `json:"sessionTtlSeconds"`
	Metadata          map[string]string `json:"metadata,omitempty"`
}

type lease struct {
	ID         string `json:"id"`
	AcquiredAt string `json:"acquiredAt"`
	Kept       bool   `json:"kept"`
}

type waiter struct {
	LeaseID           string `json:"leaseId"`
	OwnerID           string `json:"ownerId"`
	Pod               string `json:"pod"`
	PodUID            string `json:"podUid"`
	Session           string `json:"session"`
	SessionTTLSeconds int    `json:"sessionTtlSeconds"`
	QueuedAt          string `json:"queuedAt"`
	Preferred         bool   `json:"preferred,omitempty"`
}

type incident struct {
	At      string `json:"at"`
	Kind    string `json:"kind"`
	LeaseID string `json:"leaseId,omitempty"`
	Token   int64  `json:"token"`
	OwnerID string `json:"ownerId"`
	Pod     string `json:"pod"`
	Actor   string `json:"actor"`
	Reason  string `json:"reason"`
}

type completion struct {
	Key         string `json:"key"`
	CompletedAt string `json:"completedAt"`
	Token       int64  `json:"token"`
	OwnerID     string `json:"ownerId"`
}

type condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
	LastTransitionTime string `json:"lastTransitionTime"`
}

func (p pod) holds() *holderRecord {
	return &holderRecord{OwnerID: p.name, Pod: p.name, PodUID: p.uid, Session: p.session(), SessionTTLSeconds: 15}
}

func (p pod) leaseID() string { return "g-" + p.name[:min(len(p.name), 62)] }

func (p pod) waits() waiter {
	return waiter{LeaseID: p.leaseID(), OwnerID: p.name, Pod: p.name, PodUID: p.uid,
		Session: p.session(), SessionTTLSeconds: 15, QueuedAt: someTime}
}

func (p pod) prefers() waiter {
	entry := p.waits()
	entry.Preferred = true
	return entry
}

// Returns an entry of the same pod with another session and id.
func (p pod) waitsAgain() waiter {
	entry := p.waits()
	entry.LeaseID, entry.Session = "h-"+p.name, p.otherSession()
	return entry
}

// Grants the lock to a pod with the id of its queue entry, and with the token that its agent would write.
func (s *status) grant(to pod) {
	s.Holder = to.holds()
	s.Lease = &lease{ID: to.leaseID(), AcquiredAt: someTime}
	s.Waiters = slices.DeleteFunc(append([]waiter{}, s.Waiters...), func(entry waiter) bool { return entry.Pod == to.name })
	s.Token = max(s.Token+1000, someVersion*1000)
	s.Transitions++
}

func (s *status) free() {
	s.Holder, s.Lease, s.Waiters = nil, nil, nil
}

func (s *status) drop(place int) { s.Waiters = slices.Delete(s.Waiters, place, place+1) }

func (s *status) insert(place int, entry waiter) { s.Waiters = slices.Insert(s.Waiters, place, entry) }

func (s *status) last() *waiter { return &s.Waiters[len(s.Waiters)-1] }

// Returns the incident that `actor` records for the end of a pod's grant.
func ended(kind string, of pod, actor string) incident {
	return incident{At: someTime, Kind: kind, Token: someToken, OwnerID: of.name, Pod: of.name, Actor: actor, Reason: "test"}
}

func (s *status) record(kind string, of pod, actor string) {
	entry := ended(kind, of, actor)
	entry.LeaseID = of.leaseID()
	s.Incidents = append(s.Incidents, entry)
}

func held(by pod, waiting ...pod) *status {
	made := &status{}
	made.grant(by)
	made.Token = someToken
	for _, each := range waiting {
		made.Waiters = append(made.Waiters, each.waits())
	}
	return made
}

// Returns the status of a free lock that was lost once.
func freed() *status {
	return &status{Token: someToken, Transitions: 7, Incidents: []incident{ended("Expired", stranger, "op")}}
}

func asks(leaseID, mode string) *request {
	return &request{LeaseID: leaseID, Mode: mode, Reason: "test", Actor: "admin"}
}

func named(name string) object {
	return object{Metadata: map[string]any{"name": name, "namespace": namespaceName, "uid": "uid-of-" + name,
		"resourceVersion": fmt.Sprint(someVersion)}}
}

func lockOf(resource string, of *status) lock {
	return lock{object: named(strings.ReplaceAll(resource, ":", "-")), Spec: lockSpec{Resource: resource}, Status: of}
}

// The verdict of a row: empty for an allowed write, otherwise words of the refusal.
const allowed = ""

// A status write: its user, the lock, the change, and the verdict.
type row struct {
	what    string
	by      who
	of      lock
	change  func(*status)
	refused string
}

func run(t *testing.T, modes []mode, rows ...row) {
	t.Helper()
	for _, of := range modes {
		for number, each := range rows {
			t.Run(fmt.Sprintf("%s/%d %s", of, number, each.what), func(t *testing.T) {
				verdict(t, clusters[of]().refusals(t, each.write()), each.refused)
			})
		}
	}
}

func (r row) write() write {
	after := clone(r.of)
	if after.Status == nil {
		after.Status = &status{}
	}
	r.change(after.Status)
	return write{by: r.by, operation: admission.Update, kind: lockKind, resource: "distributedlocks",
		subresource: "status", namespace: namespaceName, name: r.of.Metadata["name"].(string),
		object: content(after), old: content(r.of)}
}

// Compares the refusals of a write with the expected verdict.
func verdict(t *testing.T, refusals []string, words string) {
	t.Helper()
	if words == allowed {
		if len(refusals) > 0 {
			t.Fatalf("refused: %q", refusals)
		}
		return
	}
	if len(refusals) == 0 {
		t.Fatalf("allowed; expected a refusal with %q", words)
	}
	if !slices.ContainsFunc(refusals, func(each string) bool { return strings.Contains(each, words) }) {
		t.Fatalf("refused with other words than %q: %q", words, refusals)
	}
}

func content(of any) map[string]any {
	var made map[string]any
	check(json.Unmarshal(must(json.Marshal(of)), &made))
	return integers(made).(map[string]any)
}

// JSON has only one kind of number. The API server's decoder converts whole numbers to integers.
func integers(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, each := range value {
			value[key] = integers(each)
		}
	case []any:
		for i, each := range value {
			value[i] = integers(each)
		}
	case float64:
		return int64(value)
	}
	return value
}

func clone[T any](of T) T {
	var made T
	check(json.Unmarshal(must(json.Marshal(of)), &made))
	return made
}

// Returns a write of a whole object.
func writes(by who, operation admission.Operation, kind schema.GroupVersionKind, object, old any) write {
	made := write{by: by, operation: operation, kind: kind, namespace: namespaceName}
	switch kind {
	case lockKind:
		made.resource = "distributedlocks"
	case sessionKind:
		made.resource = "locksessions"
	}
	for _, each := range []struct {
		from any
		to   *map[string]any
	}{{old, &made.old}, {object, &made.object}} {
		if each.from != nil {
			*each.to = content(each.from)
			made.name = (*each.to)["metadata"].(map[string]any)["name"].(string)
		}
	}
	return made
}

func terminating(w write) write {
	w.of = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}}
	return w
}

func (o object) with(key string, value any) object {
	o.Metadata = maps.Clone(o.Metadata)
	o.Metadata[key] = value
	return o
}

func atVersion(of lock, version int64) lock {
	of.object = of.with("resourceVersion", fmt.Sprint(version))
	return of
}

func long(of string, size int) string { return strings.Repeat(of, size) }
